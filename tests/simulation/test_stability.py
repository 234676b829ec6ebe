"""Load that is high but not late stays where it is; what has moved stays where it went.

Small clusters at low rates, so that minutes and hours of virtual time take seconds.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tidegate_agents.config import BalancingConfig
from tidegate_experiments.burst.recorder import Recorder
from tidegate_experiments.burst.result import requested_sessions, started_sessions
from tidegate_protocol import decisions as d
from tidegate_simulator.scenario import (
    Arrivals,
    ControlSpec,
    EdgeSpec,
    HeadSpec,
    PublisherSpec,
    RateChange,
    Scenario,
    SubscriberSpec,
)
from tidegate_simulator.world import World

HEAD = "h"
MESSAGE_BYTES = 500.0
UPLINK = 10_000.0
"""Twenty messages per second."""


def edge(number: int, joins_s: float = 0.0) -> EdgeSpec:
    return EdgeSpec(
        f"b{number:02}",
        HEAD,
        uplink_bytes_per_s=UPLINK,
        downlink_bytes_per_s=10 * UPLINK,
        matching_per_s=10_000.0,
        head_delay_s=0.01,
        client_delay_s=0.02,
        joins_s=joins_s,
    )


def publisher(
    topic: int,
    share: float,
    *changes: RateChange,
    arrivals: Arrivals = Arrivals.REGULAR,
    message_bytes: float = MESSAGE_BYTES,
) -> PublisherSpec:
    """One that asks for `share` of an uplink with each subscriber."""
    return PublisherSpec(
        f"p{topic}",
        HEAD,
        f"t{topic}",
        share * UPLINK / message_bytes,
        message_bytes,
        arrivals=arrivals,
        starts_s=0.003 * topic,
        changes=changes,
    )


def subscribers(topic: int, count: int = 1, deadline_s: float = 3.0, joins_s: float = 2.0) -> list[SubscriberSpec]:
    return [
        SubscriberSpec(f"t{topic}-s{n}", HEAD, f"t{topic}", deadline_s, joins_s=joins_s + 0.2 * topic)
        for n in range(count)
    ]


def run(
    edges: list[EdgeSpec],
    publishers: list[PublisherSpec],
    wanted: list[SubscriberSpec],
    duration_s: float,
    balancing: BalancingConfig | None = None,
    seed: int = 1,
) -> Recorder:
    scenario = Scenario(
        "stability",
        seed,
        duration_s,
        (HeadSpec(HEAD),),
        tuple(edges),
        tuple(publishers),
        tuple(wanted),
        control=ControlSpec(attach_round_trips=1.0),
        balancing=balancing or BalancingConfig(),
    )
    recorder = Recorder()
    World(scenario, observers=(recorder,)).run()
    assert (recorder.lost, recorder.duplicates, recorder.out_of_order) == (0, 0, 0), f"seed {seed}"
    return recorder


def utilization(recorder: Recorder, name: str, from_s: float, to_s: float) -> float:
    values = [row.utilization for row in recorder.samples if row.edge == name and from_s <= row.at_s < to_s]
    return sum(values) / len(values)


def test_an_hour_near_85_percent_with_noise_moves_nobody() -> None:
    seed = 11
    topics = range(4)
    recorder = run(
        [edge(n) for n in range(2)],
        [publisher(topic, 0.425, arrivals=Arrivals.POISSON, message_bytes=250.0) for topic in topics],
        [one for topic in topics for one in subscribers(topic, deadline_s=5.0)],
        3600.0,
        seed=seed,
    )
    for n in range(2):
        assert utilization(recorder, f"b{n:02}", 60, 3600) == pytest.approx(0.85, abs=0.02), f"seed {seed}"
    assert max(row.utilization for row in recorder.samples) > 1.2, "there was no noise"
    assert requested_sessions(recorder) == [], f"seed {seed}"
    assert recorder.migrations == 0
    assert recorder.late.total() == 0


def test_rates_that_wander_by_a_tenth_move_nobody_either() -> None:
    topics = range(8)
    wander = Random(5)
    recorder = run(
        [edge(n) for n in range(4)],
        [
            publisher(topic, 0.2125, *(RateChange(10.0 + 7.0 * n, wander.uniform(0.9, 1.1)) for n in range(40)))
            for topic in topics
        ],
        [one for topic in topics for one in subscribers(topic, 2)],
        300.0,
    )
    assert requested_sessions(recorder) == []
    assert recorder.late.total() == 0


@pytest.mark.parametrize(("policy", "seed"), [("peer-wd", 1), ("peer-wd", 3), ("peer", 1)])
def test_load_hovering_around_a_threshold_moves_nobody_to_and_fro(policy: str, seed: int) -> None:
    """One edge wanders between 80 and 115 % of its uplink; the others are at two thirds."""
    wander = Random(seed)
    hovering = [RateChange(20.0 + 5.0 * step, wander.uniform(1.2, 1.7)) for step in range(40)]
    publishers = [
        publisher(topic, 0.1125, *(hovering if topic % 3 == 0 else ()), message_bytes=100.0) for topic in range(9)
    ]
    wanted = [one for topic in range(9) for one in subscribers(topic, 2, deadline_s=0.6)]
    # These deadlines are so short that one sample has to do, and arrivals are regular.
    config = BalancingConfig(policy=policy, queue_samples_needed=1, noise_allowance=0.0)
    recorder = run([edge(n) for n in range(3)], publishers, wanted, 220.0, config, seed)
    assert recorder.migrations > 0, f"seed {seed}: nothing was above its threshold"
    for subscriber, moves in moves_by_subscriber(recorder).items():
        for (before_s, came_from, _), (after_s, _, went_to) in pairwise(moves):
            assert after_s - before_s >= config.cooldown_s, f"{subscriber} moved twice, seed {seed}"
            assert went_to != came_from, f"{subscriber} went back, seed {seed}"
    if policy == "peer-wd":
        assert recorder.late.total() == 0, f"seed {seed}"
        assert len(started_sessions(recorder)) == 1, f"seed {seed}: once relieved, it stays so"


def moves_by_subscriber(recorder: Recorder) -> dict[str, list[tuple[float, str, str]]]:
    """When each subscriber moved, from where, and to where."""
    found: dict[str, list[tuple[float, str, str]]] = {}
    for row in recorder.migrated:
        found.setdefault(row.subscriber, []).append((row.at_s, row.source, row.target))
    return found


NEW = "b10"


def ten_at_80_percent(*extra: SubscriberSpec, burst: RateChange | None = None) -> Recorder:
    """Ten edges with a topic each, and an eleventh that joins empty at 30 s."""
    publishers = [publisher(topic, 0.4, *((burst,) if burst and topic == 0 else ())) for topic in range(10)]
    publishers += [publisher(10, 0.4)]
    wanted = [one for topic in range(10) for one in subscribers(topic, 2, deadline_s=1.0)]
    return run([*(edge(n) for n in range(10)), edge(10, joins_s=30.0)], publishers, [*wanted, *extra], 90.0)


def test_a_new_empty_edge_attracts_new_subscribers_and_no_old_ones() -> None:
    recorder = ten_at_80_percent(*subscribers(10, 2, deadline_s=1.0, joins_s=40.0))
    for n in range(10):
        assert utilization(recorder, f"b{n:02}", 60, 90) == pytest.approx(0.8, abs=0.02)
    held = [row for row in recorder.samples if row.edge == NEW and row.at_s > 60]
    assert held
    assert all(set(row.topics) == {"t10"} for row in held)
    assert recorder.migrations == 0
    assert requested_sessions(recorder) == []


def test_old_subscribers_move_to_the_new_edge_once_a_deadline_is_at_risk() -> None:
    recorder = ten_at_80_percent(burst=RateChange(50.0, 1.4))
    assert {(row.source, row.target) for row in recorder.migrated} == {("b00", NEW)}
    assert len(requested_sessions(recorder)) == 1
    assert all(row.at_s > 50.0 for row in recorder.migrated)
    assert recorder.late.total() == 0


def test_averages_that_lag_after_a_move_cause_no_second_one() -> None:
    """One edge is overrun and relieved. Its smoothed load and its backlog stay above their thresholds for a while."""
    rising = RateChange(30.0, 1.6)
    publishers = [publisher(0, 0.1, rising), publisher(1, 0.15, rising), publisher(2, 0.3, rising)]
    wanted = subscribers(0, 2) + subscribers(1, 2) + subscribers(2, 1)
    # All of them begin on one edge; the other joins when they are placed.
    recorder = run([edge(0), edge(1, joins_s=25.0)], publishers, wanted, 120.0)
    (session,) = requested_sessions(recorder)
    assert session.at_s >= 30.0
    assert {(row.source, row.target) for row in recorder.migrated} == {("b00", "b01")}
    (assessed,) = [
        row for row in recorder.decisions if isinstance(row.decision, d.SessionEnded) and row.broker == "b00"
    ]
    after = [row for row in recorder.samples if row.edge == "b00" and row.at_s > assessed.at_s]
    assert after[0].topics.keys() < {"t0", "t1", "t2"} or after[0].backlogged(2.0), "nothing lagged"
    assert recorder.late.total() == 0
