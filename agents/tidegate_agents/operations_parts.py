"""What answers to operators are made of, taken from an agent's state without changing it.

What always holds: nothing here decides or keeps anything; every list is bounded, worst or latest first, and in an
order that does not depend on chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from math import inf
from typing import Final

from tidegate_protocol.balancing import MetricReport
from tidegate_protocol.messages import LoadState
from tidegate_protocol.names import OUTPUT_PREFIX
from tidegate_protocol.operations import NAMES_TOLD_MAX, SESSIONS_TOLD_MAX, BrokerState, QueueState, SessionState
from tidegate_protocol.operations import Role as ToldRole

from .detector import Detector
from .machine import Decision
from .metrics import BrokerSample, Metric, Role, utilizations
from .operations_story import Chronicle, Dated
from .policy import QueueLoad, Trigger
from .states import Limits

DRAIN_PREFIX: Final = "drain~"
_PHASES: Final[Mapping[str, str]] = {
    "session-refused": "refused",
    "session-candidates": "planning",
    "session-plan": "moving",
    "session-ended": "ended",
    "publisher-session": "asking",
    "publisher-plan": "moving",
    "publisher-session-ended": "ended",
}
"""Where a session is after a decision of this kind."""
_OVER: Final = frozenset({"refused", "ended"})


def metrics_of(sample: BrokerSample, limits: Mapping[tuple[Role, Metric], Limits]) -> dict[str, MetricReport]:
    """The utilizations that are known, each with its thresholds."""
    reports = {}
    for metric, value in utilizations(sample).items():
        if value is not None:
            bounds = limits[sample.role, metric]
            reports[str(metric)] = MetricReport(value=value, low=bounds.low, high=bounds.high)
    return reports


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
    doing: str,
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
        role=ToldRole.EDGE,
        state=state,
        doing=doing[:1_000],
        samples=detector.samples,
        metrics=metrics_of(detector.broker, limits) if sampled else {},
        unknown=unknown_metrics(detector.broker) if sampled else (),
        capacity=detector.broker.capacity,
        session_s=detector.session_time.average_s,
        subscriptions=len(queues),
        past=sum(queue.judged and fullness(queue) > 1.0 for queue in queues),
        queues=tuple(queue_state(detector.edge, queue, infeasible=queue.name in infeasible) for queue in worst),
        slow=tuple(sorted(detector.slow)[:NAMES_TOLD_MAX]),
        infeasible=tuple(sorted(infeasible)[:NAMES_TOLD_MAX]),
        alarms=alarms[:NAMES_TOLD_MAX],
    )


# Numbers for decisions


def trigger_numbers(detector: Detector, trigger: Trigger) -> dict[str, float]:
    """What a session was started on: the worst queue with everything its threshold was worked out from."""
    finding = next((f for f in detector.assessment.overloads if f.metric is trigger.metric), None)
    rule = detector.rule
    numbers = {"session_s": rule.session_s, "margin": rule.margin, "period_s": rule.period_s}
    numbers |= detector.hint_numbers([finding.subscription] if finding is not None else ())
    used = utilizations(detector.broker)[Metric.UPLINK]
    if used is not None:
        numbers["uplink"] = used
    queue = detector.queue(finding.subscription) if finding is not None and finding.subscription else None
    if queue is None or finding is None:
        return numbers
    numbers["queues_past"] = float(len(detector.assessment.overloaded_queues))
    of = f"{Metric.QUEUE_DEPTH}.{queue.name}"
    numbers |= {
        f"{of}.value": finding.value,
        f"{of}.threshold": finding.threshold,
        f"{of}.enqueue_per_s": queue.enqueue_predicted_per_s,
        f"{of}.drain_per_s": queue.drain_predicted_per_s,
        f"{of}.deadline_s": queue.deadline_s,
        f"{of}.allowed_wait_s": queue.allowed_wait_s,
    }
    return numbers


def predicted_numbers(sample: BrokerSample | None) -> dict[str, float]:
    """What a broker's metrics are expected to be, for a decision that says what came of it."""
    if sample is None:
        return {}
    return {f"{metric}.predicted": value for metric, value in utilizations(sample).items() if value is not None}


def outcome_numbers(detector: Detector) -> dict[str, float]:
    """What a broker's metrics are now: the utilizations, and the queue that is nearest to its threshold."""
    values = utilizations(detector.broker)
    numbers = {f"{metric}.measured": value for metric, value in values.items() if value is not None}
    queues = detector.view({}).queues
    numbers["queues_past"] = float(sum(queue.judged and fullness(queue) > 1.0 for queue in queues))
    closest = closest_queue(queues)
    if closest is not None and closest.threshold is not None:
        of = f"{Metric.QUEUE_DEPTH}.{closest.name}"
        numbers |= {f"{of}.value": closest.depth, f"{of}.threshold": closest.threshold}
    return numbers


# Alarms


def alarm_decision(broker: str, before: tuple[str, ...], raised: tuple[str, ...]) -> Decision | None:
    """What to record about the alarms of a broker's RabbitMQ; None if nothing has changed."""
    if set(before) == set(raised):
        return None
    if raised:
        return Decision("rabbitmq-alarm", broker, f"its RabbitMQ blocks whoever publishes to it: {', '.join(raised)}")
    return Decision("rabbitmq-alarm-over", broker, "its RabbitMQ blocks nobody any more")


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
    phases = [(_PHASES[d.decision.kind], d) for d in story if d.decision.kind in _PHASES]
    if not phases and not is_drain:
        return None
    first, last = story[0], story[-1]
    phase = phases[-1][0] if phases else "draining" if draining else "ended"
    told = phases[0][1].decision if phases else first.decision
    moved: dict[str, int] = {}
    failed = 0
    for dated in story:
        if dated.decision.kind == "migration-ended":
            target = dated.decision.subject.rpartition(" to ")[2]
            moved[target] = moved.get(target, 0) + 1
        failed += dated.decision.kind == "migration-failed"
    counts = phases[-1][1].decision.numbers if phases else {}
    return SessionState(
        session=name,
        source=(name.removeprefix(DRAIN_PREFIX) if is_drain else told.subject)[:1_000],
        phase=phase,
        reason=("an operator drains it" if is_drain else told.reason)[:1_000],
        started_ago_us=_ago_us(first, now),
        ended_ago_us=_ago_us(last, now) if phase in _OVER else None,
        moved=max(sum(moved.values()), round(counts.get("moved", 0.0))),
        failed=max(failed, round(counts.get("failed", 0.0))),
        targets=dict(sorted(moved.items())),
    )


def _ago_us(dated: Dated, now: float) -> int:
    return round(max(now - dated.at_s, 0.0) * 1e6)


# Who is meant, and what concerns them


def subscriber_named(about: str) -> str:
    """A subscriber may be given by its name, or by that of one of its queues."""
    if about.startswith(OUTPUT_PREFIX):
        return about.removeprefix(OUTPUT_PREFIX).rpartition(".")[0] or about
    return about


def concerns_subscriber(decision: Decision, subscriber: str) -> bool:
    """Whether a decision is about this subscriber, or names one of its queues."""
    subject = decision.subject
    if subject.split(" ", 1)[0] == subscriber or _is_queue_of(subject, subscriber):
        return True
    if subject.rpartition(".")[0] == subscriber and decision.kind == "removal":
        return True
    return any(_is_queue_of(name, subscriber) for name in decision.rejected)


def _is_queue_of(name: str, subscriber: str) -> bool:
    return name.startswith(OUTPUT_PREFIX) and subscriber_named(name) == subscriber


def concerns_broker(decision: Decision, broker: str) -> bool:
    """Whether a decision of a head is about this broker: asked, refused, moved from or to it."""
    subject = decision.subject
    if decision.kind == "placement":
        return decision.reason.rpartition(": ")[2] == broker
    if subject == broker or broker in decision.rejected:
        return True
    words = subject.split(" ")
    if len(words) >= 4 and words[-4] == "from" and broker in (words[-3], words[-1]):
        return True
    return any(name.endswith(f" to {broker}") for name in decision.rejected)


def concerns_publisher(decision: Decision, publisher: str) -> bool:
    """Whether a decision of a head is about this publisher: watched, contained, moved."""
    return decision.subject == publisher or decision.subject.startswith(f"{publisher}>")
