"""The course of one session, taken out of the decisions about it: who decided what, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidegate_protocol.decisions import (
    Danger,
    Decision,
    LoadStateChanged,
    MigrationEnded,
    PublisherPlan,
    PublisherSession,
    Rejected,
    RemotesAsked,
    SessionCandidates,
    SessionPlanned,
    SessionRefused,
    SessionRequested,
    SessionWidened,
    Stabilized,
)
from tidegate_protocol.names import DRAIN_PREFIX
from tidegate_protocol.operations import ExplainReply, Told
from tidegate_protocol.parts import LoadState, Metric
from tidegate_protocol.rendering import why

Kind = TypeVar("Kind", bound=Decision)


@dataclass(frozen=True, slots=True)
class Step(Generic[Kind]):
    """One decision of a known kind, who made it and how long ago."""

    broker: str
    ago_us: int
    decision: Kind


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

    def all(self, kind: type[Kind]) -> list[Step[Kind]]:
        return steps(self.story, kind)

    def first(self, kind: type[Kind]) -> Step[Kind] | None:
        return next(iter(self.all(kind)), None)

    def last(self, kind: type[Kind]) -> Step[Kind] | None:
        return next(reversed(self.all(kind)), None)

    # Steps

    @property
    def requested(self) -> Step[SessionRequested] | None:
        return self.first(SessionRequested)

    @property
    def planned(self) -> SessionPlanned | None:
        """The plan that moves somebody."""
        return next((step.decision for step in reversed(self.all(SessionPlanned)) if step.decision.moves), None)

    @property
    def empty(self) -> SessionPlanned | None:
        """The last plan that moves nobody."""
        return next((step.decision for step in reversed(self.all(SessionPlanned)) if not step.decision.moves), None)

    @property
    def source(self) -> str:
        for told in self.story:
            if isinstance(told.record, SessionRequested | SessionCandidates | SessionRefused):
                return told.record.source
            if isinstance(told.record, PublisherSession):
                return told.record.head
        return self.id.removeprefix(DRAIN_PREFIX)

    @property
    def danger(self) -> Danger | None:
        """None where something else than a queue was the reason."""
        requested = self.requested
        return None if requested is None else requested.decision.danger

    @property
    def moves(self) -> list[Moved]:
        return moves_in(self.story)

    @property
    def not_asked(self) -> list[Rejected]:
        """Brokers that could have helped and were not asked, or did not get into the choice, and why: the last word."""
        found: dict[str, Rejected] = {}
        for told in self.story:
            if isinstance(told.record, SessionRequested | SessionCandidates | RemotesAsked):
                found |= {one.name: one for one in told.record.rejected}
        return list(found.values())

    @property
    def alternatives(self) -> list[Rejected]:
        """What was thought of and not done, and why."""
        found: dict[tuple[str, str, bool], Rejected] = {}
        for told in self.story:
            if isinstance(told.record, SessionPlanned | SessionWidened | PublisherPlan):
                found |= {(one.name, one.target, one.part): one for one in told.record.rejected}
        known = {one.name for one in self.not_asked}
        return [one for one in found.values() if one.target or one.name not in known]

    @property
    def utilizations(self) -> list[Utilization]:
        """Before, predicted, measured: of the source and of whoever took load."""
        planned = self.planned
        effects = {(one.broker, one.metric): one for one in (planned.effects if planned is not None else ())}
        measured = {
            (step.broker, one.metric): one.measured for step in self.all(Stabilized) for one in step.decision.metrics
        }
        return [
            Utilization(
                broker,
                metric,
                effects[broker, metric].before if (broker, metric) in effects else None,
                effects[broker, metric].after if (broker, metric) in effects else None,
                measured.get((broker, metric)),
            )
            for broker, metric in dict.fromkeys([*effects, *measured])
        ]

    def uplink(self, broker: str) -> Utilization | None:
        return next((u for u in self.utilizations if (u.broker, u.metric) == (broker, Metric.UPLINK)), None)

    @property
    def asked_again(self) -> Told | None:
        """The next session of the same source, if the danger was not over by then."""
        requested = self.requested
        if requested is None:
            return None
        again = [t for t in self.around if isinstance(t.record, SessionRequested) and t.broker == self.source]
        return next((told for told in again if told.ago_us < requested.ago_us), None)

    @property
    def relieved_us(self) -> int | None:
        """How long ago the source left OVERLOAD after the session began, for good as far as the story goes."""
        requested = self.requested
        if requested is None:
            return None
        left: int | None = None
        for step in steps(self.around, LoadStateChanged):
            if step.broker != self.source or step.ago_us >= requested.ago_us:
                continue
            if step.decision.state is LoadState.OVERLOAD:
                left = None
            elif left is None:
                left = step.ago_us
        return left


def steps(decisions: Iterable[Told], kind: type[Kind]) -> list[Step[Kind]]:
    """The decisions of one kind."""
    return [Step(told.broker, told.ago_us, told.record) for told in decisions if isinstance(told.record, kind)]


def moves_in(decisions: Iterable[Told]) -> list[Moved]:
    """Migrations, those of one pattern between the same brokers together."""
    found: dict[tuple[str, str, str], Moved] = {}
    for step in steps(decisions, MigrationEnded):
        one = step.decision
        key = (one.pattern, one.source, one.target)
        group = found.setdefault(key, Moved(*key))
        if one.moved:
            group.moved.append(one.subscriber)
        else:
            group.failed[one.subscriber] = why(one)
    return list(found.values())
