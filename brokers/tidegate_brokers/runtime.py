"""Runs an agent: events in, actions out, nothing decided here.

Events are handled one at a time, in the order they were posted, and their actions are handed on at once:
messages to control channels, timers to the event loop, everything else to the data-plane worker. An event
that is posted while another is handled waits its turn. An agent that raises is a bug: the event is logged
and counted, and the rest goes on, because state that is soft repairs itself and a head that ends would not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidegate_agents.kit.memory import Recent
from tidegate_agents.machine import (
    Action,
    Agent,
    Announce,
    CancelTimer,
    Event,
    MessageReceived,
    Record,
    Reply,
    ReplyAddress,
    SampleSoon,
    Send,
    SendClient,
    SetTimer,
    TendDrops,
    TimerFired,
)
from tidegate_protocol.decisions import to_plain
from tidegate_protocol.names import client_key, pie_local_key
from tidegate_protocol.rendering import sentence

from .observe.counters import BrokerMetrics
from .plane.worker import PlaneWorker
from .rabbit.control import ControlChannel

log = logging.getLogger(__name__)

UNANSWERED_MAX: Final = 10_000
UNANSWERED_AGE_MAX_S: Final = 15.0
"""No sender waits longer than this for an answer, so a process that stops does not either."""
IDLE_CHECK_S: Final = 0.05
LAG_PERIOD_S: Final = 1.0

Route = Callable[[str], tuple[ControlChannel, str]]
"""From the name of a broker to the control channel and the routing key that lead to its process."""
Observer = Callable[[Event, Sequence[Action], float], None]
"""Told what an event led to, and when, after everything is on its way. It must not raise."""


class Runtime:
    """Drives one agent."""

    def __init__(self, agent: Agent, metrics: BrokerMetrics) -> None:
        self.observer: Observer | None = None
        self.sample_soon: Callable[[float], None] = lambda after_s: None
        """Who samples the load, where somebody does."""
        self.tend_drops: Callable[[TendDrops], None] = lambda action: None
        """Who keeps what was dropped, where somebody does."""
        self._agent = agent
        self._metrics = metrics
        self._events: deque[Event] = deque()
        self._handling = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unanswered: Recent[ReplyAddress, float] = Recent(UNANSWERED_MAX)
        self._worker: PlaneWorker | None = None
        self._own: ControlChannel | None = None
        self._route: Route | None = None
        self._stopped = False

    def connect(self, worker: PlaneWorker, own: ControlChannel, route: Route) -> None:
        """Say where actions go; done once, because worker and channels in turn need `post`."""
        self._worker, self._own, self._route = worker, own, route

    def post(self, event: Event) -> None:
        """Have an event handled, now or after the one being handled."""
        if self._stopped:
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(event, MessageReceived) and event.reply_to is not None:
            self._unanswered[event.reply_to] = now
        try:
            actions = self._agent.handle(event, now)
        except Exception:
            self._metrics.agent_errors.inc()
            log.exception("the agent failed on %s by a bug of ours; the event is skipped", type(event).__name__)
            return
        self.carry_out(actions)
        if self.observer is not None:
            self.observer(event, actions, now)

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Hand each action to the part that carries it out, in order."""
        assert self._worker is not None
        assert self._own is not None
        assert self._route is not None
        for action in actions:
            match action:
                case Send(to=to, message=message, request_id=request_id):
                    channel, key = self._route(to)
                    channel.send(key, message, request_id)
                case SendClient(client=client, message=message, request_id=request_id):
                    self._own.send(client_key(client), message, request_id)
                case Announce(message=report):
                    self._own.send(pie_local_key(report.cluster), report, None)
                case Reply(to=address, message=message):
                    self._unanswered.pop(address, None)
                    self._own.reply(address, message)
                case SetTimer(name=name, after_s=after_s):
                    self._set_timer(name, after_s)
                case CancelTimer(name=name):
                    self._cancel_timer(name)
                case Record(decision=decision):
                    extra = {
                        "decision": decision.kind,
                        "record": to_plain(decision),
                        "session": decision.session or None,
                    }
                    log.info("%s", sentence(decision), extra=extra)
                case TendDrops():
                    self.tend_drops(action)
                case SampleSoon(after_s=after_s):
                    self.sample_soon(after_s)
                case _:
                    self._worker.submit(action)

    # Timers

    def _set_timer(self, name: str, after_s: float) -> None:
        self._cancel_timer(name)
        self._timers[name] = asyncio.get_running_loop().call_later(after_s, self._fire, name)

    def _cancel_timer(self, name: str) -> None:
        handle = self._timers.pop(name, None)
        if handle is not None:
            handle.cancel()

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self.post(TimerFired(name))

    # Stopping

    async def finish(self) -> None:
        """Wait until every request has been answered and the data plane has nothing left to do."""
        assert self._worker is not None
        loop = asyncio.get_running_loop()
        while True:
            oldest = loop.time() - UNANSWERED_AGE_MAX_S
            if self._worker.idle and all(since < oldest for since in self._unanswered.values()):
                return
            await asyncio.sleep(IDLE_CHECK_S)

    def stop(self) -> None:
        """Handle nothing more and let no timer fire."""
        self._stopped = True
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()


async def measure_lag(metrics: BrokerMetrics) -> None:
    """Keep the gauge that says how late the event loop wakes up."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        metrics.loop_lag.set(max(0.0, loop.time() - due))
