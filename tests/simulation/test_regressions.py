"""What the swarm found once must not come back: each case rebuilt small, with a sentence on what it was.

A seed alone is no regression test, because the scenario it stands for changes whenever the swarm draws otherwise. So
the circumstances of each finding are written down as a scenario.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate_agents.config import BalancingConfig
from tidegate_simulator.runner import run_scenario, run_seed
from tidegate_simulator.scenario import (
    ControlSpec,
    EdgeSpec,
    Fault,
    FaultKind,
    HeadSpec,
    PublisherSpec,
    RateChange,
    Scenario,
    SubscriberSpec,
)


def two_clusters(*faults: Fault) -> Scenario:
    """The only edge of the first cluster is overloaded from 10 s on; that of the second has room."""
    return Scenario(
        name="two-clusters",
        seed=1,
        duration_s=45.0,
        heads=(HeadSpec("h0", ("h1",), neighbour_delay_s=0.02), HeadSpec("h1", ("h0",), neighbour_delay_s=0.02)),
        edges=(
            EdgeSpec("e0", "h0", uplink_bytes_per_s=5_000.0, head_delay_s=0.01, client_delay_s=0.02),
            EdgeSpec("e1", "h1", uplink_bytes_per_s=20_000.0, head_delay_s=0.01, client_delay_s=0.02),
        ),
        publishers=tuple(
            PublisherSpec(f"p{topic}", "h0", f"t{topic}", 4.0, 400.0, starts_s=3.0, changes=(RateChange(10.0, 1.8),))
            for topic in range(2)
        ),
        subscribers=tuple(SubscriberSpec(f"s{topic}", "h0", f"t{topic}", 3.0, joins_s=0.5) for topic in range(2)),
        faults=faults,
        control=ControlSpec(),
        balancing=BalancingConfig(cooldown_s=20.0, migration_timeout_s=8.0, session_timeout_s=16.0, retry_s=2.0),
        settle_s=30.0,
    )


def test_a_client_that_was_moved_to_another_cluster_finds_its_queue_after_a_crash() -> None:
    """It asked the head it was configured with, was given a new queue there, and what waited in the other cluster was
    never read: the head it left did not remember where it had sent it.
    """
    quiet = run_scenario(two_clusters())
    assert not quiet.failed, quiet.problems
    assert quiet.counts["moves"] >= 1, "nobody goes to the other cluster: the scenario shows nothing"
    crashes = tuple(Fault(30.0, FaultKind.CLIENT_CRASH, f"s{topic}", 34.0) for topic in range(2))
    crashed = run_scenario(two_clusters(*crashes))
    assert crashed.counts["moves"] >= 1
    assert not crashed.failed, crashed.problems


@pytest.mark.parametrize("restarted", [("h0",), ("h0", "h1"), ("h0", "h1", "e0", "e1")])
def test_it_does_so_even_if_the_head_that_sent_it_away_has_forgotten(restarted: tuple[str, ...]) -> None:
    """Where a client had gone was known to the head it came from alone, until that was restarted."""
    clients = tuple(Fault(36.0, FaultKind.CLIENT_CRASH, f"s{topic}", 42.0) for topic in range(2))
    brokers = tuple(Fault(37.0 + 0.7 * n, FaultKind.CRASH, name, 40.0 + 0.7 * n) for n, name in enumerate(restarted))
    result = run_scenario(two_clusters(*clients, *brokers))
    assert result.counts["moves"] >= 1
    assert not result.failed, result.problems


@pytest.mark.parametrize(
    ("restart_s", "away_s", "crash_s"),
    [((25.5, 26.5), None, 38.0), ((25.5, 26.5), (28.4, 36.0), 38.0), ((26.5, 28.5), (28.4, 37.0), 37.2)],
)
def test_it_does_so_even_if_that_head_was_restarted_while_it_moved(
    restart_s: tuple[float, float], away_s: tuple[float, float] | None, crash_s: float
) -> None:
    """The client was on its way when its head was restarted, and so in no list of those who had gone. If its old edge
    was away besides, the queue that it had left was given to it again when it started anew.
    """
    faults = [Fault(restart_s[0], FaultKind.CRASH, "h0", restart_s[1])]
    faults += [Fault(away_s[0], FaultKind.EDGE_DOWN, "e0", away_s[1])] if away_s is not None else []
    result = run_scenario(two_clusters(*faults, Fault(crash_s, FaultKind.CLIENT_CRASH, "s0", crash_s + 1.5)))
    assert result.counts["moves"] >= 1
    assert not result.failed, result.problems


def test_a_throttled_publisher_lets_time_pass() -> None:
    """A wait of less than the clock can tell was answered with the same question at the same instant, for ever."""
    plain = two_clusters()
    flooding = replace(plain.publishers[0], changes=(RateChange(10.0, 20.0), RateChange(20.0, 1.0)))
    limits = replace(plain.balancing, publisher_messages_per_s_max=15.0, flood_samples_needed=2, containment_s=10.0)
    result = run_scenario(replace(plain, publishers=(flooding, plain.publishers[1]), balancing=limits))
    assert result.counts["throttled"] == 1
    assert not result.failed, result.problems


@pytest.mark.parametrize("prefetch", [10, 1_000])
def test_what_a_slow_client_has_not_handed_over_survives_its_crash(prefetch: int) -> None:
    """After a cut a copy of what waited in the client came again, was taken for done with and acknowledged; when the
    client crashed before its application had got the first copy, both were gone.
    """
    plain = two_clusters(Fault(12.0, FaultKind.CLIENT_CUT, "s0", 12.5), Fault(16.0, FaultKind.CLIENT_CRASH, "s0", 17.0))
    slow = replace(plain.subscribers[0], takes_per_s=2.0, prefetch=prefetch)
    wide = tuple(replace(edge, uplink_bytes_per_s=50_000.0) for edge in plain.edges)
    result = run_scenario(replace(plain, subscribers=(slow, plain.subscribers[1]), edges=wide))
    assert not result.failed, result.problems


@pytest.mark.parametrize(
    "seed",
    [
        *(2, 4, 15, 22, 26, 55, 88, 113, 191, 201, 208, 246, 291, 313, 317, 352, 380, 573, 926, 997),
        *(100472, 101984, 102210, 102486, 102969, 103466, 105445, 105684, 105869, 106599, 107219),
        *(
            823866,
            701306,
            704216,
            705590,
            705628,
            706570,
            707051,
            713602,
            723650,
            724396,
            736126,
            736210,
            739361,
            739446,
            741518,
            750987,
            751154,
            906313,
            907222,
            908903,
            915098,
            961752,
            981458,
            992558,
            993824,
            801214,
            801254,
            1641,
            5320,
            7769,
        ),
    ],
)
def test_seeds_that_failed_once(seed: int) -> None:
    """Not the same scenarios any more, but close to what they were."""
    result = run_seed(seed)
    assert not result.failed, result.problems
