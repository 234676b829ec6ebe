"""Carries out data-plane actions, in order, until each is done.

The worker owns a connection to the broker's own RabbitMQ. Whenever that connection is new, and now and then besides, it
makes RabbitMQ agree with the plane's desired state before it goes on; so a RabbitMQ that was restarted or wiped is
repaired.

Invariants:

- actions on one object, and actions on several, are carried out in the order given: an action starts when the action
  before it is done or refused for good. Neighbouring actions on different objects are carried out side by side, because
  RabbitMQ takes its time over each, and a session that moves many clients waits for the last;
- a failure that may pass (a lost connection, a RabbitMQ that starts) is retried for as long as the process
  lives, with a growing, bounded delay; a refusal becomes `ActionFailed`;
- the routine look at RabbitMQ happens between actions, never during one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, Protocol

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelClosed

from tidegate_agents.machine import Action, ActionFailed, Event, ServerSeen, Started

from ..errors import BrokerError, RabbitError, RabbitUnreachable
from ..observe.counters import BrokerMetrics
from ..rabbit.connection import BACKOFF_FIRST_S, BACKOFF_MAX_S, ConnectionKeeper, lost_by_connection
from ..rabbit.management import Management
from ..settings.urls import ServerUrl

log = logging.getLogger(__name__)

ACTIONS_MAX: Final = 200_000
REFUSALS_MAX: Final = 3
"""How often RabbitMQ may refuse an action, everything asserted anew in between, until it is given up."""
PERFORM_TIMEOUT_S: Final = 60.0
ASSERT_TIMEOUT_S: Final = 300.0
ROUTINES_PER_ASSERT: Final = 6
SIDE_BY_SIDE_MAX: Final = 8
CONNECTION: Final = "data-plane"


class DataPlane(Protocol):
    """Desired state of a RabbitMQ, and how to make it so."""

    async def adopt(self, channel: AbstractChannel, management: Management) -> Started: ...

    async def assert_all(self, channel: AbstractChannel, management: Management) -> None: ...

    async def perform(self, channel: AbstractChannel, management: Management, action: Action) -> Event | None: ...

    def object_of(self, action: Action) -> str | None:
        """The one object in RabbitMQ that an action concerns; None if it has to be carried out alone."""
        ...


Routine = Callable[[AbstractChannel, Management], Awaitable[Event | None]]


class PlaneWorker:
    """One connection, one queue of actions, one plane."""

    def __init__(
        self,
        plane: DataPlane,
        url: ServerUrl,
        management: Management,
        post: Callable[[Event], None],
        metrics: BrokerMetrics,
        routine: Routine,
        routine_every_s: float,
    ) -> None:
        self.keeper = ConnectionKeeper(
            CONNECTION, url, self._setup, self._lost, lambda: metrics.reconnects.labels(CONNECTION).inc()
        )
        self.asserted = asyncio.Event()
        self.problem: str | None = None
        self._error: BrokerError | None = None
        self._plane = plane
        self._where = str(url)
        self._management = management
        self._post = post
        self._metrics = metrics
        self._routine = routine
        self._routine_every_s = routine_every_s
        self._routines = 0
        self._actions: deque[Action] = deque()
        self._refusals = 0
        self._connection: AbstractConnection | None = None
        self._started: Started | None = None
        self._announced = False
        self._wake = asyncio.Event()
        metrics.connected.labels(CONNECTION).set(0)

    def submit(self, action: Action) -> None:
        """Have an action carried out after those before it."""
        if len(self._actions) >= ACTIONS_MAX:
            self._give_up(action, f"more than {ACTIONS_MAX} actions wait for RabbitMQ")
            return
        self._actions.append(action)
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be done."""
        return not self._actions

    async def wait_asserted(self, timeout_s: float) -> None:
        """Return once RabbitMQ agrees with the desired state; raise what is in the way when time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.asserted.wait()
        except TimeoutError:
            raise self._error or RabbitUnreachable(self._where, "not set up in time", "look into its log") from None

    async def run(self) -> None:
        """Work until cancelled."""
        failures = 0
        while True:
            await self.keeper.up.wait()
            try:
                await self._session()
                failures = 0
            except BaseException as error:
                self._note_failure(error)
                failures = 0 if self.asserted.is_set() else failures + 1
            self.asserted.clear()
            self._metrics.actions_retried.inc()
            await asyncio.sleep(min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(failures, 10)))

    async def _session(self) -> None:
        """Assert everything, then work, on a few channels; ends when one of them or their connection has gone."""
        connection = self._connection
        if connection is None:
            return
        channels = [await connection.channel(publisher_confirms=False)]
        channel = channels[0]
        async with asyncio.timeout(ASSERT_TIMEOUT_S):
            if self._started is None:
                self._started = await self._plane.adopt(channel, self._management)
            await self._plane.assert_all(channel, self._management)
        self.problem = self._error = None
        self.asserted.set()
        self._post(ServerSeen(True) if self._announced else self._started)
        self._announced = True
        loop = asyncio.get_running_loop()
        routine_due = loop.time() + self._routine_every_s
        while not any(one.is_closed for one in channels) and self._connection is connection:
            if self._actions:
                actions = self._next()
                while len(channels) < len(actions):
                    channels.append(await connection.channel(publisher_confirms=False))
                await self._perform(channels, actions)
            elif loop.time() >= routine_due:
                await self._look(channel)
                routine_due = loop.time() + self._routine_every_s
            else:
                self._wake.clear()
                try:
                    async with asyncio.timeout_at(routine_due):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _next(self) -> list[Action]:
        """The actions to be carried out now: one, or several that do not concern each other."""
        objects: set[str] = set()
        for action in islice(self._actions, SIDE_BY_SIDE_MAX):
            concerned = self._plane.object_of(action)
            if concerned is None or concerned in objects:
                break
            objects.add(concerned)
        return list(islice(self._actions, max(len(objects), 1)))

    async def _perform(self, channels: list[AbstractChannel], actions: list[Action]) -> None:
        """Carry these out, the first ones that wait; one that fails stays, and comes next."""
        performed = [
            self._plane.perform(channel, self._management, action)
            for channel, action in zip(channels, actions, strict=False)
        ]
        async with asyncio.timeout(PERFORM_TIMEOUT_S):
            results = await asyncio.gather(*performed, return_exceptions=True)
        failed: list[tuple[Action, BaseException]] = []
        for action, result in zip(actions, results, strict=True):
            self._actions.popleft()
            if isinstance(result, BaseException):
                failed.append((action, result))
            elif result is not None:
                self._post(result)
        self._actions.extendleft(action for action, _ in reversed(failed))
        if not failed:
            self._refusals = 0
            return
        action, error = failed[0]
        if isinstance(error, ChannelClosed | RabbitError) and not isinstance(error, RabbitUnreachable):
            self._refusals += 1
            if self._refusals >= REFUSALS_MAX or isinstance(error, ChannelAccessRefused):
                self._actions.popleft()
                self._refusals = 0
                self._give_up(action, str(error))
        raise error

    async def _look(self, channel: AbstractChannel) -> None:
        async with asyncio.timeout(ASSERT_TIMEOUT_S):
            event = await self._routine(channel, self._management)
            self._routines += 1
            if self._routines % ROUTINES_PER_ASSERT == 0:
                await self._plane.assert_all(channel, self._management)
        if event is not None:
            self._post(event)

    def _give_up(self, action: Action, problem: str) -> None:
        name = type(action).__name__
        log.error("RabbitMQ refused %s; the agent is told that it failed: %s", name, problem)
        self._metrics.actions_failed.labels(name).inc()
        self._post(ActionFailed(action, problem))

    def _note_failure(self, error: BaseException) -> None:
        """Keep what is in the way for /readyz; let through what is no failure of RabbitMQ's."""
        if isinstance(error, BrokerError):
            self._error = error
        elif lost_by_connection(error) or isinstance(error, AMQPError):
            detail = str(error) or type(error).__name__
            self._error = RabbitUnreachable(self._where, f"setting it up failed ({detail})", "it is tried again")
        else:
            raise error
        self.problem = str(self._error)
        log.warning("%s", self.problem)

    async def _setup(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._metrics.connected.labels(CONNECTION).set(1)

    def _lost(self) -> None:
        self._connection = None
        self.asserted.clear()
        self._metrics.connected.labels(CONNECTION).set(0)
        self._wake.set()
        if self._announced:
            self._post(ServerSeen(False))
