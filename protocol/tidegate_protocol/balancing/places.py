"""Places in doubt: on which edge a subscription lives, and fetching what waits for it on another."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..parts import Id, Message, Micros, Name, Number, Pattern, Text, Url
from .markers import HEADS_MAX


class PlaceRequest(Message):
    """A head that finds a subscription on two edges asks its client which one it uses.

    A head that took over a subscription, and was never told how that ended, asks the head it came from to ask for it.
    """

    kind: Literal["place-request"] = "place-request"
    subscriber: Name
    pattern: Pattern


class PlaceReply(Message):
    """`edge` is None where the client knows no such subscription."""

    kind: Literal["place-reply"] = "place-reply"
    subscriber: Name
    pattern: Pattern
    edge: Name | None = None
    number: Number | None = None
    migration: Id | None = None
    """The migration under way, if there is one."""


class CollectOrder(Message):
    """An edge that was away is back: fetch what waited there for a subscription that lives elsewhere by now.

    The client attaches to `queue`, takes what it has not seen, and reports `stayed` for this migration when the marker
    of `heads` has come through it.
    """

    kind: Literal["collect-order"] = "collect-order"
    migration: Id
    subscriber: Name
    pattern: Pattern
    edge: Name
    number: Number
    url: Url
    queue: Text
    heads: Annotated[tuple[Name, ...], Field(min_length=1, max_length=HEADS_MAX)]
    timeout_us: Micros


PlaceMessage = PlaceRequest | PlaceReply | CollectOrder
"""The part of the union `messages.ControlMessage` that this module defines."""
