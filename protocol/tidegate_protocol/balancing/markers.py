"""Markers of a migration: bound to the old queue, and published by every head whose messages may be under way."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from ..parts import Id, Message, Name, Number, Pattern, Topic

HEADS_MAX: Final = 256


class MarkerBind(Message):
    """Have the markers of a migration reach the old queue too."""

    kind: Literal["marker-bind"] = "marker-bind"
    subscriber: Name
    number: Number
    key: Pattern


class MarkerReady(Message):
    kind: Literal["marker-bound"] = "marker-bound"
    subscriber: Name
    number: Number
    key: Pattern


class MarkerRequest(Message):
    """Publish a marker of your own for this migration, and pass the request on, away from the sender."""

    kind: Literal["marker-request"] = "marker-request"
    migration: Id
    head: Name
    """The sender."""
    key: Topic
    """What every marker of this migration starts with; a head adds its name as the last word."""


class MarkerSent(Message):
    """The heads that have published their markers: the sender and the heads behind it."""

    kind: Literal["marker-sent"] = "marker-sent"
    migration: Id
    heads: Annotated[tuple[Name, ...], Field(max_length=HEADS_MAX)]


MarkerMessage = MarkerBind | MarkerReady | MarkerRequest | MarkerSent
"""The part of the union `messages.ControlMessage` that this module defines."""
