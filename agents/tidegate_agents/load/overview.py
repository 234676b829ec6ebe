"""What answers to operators are made of, taken from an agent's state without changing it.

Invariant: nothing here decides or keeps anything; every list is bounded, worst or latest first, and in an
order that does not depend on chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nlargest
from math import inf
from typing import Final

from tidegate_protocol.decisions import (
    Danger,
    DeadlinesJudged,
    Decision,
    DrainOrder,
    DrainOrdered,
    Measured,
    MigrationEnded,
    Placed,
    PublisherMoveEnded,
    PublisherPlan,
    PublisherSession,
    PublisherSessionEnded,
    SessionCandidates,
    SessionEnded,
    SessionPlan,
    SessionRefused,
)
from tidegate_protocol.messages import LoadState
from tidegate_protocol.names import DRAIN_PREFIX, OUTPUT_PREFIX
from tidegate_protocol.operations import NAMES_TOLD_MAX, SESSIONS_TOLD_MAX, BrokerState, Doing, QueueState, SessionState

from ..kit.chronicle import Chronicle, Dated
from ..policy.interface import QueueLoad, Trigger
from .detector import Detector
from .metrics import BrokerSample, Metric, Role, utilizations
from .pie import metrics_of
from .states import Limits

_PHASES: Final[Mapping[type[Decision], str]] = {
    SessionRefused: "refused",
    SessionCandidates: "planning",
    SessionPlan: "moving",
    SessionEnded: "ended",
    PublisherSession: "asking",
    PublisherPlan: "moving",
    PublisherSessionEnded: "ended",
}
"""Where a session is after a decision of this kind."""
_OVER: Final = frozenset({"refused", "ended"})


def unknown_metrics(sample: BrokerSample) -> tuple[str, ...]:
    return tuple(sorted(str(metric) for metric, value in utilizations(sample).items() if value is None))


# Queues


def fullness(queue: QueueLoad) -> float:
    """How much of what may wait does wait; past 1 it is too much. Nothing may wait where the deadline is infeasible."""
    if queue.threshold is None:
        return 0.0
    if queue.threshold <= 0.0:
        return inf if queue.depth > queue.threshold else 1.0
    return queue.depth / queue.threshold


def worst_queues(queues: Iterable[QueueLoad], count: int) -> list[QueueLoad]:
    """The `count` queues nearest to their thresholds or furthest past them."""
    by_name = sorted(queues, key=lambda queue: queue.name)
    return nlargest(count, by_name, key=lambda queue: (fullness(queue), queue.depth))


def closest_queue(queues: Iterable[QueueLoad]) -> QueueLoad | None:
    """Of the queues that are judged, the one nearest to its threshold or furthest past it."""
    found = worst_queues((queue for queue in queues if queue.judged and queue.threshold is not None), 1)
    return found[0] if found else None


def queue_state(edge: str, queue: QueueLoad, *, infeasible: bool) -> QueueState:
    return QueueState(
        edge=edge,
        queue=queue.name,
        subscriber=queue.subscriber,
        number=queue.number,
        pattern=queue.pattern,
        deadline_s=queue.deadline_s,
        allowed_wait_s=queue.allowed_wait_s,
        depth=queue.depth,
        threshold=queue.threshold,
        enqueue_per_s=queue.enqueue_per_s,
        drain_per_s=queue.drain_per_s,
        migrating=queue.migrating,
        away=queue.away,
        slow=queue.slow,
        infeasible=infeasible,
    )


def edge_state(
    detector: Detector,
    limits: Mapping[tuple[Role, Metric], Limits],
    state: LoadState,
    doing: Doing | None,
    queues_told: int,
    alarms: tuple[str, ...] = (),
) -> BrokerState:
    """An edge as its own agent sees it."""
    queues = detector.view({}).queues
    infeasible = detector.infeasible
    worst = worst_queues((queue for queue in queues if queue.threshold is not None), queues_told)
    sampled = detector.samples > 0
    return BrokerState(
        broker=detector.edge,
        role=Role.EDGE,
        state=state,
        doing=doing,
        samples=detector.samples,
        metrics=metrics_of(detector.broker, limits) if sampled else {},
        unknown=unknown_metrics(detector.broker) if sampled else (),
        capacity=detector.broker.capacity,
        session_s=detector.session_time.average_s,
        subscriptions=len(queues),
        past=queues_past(queues),
        queues=tuple(queue_state(detector.edge, queue, infeasible=queue.name in infeasible) for queue in worst),
        slow=tuple(sorted(detector.slow)[:NAMES_TOLD_MAX]),
        infeasible=tuple(sorted(infeasible)[:NAMES_TOLD_MAX]),
        alarms=alarms[:NAMES_TOLD_MAX],
    )


# Parts of decisions


def danger(detector: Detector, trigger: Trigger) -> Danger | None:
    """The worst queue that a session is started for, with everything its threshold was worked out from."""
    cause = trigger.cause
    queue = detector.queue(cause.queue) if cause.queue else None
    if queue is None:
        return None
    return Danger(
        queue.name,
        cause.value,
        cause.threshold,
        queue.enqueue_predicted_per_s,
        queue.drain_predicted_per_s,
        queue.deadline_s,
        queue.allowed_wait_s,
    )


def measured(detector: Detector, predicted: BrokerSample | None) -> tuple[Measured, ...]:
    """What a broker's utilizations are now and, on a source, were predicted to be."""
    expected = {} if predicted is None else utilizations(predicted)
    values = utilizations(detector.broker)
    return tuple(Measured(metric, value, expected.get(metric)) for metric, value in values.items() if value is not None)


def queues_past(queues: Iterable[QueueLoad]) -> int:
    return sum(queue.judged and fullness(queue) > 1.0 for queue in queues)


# Sessions


def session_states(chronicle: Chronicle, now: float, draining: Iterable[str]) -> tuple[SessionState, ...]:
    """The sessions a head knows of, the latest first."""
    being_drained = {f"{DRAIN_PREFIX}{edge}" for edge in draining}
    found = []
    for name in reversed(chronicle.sessions):
        state = _session_state(name, chronicle.of_session(name), now, name in being_drained)
        if state is not None:
            found.append(state)
    found.sort(key=lambda state: (state.ended_ago_us is not None, state.started_ago_us, state.session))
    return tuple(found[:SESSIONS_TOLD_MAX])


def _session_state(name: str, story: list[Dated], now: float, draining: bool) -> SessionState | None:
    is_drain = name.startswith(DRAIN_PREFIX)
    phases = [(_PHASES[type(dated.decision)], dated) for dated in story if type(dated.decision) in _PHASES]
    if not phases and not is_drain:
        return None
    first, last = story[0], story[-1]
    phase = phases[-1][0] if phases else "draining" if draining else "ended"
    began = phases[0][1].decision if phases else first.decision
    moves = [one for dated in story if isinstance(one := dated.decision, MigrationEnded | PublisherMoveEnded)]
    targets = Counter(one.target for one in moves if one.moved)
    failed = sum(not one.moved for one in moves)
    ended = phases[-1][1].decision if phases else None
    if isinstance(ended, SessionEnded | PublisherSessionEnded):
        failed = max(failed, ended.failed)
    return SessionState(
        session=name,
        source=name.removeprefix(DRAIN_PREFIX) if is_drain else source_of(began),
        phase=phase,
        began=DrainOrdered(name.removeprefix(DRAIN_PREFIX), DrainOrder.DRAIN) if is_drain else began,
        started_ago_us=_ago_us(first, now),
        ended_ago_us=_ago_us(last, now) if phase in _OVER else None,
        moved=max(targets.total(), ended.moved if isinstance(ended, SessionEnded | PublisherSessionEnded) else 0),
        failed=failed,
        targets=dict(sorted(targets.items())),
    )


def _ago_us(dated: Dated, now: float) -> int:
    return round(max(now - dated.at_s, 0.0) * 1e6)


# Who is meant, and what concerns them


def subscriber_named(about: str) -> str:
    """A subscriber may be given by its name, or by that of one of its queues."""
    if about.startswith(OUTPUT_PREFIX):
        return about.removeprefix(OUTPUT_PREFIX).rpartition(".")[0] or about
    return about


def source_of(decision: Decision) -> str:
    """The broker that a session takes load away from."""
    return str(getattr(decision, "source", "") or getattr(decision, "head", ""))


def concerns_subscriber(decision: Decision, subscriber: str) -> bool:
    """Whether a decision is about this subscriber, or names one of its queues."""
    if getattr(decision, "subscriber", None) == subscriber:
        return True
    names = [getattr(decision, "queue", ""), *(one.name for one in getattr(decision, "rejected", ()))]
    if isinstance(decision, DeadlinesJudged):
        names += [one.queue for one in decision.queues]
    return any(_is_queue_of(name, subscriber) for name in names)


def _is_queue_of(name: str, subscriber: str) -> bool:
    return name.startswith(OUTPUT_PREFIX) and subscriber_named(name) == subscriber


def concerns_broker(decision: Decision, broker: str) -> bool:
    """Whether a decision of a head is about this broker: asked, refused, moved from or to it."""
    if any(getattr(decision, role, None) == broker for role in ("edge", "broker", "source", "target")):
        return True
    if isinstance(decision, Placed):
        return False
    return any(broker in (one.name, one.target) for one in getattr(decision, "rejected", ()))


def concerns_publisher(decision: Decision, publisher: str) -> bool:
    """Whether a decision of a head is about this publisher or account: watched, contained, moved, set aside."""
    return publisher in (getattr(decision, "publisher", None), getattr(decision, "account", None))
