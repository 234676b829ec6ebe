"""What a move would do: the estimated metrics of both brokers after a bundle has gone from one to the other.

Only estimates: nobody is moved and nobody is chosen. What always holds: load is neither made nor lost by a
move of subscribers, apart from what a split bundle or a new topic on the target makes come in twice; both
samples keep their capacities; an unknown capacity leaves its metric unknown.

**Queue depth.** All flows on a FIFO uplink get the same share of what they offer. While the source is offered
more than it carries, every queue that stays is therefore drained faster by offered-before ÷ offered-after,
which the backlog takes up even where that is more than λ. That factor, not a depth, is the effect on the queue
metric: the depth itself needs time to fall, but the threshold rises at once (`Threshold.at_drain`).

**Publishers.** Heads forward along a tree. A publisher moved to a neighbour leaves the source's downlink only if
nothing else behind the source wants its topic, for otherwise the topic comes back over the link. That is why
those with local subscribers are moved last: it frees nothing and costs the target an uplink copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .analysis import Bundle, PublisherLoad
from .machine import Decision
from .metrics import BrokerSample, Metric, SubscriptionSample, utilizations
from .states import Finding, LoadState
from .threshold import Threshold


@dataclass(frozen=True, slots=True)
class MoveEffect:
    """Both brokers before and after, as estimated."""

    topic: str
    source_before: BrokerSample
    source_after: BrokerSample
    target_before: BrokerSample
    target_after: BrokerSample

    @property
    def source_values(self) -> dict[Metric, float | None]:
        return utilizations(self.source_after)

    @property
    def target_values(self) -> dict[Metric, float | None]:
        return utilizations(self.target_after)

    @property
    def source_drain_factor(self) -> float:
        """How many times as fast the queues that stay on the source are drained."""
        return drain_factor(self.source_before, self.source_after)

    @property
    def target_drain_factor(self) -> float:
        """How many times as fast the queues that were on the target are drained: below 1 if it is overrun."""
        return drain_factor(self.target_before, self.target_after)

    def decision(self) -> Decision:
        numbers = {"source.drain_factor": self.source_drain_factor, "target.drain_factor": self.target_drain_factor}
        for side, before, after in (
            ("source", self.source_before, self.source_after),
            ("target", self.target_before, self.target_after),
        ):
            for when, sample in (("before", before), ("after", after)):
                numbers |= {
                    f"{side}.{metric}.{when}": value
                    for metric, value in utilizations(sample).items()
                    if value is not None
                }
        reason = f"estimated: {self.source_before.broker} to {self.target_before.broker}"
        return Decision("move-effect", self.topic, reason, numbers)


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
        bundle.topic,
        source,
        _changed(
            source,
            -leaving * bundle.bytes_in_per_s,
            -bundle.bytes_out_per_s,
            -leaving * bundle.messages_in_per_s,
        ),
        target,
        _changed(
            target,
            entering * bundle.bytes_in_per_s,
            bundle.bytes_out_per_s,
            entering * bundle.messages_in_per_s,
        ),
    )


def publisher_moved(
    publisher: PublisherLoad,
    source: BrokerSample,
    target: BrokerSample,
    *,
    towards: str | None = None,
    target_receives: bool | None = None,
) -> MoveEffect:
    """The effect of moving one publisher's topic between heads.

    `towards` is the source's neighbour on the way to the target, by default the target itself; whether the
    target receives the topic now is then known from the source's links, and has to be said otherwise.
    """
    towards = target.broker if towards is None else towards
    sent_there = towards in publisher.neighbours
    received = sent_there if target_receives is None else target_receives
    needed_behind_source = publisher.edges > 0 or bool(publisher.neighbours - {towards})
    rate, messages = publisher.bytes_per_s, publisher.messages_per_s
    leaves = 0.0 if needed_behind_source else 1.0
    enters = 0.0 if received else 1.0
    source_after = _changed(source, -leaves * rate, -rate if sent_there else 0.0, -leaves * messages)
    target_after = _changed(target, enters * rate, rate if needed_behind_source else 0.0, enters * messages)
    return MoveEffect(publisher.topic, source, source_after, target, target_after)


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


def queues_after(
    queues: Iterable[tuple[SubscriptionSample, Threshold]], factor: float
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Which queues would be relieved and which would still be past their threshold, drained `factor` times as
    fast. The numbers compared are the present depth and the threshold then.
    """
    relieved: list[Finding] = []
    overloaded: list[Finding] = []
    for sample, threshold in queues:
        then = threshold.at_drain(factor).depth
        if then is None:
            continue
        above = sample.depth > then
        state = LoadState.OVERLOAD if above else LoadState.LOW
        finding = Finding(Metric.QUEUE_DEPTH, sample.name, sample.depth, then, state)
        (overloaded if above else relieved).append(finding)
    return tuple(relieved), tuple(overloaded)


def _changed(sample: BrokerSample, bytes_in: float, bytes_out: float, messages_in: float) -> BrokerSample:
    # Sample and shares are smoothed differently; a difference below zero means no load, not negative load.
    return replace(
        sample,
        bytes_in_per_s=max(sample.bytes_in_per_s + bytes_in, 0.0),
        bytes_offered_per_s=max(sample.bytes_offered_per_s + bytes_out, 0.0),
        messages_in_per_s=max(sample.messages_in_per_s + messages_in, 0.0),
    )
