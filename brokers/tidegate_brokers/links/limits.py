"""Whether both ends of a link take the same: the largest message and the largest frame.

RabbitMQ tells the largest frame to whoever connects, and the largest message to nobody, by no API. But it names that
limit when it refuses a message. So every broker sends its own RabbitMQ one message that is a byte larger than the SDK
ever sends, to an exchange that leads nowhere, and reads the refusal; a RabbitMQ that takes it takes enough. The other
end learns the result with the probes that brokers send each other anyway (`sensing.prober`).

Invariants: nothing of this leaves the machine of a broker's RabbitMQ; it is done once in `MEASURED_EVERY_S`; what
differs is told when it begins and when it ends, not with every probe.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final

from aiormq.exceptions import AMQPError

from tidegate_agents.machine import Event, LinkLimitFits, LinkObserved
from tidegate_protocol.decisions import LinkLimit, LinkLimitDiffers
from tidegate_protocol.form import BODY_BYTES_MAX
from tidegate_protocol.messages import Probe, Takes
from tidegate_protocol.names import SEAL_EXCHANGE

from ..errors import BrokerError
from ..plane.sealing import declare_seal
from ..rabbit.connection import close_quietly, lost_by_connection
from ..rabbit.raw import RawChannel, RawMessage, closed_by, open_raw
from ..settings.urls import ServerUrl

log = logging.getLogger(__name__)

TRIED_BYTES: Final = BODY_BYTES_MAX + 1
MEASURED_FIRST_S: Final = 5.0
"""After the start, which has more urgent things to do."""
MEASURED_EVERY_S: Final = 3600.0
RETRY_S: Final = 60.0
ANSWER_S_MAX: Final = 30.0
PEERS_MAX: Final = 1_000
_MAX_SIZE: Final = re.compile(r"max size (\d+)")


class Unanswered(Exception):
    """RabbitMQ refused the message, and not for its size."""


async def measure(url: ServerUrl) -> Takes:
    """What a broker's own RabbitMQ takes; raises what RabbitMQ or the connection to it raises."""
    answered = asyncio.Event()
    connection = await open_raw(url, "limits")
    try:
        channel = RawChannel(connection, lambda *_: answered.set())
        await channel.open()
        await declare_seal(channel)
        channel.closing.add_done_callback(lambda _: answered.set())
        await channel.publish(SEAL_EXCHANGE, RawMessage(b"", b"\x00\x00", bytes(TRIED_BYTES)))
        async with asyncio.timeout(ANSWER_S_MAX):
            await answered.wait()
        frame_bytes = connection.connection_tune.frame_max or None
        if not channel.is_closed:
            return Takes(message_bytes=None, frame_bytes=frame_bytes)
        closed = closed_by(channel)
        found = _MAX_SIZE.search(closed.text)
        if found is None:
            raise Unanswered(closed.text)
        return Takes(message_bytes=int(found[1]), frame_bytes=frame_bytes)
    finally:
        await close_quietly(connection)


class Limits:
    """Knows what the own RabbitMQ takes, and compares it with what others say of theirs."""

    def __init__(self, broker: str, url: ServerUrl, post: Callable[[Event], None]) -> None:
        self._broker = broker
        self._url = url
        self._post = post
        self._own: Takes | None = None
        self._told: dict[str, tuple[LinkLimitDiffers, ...]] = {}

    def probe(self) -> Probe:
        """What is said to other brokers."""
        return Probe(broker=self._broker, takes=self._own)

    async def run(self) -> None:
        """Measure now and then."""
        await asyncio.sleep(MEASURED_FIRST_S)
        while True:
            try:
                self._own = await measure(self._url)
            except BaseException as error:
                if not lost_by_connection(error) and not isinstance(error, AMQPError | BrokerError | Unanswered):
                    raise
                log.debug("cannot find out what RabbitMQ takes; it is tried again: %r", error)
                await asyncio.sleep(RETRY_S)
            else:
                log.info("RabbitMQ's limits are known", extra=self._own.model_dump())
                await asyncio.sleep(MEASURED_EVERY_S)

    def heard(self, probe: Probe) -> None:
        """A broker that this head forwards to says what its RabbitMQ takes."""
        if self._own is None or probe.takes is None or probe.broker is None:
            return
        found = tuple(differences(self._broker, self._own, probe.broker, probe.takes))
        known = self._told.get(probe.broker, ())
        if found == known or (probe.broker not in self._told and len(self._told) >= PEERS_MAX):
            return
        self._told[probe.broker] = found
        if not found:
            self._post(LinkLimitFits(probe.broker))
        for one in found:
            self._post(LinkObserved(one))


def differences(source: str, near: Takes, target: str, far: Takes) -> list[LinkLimitDiffers]:
    """The limits in which the far end of a link takes less than the near one; None means more than was tried."""
    pairs = (
        (LinkLimit.MESSAGE, near.message_bytes, far.message_bytes),
        (LinkLimit.FRAME, near.frame_bytes, far.frame_bytes),
    )
    return [
        LinkLimitDiffers(source, target, limit, near_bytes, far_bytes)
        for limit, near_bytes, far_bytes in pairs
        if far_bytes is not None and (near_bytes is None or near_bytes > far_bytes)
    ]
