"""Reading a range of offsets as Arrow batches: what an executor does.

Exactly the messages of the range come out, each once and in order, whatever happens to the connection: after a loss,
reading goes on at the next offset. RabbitMQ is given no more credit than the range needs, so that parts of a stream can
be read side by side without each fetching the other's messages.

A jump in the offsets is looked into before it is believed: when the stream still has older messages, the jump is a hole
that RabbitMQ made (see `probe`); when it has not, retention was faster than we were.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import Any, Final

import pyarrow as pa

from .columns import BYTES_MAX, ROWS_MAX, Rows
from .errors import DataLoss, Silent, Transient, Unreadable
from .link import Consumer, Link, quiet_client
from .offsets import Range
from .options import Broker, Settings
from .probe import Probe
from .retries import Retries
from .tolerant import OFFSET_HEADER

ACKS_PER_PREFETCH: Final = 4
"""Acknowledging a quarter of the prefetch at a time keeps RabbitMQ sending, at four frames per prefetch."""

logger = logging.getLogger(__name__)


def read_range(wanted: Range, settings: Settings) -> Generator[pa.RecordBatch]:
    """The messages of a range, in batches."""
    quiet_client()
    broker = settings.broker(wanted.key.broker)
    retries = Retries(settings.connect_retries)
    position = wanted.start
    while position < wanted.end:
        rest = Range(wanted.key, position, wanted.end)
        try:
            with Link(broker, settings.tls) as link:
                reader = _Reader(link, broker, rest, settings)
                for rows in reader.pieces():
                    if len(rows):
                        yield rows.batch()
                    position = reader.position
                    retries.progressed()
        except Transient as error:
            retries.failed(error)


class _Reader:
    """One consumer at work on a range, over one connection."""

    def __init__(self, link: Link, broker: Broker, wanted: Range, settings: Settings) -> None:
        self._link = link
        self._broker = broker
        self._wanted = wanted
        self._settings = settings
        self._rows = Rows(wanted.key)
        self._bytes = 0
        self.position = wanted.start
        self._jump_from: int | None = None
        self._arrived = 0
        self._unacked = 0
        prefetch = min(settings.prefetch, len(wanted))
        self._ack_every = max(1, prefetch // ACKS_PER_PREFETCH)
        self._credit_left = len(wanted) - prefetch
        self._consumer: Consumer = link.consume(wanted.key.stream, wanted.start, prefetch, self._on_message)

    def pieces(self) -> Iterator[Rows]:
        """Rows until the range is read; `position` is then the offset after them."""
        while self.position < self._wanted.end:
            try:
                self._wait()
            except Transient:
                # What has come is kept, so that a connection that never lasts for a whole batch still gets somewhere.
                if len(self._rows) and self._jump_from is None:
                    yield self._take()
                raise
            while self._jump_from is not None:
                self._judge_jump(self._jump_from)
            yield self._take()

    def _take(self) -> Rows:
        rows, self._rows, self._bytes = self._rows, Rows(self._wanted.key), 0
        return rows

    def _wait(self) -> None:
        """Until a batch is full, the range is read, or nothing has come for too long."""
        timeout_s = self._settings.read_timeout_s
        stream = self._wanted.key.stream
        while not self._ready():
            arrived = self._arrived
            try:
                self._link.run(lambda: self._ready() or self._consumer.error is not None, timeout_s)
            except Unreadable as error:
                where = f"stream {stream!r}: a message at or after offset {self.position}"
                raise Unreadable(error.address, where, error.problem) from None
            if self._consumer.error is not None:
                raise self._consumer.error
            if self._arrived == arrived and not self._ready():
                what = f"offsets {self.position} to {self._wanted.end - 1} were awaited"
                raise Silent(self._broker.address, stream, what, timeout_s)

    def _ready(self) -> bool:
        return self.position >= self._wanted.end or len(self._rows) >= ROWS_MAX or self._bytes >= BYTES_MAX

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Take a message in. This is the hot path: it runs for every message."""
        headers = properties.headers
        offset = int(headers[OFFSET_HEADER])
        self._arrived += 1
        self._unacked += 1
        if offset != self.position:
            if offset < self.position:
                return  # a chunk may begin before the offset that was asked for
            if self._jump_from is None:
                self._jump_from = self.position
        rows = self._rows
        if offset < self._wanted.end:
            rows.offsets.append(offset)
            rows.timestamps.append(properties.timestamp)
            rows.routing_keys.append(method.routing_key)
            rows.headers.append(headers)
            rows.bodies.append(body)
            self._bytes += len(body)
            self.position = offset + 1
        else:
            self.position = self._wanted.end
        if self._unacked >= self._ack_every and self._credit_left > 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
            self._credit_left -= self._unacked
            self._unacked = 0
        if self.position >= self._wanted.end or len(rows.offsets) >= ROWS_MAX or self._bytes >= BYTES_MAX:
            self._link.wake()

    def _judge_jump(self, missed: int) -> None:
        """Say whether offsets that were passed over are lost, or never were messages."""
        self._jump_from = None
        key = self._wanted.key
        earliest = Probe(self._link, self._settings.read_timeout_s).earliest([key.stream])[key.stream]
        if earliest is None or earliest <= missed:
            return
        problem = f"offsets from {missed} up to {earliest - 1} are gone, removed by the stream's retention"
        if not self._settings.skip_lost:
            raise DataLoss(self._broker.address, key.stream, problem)
        logger.warning("%s: stream %r: %s; skipped", self._broker.address, key.stream, problem)
