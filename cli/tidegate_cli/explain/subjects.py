"""Brokers, subscribers, publishers and whole clusters explained: first in sentences, then in tables."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from tidegate_protocol.messages import LoadState
from tidegate_protocol.operations import (
    BrokerState,
    Culprit,
    Explained,
    ExplainReply,
    QueueState,
    Role,
    SessionState,
    Told,
)

from . import session as sessions
from .facts import moves_in
from .insights import insight_words
from .words import (
    amount,
    because,
    could_not_help,
    counted,
    listed,
    messages,
    percent,
    seconds,
    sentence,
    subscription,
    when,
)

STATES: Final = {
    LoadState.LOW: "LOW: it has room",
    LoadState.HIGH: "HIGH: busy, but no deadline is in danger; it is not given more",
    LoadState.OVERLOAD: "OVERLOAD: something has to move away, or a deadline will be missed",
    LoadState.NOT_AVAILABLE: "N/A: it takes no load now, or its load is not known yet",
}
REFUSALS_SAID_MAX: Final = 3
NO_TRAFFIC_PER_S: Final = 0.05
"""A subscription that gets less is at rest: nothing can be said about what may wait."""


def render(reply: ExplainReply, now: datetime | None = None) -> list[RenderableType]:
    """Whatever was asked about: sentences, then tables."""
    if reply.what is Explained.SESSION:
        return sessions.render(reply, now)
    course = sessions.timeline(sessions.shortened(reply.decisions), now)
    return [Text(paragraph(reply, now)), *([course] if course is not None else [])]


def paragraph(reply: ExplainReply, now: datetime | None = None) -> str:
    """The answer in plain sentences."""
    match reply.what:
        case Explained.SESSION:
            return sessions.paragraph(reply, now)
        case Explained.BROKER:
            said = _broker(reply, now)
        case Explained.SUBSCRIBER:
            said = _subscriber(reply, now)
        case Explained.PUBLISHER:
            said = _publisher(reply, now)
        case Explained.CLUSTER:
            said = _cluster(reply, now)
    said += insight_words(reply.insight)
    if reply.paused:
        said.append("an operator has paused balancing: no session begins until `tidegate resume`")
    if reply.missing:
        said.append(f"no answer from {listed(reply.missing)}, which may have more to say")
    return " ".join(sentence(text) for text in said if text)


# Brokers


def _broker(reply: ExplainReply, now: datetime | None) -> list[str]:
    if not reply.brokers:
        gone = [told for told in reply.decisions if told.decision == "edge-not-alive"]
        why = f": {gone[-1].reason}" if gone else ""
        return [f"edge {reply.about} did not answer{why}", "its RabbitMQ may go on delivering without it"]
    state = reply.brokers[0]
    said = [f"{state.role} {state.broker} is {STATES[state.state]}", *broker_words(state)]
    said += [f"at the moment: {state.doing}"] if state.doing else []
    last = [told for told in reply.decisions if told.decision == "load-state" and told.broker == state.broker]
    if last:
        said.append(f"its state changed last {when(last[-1].ago_us, now)}: {because(last[-1].reason)}")
    said += _refusals(reply, now)
    said += _sessions_of(reply, state.broker, now)
    return said


def broker_words(state: BrokerState) -> list[str]:
    """The load of a broker against its thresholds."""
    if not state.samples:
        return ["its load has not been sampled yet"]
    said = []
    parts = []
    for name, metric in state.metrics.items():
        limits = [f"{percent(limit)}" for limit in (metric.low, metric.high) if limit is not None]
        parts.append(f"{name} {percent(metric.value)} (thresholds: {', '.join(limits) or 'none'})")
    if parts:
        said.append(f"its load: {listed(parts)}")
    if state.unknown:
        said.append(f"the capacity of {listed(state.unknown)} is not known, so that nothing is said about it")
    if state.role is Role.EDGE and state.subscriptions:
        said.append(_queues_words(state))
    if state.slow:
        who = listed(subscription(name, state.queues) for name in state.slow)
        said.append(f"too slow, and limited in what may wait for them: {who}")
    if state.infeasible:
        who = listed(subscription(name, state.queues) for name in state.infeasible)
        said.append(f"deadlines that no broker behind these links could meet, and that nobody is moved for: {who}")
    if state.alarms:
        said.append(f"its RabbitMQ has an alarm: {listed(state.alarms)}")
    return said


def _queues_words(state: BrokerState) -> str:
    total = counted(state.subscriptions, "subscription")
    if state.past:
        verb = "has" if state.past == 1 else "have"
        text = f"of its {total} {state.past} {verb} more waiting than the deadline allows"
    else:
        text = f"its {total} {'is' if state.subscriptions == 1 else 'are all'} in time"
    if state.queues and state.queues[0].depth > 0.0:
        text += f"; nearest to its limit is {queue_words(state.queues[0])}"
    return text


def queue_words(queue: QueueState) -> str:
    """One subscription against its threshold."""
    who = f"{queue.subscriber} (subscribed to {queue.pattern}, deadline {seconds(queue.deadline_s)})"
    if queue.threshold is None or (queue.enqueue_per_s < NO_TRAFFIC_PER_S and queue.depth < 0.5):
        return f"{who} with nothing waiting"
    share = f", {percent(queue.depth / queue.threshold)} of it" if queue.threshold > 0.0 else ""
    return f"{who} with {messages(queue.depth)} waiting where {messages(queue.threshold)} may{share}"


def _refusals(reply: ExplainReply, now: datetime | None) -> list[str]:
    """Where this broker was asked for help, or asked for some, and it came to nothing."""
    said = []
    for told in reply.decisions:
        if reply.about in told.rejected and told.decision.startswith(("session-", "remote-")):
            why = could_not_help(told.rejected[reply.about])
            said.append(f"{when(told.ago_us, now)} it could not help {told.subject}: {why}")
        elif told.subject == reply.about and told.decision in ("session-refused", "session-not-started"):
            said.append(f"{when(told.ago_us, now)} no session was begun for it: {because(told.reason)}")
    return said[-REFUSALS_SAID_MAX:]


def _sessions_of(reply: ExplainReply, broker: str, now: datetime | None) -> list[str]:
    mine = [one for one in reply.sessions if broker == one.source or broker in one.targets]
    return [session_words(mine[0], now)] if mine else []


def session_words(one: SessionState, now: datetime | None) -> str:
    where = f" to {listed(one.targets)}" if one.targets else ""
    end = "is under way" if one.ended_ago_us is None else f"ended with {one.moved} moved{where}, {one.failed} not moved"
    began = f"the latest session, {one.session}, began {when(one.started_ago_us, now)}"
    return f"{began} and {end}; `tidegate explain {one.session}` tells why"


# Subscribers


def _subscriber(reply: ExplainReply, now: datetime | None) -> list[str]:
    said = []
    for queue in reply.queues:
        said += _place(queue, reply.decisions, now)
    if not reply.queues:
        said.append(f"subscriber {reply.about} has no subscription on a broker that answered")
    mine = [told for told in reply.decisions if told.subject.split(" ", 1)[0] == reply.about]
    moves = moves_in(mine)
    for move in moves:
        done = [
            told for told in mine if told.decision == "migration-ended" and told.subject.endswith(f" to {move.target}")
        ]
        if move.moved and done:
            began = f"for session {done[-1].session}" if done[-1].session else ""
            said.append(
                f"{when(done[-1].ago_us, now)} it was moved from {move.source} to {move.target} {began}".rstrip()
            )
        for why in sorted(set(move.failed.values())):
            said.append(f"a move from {move.source} to {move.target} failed, and it stayed: {because(why)}")
    if reply.queues and not any(move.moved for move in moves):
        said.append("as far as is remembered it was never moved")
    said += [culprit_words(one, now) for one in reply.culprits if one.client == reply.about]
    return said


def _place(queue: QueueState, decisions: tuple[Told, ...], now: datetime | None) -> list[str]:
    text = (
        f"subscriber {queue.subscriber} is on {queue.edge}, subscribed to {queue.pattern} with a deadline of "
        f"{seconds(queue.deadline_s)}"
    )
    placed = [told for told in decisions if told.decision == "placement" and told.subject == queue.pattern]
    said = [text]
    if queue.infeasible or queue.allowed_wait_s <= 0.0:
        said.append("that deadline can't be met by any broker behind these links, so that nobody is moved for it")
    elif queue.threshold is not None:
        said.append(f"of that, {seconds(queue.allowed_wait_s)} is left for waiting in its queue")
        if queue.enqueue_per_s < NO_TRAFFIC_PER_S:
            said.append(f"hardly anything is published for it now; {messages(queue.depth)} messages wait")
        else:
            said.append(
                f"{amount(queue.enqueue_per_s)} messages per second come in and {amount(queue.drain_per_s)} go out, so "
                f"that {messages(queue.threshold)} may wait; {messages(queue.depth)} do"
            )
    flags = [
        name
        for name, is_so in (
            ("it is being moved", queue.migrating),
            ("nobody takes from its queue: the subscriber is away", queue.away),
            ("its subscriber is too slow: it is not moved for that, and what may wait for it is limited", queue.slow),
        )
        if is_so
    ]
    said += flags
    if placed:
        rule, _, edge = placed[-1].reason.partition(": ")
        said.append(f"subscriptions to {queue.pattern} were last placed on {edge} {_PLACED.get(rule, f'({rule})')}")
    return said


_PLACED: Final = {
    "same-pattern": "because others with that pattern are there",
    "apart-from-correlated": "because topics that rise together with it, by an insight, are on others",
    "most-capacity-left": "because it had the most capacity left",
    "near-tie-faster": "because it had about the most capacity left, and is the fastest of those",
    "fewest-subscriptions": "because it had the fewest subscriptions, capacities being unknown",
    "only-edge": "because there is no other edge",
    "entry-broker": "because that is where it asked",
}


# Publishers


def _publisher(reply: ExplainReply, now: datetime | None) -> list[str]:
    mine = [one for one in reply.culprits if one.client == reply.about]
    said = [f"publisher {reply.about} publishes through head {reply.head}"]
    if not mine:
        said.append("it keeps to its limits, as far as there are any")
    said += [culprit_words(one, now) for one in mine]
    moved = [told for told in reply.decisions if told.decision == "publisher-moved"]
    said += [f"{when(told.ago_us, now)} it was moved to head {told.subject.partition('>')[2]}" for told in moved]
    return said


def culprit_words(one: Culprit, now: datetime | None) -> str:
    """Who it is that would harm others, and what was done about it."""
    match one.what:
        case "slow-subscriber":
            pattern = one.text.partition(":")[0]
            return (
                f"{when(one.ago_us, now)} subscriber {one.client} on {one.broker} was found too slow: it takes "
                f"{amount(one.numbers.get('drain_per_s', 0.0))} messages per second of {pattern} where "
                f"{amount(one.numbers.get('enqueue_per_s', 0.0))} come in, although the uplink would carry more; "
                f"{amount(one.numbers.get('depth', 0.0))} wait, and of more than "
                f"{amount(one.numbers.get('messages_max', 0.0))} the oldest are dropped"
            )
        case _:
            return f"{when(one.ago_us, now)} publisher {one.client} was {because(one.text)}"


# Clusters


def _cluster(reply: ExplainReply, now: datetime | None) -> list[str]:
    by_state: dict[LoadState, list[str]] = {}
    for state in reply.brokers:
        by_state.setdefault(state.state, []).append(state.broker)
    parts = [f"{listed(names)} {'is' if len(names) == 1 else 'are'} {state}" for state, names in by_state.items()]
    said = [f"cluster {reply.cluster}, policy {reply.policy}: {'; '.join(parts)}"]
    queues = [queue for state in reply.brokers for queue in state.queues if not (queue.slow or queue.away)]
    queues.sort(key=lambda q: -(q.depth / q.threshold if q.threshold is not None and q.threshold > 0.0 else 0.0))
    past = sum(state.past for state in reply.brokers)
    if past:
        said.append(
            f"{counted(past, 'subscription')} {'has' if past == 1 else 'have'} more waiting than the deadline allows"
        )
    elif queues:
        nearest = f"{queue_words(queues[0])} on {queues[0].edge}"
        said.append(f"no subscription is about to miss its deadline; nearest to it is {nearest}")
    said += [culprit_words(one, now) for one in reply.culprits]
    said.append(
        session_words(reply.sessions[0], now) if reply.sessions else "no session has been held, as far as is remembered"
    )
    return said
