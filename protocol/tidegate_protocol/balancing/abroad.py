"""Migration to another cluster, head to head: candidates, acceptances, and guests after a head's restart."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from ..parts import Id, Message, Name, Number, Part, Pattern, Subscription, Text, Url
from .sessions import CANDIDATES_MAX, SHARED_PATTERNS_MAX, Candidate, PlannedMove

GUESTS_MAX: Final = 100
"""Clients named in one message to the head they came from."""


class Guest(Part):
    """A client that came from another cluster, and where it is served from now."""

    subscription: Subscription
    edge: Name
    url: Url
    queue: Text
    head: Name
    head_url: Url


class GuestKey(Part):
    subscriber: Name
    number: Number


class GuestList(Message):
    """Told to a head that begins anew: clients of yours that are with us, so that you can send them after their queues.

    Several of them where one does not suffice; `complete` in the last.
    """

    kind: Literal["guest-list"] = "guest-list"
    head: Name
    guests: Annotated[tuple[Guest, ...], Field(max_length=GUESTS_MAX)] = ()
    complete: bool
    here: Annotated[tuple[GuestKey, ...], Field(max_length=GUESTS_MAX)] = ()
    """Guests that you have named, and that have a place here as well: they may never have come to you."""


class GuestsNoted(Message):
    kind: Literal["guests-noted"] = "guests-noted"
    head: Name


class RemoteLoadsRequest(Message):
    """Which of your edges could take load? Asked of the neighbouring heads when a cluster has no room."""

    kind: Literal["remote-loads-request"] = "remote-loads-request"
    session: Id
    head: Name
    patterns: Annotated[tuple[Pattern, ...], Field(max_length=SHARED_PATTERNS_MAX)] = ()


class RemoteLoads(Message):
    kind: Literal["remote-loads"] = "remote-loads"
    session: Id
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=CANDIDATES_MAX)] = ()


class AcceptRequest(Message):
    """Take over a subscription on `edge`; its number is yours to choose. Answered when its routes are live."""

    kind: Literal["accept-request"] = "accept-request"
    migration: Id
    head: Name
    edge: Name
    subscription: Subscription
    marker: Pattern
    load: PlannedMove
    source: Name | None = None
    """The edge it leaves."""


class AcceptReply(Message):
    kind: Literal["accept-reply"] = "accept-reply"
    migration: Id
    edge: Name
    number: Number
    url: Url
    queue: Text
    head_url: Url


class AcceptEnd(Message):
    """How a migration into your cluster ended; answered with migration-ack, repeated until then."""

    kind: Literal["accept-end"] = "accept-end"
    migration: Id
    head: Name
    moved: bool
    edge: Name | None = None
    subscriber: Name | None = None
    pattern: Pattern | None = None
    number: Number | None = None
    """The place it was about, as far as the sender knows: for a receiver that has started anew since."""


AbroadMessage = GuestList | GuestsNoted | RemoteLoadsRequest | RemoteLoads | AcceptRequest | AcceptReply | AcceptEnd
"""The part of the union `messages.ControlMessage` that this module defines."""
