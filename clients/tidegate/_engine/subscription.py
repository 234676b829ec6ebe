"""Runs one subscription: carries out what its machine orders, and tells the machine what happened.

`SubscriptionMachine` decides where the subscription is served from, when it moves and what it holds. The inbox decides
which delivery is new. `Deliveries` leads each delivery through both. This module has the consumers (one per slot), the
timers and the way to the heads.

Invariants:

- events are handled one after another, and all actions of an event are carried out, in order, before the next event;
- a subscription that has worked once is ended by the application alone. Before that, it is ended by the first problem
  that waiting can't solve, or by the time-out of the request (`timeouts.request_s`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.messages import ControlMessage, Refusal, SubscribeReply, SubscribeRequest
from tidegate_protocol.parts import RefusalReason
from tidegate_protocol.reports import MigrationGap, SubscriptionDigest

from .._core.attachment import SubscriptionTimes
from .._core.config import Address, Backoff, Timeouts
from .._core.digests import Digester
from .._core.errors import (
    AccessRefused,
    Closed,
    ConnectionFailed,
    HeadSilent,
    InvalidUrl,
    Refused,
    TidegateError,
    UnexpectedReply,
)
from .._core.inbox import Inbox
from .._core.migration import SubscriptionMachine
from .._core.moves import (
    Answer,
    Answered,
    Attach,
    Attached,
    AttachmentLost,
    CancelTimer,
    ChangeHead,
    ClosedByApplication,
    Detach,
    Detached,
    LeaveHead,
    Opened,
    Ordered,
    Place,
    Release,
    Request,
    SetTimer,
    SubscriptionAction,
    SubscriptionEvent,
    TellRefusal,
    TimerFired,
)
from .._core.statistics import Statistics
from .control import ReplyTo
from .data import DataConnections, SlotConsumer
from .deliveries import Deliveries
from .heads import Heads
from .requests import Requests
from .runtime import ChannelLost, Consumer, Runtime
from .timers import Timers

logger = logging.getLogger(__name__)

ACCESS_REFUSED: Final = 403
"""RabbitMQ's answer to a consumer on a queue that has an exclusive one already."""
NOT_FOUND: Final = 404
FATAL_AT_FIRST: Final = (AccessRefused, Refused, UnexpectedReply)
"""What the first subscribe() reports at once. Later, when it worked before, even these are retried."""
ASK_FIRST_S: Final = 1.0


class Owner(Protocol):
    """What a subscription needs of its subscriber."""

    runtime: Runtime
    address: Address
    timeouts: Timeouts
    backoff: Backoff
    data: DataConnections
    heads: Heads


class SubscriptionEngine:
    """One subscription on a running client."""

    def __init__(
        self,
        owner: Owner,
        request: SubscribeRequest,
        inbox: Inbox,
        on_change: Callable[[], None],
        on_release: Callable[[], None],
    ) -> None:
        """`on_change` is called for each message put into the inbox and at the end, `on_release` when several were put
        there that came some time ago.
        """
        self.request = request
        self.inbox = inbox
        self.ended = False
        """Whether nothing will ever be delivered again."""
        self.reconnects = 0
        self._owner = owner
        self._runtime = owner.runtime
        self._on_change = on_change
        self.times = SubscriptionTimes(
            attach=owner.backoff, ask=Backoff(first_s=min(ASK_FIRST_S, owner.timeouts.attempt_s))
        )
        self._machine = SubscriptionMachine(request, inbox.prefetch, inbox.expected, self.times, inbox.plain)
        self._consumers: dict[int, SlotConsumer] = {}
        self._deliveries = Deliveries(
            owner.runtime, self._machine, inbox, self._consumers, on_change, on_release, self.handle, self._progress
        )
        self._digester = Digester(inbox, request.pattern, request.deadline_us, owner.runtime.now())
        self._order: MigrateOrder | None = None
        """The last order to move that came, obeyed or not."""
        self._move_began_s: float | None = None
        self._move_ended_s: float | None = None
        self.settled = self._deliveries.settled
        """To be called when the application settled something; from any thread."""
        self._timers = Timers(owner.runtime, self._fired, str(self))
        self._events: deque[SubscriptionEvent] = deque()
        self._handling = False
        self._requests = Requests(owner.runtime, owner.heads, str(self), self._answered, self._not_sent)
        self._first = owner.runtime.signal()
        """Set when the first attachment is there, or will never be."""
        self._finished = owner.runtime.signal()
        self._answer_came = owner.runtime.signal()
        self._failure: TidegateError | None = None
        self._silence: TidegateError | None = None
        """What keeps the head from being asked, or what it says instead of a place."""
        self._attach_problem: TidegateError | None = None
        """Why it is not attached, if it was tried."""
        self.problem: Refused | None = None
        """Why the head does not serve it any more, though it did: its account lost the right. None otherwise."""
        self._news: Refused | None = None
        self._stopping = False
        self._awaited = False
        """Whether a caller waits, or has waited, for the end."""
        self._ever_attached = False
        self._asked = False
        self._late_place: Place | None = None
        """Granted after the subscription was closed; it has to be given back all the same."""

    def __str__(self) -> str:
        return f"subscription {self.request.subscriber}/{self.request.pattern}"

    @property
    def place(self) -> Place | None:
        """Where it is served from, also while that can't be reached; None before the first grant."""
        return self._machine.place or self._late_place

    @property
    def head_url(self) -> str:
        """The head it belongs to; empty for home."""
        return self._machine.head_url

    @property
    def attached(self) -> bool:
        """Whether it is served at this moment."""
        return self._machine.attached

    def statistics(self, now: float) -> Statistics:
        """What it has seen so far. `now` is the runtime's clock."""
        place = self.place
        return replace(
            self.inbox.statistics(now),
            edge=place.edge if place is not None else None,
            reconnects=self.reconnects,
            migrations=self._machine.moves,
            migration_gap_s=self._deliveries.gap.gap_s,
            migration_began_s=self._move_began_s,
            migration_ended_s=self._move_ended_s,
            held=self._deliveries.intake.held,
        )

    # What is reported

    def take_digest(self) -> SubscriptionDigest | None:
        """What was seen since this was last asked; None if that is nothing."""
        return self._digester.digest(self.place.edge if self.place is not None else None, self._runtime.now())

    def take_gaps(self) -> list[MigrationGap]:
        """Moves whose gap is known by now, each once."""
        gap, held = self._deliveries.gap, self._deliveries.intake.held
        return self._digester.gaps(gap.gap_s, held, gap.watching, self._runtime.now())

    # Beginning and end

    async def start(self) -> None:
        """Subscribe and attach for the first time; raise what went wrong."""
        self._owner.heads.join("", self)
        self._runtime.spawn(self._deliveries.acknowledge(), f"{self} acknowledgements")
        self.handle(Opened())
        in_time = await self._first.wait(self._owner.timeouts.request_s)
        if self._failure is None and not in_time:
            self._failure = self._explain()
        if self._failure is not None:
            await self.stop()
            raise self._failure

    async def stop(self) -> None:
        """Acknowledge what is settled and detach. RabbitMQ keeps the rest."""
        self.give_up()
        if not self._awaited and not self.ended:
            self._awaited = True
            await self._finished.wait(self._owner.timeouts.close_s)
        self._end()

    def give_up(self) -> None:
        """Have it end by itself, without waiting for that."""
        if not self._stopping:
            self._stopping = True
            self.handle(ClosedByApplication())
            for consumer in list(self._consumers.values()):
                consumer.leave(0.0)
        self._deliveries.hurry()
        self._end_when_left()

    async def late_answer(self) -> None:
        """After the end: wait a little for a place that was asked for, because it has to be given back."""
        if self.place is None and self._asked:
            await self._answer_came.wait(self._owner.timeouts.attempt_s)

    def _end_when_left(self) -> None:
        if self._stopping and not self._consumers:
            self._end()

    def _end(self) -> None:
        if self._failure is None and not self._ever_attached:
            self._failure = Closed(str(self))
        self.ended = True
        self._timers.stop()
        self._first.set()
        self._finished.set()
        self._deliveries.end()
        self._on_change()

    def _fail(self, error: TidegateError) -> None:
        """It never worked, and waiting makes it no better."""
        if not self._ever_attached and self._failure is None:
            self._failure = error
            self._first.set()

    def _told(self, error: Refused) -> None:
        """The head does not grant it, and waiting makes it no better."""
        self._fail(error)
        if not self._ever_attached or error.reason != RefusalReason.NOT_ALLOWED or self.problem is not None:
            return
        # The head is asked on, ever more seldom: the right may come back.
        self.problem = self._news = error
        logger.error("%s: the head ended it: %s", self, error.message)
        self._on_change()

    def take_news(self) -> Refused | None:
        """What the application is to be told, each time once: why the head ended what had worked."""
        news, self._news = self._news, None
        return news

    @property
    def has_news(self) -> bool:
        return self._news is not None

    def _explain(self) -> TidegateError:
        """Why it could not begin in time."""
        if self._machine.place is None:
            return self._silence or self._head_silent(self._owner.heads.home.silence)
        error = self._attach_problem
        if isinstance(error, ChannelLost) and error.code == ACCESS_REFUSED:
            name = self.request.subscriber
            return Refused("conflict", f"{error.problem}. Another subscriber named {name!r}? Give each its own name")
        return error or self._head_silent("the edge could not be reached")

    def _head_silent(self, problem: str) -> HeadSilent:
        return HeadSilent(str(self._owner.address), self._owner.timeouts.request_s, problem)

    # The machine

    def handle(self, event: SubscriptionEvent) -> None:
        """Have the machine take an event, now or after the one being handled, and do what it orders."""
        self._events.append(event)
        self._work()

    def _work(self) -> None:
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, Ordered) and isinstance(event.message, MigrateOrder):
                    self._order = event.message
                self._step(partial(self._machine.handle, event))
        finally:
            self._handling = False

    def _progress(self) -> None:
        """After a delivery that was not simply passed."""
        self._handling = True
        try:
            self._step(self._machine.progress)
        finally:
            self._handling = False
        self._work()

    def _step(self, step: Callable[[float], list[SubscriptionAction]]) -> None:
        machine, now = self._machine, self._runtime.now()
        migrating, attached, moves = machine.migrating, machine.attached, machine.moves
        told = machine.story[-1] if machine.story else None
        actions = step(now)
        if machine.migrating and not migrating:
            self._digester.move_began(self._order, self._deliveries.gap.gap_s, self._deliveries.intake.held)
            self._deliveries.gap.begin(now)
            self._move_began_s, self._move_ended_s = now, None
        elif migrating and not machine.migrating:
            self._digester.move_ended(machine.moves > moves, now)
            self._deliveries.gap.end(machine.moves > moves, now)
        if self._move_ended_s is None and self._move_began_s is not None and machine.at_rest:
            self._move_ended_s = now
        for action in actions:
            self._carry_out(action)
        if machine.attached and not attached:
            self._served()
        self._deliveries.watch()
        if machine.story and machine.story[-1] is not told:
            logger.info("%s: %s", self, machine.story[-1][1])

    def _served(self) -> None:
        if self._ever_attached:
            self.reconnects += 1
        self._ever_attached = True
        self._attach_problem = None
        self._first.set()

    def _carry_out(self, action: SubscriptionAction) -> None:
        match action:
            case Attach():
                self._attach(action)
            case Detach():
                self._detach(action)
            case Release():
                self._deliveries.release(action)
            case Answer(to, message):
                assert isinstance(to, ReplyTo)
                to.control.answer(to, message)
            case Request(key, message, head_url):
                self._asked = self._asked or isinstance(message, SubscribeRequest)
                self._requests.send(key, message, head_url)
            case SetTimer(name, after_s):
                self._timers.set(name, after_s)
            case CancelTimer(name):
                self._timers.cancel(name)
            case ChangeHead(_, url):
                self._owner.heads.join(url, self)
            case LeaveHead(url):
                self._owner.heads.leave(url, self)
            case TellRefusal(refusal):
                self._told(_refused(refusal))

    def _fired(self, name: str) -> None:
        self.handle(TimerFired(name))

    # The heads

    def _not_sent(self, message: ControlMessage, error: InvalidValue | TidegateError) -> None:
        if isinstance(error, InvalidValue):
            logger.warning("%s: cannot send %s, the address of the head is unusable: %s", self, message.kind, error)
            return
        logger.debug("%s: cannot send %s; it is repeated: %s", self, message.kind, error)
        self._silence = error
        if isinstance(error, FATAL_AT_FIRST):
            self._fail(error)

    def _answered(self, key: str, message: ControlMessage | UnexpectedReply) -> None:
        if isinstance(message, UnexpectedReply):
            logger.warning("%s: unexpected answer from the head: %s", self, message)
            self._fail(message)
            return
        if isinstance(message, SubscribeReply):
            self._silence = self.problem = self._news = None
            self.inbox.checked_accounts = message.checked_accounts
            self.inbox.checked_times = message.checked_times
            if message.awaiting:
                silent = ", ".join(message.awaiting)
                logger.warning(
                    "%s: no confirmed routes at %s; messages published there may be missing at first", self, silent
                )
            if self._machine.closed:
                self._late_place = Place(message.edge, message.url, message.queue, message.subscription.number)
        elif isinstance(message, Refusal):
            self._silence = _refused(message)
        self._answer_came.set()
        self.handle(Answered(key, message))

    # Attachments

    def _attach(self, order: Attach) -> None:
        try:
            address = self._owner.address.at(order.place.url)
        except InvalidUrl as error:
            self.handle(AttachmentLost(order.slot, problem=str(error)))
            return
        attached = partial(self.handle, Attached(order.slot))
        consumer = SlotConsumer(self._runtime, order.slot, order.place, self.inbox, attached, self._ended)
        self._consumers[order.slot] = consumer
        prefetch = min(order.prefetch, self.inbox.window.messages)
        wanted = Consumer(order.place.queue, prefetch, self._deliveries.receiver(consumer))
        self._runtime.spawn(consumer.run(self._owner.data, address, wanted), f"{self} on {order.place.edge}")

    def _detach(self, order: Detach) -> None:
        consumer = self._consumers.get(order.slot)
        if consumer is None:
            self.handle(Detached(order.slot))
        else:
            consumer.leave(0.0 if self._stopping else order.patience_s, hurry=order.hurry)

    def _ended(self, consumer: SlotConsumer, lost: TidegateError | None) -> None:
        del self._consumers[consumer.number]
        unsettled = consumer.ledger.outstanding
        if lost is None:
            self.handle(Detached(consumer.number, unsettled))
        else:
            code = lost.code if isinstance(lost, ChannelLost) else 0
            again = self._attach_problem is not None
            logger.log(
                logging.DEBUG if again else logging.WARNING,
                "%s: lost its consumer on %s; attaches again: %s",
                self,
                consumer.place.edge,
                lost,
            )
            self._attach_problem = lost
            if isinstance(lost, FATAL_AT_FIRST):
                self._fail(lost)
            problem = lost.problem if isinstance(lost, ConnectionFailed) else str(lost)
            gone, in_use = code == NOT_FOUND, code == ACCESS_REFUSED
            self.handle(AttachmentLost(consumer.number, gone, problem, in_use, unsettled))
        self._end_when_left()


def _refused(refusal: Refusal) -> Refused:
    return Refused(refusal.reason, refusal.message, refusal.field, refusal.retry_after_s)
