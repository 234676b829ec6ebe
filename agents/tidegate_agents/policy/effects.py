"""What a move would do: the estimated metrics of both brokers after a bundle has gone from one to the other.

Only estimates: nobody is moved and nobody is chosen. Invariant: load is neither made nor lost by a
move of subscribers, apart from what a split bundle or a new topic on the target makes come in twice; both
samples keep their capacities; an unknown capacity leaves its metric unknown.

**Queue depth.** All flows on a FIFO uplink get the same share of what they offer. While the source is offered
more than it carries, every queue that stays is therefore drained faster by offered-before ÷ offered-after,
which the backlog takes up even where that is more than λ. That factor, not a depth, is the effect on the queue
metric: the depth itself needs time to fall, but the threshold rises at once (`ThresholdRule.of`).

**Publishers.** Heads forward along a tree. A publisher moved to a neighbour leaves the source's downlink only if
nothing else behind the source wants its topic, for otherwise the topic comes back over the link. That is why
those with local subscribers are moved last: it frees nothing and costs the target an uplink copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..load.metrics import BrokerSample, Metric, utilizations
from .bundles import Bundle, PublisherLoad


@dataclass(frozen=True, slots=True)
class MoveEffect:
    """Both brokers after a move, as estimated."""

    source_after: BrokerSample
    target_after: BrokerSample

    @property
    def target_values(self) -> dict[Metric, float | None]:
        return utilizations(self.target_after)


def subscribers_moved(
    bundle: Bundle,
    source: BrokerSample,
    target: BrokerSample,
    *,
    target_has_topic: bool = False,
    some_stay: bool = False,
) -> MoveEffect:
    """The effect of moving the subscribers of `bundle` between edges.

    The topic leaves the source's downlink and matcher unless `some_stay`, as when a bundle is split, and
    enters those of the target unless it has the topic already.
    """
    leaving = 0.0 if some_stay else 1.0
    entering = 0.0 if target_has_topic else 1.0
    return MoveEffect(
        _changed(
            source,
            -leaving * bundle.bytes_in_per_s,
            -bundle.bytes_out_per_s,
            -leaving * bundle.messages_in_per_s,
        ),
        _changed(
            target,
            entering * bundle.bytes_in_per_s,
            bundle.bytes_out_per_s,
            entering * bundle.messages_in_per_s,
        ),
    )


def publisher_moved(publisher: PublisherLoad, source: BrokerSample, target: BrokerSample) -> MoveEffect:
    """The effect of moving one publisher's topic to a neighbouring head."""
    sent_there = target.broker in publisher.neighbours
    needed_behind_source = publisher.edges > 0 or bool(publisher.neighbours - {target.broker})
    rate, messages = publisher.bytes_per_s, publisher.messages_per_s
    leaves = 0.0 if needed_behind_source else 1.0
    enters = 0.0 if sent_there else 1.0
    return MoveEffect(
        _changed(source, -leaves * rate, -rate if sent_there else 0.0, -leaves * messages),
        _changed(target, enters * rate, rate if needed_behind_source else 0.0, enters * messages),
    )


def drain_factor(before: BrokerSample, after: BrokerSample) -> float:
    """How many times as fast a backlogged queue is drained if the offered load changes like this.

    1 where the uplink is no bottleneck before or after, where nothing is left to drain, and where the capacity
    is unknown: it is learned from the first backlog, so until then there was no bottleneck either.
    """
    uplink = before.capacity.uplink_bytes_per_s
    offered, offered_then = before.bytes_offered_per_s, after.bytes_offered_per_s
    if uplink is None or offered_then <= 0.0:
        return 1.0
    if offered < uplink:
        return min(uplink / offered_then, 1.0)
    return offered / offered_then


def _changed(sample: BrokerSample, bytes_in: float, bytes_out: float, messages_in: float) -> BrokerSample:
    # Sample and shares are smoothed differently; a difference below zero means no load, not negative load.
    return replace(
        sample,
        bytes_in_per_s=max(sample.bytes_in_per_s + bytes_in, 0.0),
        bytes_offered_per_s=max(sample.bytes_offered_per_s + bytes_out, 0.0),
        messages_in_per_s=max(sample.messages_in_per_s + messages_in, 0.0),
    )
