"""Clusters at a glance: the tables of `tidegate status`."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidegate_protocol.balancing.loads import MetricReport
from tidegate_protocol.messages import LoadState
from tidegate_protocol.operations import BrokerState, EdgeStatus, OverviewReply, QueueState, SessionState
from tidegate_protocol.rendering import sentence as told_sentence, why
from tidegate_protocol.rendering.accounts import named, used
from tidegate_protocol.rendering.operations import doing
from tidegate_protocol.rendering.words import counted, listed, messages, percent, seconds, sentence, when

from ..tables import NARROW, table
from .insights import insight_words
from .queues import subscription
from .subjects import culprit_words

STYLES: Final = {LoadState.LOW: "green", LoadState.HIGH: "yellow", LoadState.OVERLOAD: "bold red"}
METRICS: Final = ("uplink", "downlink", "matching")
SESSIONS_SHOWN_MAX: Final = 5
QUOTA_SHOWN_SHARE: Final = 0.8
"""A quota is shown from this share on; all of them are in `--json`."""


def render(reply: OverviewReply, now: datetime | None = None) -> list[RenderableType]:
    """One cluster."""
    shown: list[RenderableType] = [_title(reply), _brokers(reply)]
    if reply.sessions:
        shown.append(_sessions(reply.sessions, now))
    shown += [Text(sentence(text)) for text in remarks(reply, now)]
    if reply.neighbours:
        shown.append(_neighbours(reply))
    return shown


def _title(reply: OverviewReply) -> Text:
    text = Text("cluster ")
    text.append(reply.cluster, style="bold")
    text.append(", head ")
    text.append(reply.head, style="bold")
    publishers = counted(reply.publishers, "publisher")
    version = f" (Tidegate {reply.version})" if reply.version else ""
    text.append(f"{version}, {publishers}, policy {reply.policy}, balancing ")
    text.append("PAUSED", style="bold yellow") if reply.paused else text.append("on")
    return text


def _brokers(reply: OverviewReply) -> Table:
    shown = table(
        *("\nbroker", "\nstate", *(f">{_heading(metric, reply)}" for metric in METRICS), ">subscrip-\ntions"),
        *("nearest to its deadline:\nwaiting / may wait", "at the\nmoment"),
        whole=("\nbroker", "\nstate"),
        **NARROW,
    )
    states = {state.broker: state for state in reply.brokers}
    head = states.get(reply.head)
    if head is not None:
        shown.add_row(f"{reply.head} (head)", _state(head), *_metrics(head), "", "", doing(head.doing))
    for edge in reply.edges:
        state = states.get(edge.edge)
        cells = ["", "", ""] if state is None else _metrics(state)
        worst = _worst(state)
        shown.add_row(edge.edge, _edge_state(edge, state), *cells, str(edge.subscriptions), worst, _doing(edge, state))
    return shown


def _heading(metric: str, reply: OverviewReply) -> str:
    """With the thresholds, which are the same for all brokers of one kind; an edge's, where they differ."""
    reports = [state.metrics[metric] for state in reply.brokers if metric in state.metrics]
    if not reports:
        return f"\n{metric}"
    last = reports[-1]
    limits = [f"{100 * limit:.0f}" for limit in (last.low, last.high) if limit is not None]
    return f"{metric}\n({', '.join(limits)} %)" if limits else f"\n{metric}"


def _metrics(state: BrokerState) -> list[RenderableType]:
    return [_metric(state.metrics.get(metric)) for metric in METRICS]


def _metric(report: MetricReport | None) -> Text:
    if report is None:
        return Text("-")
    over = report.high is not None and report.value > report.high
    busy = report.low is not None and report.value >= report.low
    return Text(percent(report.value), style="bold red" if over else "yellow" if busy else "")


def _state(state: BrokerState) -> Text:
    return Text(str(state.state), style=STYLES.get(state.state, ""))


def _edge_state(edge: EdgeStatus, state: BrokerState | None) -> Text:
    if not edge.alive:
        return Text(f"silent for {edge.seen_ago_s:.0f} s", style="bold red")
    if edge.draining:
        return Text("draining" if edge.subscriptions else "drained", style="cyan")
    return Text("no answer", style="red") if state is None else _state(state)


def _worst(state: BrokerState | None) -> str:
    judged = [queue for queue in (state.queues if state is not None else ()) if not (queue.slow or queue.away)]
    queue = judged[0] if judged else None
    if queue is None or queue.threshold is None or queue.depth <= 0.0:
        return ""
    return f"{queue.subscriber} {queue.pattern}: {messages(queue.depth)} / {messages(queue.threshold)}{_share(queue)}"


def _share(queue: QueueState) -> str:
    if queue.threshold is None or queue.threshold <= 0.0:
        return ""
    return f" ({percent(queue.depth / queue.threshold)})"


def _doing(edge: EdgeStatus, state: BrokerState | None) -> str:
    if edge.draining:
        return (
            f"{edge.subscriptions} still to leave" if edge.subscriptions else "empty; `tidegate undrain` uses it again"
        )
    return "" if state is None else doing(state.doing)


def _sessions(sessions: tuple[SessionState, ...], now: datetime | None) -> Table:
    headings = ("session", "of", "why", "state", ">moved", ">failed", "began")
    shown = table(*headings, title="sessions", whole=("session",), **NARROW)
    for one in sessions[:SESSIONS_SHOWN_MAX]:
        took = ""
        if one.ended_ago_us is not None:
            took = f", {seconds((one.started_ago_us - one.ended_ago_us) / 1e6)}"
        moved = f"{one.moved} to {listed(one.targets)}" if one.targets else str(one.moved)
        began = when(one.started_ago_us, now)
        shown.add_row(one.session, one.source, why(one.began), f"{one.phase}{took}", moved, str(one.failed), began)
    return shown


def remarks(reply: OverviewReply, now: datetime | None) -> list[str]:
    """What an operator has to know besides the numbers."""
    said = [culprit_words(one, now) for one in reply.culprits]
    said += [told_sentence(one.record) for one in reply.links]
    for state in reply.brokers:
        if state.infeasible:
            who = listed(subscription(name, state.queues) for name in state.infeasible)
            said.append(f"on {state.broker} deadlines can't be met by any broker behind these links: {who}")
        if state.alarms:
            said.append(f"RabbitMQ of {state.broker} has an alarm: {listed(state.alarms)}")
        if state.dropped:
            lost = counted(state.dropped, "message was", "messages were")
            who = listed(dict.fromkeys(subscription(name, state.queues) for name in state.dropping))
            said.append(f"on {state.broker} {lost} dropped in the last while, of {who}: `tidegate drops list`")
    said += [
        f"{named(use.account, use.tenant)} uses {used(use.quota, use.used, use.limit)}"
        for use in reply.quotas
        if use.share >= QUOTA_SHOWN_SHARE
    ]
    said += insight_words(reply.insight)
    if reply.missing:
        said.append(f"no answer from {listed(reply.missing)}")
    if reply.paused:
        said.append("balancing is paused: no session begins until `tidegate resume`")
    return said


def _neighbours(reply: OverviewReply) -> Table:
    shown = table(
        "head", "state", "load", "patterns it needs", "patterns asked of it", title="neighbouring clusters", **NARROW
    )
    for head in reply.neighbours:
        load = reply.clusters.get(head.head)
        state = "alive" if head.alive else "silent"
        shown.add_row(head.head, state, "" if load is None else str(load), str(head.needs), str(head.offered))
    return shown
