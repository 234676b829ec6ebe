"""What an experiment comes to: one object of plain numbers, with the same keys for every policy and backend.

Computed from a recorder after a run and from nothing else. Times are seconds since the start of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from tidegate_protocol.decisions import SessionRequested

from .recorder import DecisionRow, Moved, Recorder
from .scenario import BURST_S, EDGES, EwsOptions, asked_messages, topic_number

BACKLOG_MESSAGES: Final = 2.0
"""A queue in which no more than this waits has no backlog: less is the grain of single messages."""

RESTLESS_S: Final = 5.0
"""If something is late, moved or overdue in the last so many seconds, the run has not settled."""

PUBLISHED_SHARE_MIN: Final = 0.99
"""If less than this of what was asked for was published, it was another, smaller burst that was simulated."""


@dataclass(frozen=True, slots=True)
class MoveRow:
    """One topic's subscribers going from one edge to another."""

    topic: int
    source: str
    target: str
    subscribers: int
    at_s: float


@dataclass(frozen=True, slots=True)
class EwsResult:
    """The outcome of one run of `ews-burst`."""

    policy: str
    threshold: str
    control: str
    burst_factor: float
    random: bool
    seed: int
    duration_s: float
    scale: float
    asked: int
    """How many messages the options ask for."""
    published: int
    """How many were published: fewer where publishers had to wait because a broker took no more."""
    deliveries: int
    late: int
    late_fraction: float
    lost: int
    duplicates: int
    out_of_order: int
    sessions: int
    sessions_in_vain: int
    """Asked for, but nobody could help."""
    sessions_after_burst: int
    unnecessary_sessions: int
    unnecessary_after_burst: int
    migrations: int
    control_messages: int
    control_overhead: float
    """Control messages ÷ all messages, every hop of either counted."""
    placement: dict[str, list[int]]
    """Which topics each edge had when the last of them had registered."""
    first_session_s: float | None
    moves: tuple[MoveRow, ...]
    backlog_cleared_s: float | None
    """When no queue had a backlog any more, after the last time that one had; None if one still has, or none ever
    had."""
    backlogged: bool
    """Whether a queue had a backlog at any time after the burst: which of the two it is."""
    settled_s: float | None
    """When, after the burst, nothing was late, moving or waiting any more; None if that was not reached."""
    late_by_topic: dict[int, int]
    late_after_burst: int
    first_late_s: float | None
    """When the first message was published that came late."""
    first_late_by_topic_s: dict[int, float]
    trace_hash: str
    wall_s: float
    burst_at_s: float = BURST_S
    correlated_burst: bool = False
    insight: bool = False
    """Whether a few topics of a size burst together, and whether the head was told that they would."""
    backend: str = "sim"
    valid: bool = True
    """Whether the numbers are those of the system. On a real machine the load generator or the machine itself may be
    what was slow; then `invalid_because` says so. A simulated run is not valid if publishers could not publish what
    was asked for: its numbers are those of a smaller burst."""
    invalid_because: tuple[str, ...] = ()
    harness: dict[str, float] = field(default_factory=dict)
    """How a live run was measured: lag of the publishers, CPU of the parts, time that the machine was taken away."""

    @property
    def published_share(self) -> float:
        """Of what was asked for."""
        return self.published / self.asked if self.asked else 1.0

    @property
    def description(self) -> str:
        """Everything that was chosen about the run, as a person says it."""
        workload = f"random workload {self.seed}" if self.random else f"the papers' workload (seed {self.seed})"
        parts = [
            f"policy {self.policy}",
            f"{self.threshold} threshold",
            f"{self.control} control",
            workload,
            f"burst × {self.burst_factor:g} at {self.burst_at_s:g} s",
        ]
        if self.correlated_burst:
            parts.append("correlated burst")
        if self.insight:
            parts.append("with insight")
        if self.scale != 1.0:
            parts.append(f"scale {self.scale:g}")
        if self.backend != "sim":
            parts.append(f"on {self.backend}")
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Plain data; a move names where it went `from` and `to`."""
        plain = asdict(self)
        plain["moves"] = [
            {
                "topic": move.topic,
                "from": move.source,
                "to": move.target,
                "subscribers": move.subscribers,
                "at_s": move.at_s,
            }
            for move in self.moves
        ]
        return plain


def sum_up(options: EwsOptions, recorder: Recorder, *, trace_hash: str, wall_s: float) -> EwsResult:
    """The result of a run that has ended."""
    requested = requested_sessions(recorder)
    sessions = started_sessions(recorder)
    after = [row for row in sessions if row.at_s >= options.burst_at_s]
    late = recorder.late.total()
    everything = recorder.data_messages + recorder.control_messages
    cleared = backlog_cleared_s(recorder, options.burst_at_s)
    published = recorder.publications
    # One that is due at the very end may come a rounding error before it.
    asked = max(asked_messages(options), published)
    reasons = _too_little_published(options, asked, published)
    return EwsResult(
        policy=options.policy,
        threshold=str(options.threshold),
        control=options.control,
        burst_factor=options.burst_factor,
        random=options.random,
        seed=options.seed,
        duration_s=options.duration_s,
        scale=options.scale,
        asked=asked,
        published=published,
        deliveries=recorder.deliveries,
        late=late,
        late_fraction=round(late / recorder.deliveries, 6) if recorder.deliveries else 0.0,
        lost=recorder.lost,
        duplicates=recorder.duplicates,
        out_of_order=recorder.out_of_order,
        sessions=len(sessions),
        sessions_in_vain=len(requested) - len(sessions),
        sessions_after_burst=len(after),
        unnecessary_sessions=sum(not is_necessary_session(row) for row in sessions),
        unnecessary_after_burst=sum(not is_necessary_session(row) for row in after),
        migrations=recorder.migrations,
        control_messages=recorder.control_messages,
        control_overhead=round(recorder.control_messages / everything, 6) if everything else 0.0,
        placement=placement(recorder, options.burst_at_s),
        first_session_s=round(sessions[0].at_s, 3) if sessions else None,
        moves=tuple(_move_row(moved) for moved in recorder.moved),
        backlog_cleared_s=cleared,
        backlogged=_backlogged(recorder, options.burst_at_s),
        settled_s=_settled_s(options, recorder, cleared),
        late_by_topic=_by_number(recorder.late),
        late_after_burst=sum(count for second, count in recorder.late_per_s.items() if second >= options.burst_at_s),
        first_late_s=round(min(recorder.first_late_s.values()), 3) if recorder.first_late_s else None,
        first_late_by_topic_s={topic: round(at_s, 3) for topic, at_s in _by_number(recorder.first_late_s).items()},
        trace_hash=trace_hash,
        wall_s=round(wall_s, 2),
        burst_at_s=options.burst_at_s,
        correlated_burst=options.correlated,
        insight=options.insight,
        valid=not reasons,
        invalid_because=reasons,
    )


def _too_little_published(options: EwsOptions, asked: int, published: int) -> tuple[str, ...]:
    """Why a simulated run is not what was asked for. A live one has reasons of its own: there, a publisher that has to
    wait lags behind.
    """
    if published >= PUBLISHED_SHARE_MIN * asked:
        return ()
    return (
        f"{published / asked:.1%} of the messages asked for were published (at least {PUBLISHED_SHARE_MIN:.0%}): the "
        f"head's link was full and publishers had to wait, so the burst was smaller than × {options.burst_factor:g}; "
        "use a lower burst factor",
    )


def requested_sessions(recorder: Recorder) -> list[DecisionRow]:
    """The decisions with which edges asked for a session, each session once."""
    found: dict[str, DecisionRow] = {}
    for row in recorder.decisions:
        if isinstance(row.decision, SessionRequested):
            found.setdefault(row.decision.session, row)
    return list(found.values())


def started_sessions(recorder: Recorder) -> list[DecisionRow]:
    """Those of them that came to be: somebody could take load, and somebody was to move."""
    return [row for row in requested_sessions(recorder) if row.decision.session in recorder.planned]


def is_necessary_session(row: DecisionRow) -> bool:
    """Whether a deadline was in danger, or a static high threshold passed, when the session was asked for."""
    return isinstance(row.decision, SessionRequested) and row.decision.necessary


def placement(recorder: Recorder, burst_at_s: float = BURST_S) -> dict[str, list[int]]:
    """Which topics each edge holds in its last sample up to the burst."""
    held: dict[str, list[int]] = {edge: [] for edge in EDGES}
    for row in recorder.samples:
        if row.at_s <= burst_at_s:
            held[row.edge] = sorted(topic_number(topic) for topic in row.topics)
    return held


def backlog_cleared_s(recorder: Recorder, burst_at_s: float = BURST_S) -> float | None:
    """When the last edge that had a backlog after the burst was first seen without one for good."""
    cleared: dict[str, float | None] = {}
    for row in recorder.samples:
        if row.at_s < burst_at_s:
            continue
        if row.backlogged(BACKLOG_MESSAGES):
            cleared[row.edge] = None
        elif row.edge in cleared and cleared[row.edge] is None:
            cleared[row.edge] = row.at_s
    times = list(cleared.values())
    known = [at_s for at_s in times if at_s is not None]
    return round(max(known), 3) if known and len(known) == len(times) else None


def _backlogged(recorder: Recorder, burst_at_s: float) -> bool:
    return any(row.backlogged(BACKLOG_MESSAGES) for row in recorder.samples if row.at_s >= burst_at_s)


def _settled_s(options: EwsOptions, recorder: Recorder, cleared_s: float | None) -> float | None:
    """The end of the last of: late deliveries, moves, backlogs. None where one of them lasts until the end."""
    still_waiting = cleared_s is None and any(
        row.backlogged(BACKLOG_MESSAGES) for row in recorder.samples if row.at_s > options.duration_s - RESTLESS_S
    )
    burst_at_s = options.burst_at_s
    ends = [burst_at_s, recorder.last_late_s, cleared_s or burst_at_s, *(moved.ended_s for moved in recorder.moved)]
    if still_waiting or max(ends) > options.duration_s - RESTLESS_S:
        return None
    return round(max(ends), 3)


def _move_row(moved: Moved) -> MoveRow:
    return MoveRow(topic_number(moved.topic), moved.source, moved.target, moved.subscribers, round(moved.at_s, 3))


_Value = TypeVar("_Value", int, float)


def _by_number(values: Mapping[str, _Value]) -> dict[int, _Value]:
    """By the numbers of the topics, in their order."""
    return dict(sorted((topic_number(topic), value) for topic, value in values.items()))
