"""The burst of topics that rise together, with and without an insight that says so."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from tidegate_agents.load.metrics import Metric, utilizations
from tidegate_agents.load.threshold import ThresholdKind
from tidegate_agents.policy.placement import LOW_UTILIZATION
from tidegate_experiments.burst import scenario as ews
from tidegate_experiments.burst.result import EwsResult
from tidegate_experiments.burst.run import run_ews
from tidegate_experiments.burst.scenario import EwsOptions
from tidegate_simulator.scenario import PairSpec
from tidegate_simulator.world import World

SEEDS = (3, 6, 7)
"""Three of the ten in docs/experiments.md, with which much is late without the insight."""


def options(seed: int, **given: bool) -> EwsOptions:
    plain = EwsOptions(
        seed=seed,
        random=True,
        correlated=True,
        burst_factor=3.0,
        instant=False,
        threshold=ThresholdKind.PROJECTED,
        scale=0.1,
        duration_s=60.0,
    )
    return replace(plain, **given)  # type: ignore[arg-type]


def edges_of(result: EwsResult, topics: tuple[int, ...]) -> list[str]:
    return [edge for topic in topics for edge, held in result.placement.items() if topic in held]


@pytest.mark.parametrize("seed", SEEDS)
def test_with_the_insight_messages_are_late_less_often(seed: int) -> None:
    together = ews.bursting(options(seed))
    without, advised = run_ews(options(seed)).result, run_ews(options(seed, insight=True)).result
    assert len(set(edges_of(without, together))) < len(together), f"seed {seed} shows nothing"
    assert len(set(edges_of(advised, together))) == len(together), f"seed {seed}: not apart"
    assert advised.late < without.late, f"seed {seed}"
    assert (advised.lost, advised.duplicates, advised.out_of_order) == (0, 0, 0), f"seed {seed}"


def test_the_same_seed_gives_the_same_workload_with_and_without() -> None:
    plain, advised = ews.scenario(options(4)), ews.scenario(options(4, insight=True))
    assert replace(advised, insights=()) == plain
    assert len(ews.bursting(options(4))) == len(ews.EDGES)


def test_an_insight_that_has_everything_wrong_overloads_nobody_before_the_burst() -> None:
    """It says of all topics that they rise together but of those that do."""
    seed = 4
    wanted = ews.scenario(options(seed, insight=True))
    together = {ews.topic_name(number) for number in ews.bursting(options(seed))}
    topics = sorted({publisher.topic for publisher in wanted.publishers})
    pairs = tuple(PairSpec(*pair) for pair in combinations(topics, 2) if not together.issuperset(pair))
    (insight,) = wanted.insights
    world = World(replace(wanted, insights=(replace(insight, pairs=pairs),)))
    world.start()
    world.kernel.run(ews.BURST_S)
    used = {name: edge.agent.detector.broker for name, edge in world.edges.items()}
    shares = {name: utilizations(broker)[Metric.UPLINK] for name, broker in used.items()}
    assert all(share is not None and share < LOW_UTILIZATION for share in shares.values()), f"seed {seed}: {shares}"
