"""How the demo's story is told while it happens: a sentence for each change, and tables of the present state.

Invariant: each change is told once, when it is first seen. Must not know how the story is played: it turns what the
head and the subscribers say into text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from tidegate_experiments.demo.early_warning import EarlyWarning
from tidegate_experiments.demo.story import AUDIENCES, EDGES, FEEDS
from tidegate_experiments.demo.watching import Watch
from tidegate_protocol.operations import BrokerState, OverviewReply, SessionState
from tidegate_protocol.rendering import why
from tidegate_protocol.rendering.operations import doing
from tidegate_protocol.rendering.words import counted, listed, percent

from .tables import NARROW, table

UPLINK: Final = "uplink"
FULL: Final = 1.0


class Narrator:
    """Tells what is new, and remembers what was told already."""

    def __init__(self) -> None:
        self._overrun: set[str] = set()
        self._begun: set[str] = set()
        self._ended: set[str] = set()

    def news(self, overview: OverviewReply, watches: Sequence[Watch]) -> list[str]:
        """What has happened since the last overview, a sentence each."""
        late = sum(watch.late for watch in watches)
        told = [text for broker in overview.brokers for text in self._about(broker, late)]
        for session in reversed(overview.sessions):
            told += self._session(session)
        return told

    def _about(self, broker: BrokerState, late: int) -> Iterable[str]:
        uplink = broker.metrics.get(UPLINK)
        if uplink is None or broker.broker in self._overrun or uplink.value <= FULL:
            return
        self._overrun.add(broker.broker)
        so_far = f"So far {counted(late, 'message')} came late" if late else "Nothing is late yet"
        offered = f"{broker.broker} is offered {percent(uplink.value)} of what its uplink carries"
        yield f"{offered}: its queues grow. {so_far}."

    def _session(self, session: SessionState) -> Iterable[str]:
        if session.session not in self._begun:
            self._begun.add(session.session)
            yield f"{session.source} asks for help: {why(session.began)}."
        if session.ended_ago_us is not None and session.session not in self._ended:
            self._ended.add(session.session)
            took_s = (session.started_ago_us - session.ended_ago_us) / 1e6
            where = listed(f"{count} to {edge}" for edge, count in sorted(session.targets.items()))
            moved = f"{counted(session.moved, 'subscriber')} moved away from {session.source}"
            yield f"{moved}{f' ({where})' if where else ''}, in {took_s:.1f} s."


class AnalyticsTelling:
    """Tells the demo of the analytics, line by line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began_s = 0.0
        self._narrator = Narrator()
        self._watches: Sequence[Watch] = ()

    def begins(self, scenario: EarlyWarning) -> None:
        self._say("Spark follows the telemetry of the head: one query writes a lake, one works out attainment.")
        self._began_s, self._watches = time.monotonic(), scenario.watches
        self._told(opening())

    def shakes(self) -> None:
        self._told(shaking())

    def looks(self, overview: OverviewReply) -> None:
        for text in self._narrator.news(overview, self._watches):
            self._told(text)

    def ends(self) -> None:
        self._say("The story is over; the lake takes up the last records, and the report is drawn.")

    def _told(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:3.0f} s  {text}")


def opening() -> str:
    """With what the story begins."""
    subscribers = sum(audience.count for audience in AUDIENCES)
    return f"{len(FEEDS)} kinds of sensors publish; {subscribers} subscribers register, each with a deadline."


def shaking() -> str:
    """What the burst is, in a sentence."""
    parts = [f"{feed.name} send {feed.burst_factor:g} times as much" for feed in FEEDS if feed.burst_factor != 1.0]
    return f"The ground shakes: {' and '.join(parts)}."


def audience_table(watches: Sequence[Watch], rates: Mapping[str, float], overview: OverviewReply) -> Table:
    """One row per audience: where it is served, how fast, what waits and what may."""
    names = ("\nsubscribers", "\ntopic", "\nedge")
    numbers = ("dead-\nline", "rate\neach", "\nqueue", "may\nwait", "latency\nnow", "\nlate")
    # Fits into 80 columns; subscribers that are on several edges for a moment share two lines.
    whole = (*names[:2], *numbers)
    shown = table(*names, *(f">{name}" for name in numbers), whole=whole, **NARROW)
    queues = {queue.subscriber: queue for broker in overview.brokers for queue in broker.queues}
    for audience in AUDIENCES:
        members = [watch for watch in watches if watch.audience is audience]
        known = [queues[watch.name] for watch in members if watch.name in queues]
        late = sum(watch.late for watch in members)
        thresholds = [queue.threshold for queue in known if queue.threshold is not None]
        latest = [age for watch in members for age in watch.recent_s]
        shown.add_row(
            f"{audience.count} × {audience.name}",
            audience.topic,
            ", ".join(sorted({watch.edge for watch in members if watch.subscription is not None})) or "not yet",
            f"{audience.deadline_s:g} s",
            f"{statistics.fmean(rates.get(watch.name, 0.0) for watch in members):.0f}/s",
            f"{max(queue.depth for queue in known):.0f}" if known else "",
            f"{max(0.0, min(thresholds)):.0f}" if thresholds else "",
            f"{statistics.median(latest) * 1000:.0f} ms" if latest else "",
            Text(str(late), style="red" if late else "green"),
        )
    return shown


def edge_table(overview: OverviewReply) -> Table:
    """One row per edge: its state, and what its uplink is offered."""
    shown = table("\nedge", "\nstate", ">\nuplink offered", "\ndoing", **NARROW)
    states = {broker.broker: broker for broker in overview.brokers}
    for name in EDGES:
        broker = states.get(name)
        if broker is None:
            shown.add_row(name, "does not answer", "", "")
            continue
        uplink = broker.metrics.get(UPLINK)
        offered = Text(percent(uplink.value), style="red" if uplink.value > FULL else "") if uplink else Text("")
        shown.add_row(name, broker.state.value, offered, doing(broker.doing))
    return shown
