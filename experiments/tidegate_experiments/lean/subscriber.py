"""A lean subscriber: the client machine of the SDK with a lean connection around it.

All that decides is production's: `SubscriptionMachine` says which queue a subscription is served from, what is held
during a move and when it is released; `Intake` what happens to each delivery; `Deduplicator` which is new; `AckLedger`
what may be acknowledged. The application takes each message at once.

Invariant: an attachment is left only when RabbitMQ has confirmed that nothing more comes from it, or the connection is
lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pamqp import base, commands

from tidegate._core.config import Limits
from tidegate._core.delivery import AckLedger, Deduplicator, Verdict
from tidegate._core.identity import identity_of
from tidegate._core.intake import Intake
from tidegate._core.migration import SubscriptionMachine
from tidegate._core.moves import (
    Answer,
    Answered,
    Attach,
    Attached,
    AttachmentLost,
    CancelTimer,
    ChangeHead,
    Detach,
    Detached,
    LeaveHead,
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
from tidegate_protocol.amqp.publications import read_publication
from tidegate_protocol.balancing.migrations import MigrationReport, MigrationStage
from tidegate_protocol.messages import ControlMessage, SubscribeReply
from tidegate_simulator.configs import subscribe_request
from tidegate_simulator.scenario import SubscriberSpec

from ..live.journal import Journal
from .codec import CONSUMER_TAG, Address, acknowledge, method
from .connection import LeanConnection
from .head_line import HeadLine, ReplyTo

STREAMS_MAX: Final = Limits().streams
FOREIGN: Final = -1
"""The number of publishers that take no part in the experiment."""


class Attachment:
    """A consumer on one queue as the client sees it."""

    __slots__ = ("connection", "detaching", "given_up", "ledger", "slot")

    def __init__(self, slot: int) -> None:
        self.ledger = AckLedger()
        self.slot = slot
        self.given_up = False
        self.detaching = False
        self.connection: LeanConnection

    def flush(self) -> None:
        """Acknowledge everything that is settled and was not acknowledged yet."""
        for tag, _ in self.ledger.take():
            self.connection.write(acknowledge(tag))


@dataclass(frozen=True, slots=True)
class MoveSeen:
    """A subscription that has moved, as its client tells the head."""

    at_us: int
    subscriber: str
    topic: str
    source: str
    target: str
    migration: str


@dataclass(frozen=True, slots=True)
class PlaceSeen:
    """From when on a subscription is served from an edge."""

    at_us: int
    subscriber: str
    edge: str


class PublisherNumbers(dict[str, int]):
    """From the stream of a message to the number of its publisher, whatever incarnation that says it is; `FOREIGN`
    for a publisher that takes no part.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._names = {name: number for number, name in enumerate(names)}

    def __missing__(self, stream: str) -> int:
        number = self._names.get(stream.partition("~")[0], FOREIGN)
        if number != FOREIGN:
            self[stream] = number
        return number


Delivered = tuple[str | None, str | None, int | None, Attachment, int]
"""Identity, id, publish time, where it came from, and its tag."""


class LeanSubscriber:
    """One subscriber with one subscription."""

    def __init__(
        self, spec: SubscriberSpec, number: int, head: Address, publishers: PublisherNumbers, journal: Journal
    ) -> None:
        self._spec = spec
        self._number = number
        self._head = head
        self._publishers = publishers
        self._journal = journal
        self._attachments: dict[int, Attachment] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._edge = ""
        self._checked_accounts = False
        self.deduplicator = Deduplicator(STREAMS_MAX)
        self.line: HeadLine
        self.name = spec.name
        self.pattern = spec.pattern
        self.moves: list[MoveSeen] = []
        self.places: list[PlaceSeen] = []
        self.highest: dict[int, int] = {}
        """The highest sequence handed to the application, by publisher."""
        self.losses: list[str] = []
        """Attachments that were lost, and why."""
        self.machine = SubscriptionMachine(subscribe_request(spec), spec.prefetch, self.deduplicator.expected)
        self._intake = Intake[Delivered](self.machine, self._take, _drop, self.handle, self._progress)

    @property
    def attached(self) -> bool:
        return self.machine.attached

    def start(self) -> None:
        """Register."""
        self.handle(Opened())

    def stop(self) -> None:
        """End everything at once: the run is over."""
        for handle in self._timers.values():
            handle.cancel()
        for attachment in self._attachments.values():
            attachment.given_up = True
            attachment.connection.close()

    def flush(self) -> None:
        """Acknowledge what is settled; called every so often."""
        for attachment in self._attachments.values():
            attachment.flush()

    # The control plane

    def answered(self, key: str, message: ControlMessage) -> None:
        if isinstance(message, SubscribeReply):
            self._checked_accounts = message.checked_accounts
        self.handle(Answered(key, message))

    def ordered(self, message: ControlMessage, reply_to: ReplyTo | None) -> None:
        self.handle(Ordered(message, reply_to))

    # The machine

    def handle(self, event: SubscriptionEvent) -> None:
        """Have the machine take an event, and do what it orders."""
        self._carry_out_all(self.machine.handle(event, asyncio.get_running_loop().time()))

    def _progress(self) -> None:
        self._carry_out_all(self.machine.progress(asyncio.get_running_loop().time()))

    def _carry_out_all(self, actions: list[SubscriptionAction]) -> None:
        for action in actions:
            self._carry_out(action)
        place = self.machine.place
        if place is not None and place.edge != self._edge:
            self._edge = place.edge
            self.places.append(PlaceSeen(time.time_ns() // 1000, self.name, place.edge))

    def _carry_out(self, action: SubscriptionAction) -> None:
        match action:
            case Attach():
                self._attach(action)
            case Detach(slot, hurry=hurry):
                self._detach(slot, hurry)
            case Release():
                self._intake.release(action)
            case Answer(to, message):
                if to is not None:
                    self.line.reply(to, message)
            case Request(key, message, _):
                self._note(message)
                self.line.request(self.name, key, message)
            case SetTimer(name, after_s):
                self._set_timer(name, after_s)
            case CancelTimer(name):
                handle = self._timers.pop(name, None)
                if handle is not None:
                    handle.cancel()
            case ChangeHead() | LeaveHead() | TellRefusal():
                pass  # there is one head, and the machine goes on asking

    def _note(self, message: ControlMessage) -> None:
        """Write down a finished move, once: the report is repeated until it is acknowledged."""
        if not isinstance(message, MigrationReport) or message.stage is not MigrationStage.MOVED:
            return
        if message.other_edge is None or any(move.migration == message.migration for move in self.moves):
            return
        self.moves.append(
            MoveSeen(
                time.time_ns() // 1000,
                self.name,
                self._spec.pattern,
                message.other_edge,
                message.edge,
                message.migration,
            )
        )

    def _set_timer(self, name: str, after_s: float) -> None:
        old = self._timers.pop(name, None)
        if old is not None:
            old.cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(after_s, self._fire, name)

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self.handle(TimerFired(name))

    # Attaching and detaching

    def _attach(self, order: Attach) -> None:
        attachment = Attachment(order.slot)
        self._attachments[order.slot] = attachment
        attachment.connection = LeanConnection(
            partial(self._received, attachment),
            partial(self._told, attachment),
            partial(self._lost, attachment),
        )
        address = Address.parse(order.place.url, self._head)
        methods: tuple[base.Frame, ...] = (
            commands.Basic.Qos(prefetch_count=order.prefetch),
            commands.Basic.Consume(queue=order.place.queue, consumer_tag=CONSUMER_TAG, exclusive=True),
        )
        task = asyncio.ensure_future(attachment.connection.connect(address, self.name, *methods))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _told(self, attachment: Attachment, one: base.Frame) -> None:
        if isinstance(one, commands.Basic.ConsumeOk) and not attachment.given_up:
            self.handle(Attached(attachment.slot))
        elif isinstance(one, commands.Channel.CloseOk):
            self._left(attachment)

    def _lost(self, attachment: Attachment, gone: bool, problem: str) -> None:
        if attachment.detaching:
            self._left(attachment)
        elif not attachment.given_up:
            self._attachments.pop(attachment.slot, None)
            attachment.given_up = True
            self.losses.append(problem)
            self.handle(AttachmentLost(attachment.slot, gone, problem))

    def _detach(self, slot: int, hurry: bool) -> None:
        attachment = self._attachments.pop(slot, None)
        if attachment is None:
            asyncio.get_running_loop().call_soon(self.handle, Detached(slot))
            return
        attachment.flush()
        attachment.given_up = attachment.detaching = True
        if hurry:
            # As the SDK does: what waits at the old edge is of no use any more.
            attachment.detaching = False
            if attachment.connection.is_up:
                leave = commands.Connection.Close(reply_code=200, reply_text="moved", class_id=0, method_id=0)
                attachment.connection.write(method(leave, channel=0))
            attachment.connection.close()
        elif attachment.connection.is_up:
            close = commands.Channel.Close(reply_code=200, reply_text="moved", class_id=0, method_id=0)
            attachment.connection.write(method(close))
        else:
            attachment.connection.close()
        # All that came is settled and acknowledged: whether the channel has closed by now matters to nobody.
        asyncio.get_running_loop().call_soon(self.handle, Detached(slot))

    def _left(self, attachment: Attachment) -> None:
        if attachment.detaching:
            attachment.detaching = False
            attachment.connection.close()

    # Deliveries

    def _received(self, attachment: Attachment, tag: int, key: str, header: bytes, body: bytes) -> None:
        """A delivery has come; called for every one of a run."""
        if not attachment.given_up:
            message_id, published_us, account = read_publication(header)
            identity = identity_of(account, message_id, self._checked_accounts)
            delivered = (identity, message_id, published_us, attachment, tag)
            self._intake.arrived(attachment.slot, key, identity, delivered)

    def _take(self, delivered: Delivered, collected: bool) -> None:
        """Judge a delivery, and hand it over if it is new."""
        identity, message_id, published_us, attachment, tag = delivered
        arrived_us = time.time_ns() // 1000
        verdict = self.deduplicator.judge(identity, arrived_us / 1e6)
        if verdict is not Verdict.DUPLICATE and verdict is not Verdict.FOREIGN:
            assert message_id is not None
            stream, _, sequence = message_id.rpartition(":")
            publisher, number = self._publishers[stream], int(sequence)
            if publisher != FOREIGN:
                self._journal.delivered(self._number, publisher, number, published_us or 0, arrived_us, collected)
                if number > self.highest.get(publisher, -1):
                    self.highest[publisher] = number
        attachment.ledger.settle(tag)


def _drop(delivered: Delivered) -> None:
    """A delivery that is not for the application."""
    *_, attachment, tag = delivered
    attachment.ledger.settle(tag)


def as_plain(rows: list[Any]) -> list[list[Any]]:
    """Rows as JSON takes them."""
    return [[getattr(row, name) for name in row.__slots__] for row in rows]
