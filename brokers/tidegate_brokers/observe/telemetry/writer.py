"""Writes records to the head's RabbitMQ, in batches, over a connection of its own.

The connection is separate because RabbitMQ slows down a connection that publishes more than a stream takes, and blocks
it while memory or disk is short: neither must hold up a control message.

Invariants:

- `write` puts a record into a bounded buffer and returns; it never waits, whatever RabbitMQ does;
- at most one batch is unconfirmed at a time. A batch that was under way when its connection was lost is given up and
  counted: a record may be missing from the stream, but is never in it twice;
- every record is counted once, as written or as dropped; drops are logged at most once a minute;
- after a lost connection, a restart of RabbitMQ, or a missing stream the writer tries again for as long as the process
  lives, and no other part of the process notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from aiormq.exceptions import AMQPError, DeliveryError
from pamqp.commands import Basic

from tidegate_protocol.names import TELEMETRY_EXCHANGE
from tidegate_protocol.telemetry import RECORD_BYTES_MAX, TelemetryRecord, encode

from ...errors import RabbitError
from ...rabbit.connection import ConnectionKeeper, close_quietly, lost_by_connection
from ...settings.urls import ServerUrl
from .buffer import Encoded, RecordBuffer
from .gauges import DropReason, TelemetryMetrics
from .stream import Prepare

log = logging.getLogger(__name__)

CONNECTION: Final = "telemetry"
BATCH_MAX: Final = 200
LINGER_S: Final = 0.2
"""How long a record waits for others to go with it."""
PREPARE_TIMEOUT_S: Final = 10.0
CONFIRM_TIMEOUT_S: Final = 120.0
"""A last resort. A connection that is dead is noticed by its heartbeat long before; one that RabbitMQ blocks is not
dead, and what it holds is confirmed when the alarm is over."""
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
FAILURES_TOLD: Final = 3
"""After so many attempts in a row it is said, once, that there is no stream."""
LOG_PERIOD_S: Final = 60.0


class TelemetryWriter:
    """One buffer, one connection, one batch at a time."""

    def __init__(
        self, url: ServerUrl, prepare: Prepare, metrics: TelemetryMetrics, buffer: RecordBuffer | None = None
    ) -> None:
        self.keeper = ConnectionKeeper(CONNECTION, url, self._setup, self._lost)
        self.written = 0
        self.dropped = 0
        self.problem: str | None = None
        """Why nothing is written at present."""
        self._prepare = prepare
        self._metrics = metrics
        self._buffer = RecordBuffer() if buffer is None else buffer
        self._connection: AbstractConnection | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = False
        self._untold: Counter[DropReason] = Counter()
        self._tell_at_s = 0.0
        metrics.buffered.set_function(lambda: len(self._buffer))

    def write(self, record: TelemetryRecord) -> None:
        """Have a record written some time soon, if that is possible."""
        body = encode(record)
        if len(body) > RECORD_BYTES_MAX:
            self.drop(DropReason.TOO_LARGE)
            return
        self.drop(DropReason.BUFFER_FULL, self._buffer.put(Encoded(record.kind, body)))
        self._idle.clear()
        self._wake.set()

    def drop(self, reason: DropReason, count: int = 1) -> None:
        """Count records that will not be written, and say so now and then."""
        if count <= 0:
            return
        self.dropped += count
        self._metrics.dropped.labels(reason.value).inc(count)
        self._untold[reason] += count
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._tell_at_s:
            self._tell_at_s = now_s + LOG_PERIOD_S
            counts = ", ".join(f"{number} {told}" for told, number in sorted(self._untold.items()))
            why = f" ({self.problem})" if self.problem else ""
            log.warning("cannot write telemetry; records dropped since the last such line: %s%s", counts, why)
            self._untold.clear()

    async def flush(self, timeout_s: float) -> None:
        """Write what waits, within bounds; what is left then is given up."""
        self._hurry = True
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self.drop(DropReason.STOPPED, len(self._buffer.take(len(self._buffer))))

    async def run(self) -> None:
        """Write until cancelled."""
        pause_s, failures = PAUSE_FIRST_S, 0
        while True:
            await self.keeper.up.wait()
            connection = self._connection
            written = self.written
            try:
                if connection is not None:
                    await self._session(connection)
            except RabbitError as error:
                self.problem, failures = str(error), failures + 1
                # Brokers of a cluster start at the same time, and the head declares the stream a moment later.
                log.log(
                    logging.WARNING if failures == FAILURES_TOLD else logging.DEBUG,
                    "no telemetry is written: %s",
                    error,
                )
            except BaseException as error:
                if not lost_by_connection(error) and not isinstance(error, AMQPError):
                    raise
                self.problem = str(error) or type(error).__name__
                log.debug("cannot write telemetry; trying again: %s", self.problem)
            if self.written > written:
                pause_s, failures = PAUSE_FIRST_S, 0
            else:
                pause_s = min(2.0 * pause_s, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)

    async def _session(self, connection: AbstractConnection) -> None:
        """Write over one connection for as long as its channel is there."""
        async with asyncio.timeout(PREPARE_TIMEOUT_S):
            channel = await self._prepare(connection)
        channel.closing.add_done_callback(lambda _: self._wake.set())
        self.problem = None
        log.info("telemetry is written to %s", TELEMETRY_EXCHANGE)
        while not channel.is_closed and self._connection is connection:
            if not len(self._buffer):
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            if len(self._buffer) < BATCH_MAX and not self._hurry:
                await asyncio.sleep(LINGER_S)
            await self._write_batch(connection, channel, self._buffer.take(BATCH_MAX))

    async def _write_batch(
        self, connection: AbstractConnection, channel: AbstractChannel, batch: list[Encoded]
    ) -> None:
        """Publish all, then wait for all confirmations."""
        publishing = [asyncio.ensure_future(_publish(channel, record)) for record in batch]
        try:
            await asyncio.wait(publishing, timeout=CONFIRM_TIMEOUT_S)
        finally:
            for task in publishing:
                task.cancel()
            outcomes = [outcome_of(task) for task in publishing]
            self._count(batch, outcomes)
        if DropReason.UNCONFIRMED in outcomes:
            # Whatever has become of them: this channel's confirmations can't be told apart any more.
            await close_quietly(connection)
            raise ConnectionError("RabbitMQ has not confirmed what was written")

    def _count(self, batch: list[Encoded], outcomes: list[DropReason | None]) -> None:
        sizes = [len(record.body) for record, outcome in zip(batch, outcomes, strict=True) if outcome is None]
        self.written += len(sizes)
        self._metrics.written.inc(len(sizes))
        self._metrics.written_bytes.inc(sum(sizes))
        for reason in DropReason:
            self.drop(reason, outcomes.count(reason))

    async def _setup(self, connection: AbstractConnection) -> None:
        self._connection = connection

    def _lost(self) -> None:
        self._connection = None
        self._wake.set()


async def _publish(channel: AbstractChannel, record: Encoded) -> bool:
    """True once RabbitMQ has it; False where nothing is bound to the exchange."""
    properties = Basic.Properties(content_type="application/json", message_type=record.kind, delivery_mode=2)
    # On a returned message aiormq gives the message, whatever its annotation says.
    outcome: object = await channel.basic_publish(
        record.body,
        exchange=TELEMETRY_EXCHANGE,
        routing_key=record.kind,
        properties=properties,
        mandatory=True,
    )
    return not isinstance(outcome, DeliveredMessage)


def outcome_of(task: asyncio.Future[bool]) -> DropReason | None:
    """None for a record that RabbitMQ has confirmed."""
    if not task.done() or task.cancelled():
        return DropReason.UNCONFIRMED
    error = task.exception()
    if error is None:
        return None if task.result() else DropReason.REFUSED
    return DropReason.REFUSED if isinstance(error, DeliveryError) else DropReason.UNCONFIRMED
