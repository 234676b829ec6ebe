"""A publisher that lies to its head about topics of others: no deadline becomes infeasible, nobody is moved for it.

The same scenario with and without the lie, and with the lie believed, which shows that it would do harm.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate_agents.head.publishers import credibility
from tidegate_protocol.decisions import DeadlineOutcome, DeadlinesJudged, PublisherSession, UntrueReports
from tidegate_simulator import brokers
from tidegate_simulator.scenario import EdgeSpec, HeadSpec, PublisherSpec, Scenario, SubscriberSpec
from tidegate_simulator.swarm import LYING_SHARE, lying_publishers, random_scenario
from tidegate_simulator.world import World

SEEDS = 400


def scenario(lies_about: str | None) -> Scenario:
    return Scenario(
        name="liars",
        seed=7,
        duration_s=12.0,
        heads=(HeadSpec("h"),),
        edges=(EdgeSpec("e1", "h"), EdgeSpec("e2", "h")),
        publishers=(
            PublisherSpec("buoy", "h", "quake", 20.0, 200.0, delay_s=0.01),
            PublisherSpec("rival", "h", "own", 5.0, 200.0, delay_s=0.01, lies_about=lies_about),
        ),
        subscribers=(SubscriberSpec("siren", "h", "quake", 1.0), SubscriberSpec("desk", "h", "own", 1.0)),
        settle_s=5.0,
    )


def judged(lies_about: str | None) -> tuple[World, list[object]]:
    world = World(scenario(lies_about))
    world.run()
    decisions = [d for broker in (*world.heads.values(), *world.edges.values()) for d in broker.agent.story]
    return world, list(decisions)


def infeasible(decisions: list[object]) -> list[object]:
    return [d for d in decisions if isinstance(d, DeadlinesJudged) and d.outcome is DeadlineOutcome.INFEASIBLE]


def test_a_lie_about_a_topic_of_others_changes_no_deadline_and_is_named() -> None:
    _, decisions = judged("quake")
    assert not infeasible(decisions)
    assert not [d for d in decisions if isinstance(d, PublisherSession)]
    assert {d.account for d in decisions if isinstance(d, UntrueReports)} == {"rival"}
    _, honest = judged(None)
    assert not [d for d in honest if isinstance(d, UntrueReports)]


def test_the_same_lie_would_do_harm_if_it_were_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(claims: list[credibility.Claim], *_: object) -> credibility.Believed:
        return credibility.Believed(tuple(claim.sample for claim in claims))

    monkeypatch.setattr(brokers, "believed", believe)
    _, decisions = judged("quake")
    assert infeasible(decisions)


def test_the_swarm_draws_liars_and_changes_nothing_else() -> None:
    lying = 0
    for seed in range(SEEDS):
        found = random_scenario(seed)
        honest = tuple(replace(one, lies_about=None) for one in found.publishers)
        assert lying_publishers(seed, honest) == found.publishers
        lying += found.publishers != honest
    assert 0.3 * LYING_SHARE * SEEDS < lying < 2.0 * LYING_SHARE * SEEDS
