"""Which publishers an overloaded head gives away, and to which neighbour: the choice, as one pure function.

Publishers are tried in the order of seed 000 §IV.C.2 (`bundles.offloading_order`), each with the neighbours that
have the most room first. Invariants:

- a publisher moves with all of its topics, so the effect is that of all of them together;
- no publisher is chosen whose move would not lower the overloaded metric, would raise another overloaded one, or would
  take the neighbour out of LOW; the reason is kept;
- it stops as soon as the head is predicted to be out of OVERLOAD.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.publishers import HeadLoad
from tidegate_protocol.decisions import Effect, Rejected, Rejection

from ...load.metrics import BrokerSample, Metric, Role, utilizations
from ...load.states import LoadState, assess
from ...policy.bundles import NAMED_MAX, PublisherLoad, offloading_order, publisher_bundles
from ...policy.effects import publisher_moved
from ...policy.interface import sample_of
from ...policy.selecting import effects, would_overload

PUBLISHERS_PER_SESSION_MAX: Final = 16
"""Each of them is paused for a moment; what is still too much after that is for the next session."""

IMPROVEMENT_MIN: Final = 1e-6
"""A utilization that falls by less has not fallen."""


@dataclass(frozen=True, slots=True)
class ChosenPublisher:
    publisher: str
    target: str
    url: str


@dataclass(frozen=True, slots=True)
class PublisherChoice:
    """Who goes where, what that is predicted to do, and why others don't."""

    chosen: tuple[ChosenPublisher, ...]
    source_after: BrokerSample
    relieved: bool
    effects: tuple[Effect, ...] = ()
    rejected: tuple[Rejected, ...] = ()


def choose_publishers(
    source: BrokerSample,
    overloaded: Collection[Metric],
    loads: Iterable[PublisherLoad],
    neighbours: Iterable[HeadLoad],
    *,
    excluded: Mapping[str, Rejected],
) -> PublisherChoice:
    """Pick publishers until `source` is out of OVERLOAD. `excluded` says who is not to be moved, and why."""
    metric = next(metric for metric in Metric if metric in overloaded)
    rejected: list[Rejected] = []
    before = {load.load.broker: sample_of(load.load, Role.HEAD) for load in neighbours}
    targets = dict(before)
    urls = {load.load.broker: load.publisher_url for load in neighbours}
    streams: dict[str, list[PublisherLoad]] = {}
    for stream in loads:
        streams.setdefault(stream.name, []).append(stream)
    order = offloading_order(Role.HEAD, metric, publisher_bundles(s for name in streams for s in streams[name]))
    names = dict.fromkeys(name for bundle in order for name in bundle.clients)
    chosen: list[ChosenPublisher] = []
    now, relieved = source, False
    for name in names:
        if relieved or len(chosen) >= PUBLISHERS_PER_SESSION_MAX:
            break
        if name in excluded:
            rejected.append(excluded[name])
            continue
        for target in sorted(targets, key=lambda t: (_value(targets[t], metric), t)):
            after, there = _moved(streams[name], now, targets[target])
            why_not = _why_not(name, metric, overloaded, now, after, there)
            if why_not is None:
                chosen.append(ChosenPublisher(name, target, urls[target]))
                now, targets[target] = after, there
                relieved = assess(Role.HEAD, utilizations(after)).state is not LoadState.OVERLOAD
                break
            rejected.append(why_not)
    used = {one.target for one in chosen}
    sides = [(source, now), *((before[name], targets[name]) for name in sorted(used))]
    predicted = tuple(effect for side in sides for effect in effects(*side))
    return PublisherChoice(tuple(chosen), now, relieved, predicted, tuple(rejected[:NAMED_MAX]))


def _moved(
    streams: Iterable[PublisherLoad], source: BrokerSample, target: BrokerSample
) -> tuple[BrokerSample, BrokerSample]:
    for stream in streams:
        effect = publisher_moved(stream, source, target)
        source, target = effect.source_after, effect.target_after
    return source, target


def _why_not(
    name: str,
    metric: Metric,
    overloaded: Collection[Metric],
    before: BrokerSample,
    after: BrokerSample,
    target: BrokerSample,
) -> Rejected | None:
    then = assess(Role.HEAD, utilizations(target))
    if then.state is not LoadState.LOW:
        return would_overload(name, target.broker, then)
    stays = _value(after, metric)
    if stays > _value(before, metric) - IMPROVEMENT_MIN:
        return Rejected(name, Rejection.NO_RELIEF, target.broker, metric=metric, value=stays)
    worse = [m for m in Metric if m in overloaded and _value(after, m) > _value(before, m) + IMPROVEMENT_MIN]
    if not worse:
        return None
    return Rejected(name, Rejection.WORSE, target.broker, metric=worse[0], value=_value(after, worse[0]))


def _value(sample: BrokerSample, metric: Metric) -> float:
    """The utilization; 0 where it is not known, which then is no bottleneck either."""
    return utilizations(sample).get(metric) or 0.0
