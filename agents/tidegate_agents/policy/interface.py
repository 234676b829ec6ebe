"""What a policy decides, what it sees of the world, and what it answers: the interface of all of them.

Four questions make a policy: where a new subscription goes (`place`), whether load has to be moved now (`detect`),
in which order candidates are asked (`rank`), and who goes where (`select`). Everything around them, which messages
are sent, what is waited for, when nothing may be started, is the same for all policies and none of their business.

Invariants:

- a policy keeps nothing and changes nothing: the same view gives the same answer, whatever happened before;
- what it sees are views of one broker's smoothed load and the reports of others, never another broker's state;
- every answer explains itself: a trigger names its reason and its numbers, a selection what it rejected and why;
- a trigger says whether it was *necessary*: some subscription is predicted to miss its deadline, or a static high
  threshold is passed. A session that was not is counted as unnecessary, whichever policy started it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Unpack

from tidegate_protocol.balancing.loads import BrokerLoad, PieLocal
from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import BundleMove, Cause, Effect, PlanOutcome, Reach, Rejected

from ..load.metrics import BrokerSample, Metric, Role
from ..load.states import Assessment, Limits, LoadState
from ..load.threshold import MARGIN, PERIOD_S, SESSION_S_FIRST, ThresholdKind, paper_depth, projected_depth
from .bundles import Bundle, subscriber_bundles
from .placement import EdgeView, Known, Placement

REJECTED_MAX: Final = 64
"""How many rejected alternatives a selection names."""


@dataclass(slots=True)
class QueueLoad:
    """One subscription of an edge as its detector follows it. It is the detector's to change, and nobody else's.

    One object per subscription for as long as it is there: an edge has many thousands of them and judges them every
    period.
    """

    name: str
    """Its output queue."""
    subscriber: str
    number: int
    pattern: str
    deadline_s: float
    enqueue_per_s: float = 0.0
    """λ, smoothed."""
    drain_per_s: float = 0.0
    """μ, smoothed."""
    enqueue_predicted_per_s: float = 0.0
    """λ(t_{i+1})."""
    drain_predicted_per_s: float = 0.0
    """μ(t_{i+1})."""
    message_bytes: float = 0.0
    depth: float = 0.0
    """What waits, as it was in the last sample."""
    allowed_wait_s: float = 0.0
    """t_e; 0 or less where no broker behind these links could meet the deadline."""
    threshold: float | None = None
    """How many may wait; None where the deadline is infeasible."""
    noise: float = 0.0
    """What is allowed on top of the threshold because what is in flight varies."""
    forecast_per_s: float = 0.0
    """The λ of a forecast that lowered the threshold; 0 where none did."""
    threshold_measured: float | None = None
    """What the threshold would be without it."""
    local: bool = False
    remote: bool = False
    """Where its pattern is published: in this cluster, in others."""
    migrating: bool = False
    away: bool = False
    """Nobody takes from it."""
    slow: bool = False
    """Its subscriber takes less than it is sent although the uplink would carry it: nothing a move could help."""

    @property
    def bytes_per_s(self) -> float:
        """What it asks of the uplink."""
        return self.enqueue_per_s * self.message_bytes

    @property
    def judged(self) -> bool:
        """Whether its depth says anything about the broker."""
        return not (self.migrating or self.slow or self.away)


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """Which formula queue depths are judged by, and its constants at this moment."""

    kind: ThresholdKind = ThresholdKind.PROJECTED
    session_s: float = SESSION_S_FIRST
    """t_LB, as learned so far."""
    period_s: float = PERIOD_S
    margin: float = MARGIN

    def depth(self, allowed_wait_s: float, enqueue_per_s: float, drain_per_s: float) -> float | None:
        """How many messages may wait; None where the deadline is infeasible."""
        if self.kind is ThresholdKind.PAPER:
            return paper_depth(allowed_wait_s, enqueue_per_s, drain_per_s, self.session_s, self.period_s)
        return projected_depth(allowed_wait_s, enqueue_per_s, drain_per_s, self.session_s, self.period_s, self.margin)

    def of(self, queue: QueueLoad, drain_factor: float = 1.0) -> float | None:
        """The threshold of a queue, noise allowed for, if it were drained `drain_factor` times as fast."""
        drain = queue.drain_predicted_per_s * drain_factor
        depth = self.depth(queue.allowed_wait_s, queue.enqueue_predicted_per_s, drain)
        return None if depth is None else depth + queue.noise

    def late_when_helped(self, queue: QueueLoad, drain_factor: float) -> bool:
        """Whether what waits when a session that begins now takes effect would be late, drained so much faster then.

        The paper's threshold takes the time of a session off what may wait (t_e − t_LB), which leaves nothing to ask.
        """
        if self.kind is ThresholdKind.PAPER:
            return False
        growth = max(queue.enqueue_predicted_per_s - queue.drain_predicted_per_s, 0.0)
        waiting = queue.depth + growth * max(self.session_s, self.period_s)
        return waiting > queue.allowed_wait_s * queue.drain_predicted_per_s * drain_factor + queue.noise


@dataclass(frozen=True, slots=True)
class Movable:
    """The queues of an edge that may be moved, by name, and their bundles."""

    queues: Mapping[str, QueueLoad]
    bundles: tuple[Bundle, ...]


@dataclass(frozen=True, slots=True)
class LoadView:
    """What a policy sees of its own broker, and what the others of the cluster have reported lately."""

    broker: BrokerSample
    """Smoothed; capacities are those configured or, where there are none, learned."""
    assessment: Assessment
    """Judged with the policy's own `limits`."""
    queues: Sequence[QueueLoad] = ()
    """Sorted by name; those in migration and those of slow subscribers are among them, marked."""
    rule: ThresholdRule = field(default_factory=ThresholdRule)
    peers: Mapping[str, PieLocal] = field(default_factory=dict)
    """The reports that have not expired, by broker, sorted; heads are among them only where they report."""

    uplink_limits: bool = True
    """Whether the uplink may be what holds the queues back: only then does it help them if others leave."""
    worked_out: dict[frozenset[str], Movable] = field(default_factory=dict)
    """What `movable` found last. Views of the same queues share it, until something about a queue changes."""

    @property
    def name(self) -> str:
        return self.broker.broker

    @property
    def judged(self) -> list[QueueLoad]:
        """The queues whose depth says anything about the broker: `QueueLoad.judged`, without a call for each."""
        return [queue for queue in self.queues if not (queue.migrating or queue.slow or queue.away)]

    def movable(self, resting: Collection[str]) -> Movable:
        """The judged queues but for those in `resting`. A session may ask several times, and there may be many."""
        key = frozenset(resting)
        found = self.worked_out.get(key)
        if found is None:
            queues = {queue.name: queue for queue in self.judged if queue.name not in key}
            found = Movable(queues, subscriber_bundles(queues.values(), self.assessment.overloaded_queues))
            self.worked_out.clear()
            self.worked_out[key] = found
        return found


@dataclass(frozen=True, slots=True)
class Trigger:
    """Load has to be moved: which metric is to be relieved, why, and who might help."""

    cause: Cause
    necessary: bool
    candidates: tuple[str, ...] = ()
    """The brokers to ask, first choice first. Empty: none in the cluster has room, other clusters are to be asked."""
    patterns: tuple[str, ...] = ()
    """What might be given away, most willingly first."""
    rejected: tuple[Rejected, ...] = ()
    """Brokers that were not taken as candidates, and why."""
    fallbacks: tuple[str, ...] = ()
    """The brokers to ask as a last resort: those that are not LOW but not overloaded either. Empty: there is none."""
    reach: Reach = Reach.HERE
    """How far help is being looked for by now."""
    urgent: bool = False
    """Whether a deadline would be missed before another session could help."""

    @property
    def metric(self) -> Metric:
        return self.cause.metric

    @property
    def last_resort(self) -> bool:
        """Whether brokers that are not LOW may be filled up."""
        return self.reach.fills_up

    @property
    def asked(self) -> tuple[str, ...]:
        """The brokers of the cluster to ask now."""
        if self.last_resort:
            return self.fallbacks
        return self.candidates if self.reach is Reach.HERE else ()

    def lacks(self, selection: Selection) -> bool:
        """Whether others should be asked: half of the help is enough only where there is time for another session."""
        return not selection.relieved and (self.urgent or not selection.moves)


@dataclass(frozen=True, slots=True)
class SelectedMove:
    """The subscriptions of one pattern, all or some of them, to one broker."""

    target: str
    bundle: Bundle
    """Its `clients` are the names of the queues."""
    some_stay: bool = False
    """Whether the bundle was split."""
    target_has_topic: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """Who goes where. Without moves, `outcome` says why there are none."""

    moves: tuple[SelectedMove, ...]
    outcome: PlanOutcome
    relieved: bool = False
    """Whether the source is predicted to be out of what triggered the session, once all have moved."""
    source_after: BrokerSample | None = None
    """The load of the source as predicted; what stabilizing waits for."""
    drain_factor: float | None = None
    """How many times as fast the queues that stay on the source are predicted to be drained."""
    effects: tuple[Effect, ...] = ()
    """On the source and on each target."""
    rejected: tuple[Rejected, ...] = ()
    """Patterns, or patterns and brokers, that were tried, and queues that were left out."""

    @property
    def subscribers(self) -> int:
        return sum(len(move.bundle.clients) for move in self.moves)

    @property
    def bundles(self) -> tuple[BundleMove, ...]:
        """The moves as a decision tells them."""
        return tuple(BundleMove(one.bundle.topic, one.target, len(one.bundle.clients)) for one in self.moves)


class Policy(Protocol):
    """How load is judged, placed and moved. Stateless; made by name in `policy_named`."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Mapping[tuple[Role, Metric], Limits]:
        """The static thresholds by which brokers are judged; `states.THRESHOLDS` but for policies with others."""
        ...

    def detect(self, view: LoadView) -> Trigger | None:
        """Whether load has to be moved away from this edge now. Asked once a period, never during a session."""
        ...

    def rank(self, trigger: Trigger, candidates: Iterable[Candidate], *, session: str) -> tuple[Candidate, ...]:
        """The order in which candidates that answered are tried."""
        ...

    def select(
        self,
        view: LoadView,
        trigger: Trigger,
        candidates: Sequence[Candidate],
        *,
        resting: Collection[str] = frozenset(),
        session: str = "",
    ) -> Selection:
        """Who goes where. `candidates` come ranked; queues in `resting` were moved too recently to be moved again."""
        ...

    def place(self, pattern: str, edges: Iterable[EdgeView], **known: Unpack[Known]) -> Placement | None:
        """Which edge a new subscription goes to; as `placement.place`."""
        ...


def is_necessary(assessment: Assessment) -> bool:
    """Whether a session started now would be: a deadline is in danger, or a static high threshold passed."""
    return assessment.state is LoadState.OVERLOAD


def sample_of(load: BrokerLoad, role: Role = Role.EDGE) -> BrokerSample:
    """The load that a broker told, in the form in which effects are estimated."""
    return BrokerSample(
        load.broker,
        role,
        load.bytes_in_per_s,
        load.bytes_offered_per_s,
        load.messages_in_per_s,
        load.capacity,
    )
