"""Which publishers an overloaded head gives away, and to which neighbour: the choice, as one pure function.

Publishers are tried in the order of seed 000 §IV.C.2 (`analysis.offloading_order`), each with the neighbours that
have the most room first. What always holds:

- a publisher moves with all of its topics, so the effect is that of all of them together;
- nobody is chosen whose move would not lower the overloaded metric, would raise another overloaded one, or would
  take the neighbour out of LOW; the reason is kept;
- it stops as soon as the head is predicted to be out of OVERLOAD.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing import HeadLoad

from .analysis import NAMED_MAX, PublisherLoad, offloading_order, publisher_bundles
from .effects import publisher_moved
from .metrics import BrokerSample, Metric, Role, utilizations
from .policy import sample_of
from .states import LoadState, assess

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
    numbers: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)


def choose_publishers(
    source: BrokerSample,
    overloaded: Collection[Metric],
    loads: Iterable[PublisherLoad],
    neighbours: Iterable[HeadLoad],
    *,
    excluded: Mapping[str, str],
) -> PublisherChoice:
    """Pick publishers until `source` is out of OVERLOAD. `excluded` says who is not to be moved, and why."""
    metric = next(metric for metric in Metric if metric in overloaded)
    rejected: dict[str, str] = {}
    targets = {load.load.broker: sample_of(load.load, Role.HEAD) for load in neighbours}
    urls = {load.load.broker: load.publisher_url for load in neighbours}
    streams: dict[str, list[PublisherLoad]] = {}
    for stream in loads:
        streams.setdefault(stream.name, []).append(stream)
    order = offloading_order(Role.HEAD, metric, publisher_bundles(s for name in streams for s in streams[name]))
    names = dict.fromkeys(name for bundle in order.bundles for name in bundle.clients)
    chosen: list[ChosenPublisher] = []
    now, relieved = source, False
    for name in names:
        if relieved or len(chosen) >= PUBLISHERS_PER_SESSION_MAX:
            break
        if name in excluded:
            rejected[name] = excluded[name]
            continue
        for target in sorted(targets, key=lambda t: (_value(targets[t], metric), t)):
            after, there = _moved(streams[name], now, targets[target])
            why_not = _why_not(metric, overloaded, now, after, there)
            if why_not is None:
                chosen.append(ChosenPublisher(name, target, urls[target]))
                now, targets[target] = after, there
                relieved = assess(Role.HEAD, utilizations(after)).state is not LoadState.OVERLOAD
                break
            rejected[f"{name} to {target}"] = why_not
    numbers = {f"{metric}.before": _value(source, metric), f"{metric}.after": _value(now, metric)}
    numbers |= {f"{metric}.{target}.after": _value(sample, metric) for target, sample in sorted(targets.items())}
    shortened = dict(list(rejected.items())[:NAMED_MAX])
    return PublisherChoice(tuple(chosen), now, relieved, numbers, shortened)


def _moved(
    streams: Iterable[PublisherLoad], source: BrokerSample, target: BrokerSample
) -> tuple[BrokerSample, BrokerSample]:
    for stream in streams:
        effect = publisher_moved(stream, source, target)
        source, target = effect.source_after, effect.target_after
    return source, target


def _why_not(
    metric: Metric, overloaded: Collection[Metric], before: BrokerSample, after: BrokerSample, target: BrokerSample
) -> str | None:
    then = assess(Role.HEAD, utilizations(target))
    if then.state is not LoadState.LOW:
        return f"{target.broker} would be {then.state}: {then.findings[0].text}"
    if _value(after, metric) > _value(before, metric) - IMPROVEMENT_MIN:
        return f"no improvement: {metric} would stay at {_value(after, metric):.4g}"
    worse = [m for m in Metric if m in overloaded and _value(after, m) > _value(before, m) + IMPROVEMENT_MIN]
    return f"{worse[0]} would rise to {_value(after, worse[0]):.4g}" if worse else None


def _value(sample: BrokerSample, metric: Metric) -> float:
    """The utilization; 0 where it is not known, which then is no bottleneck either."""
    return utilizations(sample).get(metric) or 0.0
