"""The sample of an edge: what each subscription gets, loses and has waiting, all seen at one moment.

Invariants:

- a queue that RabbitMQ has not listed yet is not in the sample, and a queue that is gone is forgotten;
- rates are taken between two answers, so that the first answer gives no sample. The rates of the edge as a whole are
  taken over two periods: RabbitMQ reads its counters somewhere between question and answer, which over one period is an
  error of several per cent, and in the next one the opposite error. Where the two differ by more than that, the load
  has changed, somewhere in the second of them: that one and the next count alone;
- sizes are bytes on the wire: what bodies have plus what AMQP adds to each delivery. A queue found empty keeps the
  size it had; one never found filled has that of its pattern's other queues, or else of all;
- a queue in which nothing happens costs next to nothing, because most of a thousand are like that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tidegate_agents.load.metrics import BrokerSample, Role, SubscriptionSample
from tidegate_agents.machine import EdgeSampled
from tidegate_protocol.messages import Capacity, Subscription
from tidegate_protocol.names import DELIVER_EXCHANGE, OUTPUT_PREFIX

from .exposition import ACKED, CONSUMERS, MESSAGE_BYTES, MESSAGES, OLDEST, READY, UNACKED, Exposition
from .queues import DepthEstimate, Differences
from .trips import SubscriberTrip
from .wire import wire_overhead_bytes

SIZE_SHARE: Final = 0.5
"""How much of a size each look replaces."""
TRIP_FACTOR_MAX: Final = 2.0
"""Before its own is known, a round trip is taken for at most so many times that of the edge's other subscribers."""
ELAPSED_S_MIN: Final = 0.05
"""Two answers closer together than this give no rates."""

CHANGED_SHARE: Final = 0.15
"""Two periods that differ by more than this share are not the same load, measured twice."""


@dataclass(slots=True)
class _Output:
    """One output queue, followed."""

    held: DepthEstimate = field(default_factory=DepthEstimate)
    trip: SubscriberTrip = field(default_factory=SubscriberTrip)
    body_bytes: float | None = None
    seen: float = 0.0
    still: SubscriptionSample | None = None
    """The last sample, if nothing at all happened in it."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What an answer says about queues, and which of them there are: all that a sample is made of but the counters."""

    ready: Mapping[str, float]
    unacked: Mapping[str, float]
    consumers: Mapping[str, float]
    outputs: dict[str, Subscription]

    def same(self, other: _Held) -> bool:
        """Whether nothing has changed. What was read from the same lines is the same object."""
        return (
            self.ready is other.ready
            and self.unacked is other.unacked
            and self.consumers is other.consumers
            and self.outputs == other.outputs
        )


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """What one answer led to, besides the sample itself."""

    sample: EdgeSampled
    oldest_s: float
    """How long the oldest message waits, over all queues that somebody takes from."""


class EdgeSampler:
    """Makes samples of one edge from successive answers."""

    def __init__(self, broker: str, capacity: Capacity, default_round_trip_s: float) -> None:
        self._broker = broker
        self._capacity = capacity
        self._default_round_trip_s = default_round_trip_s
        self._outputs: dict[str, _Output] = {}
        self._enqueued, self._acked, self._received = Differences(), Differences(), Differences()
        self._before: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
        """Bytes in, bytes offered, messages in, and how long that took, in the period before."""
        self._changed = False
        """Whether the load changed in the period before."""
        self._moment_s: float | None = None
        self._patterns: dict[str, float] = {}
        self._body_bytes = 0.0
        self._typical_trip_s: float | None = None
        self._held: _Held | None = None
        self._still: tuple[SubscriptionSample, ...] | None = None
        """The samples of an edge on which nothing at all happened."""

    def taken(
        self,
        answer: Exposition,
        moment_s: float,
        outputs: Mapping[str, Subscription],
        head_round_trip_s: float,
        wall_s: float,
        migrating: Collection[str] = frozenset(),
    ) -> EdgeReading | None:
        """The sample between the last answer and this one; None for the first. Queues in `migrating` teach nothing of
        the way to their subscribers.
        """
        elapsed_s = moment_s - self._moment_s if self._moment_s is not None else 0.0
        first = self._moment_s is None
        if not first and elapsed_s < ELAPSED_S_MIN:
            return None
        self._moment_s = moment_s
        enqueued, enqueuers_gone = self._enqueued.taken(answer.enqueued(OUTPUT_PREFIX))
        acked, ackers_gone = self._acked.taken(answer.per_channel_queue(ACKED, OUTPUT_PREFIX))
        received, _ = self._received.taken(answer.received(DELIVER_EXCHANGE))
        held = _Held(
            answer.per_queue(READY, OUTPUT_PREFIX),
            answer.per_queue(UNACKED, OUTPUT_PREFIX),
            answer.per_queue(CONSUMERS, OUTPUT_PREFIX),
            dict(outputs),
        )
        if answer.has(MESSAGE_BYTES):
            self._learn_sizes(answer, outputs)
        gone = enqueuers_gone | ackers_gone
        for queue in gone & self._outputs.keys():
            self._outputs[queue].held.recount()
            if queue in ackers_gone:
                self._outputs[queue].trip.reconnected()
        if first:
            return None
        before, self._held = self._held, held
        if not (enqueued or acked or gone) and before is not None and held.same(before) and self._still is not None:
            samples = self._still
        else:
            self._forget(outputs)
            samples = self._samples(held, enqueued, acked, elapsed_s, migrating)
            self._still = samples if not (enqueued or acked) and self._all_still(samples) else None
            self._learn_typical_trip()
        broker = self._broker_sample(samples, sum(received.values()), elapsed_s)
        oldest_s = self._oldest_s(answer, samples, wall_s)
        return EdgeReading(EdgeSampled(broker, samples, head_round_trip_s), oldest_s)

    def _samples(
        self,
        held: _Held,
        enqueued: Mapping[str, float],
        acked: Mapping[str, float],
        elapsed_s: float,
        migrating: Collection[str],
    ) -> tuple[SubscriptionSample, ...]:
        return tuple(
            self._sample(
                queue,
                held.outputs[queue].pattern,
                enqueued.get(queue, 0.0),
                acked.get(queue, 0.0),
                held.ready[queue],
                held.unacked.get(queue, 0.0),
                held.consumers.get(queue, 0.0) > 0.0,
                queue in migrating,
                elapsed_s,
            )
            for queue in sorted(held.outputs.keys() & held.ready.keys())
        )

    def _all_still(self, samples: tuple[SubscriptionSample, ...]) -> bool:
        return all(self._outputs[sample.name].still is sample for sample in samples)

    def _forget(self, outputs: Mapping[str, Subscription]) -> None:
        for queue in self._outputs.keys() - outputs.keys():
            del self._outputs[queue]

    # One queue

    def _sample(
        self,
        queue: str,
        pattern: str,
        enqueued: float,
        acked: float,
        ready: float,
        unacked: float,
        attached: bool,
        migrating: bool,
        elapsed_s: float,
    ) -> SubscriptionSample:
        output = self._outputs.get(queue)
        if output is None:
            output = self._outputs[queue] = _Output()
        seen = ready + unacked
        if not (enqueued or acked) and seen == output.seen:
            still = output.still
            if still is not None and still.attached is attached and still.ready == ready and still.pattern == pattern:
                return still
        held = output.held.now(enqueued, acked, seen, elapsed_s)
        if migrating:
            output.trip.interrupted()
        else:
            output.trip.sampled(held, ready, acked, elapsed_s)
        waiting = ready if ready < held else held
        sample = SubscriptionSample(
            name=queue,
            pattern=pattern,
            enqueue_per_s=enqueued / elapsed_s,
            drain_per_s=acked / elapsed_s,
            ready=waiting,
            unacknowledged=held - waiting,
            round_trip_s=self._round_trip_s(output.trip),
            message_bytes=self._size(output, pattern),
            attached=attached,
        )
        output.still = sample if not (enqueued or acked) and seen == output.seen else None
        output.seen = seen
        return sample

    def _round_trip_s(self, trip: SubscriberTrip) -> float:
        known_s = trip.estimate_s
        if known_s is not None:
            return known_s
        guess_s, typical_s = trip.provisional_s, self._typical_trip_s
        if guess_s is None:
            return self._default_round_trip_s if typical_s is None else typical_s
        return guess_s if typical_s is None else min(guess_s, TRIP_FACTOR_MAX * typical_s)

    def _learn_typical_trip(self) -> None:
        known = [output.trip.estimate_s for output in self._outputs.values() if output.trip.estimate_s is not None]
        self._typical_trip_s = median(known) if known else None

    # Sizes

    def _learn_sizes(self, answer: Exposition, outputs: Mapping[str, Subscription]) -> None:
        counts = answer.per_queue(MESSAGES, OUTPUT_PREFIX)
        sums: dict[str, list[float]] = {}
        for queue, total in answer.per_queue(MESSAGE_BYTES, OUTPUT_PREFIX).items():
            count = counts.get(queue, 0.0)
            subscription = outputs.get(queue)
            if count <= 0.0 or total <= 0.0 or subscription is None:
                continue
            output = self._outputs.setdefault(queue, _Output())
            size, before = total / count, output.body_bytes
            output.body_bytes = size if before is None else before + SIZE_SHARE * (size - before)
            sums.setdefault(subscription.pattern, []).append(output.body_bytes)
        self._patterns |= {pattern: sum(sizes) / len(sizes) for pattern, sizes in sums.items()}
        if len(self._patterns) > len(outputs):
            wanted = {subscription.pattern for subscription in outputs.values()}
            self._patterns = {pattern: size for pattern, size in self._patterns.items() if pattern in wanted}
        if self._patterns:
            self._body_bytes = sum(self._patterns.values()) / len(self._patterns)

    def _size(self, output: _Output, pattern: str) -> float:
        size = output.body_bytes
        if size is None:
            size = self._patterns.get(pattern, self._body_bytes)
        return size + wire_overhead_bytes(pattern)

    # The edge as a whole

    def _broker_sample(
        self, samples: tuple[SubscriptionSample, ...], messages_in: float, elapsed_s: float
    ) -> BrokerSample:
        offered, streams = 0.0, dict[str, tuple[float, float]]()
        for sample in samples:
            rate = sample.enqueue_per_s
            if rate <= 0.0:
                continue
            size = sample.message_bytes
            if sample.attached:  # what waits for one that is away asks nothing of the uplink
                offered += rate * size
            # What came in once went to every queue of its pattern: one of them stands for all.
            if rate > streams.get(sample.pattern, (0.0, 0.0))[0]:
                streams[sample.pattern] = (rate, size)
        total = sum(rate for rate, _ in streams.values())
        mean = sum(rate * size for rate, size in streams.values()) / total if total > 0.0 else 0.0
        before, now = self._before, (messages_in * mean, offered * elapsed_s, messages_in, elapsed_s)
        self._before = now
        offered_before = before[1] / before[3] if before[3] > 0.0 else 0.0
        changed = abs(offered - offered_before) > CHANGED_SHARE * max(offered, offered_before)
        if changed or self._changed:
            before = (0.0, 0.0, 0.0, 0.0)
        self._changed = changed
        over_s = elapsed_s + before[3]
        return BrokerSample(
            self._broker,
            Role.EDGE,
            bytes_in_per_s=(now[0] + before[0]) / over_s,
            bytes_offered_per_s=(now[1] + before[1]) / over_s,
            messages_in_per_s=(now[2] + before[2]) / over_s,
            capacity=self._capacity,
        )

    def _oldest_s(self, answer: Exposition, samples: tuple[SubscriptionSample, ...], wall_s: float) -> float:
        """By how long draining what waits takes; where nothing is drained, by the time the first message was sent.

        That time has whole seconds only, and its way here is in it: the second best.
        """
        oldest_s = 0.0
        stamps = answer.per_queue(OLDEST, OUTPUT_PREFIX) if answer.has(OLDEST) else {}
        for sample in samples:
            depth = sample.depth if sample.attached else 0.0
            if depth >= 1.0:
                if sample.drain_per_s > 0.0:
                    oldest_s = max(oldest_s, depth / sample.drain_per_s)
                elif sample.name in stamps:
                    oldest_s = max(oldest_s, wall_s - stamps[sample.name])
        return oldest_s
