"""Lean publishers: all publishers of a run on one connection, each at its times.

They publish transient messages with the public message form, say hello to their head and report what they have sent, as
the SDK does. What always holds: a publication that is due is made, late if need be, never left out; when each was due
and when it was made is written down, so that a harness that could not keep up shows.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from pamqp import base, commands

from tidegate._config import Timeouts
from tidegate._wire import encode_properties, encode_publish, frames
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.messages import ControlMessage, PublisherHello, PublisherReport, TopicCount
from tidegate_protocol.names import PUBLISH_EXCHANGE
from tidegate_simulator.scenario import PublisherSpec

from .codec import CHANNEL, FRAME_MAX, Address
from .connection import LeanConnection, nothing
from .head_line import HeadLine, ReplyTo
from .journal import Journal
from .workload import INCARNATION, body_bytes, due_times_s, stream_of

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
        self._stream = stream_of(spec)
        self._publish = encode_publish(PUBLISH_EXCHANGE, spec.topic)
        self._persistent = persistent
        self._bodies = bytes(BODY_BYTES_MAX)
        self._reported_s: float | None = None
        self._messages = 0
        self._bytes = 0
        self.number = number
        self.name = spec.name
        self.sequence = 0
        self.due_s: Iterator[float] = due_times_s(spec, duration_s)
        self.line: HeadLine
        self.round_trip_us = 0

    @property
    def starts_s(self) -> float:
        return self._spec.starts_s

    def frames(self, now_us: int) -> bytes:
        """The next publication, ready to be written."""
        size = min(body_bytes(self._spec, self._id, self.sequence, self._subscribers), BODY_BYTES_MAX)
        properties = encode_properties(f"{self._stream}:{self.sequence}", now_us, b"", self._persistent)
        self.sequence += 1
        self._messages += 1
        self._bytes += size
        return frames(CHANNEL, self._publish, properties, self._bodies[:size], FRAME_MAX)

    def hello(self) -> None:
        """Tell the head that it is there."""
        hello = PublisherHello(publisher=self._id, topics=(self._spec.topic,), round_trip_us=self.round_trip_us)
        self.line.request(self.name, HELLO, hello)

    def report(self, now_s: float) -> None:
        """Tell the head what was sent since the last time."""
        since_s, self._reported_s = self._reported_s, now_s
        count = TopicCount(topic=self._spec.topic, messages=self._messages, bytes=self._bytes)
        self._messages = self._bytes = 0
        if since_s is None:
            return
        self.line.tell(
            PublisherReport(
                publisher=self._id,
                elapsed_us=max(round((now_s - since_s) * 1e6), 1),
                topics=(count,),
                round_trip_us=self.round_trip_us,
            )
        )

    def answered(self, key: str, message: ControlMessage) -> None:
        """A welcome; nothing follows from it."""

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
        self._unconfirmed: deque[tuple[int, int]] = deque()
        self._tag = 0
        self._round_trip_us = 0
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
        self._tag += 1
        self._unconfirmed.append((self._tag, now_us))

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
            publisher.round_trip_us = self._round_trip_us
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
        while self._unconfirmed and self._unconfirmed[0][0] <= tag:
            _, sent_us = self._unconfirmed.popleft()
            self._round_trip_us = now_us - sent_us

    def _lost(self, gone: bool, problem: str) -> None:
        self.problem = problem
        self._open.set()
