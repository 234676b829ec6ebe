"""What control messages are made of: checked field types, and the parts that several messages share.

Invariant: a part is frozen and ignores fields it does not know. This module knows no message; the messages are in
`messages`, `balancing`, `operations`, `reports` and `insight`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import MalformedMessage
from .ids import check_name, check_publisher_id
from .topics import TOPIC_BYTES_MAX, check_pattern, check_topic

Model = TypeVar("Model")

VERSION: Final = 1
NAMES_REMEMBERED_MAX: Final = 4_096
"""Names found to be good: nearly every message holds some, and there are few different ones."""
ALARMS_MAX: Final = 16
"""Alarms of one RabbitMQ that are told; there are three kinds."""
CONTROL_BYTES_MAX: Final = 1 << 20
REGISTRY_PAGE_MAX: Final = 500
ROUTES_PER_UPDATE_MAX: Final = 1_500
TOPICS_PER_PUBLISHER_MAX: Final = 256
DEADLINE_US_MAX: Final = 24 * 3600 * 1_000_000
DETAIL_LENGTH_MAX: Final = 300
INTEGER_MAX: Final = (1 << 63) - 1
"""Whole numbers: what others that read them have room for. Any such number has a float close to it."""
RATE_MAX: Final = 1e30
"""Far beyond any rate, and so small that no sum or product of some is infinite."""
PERIOD_S_MAX: Final = 24 * 3600.0
"""Of signs of life and reports: a broker that names a longer one would be believed for ever."""


@lru_cache(maxsize=NAMES_REMEMBERED_MAX)
def _name(value: str) -> str:
    return check_name(value)


Name = Annotated[str, AfterValidator(_name)]
Pattern = Annotated[str, AfterValidator(check_pattern)]
HeldPattern = Annotated[str, Field(min_length=1, max_length=TOPIC_BYTES_MAX)]
"""A pattern that another broker has bound, which need not be one that this version would bind."""
Topic = Annotated[str, AfterValidator(check_topic)]
PublisherId = Annotated[str, AfterValidator(check_publisher_id)]
Text = Annotated[str, Field(max_length=1_000)]
Id = Annotated[str, Field(min_length=1, max_length=120)]
"""Of a session, a migration or a publisher's move."""
Url = Annotated[str, Field(min_length=1, max_length=500)]
DeadlineUs = Annotated[int, Field(gt=0, le=DEADLINE_US_MAX)]
Number = Annotated[int, Field(ge=0, le=1_000_000)]
Rate = Annotated[float, Field(ge=0, le=RATE_MAX)]
Value = Annotated[float, Field(ge=-RATE_MAX, le=RATE_MAX)]
Micros = Annotated[int, Field(ge=0, le=INTEGER_MAX)]
Period = Annotated[float, Field(gt=0, le=PERIOD_S_MAX)]


class Part(BaseModel):
    # JSON has no infinity: it would be written as null and refused by the receiver, so the sender must not make it.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Message(Part):
    v: Literal[1] = 1


class Capacity(Part):
    """What a broker can carry; None where it is not configured."""

    uplink_bytes_per_s: Annotated[float, Field(gt=0, le=RATE_MAX)] | None = None
    downlink_bytes_per_s: Annotated[float, Field(gt=0, le=RATE_MAX)] | None = None
    matching_per_s: Annotated[float, Field(gt=0, le=RATE_MAX)] | None = None


class Subscription(Part):
    """One subscription as an edge keeps it: who, what, how fast, how long it waits for an absent subscriber."""

    subscriber: Name
    number: Number
    pattern: Pattern
    deadline_us: DeadlineUs
    expires_s: Annotated[int, Field(gt=0, le=30 * 24 * 3600)]
    origin: Name | None = None
    """The head it was moved here from, where that is another cluster's. Kept with the queue: see `GuestList`."""
    origin_edge: Name | None = None
    """The edge it was to leave for this, and its number there: a client that is still served from there never came."""
    origin_number: Number | None = None


class RefusalReason(StrEnum):
    """Why a request was not granted. Bounded, because it labels a metric."""

    NO_EDGE = "no-edge"
    NOT_READY = "not-ready"
    UNKNOWN = "unknown"
    CONFLICT = "conflict"
    LIMIT = "limit"
    INVALID = "invalid"
    FAILED = "failed"
    NOT_ALLOWED = "not-allowed"
    """No rule of the account allows it."""


class Metric(StrEnum):
    """What of a broker's load is watched. The order is that in which overloads are named."""

    QUEUE_DEPTH = "queue-depth"
    UPLINK = "uplink"
    DOWNLINK = "downlink"
    MATCHING = "matching"


class Passing(StrEnum):
    """Whether links pass on the accounts of publishers. A broker of an earlier version does not say so: they do not."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """It is being tried out, or somebody has not said so yet. What is None would be left out of a message."""

    @classmethod
    def of(cls, known: bool | None) -> Passing:
        if known is None:
            return cls.UNKNOWN
        return cls.YES if known else cls.NO

    @property
    def known(self) -> bool | None:
        return None if self is Passing.UNKNOWN else self is Passing.YES


class LoadState(StrEnum):
    """How loaded a broker is, and N/A for one that takes no part."""

    LOW = "LOW"
    HIGH = "HIGH"
    OVERLOAD = "OVERLOAD"
    NOT_AVAILABLE = "N/A"


def read_json(adapter: TypeAdapter[Model], body: bytes, bytes_max: int, what: str, version: str) -> Model:
    """Read a `what` of at most `bytes_max`; raise `MalformedMessage` with a reason from a bounded set."""
    if len(body) > bytes_max:
        raise MalformedMessage("too-large", f"{len(body)} bytes, at most {bytes_max}")
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        raise _malformed(error, what, version) from None


def _malformed(error: ValidationError, what: str, version: str) -> MalformedMessage:
    """What is wrong with the bytes of a `what`, whose version stands in the field `version`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    # Cut, because it goes into the text of a refusal, and pydantic names every kind there is.
    detail = f"{where or what}: {first['msg']}"[:DETAIL_LENGTH_MAX]
    if first["type"] == "json_invalid":
        return MalformedMessage("not-json", detail)
    if first["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return MalformedMessage("unknown-kind", detail)
    is_version = bool(first["loc"]) and first["loc"][-1] == version
    return MalformedMessage("unknown-version" if is_version else "invalid-field", detail)
