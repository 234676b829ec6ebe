"""Messages that a link could not carry: what is known of each, and what operators ask about them.

    operator → head   quarantine-request   list them, show one, replay some, purge some

A head sets a message aside where the RabbitMQ at the far end of a link refuses it and takes others. Its record says why
and where it came from. `account` is the only part of the origin that RabbitMQ has checked, and is empty where the
publisher did not name it; `publisher` is what the message says of itself.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from .decisions import SetAsideReason
from .parts import INTEGER_MAX, Message, Micros, Name, Part, Text

ENTRIES_TOLD_MAX: Final = 200
"""Messages in one answer."""
IDS_MAX: Final = 100
"""Messages named in one request."""
EXCERPT_BYTES_MAX: Final = 4_096
"""Of the body of a message that is shown."""
HEADERS_TOLD_MAX: Final = 64

EntryId = Annotated[str, Field(min_length=1, max_length=64, pattern="^[a-z0-9-]+$")]


class SetAside(Part):
    """One message in a head's quarantine."""

    id: EntryId
    target: Name
    """The broker that the link leads to."""
    reason: SetAsideReason
    detail: Text = ""
    """What RabbitMQ said."""
    account: Text = ""
    publisher: Text = ""
    topic: Text = ""
    size_bytes: Annotated[int, Field(ge=0, le=INTEGER_MAX)] = 0
    """Of its body."""
    at_us: Micros = 0
    """When, in microseconds since 1970, by the head's clock."""
    whole: bool = True
    """Whether everything was kept, so that it can be replayed."""


class Verb(StrEnum):
    """What an operator wants of the messages in quarantine."""

    LIST = "list"
    SHOW = "show"
    REPLAY = "replay"
    PURGE = "purge"


class QuarantineRequest(Message):
    """Which messages: those of `ids`, else those of `target` and `account`, else all."""

    kind: Literal["quarantine-request"] = "quarantine-request"
    verb: Verb
    ids: Annotated[tuple[EntryId, ...], Field(max_length=IDS_MAX)] = ()
    target: Text = ""
    account: Text = ""


class Shown(Part):
    """More of one message."""

    properties: dict[str, Text] = Field(default_factory=dict)
    headers: dict[str, Text] = Field(default_factory=dict)
    body: Annotated[str, Field(max_length=2 * EXCERPT_BYTES_MAX)] = ""
    """Its beginning, in base64."""


class QuarantineReply(Message):
    kind: Literal["quarantine-reply"] = "quarantine-reply"
    verb: Verb
    total: int
    """Messages in quarantine after it was done."""
    chosen: int = 0
    """How many were asked for, also where not all of them are told."""
    done: int = 0
    """How many were replayed or purged."""
    entries: Annotated[tuple[SetAside, ...], Field(max_length=ENTRIES_TOLD_MAX)] = ()
    """The ones asked for, oldest first. Replaying: the ones that were refused again, with the new reason."""
    shown: Shown | None = None


QuarantineMessage = QuarantineRequest | QuarantineReply
"""The part of the union `messages.ControlMessage` that this module defines."""

_ADAPTER: Final = TypeAdapter(SetAside)


def encode_entry(entry: SetAside) -> bytes:
    """The record as it is kept with its message."""
    return entry.model_dump_json().encode()


def decode_entry(data: bytes) -> SetAside | None:
    """The record that `encode_entry` wrote; None for anything else."""
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError:
        return None
