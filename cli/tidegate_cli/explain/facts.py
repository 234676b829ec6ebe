"""The course of one session, taken out of the decisions about it: who decided what, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.operations import ExplainReply, Told

_MOVED: Final = re.compile(r"^(?P<subscriber>\S+) (?P<pattern>\S+) from (?P<source>\S+) to (?P<target>\S+)$")
_DEPTH: Final = re.compile(r"^queue-depth\.(?P<queue>.+)\.value$")
DRAIN_PREFIX: Final = "drain~"


@dataclass(slots=True)
class Moved:
    """The subscribers of one pattern that went, or were to go, from one broker to another."""

    pattern: str
    source: str
    target: str
    moved: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Who did not, and why."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The queue that a session was started for, with what its threshold was worked out from."""

    queue: str
    depth: float
    threshold: float
    enqueue_per_s: float | None
    drain_per_s: float | None
    deadline_s: float | None
    allowed_wait_s: float | None


@dataclass(frozen=True, slots=True)
class Utilization:
    """One metric of one broker: before the session, as predicted for after it, as measured after it."""

    broker: str
    metric: str
    before: float | None
    predicted: float | None
    measured: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """One session."""

    id: str
    story: tuple[Told, ...]
    """What belongs to it, oldest first."""
    around: tuple[Told, ...]
    """How load states changed meanwhile and afterwards."""

    @staticmethod
    def of(reply: ExplainReply) -> Course:
        story = tuple(told for told in reply.decisions if told.session == reply.about)
        around = tuple(told for told in reply.decisions if told.session != reply.about)
        return Course(reply.about, story, around)

    def last(self, *kinds: str) -> Told | None:
        return next((told for told in reversed(self.story) if told.decision in kinds), None)

    def first(self, *kinds: str) -> Told | None:
        return next((told for told in self.story if told.decision in kinds), None)

    def all(self, *kinds: str) -> list[Told]:
        return [told for told in self.story if told.decision in kinds]

    # Steps

    @property
    def requested(self) -> Told | None:
        return self.first("session-requested")

    @property
    def planned(self) -> Told | None:
        return self.last("session-planned")

    @property
    def source(self) -> str:
        told = self.requested or self.first("session-candidates", "session-refused", "publisher-session")
        if told is not None:
            return told.subject
        return self.id.removeprefix(DRAIN_PREFIX)

    @property
    def waiting(self) -> Waiting | None:
        """None where something else than a queue was the reason."""
        return waiting_in(self.requested)

    @property
    def moves(self) -> list[Moved]:
        return moves_in(self.story)

    @property
    def not_asked(self) -> dict[str, str]:
        """Brokers that could have helped and were not asked, or did not get into the choice, and why."""
        rejected: dict[str, str] = {}
        for told in self.all("session-requested", "session-candidates", "remote-candidates"):
            rejected |= told.rejected
        return rejected

    @property
    def alternatives(self) -> dict[str, str]:
        """What was thought of and not done, and why."""
        rejected: dict[str, str] = {}
        for told in self.all(
            "session-planned", "session-empty", "session-remote", "session-last-resort", "publisher-plan"
        ):
            rejected |= told.rejected
        return rejected

    @property
    def utilizations(self) -> list[Utilization]:
        """Before, predicted, measured: of the source and of whoever took load."""
        planned = self.planned
        measured = {told.broker: told for told in self.all("stabilized")}
        found: dict[tuple[str, str], dict[str, float]] = {}
        for name, value in (planned.numbers if planned is not None else {}).items():
            side, _, rest = name.rpartition(".")
            side, _, metric = side.rpartition(".")
            broker = self.source if side == "source" else side.removeprefix("target.")
            if rest in ("before", "after") and (side == "source" or side.startswith("target.")):
                found.setdefault((broker, metric), {})[rest] = value
        for broker, told in measured.items():
            for name, value in told.numbers.items():
                metric, _, rest = name.rpartition(".")
                if rest == "measured" and metric:
                    found.setdefault((broker, metric), {})[rest] = value
        return [
            Utilization(broker, metric, values.get("before"), values.get("after"), values.get("measured"))
            for (broker, metric), values in found.items()
        ]

    def utilization(self, broker: str, metric: str) -> Utilization | None:
        return next((u for u in self.utilizations if (u.broker, u.metric) == (broker, metric)), None)

    @property
    def asked_again(self) -> Told | None:
        """The next session of the same source, if the danger was not over by then."""
        requested = self.requested
        if requested is None:
            return None
        again = [t for t in self.around if t.decision == "session-requested" and t.broker == self.source]
        return next((told for told in again if told.ago_us < requested.ago_us), None)

    @property
    def relieved_us(self) -> int | None:
        """How long ago the source left OVERLOAD after the session began, for good as far as the story goes."""
        requested = self.requested
        if requested is None:
            return None
        states = [t for t in self.around if t.decision == "load-state" and t.broker == self.source]
        after = [told for told in states if told.ago_us < requested.ago_us]
        left: int | None = None
        for told in after:
            if told.reason.startswith("OVERLOAD"):
                left = None
            elif left is None:
                left = told.ago_us
        return left


def waiting_in(told: Told | None) -> Waiting | None:
    """The worst queue among the numbers of a decision."""
    if told is None:
        return None
    for name, depth in told.numbers.items():
        match = _DEPTH.match(name)
        if match is None:
            continue
        of = f"queue-depth.{match['queue']}"
        return Waiting(
            match["queue"],
            depth,
            told.numbers.get(f"{of}.threshold", 0.0),
            told.numbers.get(f"{of}.enqueue_per_s"),
            told.numbers.get(f"{of}.drain_per_s"),
            told.numbers.get(f"{of}.deadline_s"),
            told.numbers.get(f"{of}.allowed_wait_s"),
        )
    return None


def moves_in(decisions: Iterable[Told]) -> list[Moved]:
    """Migrations, those of one pattern between the same brokers together."""
    found: dict[tuple[str, str, str], Moved] = {}
    for told in decisions:
        match = _MOVED.match(told.subject)
        if match is None or told.decision not in ("migration-ended", "migration-failed"):
            continue
        key = (match["pattern"], match["source"], match["target"])
        group = found.setdefault(key, Moved(*key))
        if told.decision == "migration-ended":
            group.moved.append(match["subscriber"])
        else:
            group.failed[match["subscriber"]] = told.reason
    return list(found.values())
