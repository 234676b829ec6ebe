"""Decisions about load in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import (
    AlarmOutcome,
    AlarmsChanged,
    DeadlineOutcome,
    DeadlinesJudged,
    Decision,
    LoadStateChanged,
    SlownessOutcome,
    SlowSubscriber,
    UplinkNarrowed,
)
from .clauses import finding
from .said import Said
from .words import amount, counted, listed, subscription


def load_state(one: LoadStateChanged) -> Said:
    text = finding(one.findings[0]) if one.findings else "all its metrics are below their low thresholds"
    more = f", and {one.others} more" if one.others else ""
    forecast = "; a forecast lowered the threshold" if one.hints is not None and one.hints.forecasts else ""
    return Said(one.broker, f"is {one.state}", f"{text}{more}{forecast}")


def slow_subscriber(one: SlowSubscriber) -> Said:
    if one.outcome is SlownessOutcome.KEEPS_UP:
        return Said(subscription(one.queue, one.pattern), "keeps up again")
    dropped = f", and of more than {one.messages_max} the oldest are dropped" if one.messages_max is not None else ""
    why = (
        f"it takes {amount(one.drain_per_s)} messages per second of {one.pattern} where "
        f"{amount(one.enqueue_per_s)} come in, although the uplink would carry more; {amount(one.depth)} wait{dropped}"
    )
    return Said(subscription(one.queue), "is too slow", why)


def deadlines(one: DeadlinesJudged) -> Said:
    names = listed(subscription(queue.queue) for queue in one.queues)
    if one.outcome is DeadlineOutcome.FEASIBLE:
        return Said(one.edge, "can meet deadlines again", f"{counted(one.count, 'subscription')} ({names})")
    why = f"no time is left to wait for {counted(one.count, 'subscription')} ({names}), and no client is moved for them"
    return Said(one.edge, "can't meet deadlines", why)


def narrowed(one: UplinkNarrowed) -> Said:
    def kilo(value: float | None) -> str:
        return "unknown" if value is None else f"{value / 1000:.0f} kB/s"

    known = f"{kilo(one.uplink_bytes_per_s)} instead of {kilo(one.before_bytes_per_s)}"
    return Said(one.edge, "carries less than it did", f"all subscribers alike get less than they are sent: {known}")


def alarms(one: AlarmsChanged) -> Said:
    if one.outcome is AlarmOutcome.OVER:
        return Said(one.broker, "has no alarm of its RabbitMQ any more", "publishers are not blocked any more")
    return Said(one.broker, "has an alarm of its RabbitMQ, which blocks publishers", listed(one.alarms))


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    LoadStateChanged: load_state,
    SlowSubscriber: slow_subscriber,
    DeadlinesJudged: deadlines,
    UplinkNarrowed: narrowed,
    AlarmsChanged: alarms,
}
