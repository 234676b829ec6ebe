"""Random insights by seed: right ones, wrong ones, absurd ones, stale ones, ones for somebody else.

What is drawn here comes from a randomness of its own, so that the rest of a scenario is the same with and without.
Nothing an insight says may break a promise; that is what the checkers look at afterwards. Only draws.
"""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Final

from .scenario import EdgeSpec, ForecastSpec, HeadSpec, InsightSpec, PairSpec, PublisherSpec, UplinkSpec

SHARE: Final = 0.35
"""Of the seeds so many have insights."""
INSIGHTS_MAX: Final = 3
UNKNOWN_TOPIC: Final = "t99"
UNKNOWN_EDGE: Final = "e99"


def random_insights(
    seed: int,
    heads: tuple[HeadSpec, ...],
    edges: tuple[EdgeSpec, ...],
    publishers: tuple[PublisherSpec, ...],
    duration_s: float,
) -> tuple[InsightSpec, ...]:
    """The insights of this seed, in the order of time."""
    random = Random(f"insights {seed}")
    if random.random() >= SHARE:
        return ()
    topics = sorted({publisher.topic for publisher in publishers})
    found = [
        InsightSpec(
            # Half of them before most subscribers come: later there is little left to place.
            at_s=round(random.choice((random.uniform(0.0, 1.0), random.uniform(0.0, duration_s - 2.0))), 2),
            head=random.choice(heads).name,
            pairs=_pairs(random, topics),
            forecasts=_forecasts(random, publishers),
            uplinks=_uplinks(random, edges),
            made_at_s=round(random.uniform(0.0, 1e6), 1),
            age_s=round(random.choice((0.0, random.uniform(0.0, 20.0))), 1),
            valid_for_s=round(random.choice((3_600.0, random.uniform(1.0, 30.0))), 1),
            cluster="elsewhere" if random.random() < 0.1 else None,
            withdraws=random.random() < 0.1,
        )
        for _ in range(random.randint(1, INSIGHTS_MAX))
    ]
    return tuple(sorted(found, key=lambda insight: insight.at_s))


def _pairs(random: Random, topics: list[str]) -> tuple[PairSpec, ...]:
    """Some pairs, or all there are, one of a topic with itself and one of a topic nobody knows."""
    pairs = [*combinations(topics, 2), (topics[0], topics[0]), (topics[0], UNKNOWN_TOPIC)]
    chosen = pairs if random.random() < 0.3 else random.sample(pairs, random.randint(0, len(pairs)))
    return tuple(PairSpec(*pair, round(random.uniform(0.01, 1.0), 2)) for pair in chosen)


def _forecasts(random: Random, publishers: tuple[PublisherSpec, ...]) -> tuple[ForecastSpec, ...]:
    """From nothing at all to a billion messages per second."""
    rates = {publisher.topic: publisher.messages_per_s for publisher in publishers}
    found = []
    for topic in [*sorted(rates), UNKNOWN_TOPIC]:
        if random.random() < 0.5:
            continue
        usual = rates.get(topic, 1.0)
        level = random.choice((0.0, usual * random.uniform(0.5, 4.0), 1e9))
        trend = random.choice((0.0, usual * random.uniform(-0.5, 0.5), 1e9, -1e9))
        error = random.choice((0.0, usual * random.uniform(0.0, 1.0), 1e9))
        horizon_s = random.choice((0.5, 10.0, 3_600.0))
        found.append(ForecastSpec(topic, round(level, 2), round(trend, 3), round(error, 2), horizon_s))
    return tuple(found)


def _uplinks(random: Random, edges: tuple[EdgeSpec, ...]) -> tuple[UplinkSpec, ...]:
    """From hardly anything to a thousand times what there could be."""
    found = []
    for edge in [*edges, None]:
        if random.random() < 0.4:
            continue
        usual = 1.0 if edge is None else edge.uplink_bytes_per_s or 1.0
        uplink = random.choice((1e-3, usual * random.uniform(0.3, 3.0), 1e13))
        found.append(UplinkSpec(UNKNOWN_EDGE if edge is None else edge.name, round(uplink, 3)))
    return tuple(found)
