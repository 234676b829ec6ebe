"""What an edge needs in its RabbitMQ so that nothing is dropped without a trace: declared before anything can be.

    output queues –policy→ exchange tidegate.dropped → queue tidegate.dropped    dead letters, until they are read
    exchange tidegate.drops → stream tidegate.drops                               what was read, for a replay
    exchange tidegate.replay → output queue, for the time of a replay             and notes (`drops.stream`)

Everything is bounded: the queue by policy, the stream by its arguments. A policy reaches queues that an earlier version
has declared; the arguments of a queue never change.

Invariant: an account without the right to declare these (rights made by an earlier version) keeps its edge from
nothing: drops are not kept then, and that is said.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed

from tidegate_protocol.names import DROPPED_EXCHANGE, DROPS_STREAM, REPLAY_EXCHANGE

from ..rabbit.management import Json, Management
from .head import QUEUE_ARGUMENTS, limit_policy, put_policy_if_different

log = logging.getLogger(__name__)

DROPPED_QUEUE: Final = DROPPED_EXCHANGE
POLICY: Final = "tidegate-dropped"
SEGMENTS: Final = 8
"""The stream drops whole segments: so many make up its size."""
SEGMENT_BYTES_MIN: Final = 100_000


@dataclass(frozen=True, slots=True)
class DropLimits:
    """What is kept of dropped messages. A size of 0: nothing."""

    age_s: int
    size_bytes: int

    @property
    def arguments(self) -> dict[str, str | int]:
        """Of the stream, as RabbitMQ wants them."""
        return {
            "x-queue-type": "stream",
            "x-max-age": f"{self.age_s}s",
            "x-max-length-bytes": self.size_bytes,
            "x-stream-max-segment-size-bytes": max(self.size_bytes // SEGMENTS, SEGMENT_BYTES_MIN),
        }


NOTHING_KEPT: Final = DropLimits(0, 0)


class DropPlane:
    """Exchanges, queue and stream for what is dropped on one edge."""

    def __init__(self, limits: DropLimits) -> None:
        self.limits = limits
        self.kept = False
        """Whether RabbitMQ keeps what it drops."""
        self._warned = False

    def dead_lettering(self, policy: Json) -> Json:
        """A policy for output queues, with the exchange for what they drop."""
        if not self.kept:
            return policy
        return policy | {"definition": {**policy["definition"], "dead-letter-exchange": DROPPED_EXCHANGE}}

    async def assert_all(self, channel: AbstractChannel, management: Management) -> None:
        """Have everything be there, or know that it can't be."""
        if not self.limits.size_bytes:
            self.kept = False
            return
        # A channel of its own, because a refusal closes the channel.
        scratch = await channel.connection.channel(publisher_confirms=False)
        try:
            await scratch.exchange_declare(DROPPED_EXCHANGE, exchange_type="fanout", durable=True)
            await scratch.exchange_declare(DROPS_STREAM, exchange_type="fanout", durable=True)
            await scratch.exchange_declare(REPLAY_EXCHANGE, exchange_type="headers", durable=True)
            await scratch.queue_declare(DROPPED_QUEUE, durable=True, arguments=dict(QUEUE_ARGUMENTS))
            await scratch.queue_bind(DROPPED_QUEUE, DROPPED_EXCHANGE)
            await put_policy_if_different(
                management, POLICY, limit_policy(DROPPED_QUEUE, self.limits.size_bytes, "drop-head")
            )
            await declare_stream(scratch, self.limits)
            await scratch.queue_bind(DROPS_STREAM, DROPS_STREAM)
            await scratch.close()
        except ChannelAccessRefused as error:
            self.kept = False
            if not self._warned:
                self._warned = True
                log.warning(
                    "this account may not declare what keeps dropped messages; they are lost, and not counted. "
                    "Make its rights anew with `tidegate access` and import them: %s",
                    error,
                )
            return
        self.kept = True


async def declare_stream(channel: AbstractChannel, limits: DropLimits) -> None:
    """Have the stream be there. One with other limits is used as it is."""
    scratch = await channel.connection.channel(publisher_confirms=False)
    try:
        await scratch.queue_declare(DROPS_STREAM, durable=True, arguments=dict(limits.arguments))
    except ChannelPreconditionFailed as error:
        log.info("the stream of drops has other limits than configured and is used as it is: %s", error)
        return
    await scratch.close()
