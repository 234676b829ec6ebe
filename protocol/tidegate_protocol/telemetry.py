"""Telemetry records: what brokers write to the stream of their head, one kind and one typed model for each.

A record is JSON, `{"version": 1, "kind": "...", "time_us": …, "cluster": "...", "broker": "...", …}`, and one message
of the stream: its offset is its identity, so that a reader that keeps its offset neither misses nor repeats one. The
kind stands in the message's `type` property and routing key too: a reader picks kinds without looking into bodies.
(RabbitMQ itself keeps a stream's messages in chunks; records packed together would save little and cost that rule.)

Invariants:

- `time_us` is the wall clock of the broker that wrote the record, microseconds since 1970; durations are measured by
  one clock, and clocks of two machines are never compared;
- rates are per second, utilizations shares of 1 (of what is *offered*: an overrun uplink is above 1), sizes bytes on
  the wire unless a field says otherwise; what is not known is left out, and read as None;
- every list, map and text is bounded, and so is a record (`RECORD_BYTES_MAX`);
- readers ignore fields they don't know, so that a newer broker may add some; a new meaning of an old field takes a new
  version. `decode` refuses all else with a reason from a fixed set, and names the field.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, TypeAdapter

from .decisions import AnyDecision, UnknownDecision
from .operations import Role
from .parts import LoadState, Micros, Name, Part, Pattern, PublisherId, Rate, Text, Topic, read_json
from .reports import Count, MigrationGap, Positive, SubscriptionDigest

VERSION: Final = 1
RECORD_BYTES_MAX: Final = 1 << 17
QUEUES_MAX: Final = 20
"""Output queues in one `thresholds` record: the queues nearest to their thresholds, or furthest past them."""
EFFECTS_MAX: Final = 512
TOPICS_MAX: Final = 256
"""Topics of one publisher in one `publisher-rates` record."""
SHORT_LENGTH_MAX: Final = 300

Share = Annotated[float, Field(ge=0)]
Short = Annotated[str, Field(max_length=SHORT_LENGTH_MAX)]
SessionId = Annotated[str, Field(max_length=120)]
Kind = Annotated[str, Field(min_length=1, max_length=120)]


class Record(Part):
    """What all records have. `broker` is the one that wrote it."""

    version: Literal[1] = 1
    time_us: Micros
    cluster: Name
    broker: Name


# Load.


class LoadSample(Record):
    """The load of a broker at one moment. A utilization is left out where the capacity is not known."""

    kind: Literal["load"] = "load"
    role: Role
    state: LoadState
    uplink: Share | None = None
    downlink: Share | None = None
    matching: Share | None = None
    bytes_in_per_s: Rate
    bytes_offered_per_s: Rate
    """What the uplink is asked to carry."""
    bytes_used_per_s: Rate | None = None
    """What it carried: acknowledged by subscribers. Edges only."""
    messages_in_per_s: Rate
    uplink_bytes_per_s: Rate | None = None
    downlink_bytes_per_s: Rate | None = None
    matching_per_s: Rate | None = None
    """The capacities: configured, or learned."""
    subscriptions: Count = 0
    waiting: Rate = 0.0
    """Messages that wait in all output queues together."""
    queues_past: Count = 0
    """Output queues that hold more than they may."""
    publishers: Count = 0


class QueueThreshold(Part):
    """One output queue: what waits in it against what may, and what that was worked out from."""

    queue: Short
    subscriber: Name
    pattern: Pattern
    deadline_us: Positive
    allowed_wait_us: int
    """t_e: what of the deadline is left for waiting. Not above 0: infeasible."""
    depth: Rate
    threshold: float | None = None
    """How many may wait; left out where the deadline is infeasible."""
    enqueue_per_s: Rate
    drain_per_s: Rate
    enqueue_predicted_per_s: Rate
    drain_predicted_per_s: Rate
    migrating: bool = False
    away: bool = False
    slow: bool = False


class Thresholds(Record):
    """The output queues of an edge that are nearest to their thresholds, worst first."""

    kind: Literal["thresholds"] = "thresholds"
    session_us: Micros
    """t_LB: how long a session takes, as learned so far."""
    subscriptions: Count
    """All there are."""
    queues: Annotated[tuple[QueueThreshold, ...], Field(max_length=QUEUES_MAX)] = ()


class StateChange(Record):
    """A broker's load state is another one than before; the first one after its start has no `before`."""

    kind: Literal["state"] = "state"
    role: Role
    state: LoadState
    before: LoadState | None = None
    reason: Text = ""


# Decisions, sessions, and what came of them.


class DecisionMade(Record):
    """One decision of an agent. The fields that are read most often stand beside the record itself."""

    kind: Literal["decision"] = "decision"
    decision: Kind
    """E.g. `session-planned`, `placement`, `slow-subscriber`."""
    reason: Short = ""
    """Why, or with which outcome: a member of an enum of `tidegate_protocol.decisions`."""
    session: SessionId = ""
    record: AnyDecision = UnknownDecision()
    """All of it; in the lake as JSON."""


class Moved(StrEnum):
    """What kind of client is moved."""

    SUBSCRIBERS = "subscribers"
    PUBLISHERS = "publishers"


class SessionBegan(Record):
    """A broker asks for load to be moved away from it, or an operator has it emptied. `broker` is the source, or the
    head that drains it.
    """

    kind: Literal["session-began"] = "session-began"
    session: SessionId
    source: Name
    clients: Moved
    policy: Short
    reason: Short = ""
    necessary: bool | None = None
    """Whether a deadline was predicted to be missed, or a static threshold passed."""
    remote: bool | None = None
    """Whether other clusters were asked from the beginning."""


class SessionEnded(Record):
    """The same session is over. `moved` and `failed` count clients."""

    kind: Literal["session-ended"] = "session-ended"
    session: SessionId
    source: Name
    clients: Moved
    reason: Short = ""
    moved: Count = 0
    failed: Count = 0
    duration_us: Micros | None = None
    """From its beginning; left out where that was not seen."""


class Effect(Part):
    """One metric of one broker, as it was when the session was planned and as it is predicted to become."""

    broker: Name
    metric: Kind
    before: Share | None = None
    after: Share


class Prediction(Record):
    """What a session is predicted to do to its source and its targets; joined with `outcome` by session and broker."""

    kind: Literal["prediction"] = "prediction"
    session: SessionId
    source: Name
    clients: Moved
    moves: Count
    drain_factor: Share | None = None
    """How many times as fast the queues that stay on the source are predicted to be drained."""
    effects: Annotated[tuple[Effect, ...], Field(max_length=EFFECTS_MAX)] = ()


class Measured(Part):
    """One metric after a session, and on the source what it was predicted to be."""

    metric: Kind
    measured: Share
    predicted: Share | None = None


class Outcome(Record):
    """What a session really did to `broker`, its source or one of its targets, once the moved load shows."""

    kind: Literal["outcome"] = "outcome"
    session: SessionId
    reason: Short = ""
    after_us: Micros
    """How long after the end of the session."""
    metrics: Annotated[tuple[Measured, ...], Field(max_length=EFFECTS_MAX)] = ()
    bytes_offered_per_s: Rate
    bytes_offered_predicted_per_s: Rate | None = None
    queues_past: Count | None = None
    """Output queues that hold more than they may, then."""


class Migration(Record):
    """A client was moved from one broker to another, or stayed where it was."""

    kind: Literal["migration"] = "migration"
    session: SessionId
    """A session, or the migration itself where it belongs to none."""
    migration: SessionId = ""
    """Joins it with `migration-gap`; empty where the client had not been told to move yet, and for publishers."""
    clients: Moved
    client: Short
    pattern: Pattern | None = None
    source: Name
    target: Name
    moved: bool
    reason: Short = ""
    duration_us: Micros | None = None
    """From the order to the client until its end."""


class MigrationGapTold(MigrationGap, Record):
    """The pause in delivery that a subscriber noticed around a move, from its own report."""

    kind: Literal["migration-gap"] = "migration-gap"
    subscriber: Name


# What clients report.


class LatencyDigest(SubscriptionDigest, Record):
    """What one subscription has seen in a period, from its subscriber's report.

    `subscriber`, `run`, `number` and `pattern` together are unique, should a report be taken twice around a restart of
    the head.
    """

    kind: Literal["latency"] = "latency"
    subscriber: Name
    run: Count
    number: Positive


class TopicRate(Part):
    """What one publisher sent on one topic in a period; `bytes` counts the bodies.

    With n gaps between successive publications, their squared coefficient of variation is n·Σg² ÷ (Σg)² − 1.
    """

    topic: Topic
    messages: Count
    bytes: Count
    gaps: Count = 0
    gap_s_sum: Rate = 0.0
    gap_s2_sum: Rate = 0.0


class PublisherRates(Record):
    """What one publisher sent in a period, topic by topic, from its reports."""

    kind: Literal["publisher-rates"] = "publisher-rates"
    publisher: PublisherId
    elapsed_us: Positive
    """The whole period, by the head's clock."""
    active_us: Micros
    """The part of it covered by the publisher's reports; it makes none while it publishes nothing."""
    round_trip_us: Micros = 0
    """From publishing until RabbitMQ's confirm, by the last report; 0 where it is not known."""
    topics: Annotated[tuple[TopicRate, ...], Field(max_length=TOPICS_MAX)] = ()


class WriterStatus(Record):
    """How complete this telemetry is: what its writer has written and lost since the broker's process started."""

    kind: Literal["writer"] = "writer"
    run: Count
    """Another number in every run of the broker's process; later runs have larger ones."""
    written: Count
    dropped: Count


TelemetryRecord = Annotated[
    LoadSample
    | Thresholds
    | StateChange
    | DecisionMade
    | SessionBegan
    | SessionEnded
    | Prediction
    | Outcome
    | Migration
    | MigrationGapTold
    | LatencyDigest
    | PublisherRates
    | WriterStatus,
    Field(discriminator="kind"),
]

RECORD_CLASSES: Final[tuple[type[Record], ...]] = get_args(get_args(TelemetryRecord)[0])
KINDS: Final = tuple(str(each.model_fields["kind"].default) for each in RECORD_CLASSES)

_ADAPTER: Final[TypeAdapter[TelemetryRecord]] = TypeAdapter(TelemetryRecord)


def encode(record: TelemetryRecord) -> bytes:
    """The body of a stream message: compact JSON with `None` fields left out."""
    return record.model_dump_json(exclude_none=True).encode()


def decode(body: bytes) -> TelemetryRecord:
    """Read a record; raise `MalformedMessage` with a reason from a bounded set, and the field in its detail."""
    return read_json(_ADAPTER, body, RECORD_BYTES_MAX, "record", "version")
