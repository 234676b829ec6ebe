"""Brokers, subscribers, publishers and whole clusters explained: first in sentences, then in tables."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from tidegate_protocol.decisions import (
    EdgePresence,
    LoadStateChanged,
    MigrationEnded,
    Placed,
    PublisherMoveEnded,
    SessionCandidates,
    SessionNotStarted,
    SessionPlan,
    SessionPlanned,
    SessionRefused,
    SessionRequested,
    SessionWidened,
)
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
from tidegate_protocol.rendering import sentence as told_sentence, why
from tidegate_protocol.rendering.clauses import rejection
from tidegate_protocol.rendering.moves import PLACED
from tidegate_protocol.rendering.operations import STATES, doing
from tidegate_protocol.rendering.words import amount, counted, listed, messages, percent, seconds, sentence, when

from . import session as sessions
from .course import moves_in, steps
from .insights import insight_words
from .queues import NO_TRAFFIC_PER_S, queue_words, subscription
from .timeline import timeline

REFUSALS_SAID_MAX: Final = 3


def render(reply: ExplainReply, now: datetime | None = None) -> list[RenderableType]:
    """Whatever was asked about: sentences, then tables."""
    if reply.what is Explained.SESSION:
        return sessions.render(reply, now)
    return [Text(paragraph(reply, now)), *timeline(reply.decisions, now)]


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
        case Explained.ACCOUNT:
            said = _account(reply, now)
    said += insight_words(reply.insight)
    if reply.paused:
        said.append("an operator has paused balancing: no session begins until `tidegate resume`")
    if reply.missing:
        said.append(f"no answer from {listed(reply.missing)}, which may have more to say")
    return " ".join(sentence(text) for text in said if text)


# Brokers


def _broker(reply: ExplainReply, now: datetime | None) -> list[str]:
    if not reply.brokers:
        gone = [step.decision for step in steps(reply.decisions, EdgePresence) if not step.decision.alive]
        because = f": {why(gone[-1])}" if gone else ""
        return [f"edge {reply.about} did not answer{because}", "its RabbitMQ may go on delivering without it"]
    state = reply.brokers[0]
    said = [f"{state.role} {state.broker} is {STATES[state.state]}", *broker_words(state)]
    said += [f"at the moment: {doing(state.doing)}"] if state.doing else []
    last = [step for step in steps(reply.decisions, LoadStateChanged) if step.broker == state.broker]
    if last:
        to = last[-1].decision
        said.append(f"its state changed last {when(last[-1].ago_us, now)}: {to.state}, because {why(to)}")
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


def _refusals(reply: ExplainReply, now: datetime | None) -> list[str]:
    """Where this broker was asked for help, or asked for some, and it came to nothing."""
    said = []
    for told in reply.decisions:
        record = told.record
        if isinstance(record, SessionRefused | SessionNotStarted) and record.source == reply.about:
            said.append(f"{when(told.ago_us, now)} no session was begun for it: {why(record)}")
        elif isinstance(record, SessionRequested | SessionCandidates | SessionPlanned | SessionWidened | SessionPlan):
            found = [one for one in record.rejected if one.name == reply.about]
            said += [f"{when(told.ago_us, now)} it could not help {record.source}: {rejection(one)}" for one in found]
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
    mine = [step for step in steps(reply.decisions, MigrationEnded) if step.decision.subscriber == reply.about]
    moves = moves_in(told for told in reply.decisions if getattr(told.record, "subscriber", "") == reply.about)
    for move in moves:
        done = [step for step in mine if step.decision.moved and step.decision.target == move.target]
        if move.moved and done:
            session = done[-1].decision.session
            began = f"for session {session}" if session else ""
            said.append(
                f"{when(done[-1].ago_us, now)} it was moved from {move.source} to {move.target} {began}".rstrip()
            )
        for reason in sorted(set(move.failed.values())):
            said.append(f"a move from {move.source} to {move.target} failed, and it stayed: {reason}")
    if reply.queues and not any(move.moved for move in moves):
        said.append("as far as is remembered it was never moved")
    said += [culprit_words(one, now) for one in reply.culprits if one.client == reply.about]
    return said


def _place(queue: QueueState, decisions: tuple[Told, ...], now: datetime | None) -> list[str]:
    text = (
        f"subscriber {queue.subscriber} is on {queue.edge}, subscribed to {queue.pattern} with a deadline of "
        f"{seconds(queue.deadline_s)}"
    )
    placed = [one for step in steps(decisions, Placed) if (one := step.decision).pattern == queue.pattern and one.edge]
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
        last = placed[-1]
        said.append(f"subscriptions to {queue.pattern} were last placed on {last.edge} {PLACED[last.reason]}")
    return said


# Publishers


def _publisher(reply: ExplainReply, now: datetime | None) -> list[str]:
    mine = [one for one in reply.culprits if one.client in (reply.about, reply.about.partition("~")[0])]
    said = [f"publisher {reply.about} publishes through head {reply.head}"]
    if not mine:
        said.append("it keeps to its limits, as far as there are any")
    said += [culprit_words(one, now) for one in mine]
    moved = [step for step in steps(reply.decisions, PublisherMoveEnded) if step.decision.moved]
    said += [f"{when(step.ago_us, now)} it was moved to head {step.decision.target}" for step in moved]
    return said


def _account(reply: ExplainReply, now: datetime | None) -> list[str]:
    mine = [culprit_words(one, now) for one in reply.culprits if one.client == reply.about]
    return [f"{reply.about} is an account that was refused in cluster {reply.cluster}", *mine]


def culprit_words(one: Culprit, now: datetime | None) -> str:
    """Who it is that would harm others, and what was done about it."""
    return f"{when(one.ago_us, now)} {one.broker} found that {told_sentence(one.record)}"


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
        nearest = f"{queue_words(queues[0])}, on {queues[0].edge}"
        said.append(f"no subscription is about to miss its deadline; nearest to it is {nearest}")
    said += [culprit_words(one, now) for one in reply.culprits]
    said.append(
        session_words(reply.sessions[0], now) if reply.sessions else "no session has been held, as far as is remembered"
    )
    return said
