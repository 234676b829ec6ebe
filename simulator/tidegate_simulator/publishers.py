"""Simulated publishers: an application that publishes at a rate, and the machines of the SDK that it uses.

All that decides is production's: `PublisherMoveMachine` says when a publisher goes to another head and how it is slowed
down; `Topic` numbers its messages; `Window` says what is written when, what is written again after a lost connection,
and when the application has to wait. What is here stands for the application and for the connection.

Invariant: a message is confirmed once its head has routed it and the confirm has come back. What had arrived when the
connection was lost, and was not confirmed, comes again as a duplicate.

A publisher that is not obedient is a foreign client: it knows nothing of the control plane. One that claims is hostile,
too: its messages carry ids that another publisher is about to use.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import TYPE_CHECKING, Final

from tidegate._core.config import Limits, Timeouts
from tidegate._core.moves import (
    Answered,
    ChangeHead,
    ClosedByApplication,
    ConnectNewHead,
    DropNewHead,
    HeadLost,
    NewHeadConnected,
    Ordered,
    PausePublishing,
    PublisherEvent,
    ResumePublishing,
    TimerFired,
    WindowEmptied,
)
from tidegate._core.publisher_move import PublisherMoveMachine
from tidegate._core.publishing import Topic
from tidegate._core.window import Publication, Window
from tidegate_agents.machine import ReplyAddress
from tidegate_protocol.balancing.publishers import ThrottleOrder
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.messages import (
    ControlMessage,
    PublisherGoodbye,
    PublisherHello,
    PublisherWelcome,
)

from .clients import ClientAction, SimClient
from .links import Message
from .scenario import Arrivals, PublisherSpec
from .trace import pack_data

if TYPE_CHECKING:
    from .world import World

CONFIRM_S: Final = 0.001
"""What RabbitMQ takes to confirm a message that it has routed."""
RECONNECT_S: Final = 0.5
"""After a connection was closed by somebody, until there is another one."""
FLUSH_S: Final = 0.1
"""How often a publisher that closes looks whether all is written."""
HELLO_S: Final = Timeouts().hello_s
HELLO: Final = "hello"
CLAIMED_AHEAD: Final = 4
"""How far ahead of its victim a hostile publisher uses ids."""


class Written(Publication):
    """A message in the window. How its bytes look is of no interest here, so there are none."""

    __slots__ = ("message",)

    def __init__(self, identity: str, message: Message) -> None:
        super().__init__(identity, message.topic, b"", b"")
        self.message = message


class SimPublisher(SimClient):
    """One publisher of one topic."""

    def __init__(self, world: World, spec: PublisherSpec, number: int) -> None:
        random = world.kernel.stream(f"publisher {spec.name}")
        super().__init__(world, publisher_id(spec.name, 1), spec.head, random)
        self._number = number
        self._ends_s = spec.ends_s(world.scenario.duration_s)
        self._poisson = spec.arrivals is Arrivals.POISSON
        self._rate = spec.messages_per_s
        self._next_s = spec.starts_s
        self._epoch = 0
        self._ticks = 0
        self._window: Window[Written] = Window(Limits())
        self._flying: deque[Message] = deque()
        """What is written and has not arrived."""
        self._arrived = 0
        """How many have arrived through this connection: the tag of the last one."""
        self._confirms: deque[tuple[float, int]] = deque()
        """When each that has arrived is confirmed, and its tag."""
        self._connected = True
        self._blocked = False
        self._slowed = False
        """Whether a throttle may be on."""
        self._record = world.record.extend
        self._published_to = world.published_to
        self._plane = world.heads[spec.head].plane
        self._new_head: str | None = None
        plain = spec.contents is not None
        self._topic = Topic(spec.name if plain else self.id, spec.topic)
        self._account = None if plain else spec.name
        self._victim = spec.claims
        self.spec = spec
        self.name = spec.name
        self.head = spec.head
        """Where it publishes now."""
        self.delay_s = spec.delay_s
        self.incarnation = 1
        self.machine = PublisherMoveMachine(self.id)

    # The application

    def start(self) -> None:
        """Begin to publish, and say hello."""
        if self.spec.obedient:
            self._heads[self.head] = None
            self._hello()
        for change in self.spec.changes:
            self._kernel.at(change.at_s, self._change_rate, change.factor)
        if self.spec.stops_s is not None:
            self._kernel.at(self._ends_s, self._stop)
        self._schedule(self._kernel.now)

    def _stop(self, _: None) -> None:
        if self._window.waiting:
            self._kernel.after(FLUSH_S, self._stop)  # a client that closes writes first what it was given
        elif self.spec.obedient:
            self._world.network.request(self.id, self.head, PublisherGoodbye(publisher=self.id), None)
            self._timers.pop(HELLO, None)
            self._handle(ClosedByApplication())
            self._heads.clear()

    def _change_rate(self, factor: float) -> None:
        """What was left of the pause until the next message shrinks or grows with the rate."""
        old, self._rate = self._rate, self.spec.messages_per_s * factor
        now = self._kernel.now
        if self._blocked or not self._rate:
            return
        if self._poisson or not old:
            self._schedule(now + self._pause_s())
        else:
            self._schedule(now + max(self._next_s - now, 0.0) * old / self._rate)

    def _pause_s(self) -> float:
        return self._random.expovariate(self._rate) if self._poisson else 1.0 / self._rate

    def _schedule(self, at_s: float) -> None:
        """Have the application's next message at `at_s`, and not when it was to come before."""
        self._next_s = at_s
        self._ticks = ticks = self._ticks + 1
        if at_s < self._ends_s:
            self._kernel.at(at_s, self._tick, ticks)

    def _tick(self, ticks: int) -> None:
        """The application has a message."""
        if ticks != self._ticks or not self._rate:
            return
        kernel = self._kernel
        now = kernel.now
        if self._window.full and self._is_full():
            self._blocked = True
            return
        if self._slowed and self._wait(now):
            return
        self._hand_over(now)
        # What `_schedule` does, written out: it happens to every message.
        self._next_s = at_s = now + self._pause_s() if self._poisson else self._next_s + 1.0 / self._rate
        if at_s < self._ends_s:
            kernel.count = count = kernel.count + 1
            heappush(kernel.heap, (at_s, count, self._tick, ticks))

    def _wait(self, now: float) -> bool:
        """Whether a throttle makes the application wait."""
        local_s = self.clock.read(now)
        self._slowed = self.machine.throttle.active(local_s)
        wait_s = self.machine.throttle.take(local_s)
        if wait_s > 0.0:
            self._schedule(now + self.clock.true_duration_s(wait_s))
        return wait_s > 0.0

    def _hand_over(self, now: float) -> None:
        spec, index = self.spec, self._world.next_index()
        content = self._content() if spec.contents is not None else None
        claimed = self._claim() if self._victim is not None else None
        identity = self._topic.next_id()
        message = Message(identity, index, spec.topic, spec.message_bytes, now, content, self._account, claimed)
        self._window.enter(Written(identity, message))
        self._record(pack_data(b"p", now, self._number, index))
        for published in self._published_to:
            published(spec.name, spec.topic, identity, now)
        if self._connected:
            self._write()

    def _claim(self) -> str:
        """An id that the victim is about to use."""
        assert self._victim is not None
        victim = self._world.publishers[self._victim]
        return f"{victim.prefix}{victim.published + self.published % CLAIMED_AHEAD}"

    @property
    def prefix(self) -> str:
        """What its message ids begin with."""
        return self._topic.prefix

    def _content(self) -> bytes:
        """The body of the next message of a plain publisher."""
        sequence, contents = self.published, self.spec.contents
        return f"{self._topic.prefix}{f'={sequence % contents}' if contents else sequence}".encode()

    @property
    def published(self) -> int:
        return self._topic.next_sequence

    def _is_full(self) -> bool:
        """Whether the window is full, now that confirms are entered; if so, go on when there is a place again."""
        self._confirm()
        if self._window.full and self._confirms:
            self._kernel.at(self._confirms[0][0], self._unblock)
        return self._window.full

    def _unblock(self, _: None = None) -> None:
        if not self._blocked:
            return
        if not self._is_full():
            self._blocked = False
            self._schedule(self._kernel.now)

    @property
    def backlog(self) -> int:
        """What the application has handed over and no head has got yet."""
        return self._window.waiting + len(self._flying)

    # The connection

    def _write(self) -> None:
        """Write what waits, as far as the window allows."""
        for written in self._window.take(self._kernel.now):
            if self.delay_s:
                self._flying.append(written.message)
                self._kernel.after(self.delay_s, self._arrive, self._epoch)
            else:
                self._publish(written.message)

    def _arrive(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._publish(self._flying.popleft())

    def _publish(self, message: Message) -> None:
        routed_s = self._plane.publish(self.id, message)
        self._arrived = tag = self._arrived + 1
        confirms, confirm_s = self._confirms, routed_s + self.delay_s + CONFIRM_S
        confirms.append((confirm_s, tag))
        if confirms[0][0] <= self._kernel.now:
            self._confirm()
        if self._blocked or self.machine.paused:
            self._kernel.at(confirm_s, self._confirmed)

    def _confirm(self) -> None:
        """Enter the confirms that have come in by now."""
        confirms, now, acked = self._confirms, self._kernel.now, self._window.acked
        while confirms and confirms[0][0] <= now:
            acked(confirms.popleft()[1], multiple=False)

    def _confirmed(self, _: None) -> None:
        self._unblock()
        self._tell_if_empty()

    def _flush(self) -> None:
        if self._connected:
            self._write()
        self._unblock()

    def cut(self, until_s: float | None) -> None:
        """The connection is lost; there is another one at `until_s`, or soon."""
        if not self._connected:
            return
        self._connected = False
        self._take_back()
        if self.spec.obedient:
            self._handle(HeadLost())
        again_s = self._kernel.now + RECONNECT_S if until_s is None else until_s
        self._kernel.at(again_s, self._reconnect)

    def _take_back(self) -> None:
        """The connection is lost with what was on its way."""
        self._confirm()
        self._window.lost()
        self._flying.clear()
        self._confirms.clear()
        self._epoch += 1

    def _open(self) -> None:
        """There is a new connection."""
        self._window.opened()
        self._arrived = 0
        self._connected = True

    def _reconnect(self, _: None) -> None:
        if not self._connected:  # it may have been moved to another head meanwhile
            self._open()
        self._flush()
        self._tell_if_empty()

    # The control plane

    def ordered(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None:
        self._slowed = self._slowed or isinstance(message, ThrottleOrder)
        self._handle(Ordered(message, reply_to))

    def answered(self, request: str, message: ControlMessage) -> None:
        key = self._requests.pop(request, None)
        if key == HELLO:
            if isinstance(message, PublisherWelcome) and HELLO in self._timers:
                self._set_timer(HELLO, min(message.period_s, HELLO_S))
        elif key is not None:
            self._handle(Answered(key, message))

    def _hello(self) -> None:
        round_trip_us = round(2e6 * self.delay_s)
        hello = PublisherHello(publisher=self.id, topics=(self.spec.topic,), round_trip_us=round_trip_us)
        self._request(HELLO, hello, self.head)
        self._set_timer(HELLO, HELLO_S)

    # The machine

    def _handle(self, event: PublisherEvent) -> None:
        actions = self.machine.handle(event, self.clock.read(self._kernel.now))
        self._stepped(type(event).__name__, actions, self.machine, self._window)

    def _carry_out(self, action: ClientAction) -> None:
        match action:
            case ConnectNewHead(move, head, _):
                self._new_head = head
                delay_s = self._world.delay_s(self.name, head)
                takes_s = 0.0 if self._instant else 2 * delay_s * self._world.scenario.control.attach_round_trips
                self._kernel.after(takes_s, self._new_head_connected, move)
            case DropNewHead():
                self._new_head = None
            case PausePublishing():
                self._window.paused = True
                self._tell_if_empty()
            case ResumePublishing(moved):
                self._resume(moved)
            case ChangeHead(head, _):
                self._heads[head] = None
                self._hello()
            case _:
                super()._carry_out(action)

    def _new_head_connected(self, move: str) -> None:
        self._handle(NewHeadConnected(move))

    def _tell_if_empty(self) -> None:
        """While paused: say when nothing is in flight any more."""
        if not self.machine.paused or not self.machine.moving or not self._connected:
            return
        self._confirm()
        if self._flying:
            return  # each that arrives looks again when it is confirmed
        if self._confirms:
            self._kernel.at(self._confirms[-1][0], self._confirmed)
        else:
            self._handle(WindowEmptied())

    def _resume(self, moved: bool) -> None:
        if moved and self._new_head is not None:
            self.head, self._new_head = self._new_head, None
            self._plane = self._world.heads[self.head].plane
            self.delay_s = self._world.delay_s(self.name, self.head)
            self._epoch += 1
            self._open()
        self._window.paused = False
        self._flush()

    def _fired(self, name: str) -> None:
        if name == HELLO:
            self._hello()
        else:
            self._handle(TimerFired(name))
