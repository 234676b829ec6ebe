"""Simulated subscribers: the client machine of the SDK, and what its engine does around it.

Which queue a subscription is served from, what is held during a move and when it is released is the business of
`SubscriptionMachine`; which delivery is new that of `Deduplicator`. Both are those of production. What is here stands
for connections: it attaches, takes deliveries, hands them to an application that may be slow, acknowledges, and loses
all of that when it is killed or cut off. What always holds:

- a delivery is acknowledged only after the application got it, or it was a duplicate or a marker; in the order of the
  deliveries of its attachment;
- a process that was killed starts again without its memory, under the same name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate._attachment import SubscriptionTimes
from tidegate._config import Timeouts
from tidegate._delivery import Deduplicator, Verdict
from tidegate._hold import Admission
from tidegate._migration import SubscriptionMachine
from tidegate._moves import (
    Answer,
    Answered,
    Attach,
    Attached,
    AttachmentLost,
    CancelTimer,
    ChangeHead,
    Closed,
    Detach,
    Detached,
    LeaveHead,
    MarkerArrived,
    Opened,
    Ordered,
    Release,
    Request,
    SetTimer,
    SubscriptionAction,
    SubscriptionEvent,
    TellRefusal,
    TimerFired,
)
from tidegate_agents.machine import ReplyAddress
from tidegate_protocol.messages import (
    ControlMessage,
    Refusal,
    SubscribeRequest,
    UnsubscribeReply,
    UnsubscribeRequest,
)

from .clocks import Clock
from .links import Message
from .plane_edge import Consumer, EdgePlane
from .scenario import SubscriberSpec
from .trace import pack_data

if TYPE_CHECKING:
    from .world import World

STREAMS_MAX: Final = 20_000
"""The default of the SDK."""
EXPIRES_S: Final = 600
TIMER_CHANCE: Final = 0.1
"""A timer may fire later by up to this share, so that no crowd comes back at once."""
LATE_TOLERANCE_S: Final = 1e-9
"""A message that takes just its deadline is in time, whatever the rounding of sums."""
UNSUBSCRIBE_ATTEMPT_S: Final = Timeouts().attempt_s
UNSUBSCRIBE: Final = "unsubscribe"
UNSUBSCRIBE_ATTEMPTS_MAX: Final = 20


class Attachment:
    """A consumer on one queue as the client sees it: deliveries are numbered, and acknowledged in their order."""

    __slots__ = (
        "ahead",
        "buffered",
        "consumer",
        "contiguous",
        "delay_s",
        "given_up",
        "plane",
        "queue",
        "received",
        "slot",
    )

    def __init__(self, slot: int, queue: str, plane: EdgePlane, delay_s: float) -> None:
        self.slot = slot
        self.queue = queue
        self.plane = plane
        self.delay_s = delay_s
        self.consumer: Consumer | None = None
        self.given_up = False
        self.received = 0
        self.buffered = 0
        """Deliveries that wait for a slow application."""
        self.contiguous = 0
        self.ahead: set[int] = set()

    def settle(self, tag: int) -> None:
        """This delivery is done with: acknowledge it with all that waited for it."""
        if tag != self.contiguous + 1:
            self.ahead.add(tag)
            return
        count = 1
        ahead = self.ahead
        while ahead and tag + count in ahead:
            ahead.discard(tag + count)
            count += 1
        self.contiguous += count
        if self.consumer is not None:
            self.plane.acknowledge(self.consumer, count)


class SimSubscriber:
    """One subscriber with one subscription."""

    def __init__(self, world: World, spec: SubscriberSpec, number: int) -> None:
        self._world = world
        self._kernel = world.kernel
        self._trace = world.record
        self._number = number
        self._random = world.kernel.stream(f"subscriber {spec.name}")
        self._instant = world.scenario.control.instant
        self._round_trips = world.scenario.control.attach_round_trips
        self._late_after_s = spec.deadline_s + LATE_TOLERANCE_S
        self._takes_s = None if spec.takes_per_s is None else 1.0 / spec.takes_per_s
        self._attachments: dict[int, Attachment] = {}
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._request_count = 0
        self._requests: dict[str, str] = {}
        self._heads: dict[str, None] = {}
        self._buffer: deque[tuple[Message, Attachment, int, bool]] = deque()
        self._repeated: dict[str, list[tuple[Attachment, int]]] = {}
        """Of what is in the buffer: deliveries of the same message that came meanwhile."""
        self._application_free_s = 0.0
        self._taking = False
        self._cuts = 0
        self._unsubscribes = 0
        self.spec = spec
        self.name = spec.name
        self.clock = Clock()
        self.incarnation = 0
        self.up = False
        self.left = False
        """Whether it has unsubscribed, and the head has confirmed that."""
        self.leaving = False
        self.machine: SubscriptionMachine | None = None
        self.deduplicator = Deduplicator(STREAMS_MAX)
        self.delivered = 0
        self.late = 0
        self.collected = 0

    # The process

    def start(self) -> None:
        """Join, or come back after a crash."""
        if self.up or self.leaving:
            return
        self.incarnation += 1
        self.up = True
        self._heads = {self.spec.head: None}
        self.deduplicator = Deduplicator(STREAMS_MAX)
        request = SubscribeRequest(
            subscriber=self.name,
            pattern=self.spec.pattern,
            deadline_us=round(self.spec.deadline_s * 1e6),
            expires_s=EXPIRES_S,
        )
        # Where control takes no time, neither does the rest of a migration.
        times = SubscriptionTimes(linger_s=0.0) if self._instant else SubscriptionTimes()
        self.machine = SubscriptionMachine(request, self.spec.prefetch, self.deduplicator.expected, times)
        self.handle(Opened())

    def crash(self) -> None:
        """The process is killed: connections close, memory and what waited for the application are gone."""
        if not self.up:
            return
        self.up = False
        self.machine = None
        self._timers.clear()
        self._requests.clear()
        self._buffer.clear()
        self._repeated.clear()
        self._heads.clear()
        for slot in sorted(self._attachments):
            self._drop(self._attachments[slot])
        self._attachments.clear()

    def cut(self, lasting: bool) -> None:
        """The connections to edges are lost; while the cut lasts no new one can be made."""
        self._cuts += lasting
        for slot in sorted(self._attachments):
            attachment = self._attachments.get(slot)
            if attachment is not None and attachment.consumer is not None:
                self._lost(attachment, gone=False, problem="cut off")

    def mend(self) -> None:
        self._cuts -= 1

    def leave(self) -> None:
        """Unsubscribe: stop, and have the queue removed."""
        self.leaving = True
        machine = self.machine
        if not self.up or machine is None:
            return
        self.handle(Closed())
        if machine.place is None:
            self._gone()
        else:
            self._unsubscribe()

    def _gone(self) -> None:
        """It has said its last word, and hears nothing any more."""
        self.left = True
        self._timers.clear()
        self._heads.clear()

    def _unsubscribe(self) -> None:
        machine = self.machine
        if machine is None or machine.place is None:
            return
        self._unsubscribes += 1
        if self._unsubscribes > UNSUBSCRIBE_ATTEMPTS_MAX:
            return  # the queue expires by itself; a client that wants to go must not be kept
        pattern = machine.request.pattern
        message = UnsubscribeRequest(subscriber=self.name, number=machine.place.number, pattern=pattern)
        self._request(UNSUBSCRIBE, message, machine.head_url)
        self._set_timer(UNSUBSCRIBE, UNSUBSCRIBE_ATTEMPT_S)

    @property
    def buffered(self) -> tuple[Message, ...]:
        """What the client has got and its application has not."""
        return tuple(message for message, _, _, _ in self._buffer)

    # The control plane

    def listens_at(self, head: str) -> bool:
        return self.up and head in self._heads

    def ordered(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None:
        self.handle(Ordered(message, reply_to))

    def answered(self, request: str, message: ControlMessage) -> None:
        key = self._requests.pop(request, None)
        if not self.up or key is None:
            return
        if key != UNSUBSCRIBE:
            self.handle(Answered(key, message))
        elif isinstance(message, UnsubscribeReply):
            self._gone()
        elif isinstance(message, Refusal) and message.retry_after_s is not None:
            self._set_timer(UNSUBSCRIBE, message.retry_after_s)

    def _request(self, key: str, message: ControlMessage, head_url: str) -> None:
        self._request_count += 1
        request = str(self._request_count)
        # Only the latest request under a key is of interest: its repetitions say the same.
        for old in [old for old, other in self._requests.items() if other == key][:-1]:
            del self._requests[old]
        self._requests[request] = key
        self._world.network.request(self.name, self._head(head_url), message, request)

    def _head(self, url: str) -> str:
        return self._world.head_at(url) if url else self.spec.head

    # The machine

    def handle(self, event: SubscriptionEvent) -> None:
        """Have the machine take an event, and do what it orders."""
        machine = self.machine
        if machine is None:
            return
        actions = machine.handle(event, self.clock.read(self._kernel.now))
        self._stepped(machine, type(event).__name__, actions)

    def _progress(self, machine: SubscriptionMachine) -> None:
        actions = machine.progress(self.clock.read(self._kernel.now))
        if actions:
            self._stepped(machine, "progress", actions)

    def _stepped(self, machine: SubscriptionMachine, what: str, actions: list[SubscriptionAction]) -> None:
        if self._world.validate_every_step:
            machine.validate()
        self._trace.event(self._kernel.now, f"client {self.name} {what} {[type(one).__name__ for one in actions]}")
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: SubscriptionAction) -> None:
        match action:
            case Attach():
                self._attach(action)
            case Detach(slot, patience_s):
                self._detach(slot, patience_s)
            case Release(items):
                for item in items:
                    message, attachment, tag = item.payload
                    self._take(message, attachment, tag, item.collected)
            case Answer(to, message):
                if to is not None:
                    self._world.network.reply(self.name, to, message)
            case Request(key, message, head_url):
                self._request(key, message, head_url)
            case SetTimer(name, after_s):
                self._set_timer(name, after_s)
            case CancelTimer(name):
                self._timers.pop(name, None)
            case ChangeHead(head, _):
                self._heads[head] = None
            case LeaveHead(url):
                self._heads.pop(self._head(url), None)
            case TellRefusal():
                pass  # the machine goes on asking, which is what an application here would do

    def _set_timer(self, name: str, after_s: float) -> None:
        self._timer_count += 1
        self._timers[name] = self._timer_count
        late = 1.0 if self._instant else 1.0 + self._random.random() * TIMER_CHANCE
        self._kernel.after(self.clock.true_duration_s(after_s) * late, self._fire, (name, self._timer_count))

    def _fire(self, argument: tuple[str, int]) -> None:
        name, token = argument
        if self._timers.get(name) != token:
            return
        del self._timers[name]
        if name == UNSUBSCRIBE:
            self._unsubscribe()
        else:
            self.handle(TimerFired(name))

    # Attaching and detaching

    def _attach(self, order: Attach) -> None:
        plane, delay_s = self._world.edge_plane(order.place.edge), self._world.client_delay_s(order.place.edge)
        attachment = Attachment(order.slot, order.place.queue, plane, delay_s)
        self._attachments[order.slot] = attachment
        takes_s = 0.0 if self._instant else 2 * delay_s * self._round_trips
        self._kernel.after(max(takes_s - delay_s, 0.0), self._consume, (attachment, order.prefetch, takes_s))

    def _consume(self, argument: tuple[Attachment, int, float]) -> None:
        """The request to consume has reached the edge."""
        attachment, prefetch, takes_s = argument
        if attachment.given_up:
            return
        answer_s = min(attachment.delay_s, takes_s)
        if not attachment.plane.up or self._cuts:
            self._kernel.after(answer_s, self._refused, (attachment, False, "can't be reached"))
            return
        if attachment.queue not in attachment.plane.queues:
            self._kernel.after(answer_s, self._refused, (attachment, True, "no such queue"))
            return
        # Asked for first, so that the client knows of its attachment before the first delivery.
        self._kernel.after(answer_s, self._consuming, attachment)
        attachment.consumer = attachment.plane.consume(
            attachment.queue, prefetch, self._receiver(attachment), self._loser(attachment)
        )

    def _consuming(self, attachment: Attachment) -> None:
        if attachment.given_up:
            return
        if attachment.consumer is None:
            self._refused((attachment, False, "another consumer holds the queue"))
        elif attachment.consumer.alive:
            self.handle(Attached(attachment.slot))

    def _refused(self, argument: tuple[Attachment, bool, str]) -> None:
        attachment, gone, problem = argument
        if not attachment.given_up:
            self._lost(attachment, gone, problem)

    def _loser(self, attachment: Attachment) -> Callable[[bool], None]:
        def lost(gone: bool) -> None:
            self._kernel.after(0.0 if self._instant else attachment.delay_s, self._refused, (attachment, gone, "lost"))

        return lost

    def _lost(self, attachment: Attachment, gone: bool, problem: str) -> None:
        self._drop(attachment)
        self._attachments.pop(attachment.slot, None)
        self.handle(AttachmentLost(attachment.slot, gone, problem, unsettled=attachment.buffered > 0))

    def _drop(self, attachment: Attachment) -> None:
        attachment.given_up = True
        if attachment.consumer is not None:
            attachment.plane.detach(attachment.consumer)

    def _detach(self, slot: int, patience_s: float) -> None:
        attachment = self._attachments.pop(slot, None)
        if attachment is None:
            self._kernel.at(self._kernel.now, self._detached, (slot, self.incarnation, False))
        elif attachment.buffered:
            # What the application has not got yet is waited for: `_took` comes back here.
            self._attachments[slot] = attachment
            attachment.given_up = True
            self._kernel.after(self.clock.true_duration_s(patience_s), self._wait_no_longer, attachment)
        else:
            self._close(attachment)

    def _wait_no_longer(self, attachment: Attachment) -> None:
        if self._attachments.get(attachment.slot) is attachment:
            del self._attachments[attachment.slot]
            self._close(attachment)

    def _close(self, attachment: Attachment) -> None:
        attachment.given_up = True
        delay_s = 0.0 if self._instant else attachment.delay_s
        self._kernel.after(delay_s, self._closed, attachment)
        detached = (attachment.slot, self.incarnation, attachment.buffered > 0)
        self._kernel.after(2 * delay_s, self._detached, detached)

    def _closed(self, attachment: Attachment) -> None:
        if attachment.consumer is not None:
            attachment.plane.detach(attachment.consumer)

    def _detached(self, argument: tuple[int, int, bool]) -> None:
        slot, incarnation, unsettled = argument
        if incarnation == self.incarnation:
            self.handle(Detached(slot, unsettled))

    # Deliveries

    def _receiver(self, attachment: Attachment) -> Callable[[Message], None]:
        """What takes the deliveries of an attachment.

        It is called for every delivery of a run, so that the common case (nothing moves, the application is fast, all
        before has been acknowledged) is written out: it does what `_take`, `_hand_over` and `Attachment.settle` do.
        """
        machine = self.machine
        assert machine is not None
        kernel, plane, slot, number = self._kernel, attachment.plane, attachment.slot, self._number
        admit, judge, record = machine.admit, self.deduplicator.judge, self._trace.extend
        acknowledge, delay_s, fast = plane.acks.append, plane.delay_s, self._takes_s is None
        passed, duplicate, late_after_s = Admission.PASS, Verdict.DUPLICATE, self._late_after_s
        watched = bool(self._world.delivered_to) or self._world.record.reading

        def receive(message: Message) -> None:
            if attachment.given_up:
                return
            attachment.received = tag = attachment.received + 1
            identity = message.id
            if identity is None:
                self._marker(attachment, tag, message.topic)
                return
            admission = admit(slot, identity, (message, attachment, tag))
            if admission is not passed:
                self._unusual(admission, machine, message, attachment, tag)
            elif fast and tag == attachment.contiguous + 1 and not attachment.ahead:
                now = kernel.now
                if judge(identity, now) is not duplicate:
                    self.delivered += 1
                    late = now - message.published_s > late_after_s
                    if late:
                        self.late += 1
                    record(pack_data(b"d", now, number, message.index))
                    if watched:
                        self._tell(message, now, late, False)
                attachment.contiguous = tag
                consumer = attachment.consumer
                assert consumer is not None
                acknowledge((now + delay_s, consumer, 1))
                if plane.throttled:
                    plane.watch_acks()
            else:
                self._take(message, attachment, tag, False)

        return receive

    def _unusual(
        self, admission: Admission, machine: SubscriptionMachine, message: Message, attachment: Attachment, tag: int
    ) -> None:
        """A delivery while something moves."""
        if admission is Admission.WATCHED or admission is Admission.COLLECTED:
            self._take(message, attachment, tag, admission is Admission.COLLECTED)
        if admission is not Admission.STRAY:
            self._progress(machine)

    def _marker(self, attachment: Attachment, tag: int, key: str) -> None:
        attachment.settle(tag)
        self.handle(MarkerArrived(attachment.slot, key))

    def _take(self, message: Message, attachment: Attachment, tag: int, collected: bool) -> None:
        """Judge a delivery, and hand it over if it is new."""
        if self.deduplicator.judge(message.id, self._kernel.now) is Verdict.DUPLICATE:
            if message.id in self._repeated:
                # Its original waits for the application: were this one acknowledged now, a crash would lose both.
                attachment.buffered += 1
                self._repeated[message.id].append((attachment, tag))
            else:
                attachment.settle(tag)
        elif self._takes_s is None:
            self._hand_over(message, collected)
            attachment.settle(tag)
        else:
            attachment.buffered += 1
            if message.id is not None:
                self._repeated[message.id] = []
            self._buffer.append((message, attachment, tag, collected))
            self._take_next()

    def _hand_over(self, message: Message, collected: bool) -> None:
        """The application gets a message."""
        now = self._kernel.now
        late = now - message.published_s > self._late_after_s
        self.delivered += 1
        self.late += late
        self.collected += collected
        self._trace.data(b"d", now, self._number, message.index)
        self._tell(message, now, late, collected)

    def _tell(self, message: Message, now: float, late: bool, collected: bool) -> None:
        world = self._world
        if world.record.reading:
            world.record.line(now, f"delivered {self.name} {message.id}")
        for delivered in world.delivered_to:
            delivered(self.name, message.id, message.published_s, now, late=late, collected=collected)

    def _take_next(self) -> None:
        """A slow application takes the next message when it is done with the one before."""
        if not self._taking and self._buffer:
            self._taking = True
            self._kernel.at(self._application_free_s, self._took, self.incarnation)

    def _took(self, incarnation: int) -> None:
        self._taking = False
        if incarnation == self.incarnation and self._buffer:
            assert self._takes_s is not None
            message, attachment, tag, collected = self._buffer.popleft()
            self._application_free_s = self._kernel.now + self._takes_s
            self._hand_over(message, collected)
            self._settle(attachment, tag)
            for other, other_tag in self._repeated.pop(message.id, ()) if message.id is not None else ():
                self._settle(other, other_tag)
        self._take_next()

    def _settle(self, attachment: Attachment, tag: int) -> None:
        """A delivery that waited for the application is done with; the last one lets go of an attachment given up."""
        attachment.settle(tag)
        attachment.buffered -= 1
        if attachment.given_up and not attachment.buffered and attachment.slot in self._attachments:
            del self._attachments[attachment.slot]
            self._close(attachment)
