"""Simulated subscribers: the client machine of the SDK, and what its engine does around it.

All that decides is production's: `SubscriptionMachine` says which queue a subscription is served from, what is held
during a move and when it is released; `Intake` what happens to each delivery; `Inbox` and `AckLedger` which delivery is
new and when it may be acknowledged. What is here stands for connections and for the application: it attaches, brings
deliveries, hands them to an application that may be slow, and loses all of that when it is killed or cut off.

Invariant: a process that was killed starts again without its memory, under the same name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate._core.attachment import SubscriptionTimes
from tidegate._core.config import Limits, Timeouts
from tidegate._core.delivery import AckLedger, Verdict
from tidegate._core.inbox import Inbox
from tidegate._core.intake import Intake
from tidegate._core.migration import NO_SLOT, SubscriptionMachine
from tidegate._core.moves import (
    Answered,
    Attach,
    Attached,
    AttachmentLost,
    ChangeHead,
    ClosedByApplication,
    Detach,
    Detached,
    Opened,
    Ordered,
    Release,
    SubscriptionEvent,
    TellRefusal,
    TimerFired,
)
from tidegate._core.overlap import fingerprint
from tidegate_agents.machine import ReplyAddress
from tidegate_protocol.messages import (
    ControlMessage,
    Refusal,
    SubscribeReply,
    UnsubscribeReply,
    UnsubscribeRequest,
)

from .clients import ClientAction, SimClient
from .configs import subscribe_request
from .judging import LATE_TOLERANCE_S
from .links import Message
from .plane_edge import Consumer, EdgePlane
from .scenario import SubscriberSpec
from .trace import pack_data

if TYPE_CHECKING:
    from .world import World

STREAMS_MAX: Final = Limits().streams
TIMER_CHANCE: Final = 0.1
UNSUBSCRIBE_ATTEMPT_S: Final = Timeouts().attempt_s
UNSUBSCRIBE: Final = "unsubscribe"
UNSUBSCRIBE_ATTEMPTS_MAX: Final = 20


class Attachment:
    """A consumer on one queue as the client sees it: deliveries are numbered, and acknowledged in their order."""

    __slots__ = ("acknowledged", "consumer", "delay_s", "given_up", "ledger", "plane", "queue", "received", "slot")

    def __init__(self, slot: int, queue: str, plane: EdgePlane, delay_s: float) -> None:
        self.slot = slot
        self.queue = queue
        self.plane = plane
        self.delay_s = delay_s
        self.ledger = AckLedger()
        self.consumer: Consumer | None = None
        self.given_up = False
        self.received = 0
        self.acknowledged = 0

    def returned(self, message: Message) -> bool:
        """Whether RabbitMQ says that a plain message is redelivered."""
        return self.consumer is not None and message.index in self.consumer.queue.returned

    def acknowledge(self) -> None:
        """Acknowledge all that is settled."""
        for tag, _ in self.ledger.take():
            if self.consumer is not None:
                self.plane.acknowledge(self.consumer, tag - self.acknowledged)
            self.acknowledged = tag


Delivery = tuple[Message, Attachment, int]
"""A message, where it came from, and its tag."""


class SimSubscriber(SimClient):
    """One subscriber with one subscription."""

    def __init__(self, world: World, spec: SubscriberSpec, number: int) -> None:
        random = world.kernel.stream(f"subscriber {spec.name}")
        chance = 0.0 if world.scenario.control.instant else TIMER_CHANCE
        super().__init__(world, spec.name, spec.head, random, chance)
        self._trace = world.record
        self._number = number
        self._round_trips = world.scenario.control.attach_round_trips
        self._late_after_s = spec.deadline_s + LATE_TOLERANCE_S
        self._takes_s = None if spec.takes_per_s is None else 1.0 / spec.takes_per_s
        self._attachments: dict[int, Attachment] = {}
        self._buffer: deque[Message] = deque()
        """The messages that the buffer of the inbox stands for, in the same order."""
        self._application_free_s = 0.0
        self._plain = NO_SLOT
        """The slot whose deliveries need no thought."""
        self._taking = False
        self._cuts = 0
        self._unsubscribes = 0
        self.spec = spec
        self.name = spec.name
        self.up = False
        self.left = False
        """Whether it has unsubscribed, and the head has confirmed that."""
        self.leaving = False
        self.machine: SubscriptionMachine | None = None
        self.inbox = self._new_inbox()
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
        self.inbox = inbox = self._new_inbox()
        # Where control takes no time, neither does the rest of a migration.
        times = SubscriptionTimes(linger_s=0.0) if self._instant else SubscriptionTimes()
        self.machine = SubscriptionMachine(
            subscribe_request(self.spec), self.spec.prefetch, inbox.expected, times, inbox.plain
        )
        self._intake = Intake[Delivery](self.machine, self._take, self._drop_delivery, self.handle, self._progress)
        self.handle(Opened())

    def _new_inbox(self) -> Inbox:
        return Inbox(self.spec.deadline_s, manual=False, prefetch=self.spec.prefetch, streams_max=STREAMS_MAX)

    def crash(self) -> None:
        """The process is killed: connections close, memory and what waited for the application are gone."""
        if not self.up:
            return
        self.up = False
        self.machine = None
        self._timers.clear()
        self._requests.clear()
        self._buffer.clear()
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
        self.handle(ClosedByApplication())
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
        self._request(UNSUBSCRIBE, message, self._head(machine.head_url))
        self._set_timer(UNSUBSCRIBE, UNSUBSCRIBE_ATTEMPT_S)

    @property
    def buffered(self) -> tuple[Message, ...]:
        """What the client has got and its application has not."""
        return tuple(self._buffer)

    # The control plane

    def ordered(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None:
        self.handle(Ordered(message, reply_to))

    def answered(self, request: str, message: ControlMessage) -> None:
        key = self._requests.pop(request, None)
        if not self.up or key is None:
            return
        if isinstance(message, SubscribeReply):
            self.inbox.checked_accounts = message.checked_accounts
        if key != UNSUBSCRIBE:
            self.handle(Answered(key, message))
        elif isinstance(message, UnsubscribeReply):
            self._gone()
        elif isinstance(message, Refusal) and message.retry_after_s is not None:
            self._set_timer(UNSUBSCRIBE, message.retry_after_s)

    # The machine

    def handle(self, event: SubscriptionEvent) -> None:
        """Have the machine take an event, and do what it orders."""
        machine = self.machine
        if machine is None:
            return
        actions = machine.handle(event, self.clock.read(self._kernel.now))
        self._watch()
        self._stepped(type(event).__name__, actions, machine)

    def _progress(self) -> None:
        machine = self.machine
        if machine is None:
            return
        actions = machine.progress(self.clock.read(self._kernel.now))
        self._watch()
        if actions:
            self._stepped("progress", actions, machine)

    def _watch(self) -> None:
        """After each step of the machine: deliveries take the short way if nothing moves."""
        self._plain = NO_SLOT if self.machine is None else self.machine.plain

    def _carry_out(self, action: ClientAction) -> None:
        match action:
            case Attach():
                self._attach(action)
            case Detach(slot, patience_s):
                self._detach(slot, patience_s)
            case Release():
                self._intake.release(action)
            case ChangeHead(head, _):
                self._heads[head] = None
            case TellRefusal():
                pass  # the machine goes on asking, which is what an application here would do
            case _:
                super()._carry_out(action)

    def _fired(self, name: str) -> None:
        if name == UNSUBSCRIBE:
            self._unsubscribe()
        else:
            self.handle(TimerFired(name))

    # Attaching and detaching

    def _attach(self, order: Attach) -> None:
        plane = self._world.edges[order.place.edge].plane
        delay_s = plane.delay_s
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
        self.handle(AttachmentLost(attachment.slot, gone, problem, unsettled=attachment.ledger.outstanding))

    def _drop(self, attachment: Attachment) -> None:
        attachment.given_up = True
        attachment.ledger.alive = False
        if attachment.consumer is not None:
            attachment.plane.detach(attachment.consumer)

    def _detach(self, slot: int, patience_s: float) -> None:
        attachment = self._attachments.pop(slot, None)
        if attachment is None:
            self._kernel.at(self._kernel.now, self._detached, (slot, self.incarnation, False))
        elif attachment.ledger.outstanding:
            # What the application has not got yet is waited for: `_acknowledge` comes back here.
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
        attachment.ledger.alive = False
        delay_s = 0.0 if self._instant else attachment.delay_s
        self._kernel.after(delay_s, self._closed, attachment)
        detached = (attachment.slot, self.incarnation, attachment.ledger.outstanding)
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

        It is called for every delivery of a run, so that the common case (nothing moves, the application is fast) is
        written out: it does what `_take`, `_hand_over` and `_acknowledge` do.
        """
        kernel, slot, number = self._kernel, attachment.slot, self._number
        ledger, plane = attachment.ledger, attachment.plane
        judge, record, name, told = self.inbox.judge, self._trace.extend, self.name, self._world.delivered_to
        settle, take, acknowledge, fast = ledger.settle, ledger.take, plane.acknowledge, self._takes_s is None
        duplicate, late_after_s = Verdict.DUPLICATE, self._late_after_s

        def receive(message: Message) -> None:
            if attachment.given_up:
                return
            attachment.received = tag = attachment.received + 1
            identity = message.identity
            if slot != self._plain or identity is None or message.content is not None or not fast:
                self._unusual(message, attachment, tag)
                return
            now = kernel.now
            if judge(identity, now) is not duplicate:
                self.delivered += 1
                late = now - message.published_s > late_after_s
                if late:
                    self.late += 1
                record(pack_data(b"d", now, number, message.index))
                for delivered in told:
                    delivered(name, message.id, message.published_s, now, late=late, collected=False)
            settle(tag)
            for settled, _ in take():
                if attachment.consumer is not None:
                    acknowledge(attachment.consumer, settled - attachment.acknowledged)
                attachment.acknowledged = settled

        return receive

    def _unusual(self, message: Message, attachment: Attachment, tag: int) -> None:
        """A delivery while something moves, to an application that is slow, or without an id; or a marker."""
        topic, body = message.topic, message.content
        content = None if body is None else fingerprint(topic, body, None, None)
        self._intake.arrived(attachment.slot, topic, message.identity, (message, attachment, tag), content)
        self._watch()

    def _drop_delivery(self, delivery: Delivery) -> None:
        """A delivery that is not for the application."""
        _, attachment, tag = delivery
        attachment.ledger.settle(tag)
        attachment.acknowledge()

    def _take(self, delivery: Delivery, collected: bool) -> None:
        """Judge a delivery, and hand it over if it is new."""
        message, attachment, tag = delivery
        body, now = message.content, self.clock.read(self._kernel.now)
        # The id of a plain message is known to the checkers only.
        carried, returned = (message.carried, False) if body is None else (None, attachment.returned(message))
        if returned:
            assert message.id is not None
            self._world.redelivered.add((self.name, message.id))
        topic, account = message.topic, message.account
        new = self.inbox.receive(
            attachment.ledger, tag, topic, body or b"", carried, None, returned, now, collected, account
        )
        if not new:
            attachment.acknowledge()
            return
        self._buffer.append(message)
        if self._takes_s is None:
            self._hand_over()
        else:
            self._take_next()

    def _hand_over(self) -> None:
        """The application gets the next message, and is done with it."""
        message, handed = self._buffer.popleft(), self.inbox.buffer.popleft()
        now = self._kernel.now
        late = now - message.published_s > self._late_after_s
        self.delivered += 1
        self.late += late
        self.collected += handed.collected
        self._trace.data(b"d", now, self._number, message.index)
        self._tell(message, now, late, handed.collected)
        self.inbox.settle(handed)
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge what is settled; the last delivery lets go of an attachment given up."""
        self.inbox.enter_settled()
        for attachment in list(self._attachments.values()):
            attachment.acknowledge()
            if attachment.given_up and not attachment.ledger.outstanding:
                del self._attachments[attachment.slot]
                self._close(attachment)

    def _tell(self, message: Message, now: float, late: bool, collected: bool) -> None:
        for delivered in self._world.delivered_to:
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
            self._application_free_s = self._kernel.now + self._takes_s
            self._hand_over()
        self._take_next()
