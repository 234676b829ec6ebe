"""Simulated publishers: an application that publishes at a rate, and what the SDK does with what it hands over.

Going to another head and being slowed down are decided by `PublisherMoveMachine`, which is that of production. What is
here stands for the connection and the window of the SDK. What always holds:

- messages are numbered without gaps when the application hands them over, and written in that order;
- a message is confirmed once its head has routed it and the confirm has come back. What was not confirmed when the
  connection was lost is written again before anything newer: what had arrived is a duplicate then;
- at most `WINDOW` messages are handed over and not confirmed; beyond it the application waits.

A publisher that is not obedient is a foreign client: it knows nothing of the control plane.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import TYPE_CHECKING, Final

from tidegate._config import Limits, Timeouts
from tidegate._moves import (
    Answer,
    Answered,
    CancelTimer,
    ChangeHead,
    Closed,
    ConnectNewHead,
    DropNewHead,
    HeadLost,
    LeaveHead,
    NewHeadConnected,
    Ordered,
    PausePublishing,
    PublisherAction,
    PublisherEvent,
    Request,
    ResumePublishing,
    SetTimer,
    TimerFired,
    WindowEmptied,
)
from tidegate._publisher_move import PublisherMoveMachine
from tidegate_agents.machine import ReplyAddress
from tidegate_protocol.balancing import ThrottleOrder
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.messages import (
    ControlMessage,
    PublisherGoodbye,
    PublisherHello,
    PublisherWelcome,
)

from .clocks import Clock
from .links import Message
from .scenario import Arrivals, PublisherSpec
from .trace import pack_data

if TYPE_CHECKING:
    from .world import World

WINDOW: Final = Limits().window
CONFIRM_S: Final = 0.001
"""What RabbitMQ takes to confirm a message that it has routed."""
RECONNECT_S: Final = 0.5
"""After a connection was closed by somebody, until there is another one."""
FLUSH_S: Final = 0.1
"""How often a publisher that closes looks whether all is written."""
HELLO_S: Final = Timeouts().hello_s
HELLO: Final = "hello"


class SimPublisher:
    """One publisher of one topic."""

    def __init__(self, world: World, spec: PublisherSpec, number: int) -> None:
        self._world = world
        self._kernel = world.kernel
        self._number = number
        self._random = world.kernel.stream(f"publisher {spec.name}")
        self._instant = world.scenario.control.instant
        self._ends_s = min(
            spec.stops_s if spec.stops_s is not None else world.scenario.duration_s, world.scenario.duration_s
        )
        self._poisson = spec.arrivals is Arrivals.POISSON
        self._rate = spec.messages_per_s
        self._next_s = spec.starts_s
        self._epoch = 0
        self._ticks = 0
        self._sequence = 0
        self._waiting: deque[Message] = deque()
        self._flying: deque[Message] = deque()
        self._unconfirmed: deque[tuple[float, Message]] = deque()
        self._connected = True
        self._blocked = False
        self._slowed = False
        """Whether a throttle may be on."""
        self._record = world.record.extend
        self._watched = bool(world.published_to) or world.record.reading
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._request_count = 0
        self._requests: dict[str, str] = {}
        self._heads: dict[str, None] = {}
        self._plane = world.head_plane(spec.head)
        self._new_head: str | None = None
        self.id = publisher_id(spec.name, 1)
        self._prefix = f"{self.id}:{spec.topic}:"
        self.spec = spec
        self.name = spec.name
        self.head = spec.head
        """Where it publishes now."""
        self.delay_s = spec.delay_s
        self.clock = Clock()
        self.incarnation = 1
        self.machine = PublisherMoveMachine(self.id)
        self.sent_again = 0

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
        if self._waiting:
            self._kernel.after(FLUSH_S, self._stop)  # a client that closes writes first what it was given
        elif self.spec.obedient:
            self._world.network.request(self.id, self.head, PublisherGoodbye(publisher=self.id), None)
            self._timers.pop(HELLO, None)
            self._handle(Closed())
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
        if len(self._waiting) + len(self._flying) + len(self._unconfirmed) >= WINDOW and self._is_full():
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
        world, sequence = self._world, self._sequence
        self._sequence = sequence + 1
        index = world.next_index()
        message = Message(self._prefix + str(sequence), index, self.spec.topic, self.spec.message_bytes, now)
        self._record(pack_data(b"p", now, self._number, index))
        if self._watched:
            self._tell(message, now)
        if self._waiting or not self._connected or self.machine.paused:
            self._waiting.append(message)
        elif self.delay_s:
            self._write(message)
        else:
            self._publish(message)

    def _tell(self, message: Message, now: float) -> None:
        assert message.id is not None
        world = self._world
        if world.record.reading:
            world.record.line(now, f"published {message.id}")
        for published in world.published_to:
            published(self.name, message.topic, message.id, now)

    @property
    def published(self) -> int:
        return self._sequence

    def _is_full(self) -> bool:
        """Whether the window is full, now that confirms are entered; if so, go on when there is a place again."""
        self._confirm()
        if len(self._waiting) + len(self._flying) + len(self._unconfirmed) < WINDOW:
            return False
        if self._unconfirmed:
            self._kernel.at(self._unconfirmed[0][0], self._unblock)
        return True

    def _unblock(self, _: None = None) -> None:
        if not self._blocked:
            return
        self._confirm()
        if len(self._waiting) + len(self._flying) + len(self._unconfirmed) < WINDOW:
            self._blocked = False
            self._schedule(self._kernel.now)
        elif self._unconfirmed:
            self._kernel.at(self._unconfirmed[0][0], self._unblock)

    @property
    def backlog(self) -> int:
        """What the application has handed over and no head has got yet."""
        return len(self._waiting) + len(self._flying)

    # The connection

    def _write(self, message: Message) -> None:
        if self.delay_s:
            self._flying.append(message)
            self._kernel.after(self.delay_s, self._arrive, self._epoch)
        else:
            self._publish(message)

    def _arrive(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._publish(self._flying.popleft())

    def _publish(self, message: Message) -> None:
        routed_s = self._plane.publish(self.id, message)
        unconfirmed = self._unconfirmed
        unconfirmed.append((routed_s + self.delay_s + CONFIRM_S, message))
        if unconfirmed[0][0] <= self._kernel.now:
            self._confirm()
        if self._blocked or self.machine.paused:
            self._kernel.at(unconfirmed[-1][0], self._confirmed)

    def _confirm(self) -> None:
        """Enter the confirms that have come in by now."""
        unconfirmed, now = self._unconfirmed, self._kernel.now
        while unconfirmed and unconfirmed[0][0] <= now:
            unconfirmed.popleft()

    def _confirmed(self, _: None) -> None:
        self._unblock()
        self._tell_if_empty()

    def _flush(self) -> None:
        """Write what waits, as far as that is allowed."""
        while self._waiting and self._connected and not self.machine.paused:
            self._write(self._waiting.popleft())
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
        """What is not confirmed has to be written again, before anything newer."""
        self._confirm()
        back = [message for _, message in self._unconfirmed] + list(self._flying)
        self.sent_again += len(back)
        self._unconfirmed.clear()
        self._flying.clear()
        self._epoch += 1
        self._waiting.extendleft(reversed(back))

    def _reconnect(self, _: None) -> None:
        self._connected = True
        self._flush()
        self._tell_if_empty()

    # The control plane

    def listens_at(self, head: str) -> bool:
        return head in self._heads

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
        self._request(HELLO, hello, "")
        self._set_timer(HELLO, HELLO_S)

    def _request(self, key: str, message: ControlMessage, head_url: str) -> None:
        self._request_count += 1
        request = str(self._request_count)
        for old in [old for old, other in self._requests.items() if other == key][:-1]:
            del self._requests[old]
        self._requests[request] = key
        head = self._head(head_url) if key != HELLO else self.head
        self._world.network.request(self.id, head, message, request)

    def _head(self, url: str) -> str:
        return self._world.head_at(url) if url else self.spec.head

    # The machine

    def _handle(self, event: PublisherEvent) -> None:
        now = self._kernel.now
        actions = self.machine.handle(event, self.clock.read(now))
        if self._world.validate_every_step:
            self.machine.validate()
        names = [type(action).__name__ for action in actions]
        self._world.record.event(now, f"client {self.id} {type(event).__name__} {names}")
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: PublisherAction) -> None:
        match action:
            case ConnectNewHead(move, head, _):
                self._new_head = head
                delay_s = self._world.publisher_delay_s(self.name, head)
                takes_s = 0.0 if self._instant else 2 * delay_s * self._world.scenario.control.attach_round_trips
                self._kernel.after(takes_s, self._new_head_connected, move)
            case DropNewHead():
                self._new_head = None
            case PausePublishing():
                self._tell_if_empty()
            case ResumePublishing(moved):
                self._resume(moved)
            case Answer(to, message):
                if to is not None:
                    self._world.network.reply(self.id, to, message)
            case Request(key, message, head_url):
                self._request(key, message, head_url)
            case SetTimer(name, after_s):
                self._set_timer(name, after_s)
            case CancelTimer(name):
                self._timers.pop(name, None)
            case ChangeHead(head, _):
                self._heads[head] = None
                self._hello()
            case LeaveHead(url):
                self._heads.pop(self._head(url), None)

    def _new_head_connected(self, move: str) -> None:
        self._handle(NewHeadConnected(move))

    def _tell_if_empty(self) -> None:
        """While paused: say when nothing is in flight any more."""
        if not self.machine.paused or not self.machine.moving or not self._connected:
            return
        self._confirm()
        if self._flying:
            return  # each that arrives looks again when it is confirmed
        if self._unconfirmed:
            self._kernel.at(self._unconfirmed[-1][0], self._confirmed)
        else:
            self._handle(WindowEmptied())

    def _resume(self, moved: bool) -> None:
        if moved and self._new_head is not None:
            self.head, self._new_head = self._new_head, None
            self._plane = self._world.head_plane(self.head)
            self.delay_s = self._world.publisher_delay_s(self.name, self.head)
            self._epoch += 1
            self._connected = True
        self._flush()

    def _set_timer(self, name: str, after_s: float) -> None:
        self._timer_count += 1
        self._timers[name] = self._timer_count
        self._kernel.after(self.clock.true_duration_s(after_s), self._fire, (name, self._timer_count))

    def _fire(self, argument: tuple[str, int]) -> None:
        name, token = argument
        if self._timers.get(name) != token:
            return
        del self._timers[name]
        if name == HELLO:
            self._hello()
        else:
            self._handle(TimerFired(name))
