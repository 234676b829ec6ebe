"""Lean publishers: all publishers of a run on one connection, each at its times.

They publish transient messages with the public message form, say hello to their head and report what they have sent, as
the SDK does: `PublishingMachine` numbers, encodes, counts and times their publications. Invariant: a publication that
is due is made, late if need be, never left out; when each was due and when it was made is written down, so that a
harness that could not keep up shows.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from pamqp import base, commands

from tidegate._core.config import WINDOW_MAX, Limits, Timeouts
from tidegate._core.publishing import PublishingMachine
from tidegate_protocol.amqp.frames import FRAME_BYTES_MAX
from tidegate_protocol.amqp.publications import encode_publication
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.messages import ControlMessage, PublisherHello, PublisherReport, PublisherWelcome
from tidegate_simulator.scenario import PublisherSpec

from ..live.journal import Journal
from ..live.workload import INCARNATION, body_bytes, due_times_s
from .codec import CHANNEL, Address
from .connection import LeanConnection, nothing
from .head_line import HeadLine, ReplyTo

HELLO_S: Final = Timeouts().hello_s
REPORT_S: Final = 1.0
HELLO: Final = "hello"
BODY_BYTES_MAX: Final = 4096


class LeanPublisher:
    """One publisher of one topic: what it has sent, and what it tells the head."""

    def __init__(self, spec: PublisherSpec, number: int, duration_s: float, persistent: bool, subscribers: int) -> None:
        self._spec = spec
        self._subscribers = subscribers
        self._id = publisher_id(spec.name, INCARNATION)
        self._machine = PublishingMachine(self._id, Limits(window=WINDOW_MAX))
        self._confirmed = 0
        self._persistent = persistent
        self._bodies = bytes(BODY_BYTES_MAX)
        self._reported_s: float | None = None
        self.number = number
        self.name = spec.name
        self.due_s: Iterator[float] = due_times_s(spec, duration_s)
        self.line: HeadLine

    @property
    def starts_s(self) -> float:
        return self._spec.starts_s

    @property
    def sequence(self) -> int:
        """The number of its next publication."""
        return self._machine.last_order

    def frames(self, now_us: int) -> bytes:
        """The next publication, ready to be written."""
        machine = self._machine
        size = min(body_bytes(self._spec, self._id, self.sequence, self._subscribers), BODY_BYTES_MAX)
        machine.admit(machine.draft(self._spec.topic, self._bodies[:size], None, self._persistent), now_us)
        publish = machine.topics[self._spec.topic].publish
        taken = machine.take(now_us / 1e6)
        return b"".join(
            encode_publication(CHANNEL, publish, one.properties, one.body, FRAME_BYTES_MAX) for one in taken
        )

    def confirmed(self, now_us: int) -> None:
        """RabbitMQ has answered the oldest publication."""
        self._confirmed += 1
        if self._machine.probe_tag == self._confirmed:
            self._machine.probed(now_us / 1e6)
        self._machine.acked(self._confirmed, multiple=False)

    def hello(self) -> None:
        """Tell the head that it is there."""
        round_trip_us = self._machine.round_trip_us()
        hello = PublisherHello(publisher=self._id, topics=(self._spec.topic,), round_trip_us=round_trip_us)
        self.line.request(self.name, HELLO, hello)

    def report(self, now_s: float) -> None:
        """Tell the head what was sent since the last time."""
        since_s, self._reported_s = self._reported_s, now_s
        counts = self._machine.take_counts(1)
        if counts and since_s is not None:
            elapsed_us = max(round((now_s - since_s) * 1e6), 1)
            round_trip_us = self._machine.round_trip_us()
            self.line.tell(
                PublisherReport(
                    publisher=self._id, elapsed_us=elapsed_us, topics=tuple(counts), round_trip_us=round_trip_us
                )
            )

    def answered(self, key: str, message: ControlMessage) -> None:
        """A welcome says whether publications may name their account."""
        if isinstance(message, PublisherWelcome) and message.checked_accounts:
            self._machine.sign(self.line.user)

    def ordered(self, message: ControlMessage, reply_to: ReplyTo | None) -> None:
        """There is one head, so nobody is moved; and who publishes at his rate is not slowed down."""


class LeanPublishers:
    """Drives the publishers of one process over one connection with confirms."""

    def __init__(self, publishers: list[LeanPublisher], address: Address, journal: Journal) -> None:
        self._publishers = publishers
        self._address = address
        self._journal = journal
        self._connection = LeanConnection(nothing, self._told, self._lost)
        self._open = asyncio.Event()
        self._unconfirmed: deque[LeanPublisher] = deque()
        """Who made each publication that is not answered, oldest first."""
        self._answered = 0
        self.refused = 0
        self.problem = ""

    async def connect(self) -> None:
        """Open the connection; return once it is there."""
        await self._connection.connect(self._address, "publishers", commands.Confirm.Select())
        await self._open.wait()

    async def run(self, began_us: int) -> None:
        """Publish everything, each publication when it is due after `began_us`."""
        heap: list[tuple[float, int, LeanPublisher]] = []
        for publisher in self._publishers:
            self._push(heap, publisher)
        while heap and not self.problem:
            due_s, _, publisher = heap[0]
            left_s = began_us / 1e6 + due_s - time.time()
            if left_s > 0.0:
                await asyncio.sleep(left_s)
                continue
            heapq.heappop(heap)
            self._publish(publisher, began_us + round(due_s * 1e6))
            self._push(heap, publisher)

    def _push(self, heap: list[tuple[float, int, LeanPublisher]], publisher: LeanPublisher) -> None:
        due_s = next(publisher.due_s, None)
        if due_s is not None:
            heapq.heappush(heap, (due_s, publisher.number, publisher))

    def _publish(self, publisher: LeanPublisher, due_us: int) -> None:
        now_us = time.time_ns() // 1000
        sequence = publisher.sequence
        self._connection.write(publisher.frames(now_us))
        self._journal.published(publisher.number, sequence, due_us, now_us)
        self._unconfirmed.append(publisher)

    async def control(self) -> None:
        """Say hello and report, everybody at a moment of his own, until cancelled."""
        if not self._publishers:
            return
        loop = asyncio.get_running_loop()
        count = len(self._publishers)
        turn = 0
        began_s = loop.time()
        while True:
            publisher = self._publishers[turn % count]
            period = turn // count
            if period % round(HELLO_S / REPORT_S) == 0:
                publisher.hello()
            publisher.report(loop.time())
            turn += 1
            await asyncio.sleep(max(began_s + turn * REPORT_S / count - loop.time(), 0.0))

    def close(self) -> None:
        self._connection.close()

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    def _told(self, one: base.Frame) -> None:
        match one:
            case commands.Confirm.SelectOk():
                self._open.set()
            case commands.Basic.Ack() | commands.Basic.Nack():
                if isinstance(one, commands.Basic.Nack):
                    self.refused += 1
                self._confirmed(int(one.delivery_tag or 0))

    def _confirmed(self, tag: int) -> None:
        """Confirms of single messages may overtake each other by a little; what is behind one is as good as here."""
        now_us = time.time_ns() // 1000
        while self._unconfirmed and self._answered < tag:
            self._answered += 1
            self._unconfirmed.popleft().confirmed(now_us)

    def _lost(self, gone: bool, problem: str) -> None:
        self.problem = problem
        self._open.set()
