"""How the demo's story is told while it happens: sentences when something changes, tables of what is.

Pure: from what the head and the subscribers say to text. Each change is told once, whenever it is first seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Final

from rich.table import Table
from rich.text import Text

from tidegate_protocol.operations import BrokerState, OverviewReply, SessionState

from .early_warning import Watch
from .story import AUDIENCES, EDGES, FEEDS

UPLINK: Final = "uplink"
FULL: Final = 1.0


class Narrator:
    """Remembers what was told already."""

    def __init__(self) -> None:
        self._overrun: set[str] = set()
        self._begun: set[str] = set()
        self._ended: set[str] = set()

    def news(self, overview: OverviewReply) -> list[str]:
        """What has happened since the last look, a sentence each."""
        told = [text for broker in overview.brokers for text in self._about(broker)]
        for session in reversed(overview.sessions):
            told += self._session(session)
        return told

    def _about(self, broker: BrokerState) -> Iterable[str]:
        uplink = broker.metrics.get(UPLINK)
        if uplink is None or broker.broker in self._overrun or uplink.value <= FULL:
            return
        self._overrun.add(broker.broker)
        yield (
            f"{broker.broker} is offered {uplink.value:.0%} of what its uplink carries: its queues grow. "
            "Nothing is late yet."
        )

    def _session(self, session: SessionState) -> Iterable[str]:
        if session.session not in self._begun:
            self._begun.add(session.session)
            yield f"{session.source} asks for help: {_reason(session)}."
        if session.ended_ago_us is not None and session.session not in self._ended:
            self._ended.add(session.session)
            took_s = (session.started_ago_us - session.ended_ago_us) / 1e6
            where = ", ".join(f"{count} to {edge}" for edge, count in sorted(session.targets.items())) or "nowhere"
            yield f"{session.moved} subscribers moved away from {session.source} ({where}), in {took_s:.1f} s."


def _reason(session: SessionState) -> str:
    """The reason as it is recorded is "metric: metric of queue depth > threshold"; once is enough."""
    metric, _, rest = session.reason.partition(": ")
    return rest if rest.startswith(metric) else session.reason


def shaking() -> str:
    """What the burst is, in a sentence."""
    parts = [f"{feed.name} send {feed.burst_factor:g} times as much" for feed in FEEDS if feed.burst_factor != 1.0]
    return f"The ground shakes: {' and '.join(parts)}."


def audience_table(watches: list[Watch], rates: dict[str, float], overview: OverviewReply | None) -> Table:
    """One row per audience: where it is served, how fast, what waits and what may."""
    table = Table()
    for heading in ("subscribers", "topic", "edge"):
        table.add_column(heading, no_wrap=True)
    for heading in ("deadline", "rate each", "waiting", "may wait", "latency now", "late"):
        table.add_column(heading, justify="right", no_wrap=True)
    queues = {queue.subscriber: queue for broker in (overview.brokers if overview else ()) for queue in broker.queues}
    for audience in AUDIENCES:
        members = [watch for watch in watches if watch.audience is audience]
        known = [queues[watch.name] for watch in members if watch.name in queues]
        late = sum(watch.late for watch in members)
        thresholds = [queue.threshold for queue in known if queue.threshold is not None]
        latest = [age for watch in members for age in watch.recent_s]
        table.add_row(
            f"{audience.count} × {audience.name}",
            audience.topic,
            ", ".join(sorted({watch.edge for watch in members})),
            f"{audience.deadline_s:g} s",
            f"{statistics.fmean(rates.get(watch.name, 0.0) for watch in members):.0f}/s",
            f"{max(queue.depth for queue in known):.0f}" if known else "",
            f"{max(0.0, min(thresholds)):.0f}" if thresholds else "",
            f"{statistics.median(latest) * 1000:.0f} ms" if latest else "",
            Text(str(late), style="red" if late else "green"),
        )
    return table


def edge_table(overview: OverviewReply) -> Table:
    """One row per edge: its state, and what its uplink is offered."""
    table = Table()
    for heading, right in (("edge", False), ("state", False), ("uplink offered", True), ("doing", False)):
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    states = {broker.broker: broker for broker in overview.brokers}
    for name in EDGES:
        broker = states.get(name)
        if broker is None:
            table.add_row(name, "does not answer", "", "")
            continue
        uplink = broker.metrics.get(UPLINK)
        offered = Text(f"{uplink.value:.0%}", style="red" if uplink.value > FULL else "") if uplink else Text("")
        table.add_row(name, broker.state.value, offered, broker.doing)
    return table
