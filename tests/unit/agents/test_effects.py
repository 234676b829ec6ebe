"""What a move would do to both brokers, on the numbers of seed 000 §V and on small trees of heads."""

from __future__ import annotations

import pytest

from tests.support import ews
from tests.support.formulas import SubscriberLoad
from tidegate_agents.load.metrics import BrokerSample, Metric, Role, utilizations
from tidegate_agents.load.states import LoadState, assess
from tidegate_agents.load.threshold import paper_depth
from tidegate_agents.policy.bundles import Bundle, PublisherLoad, subscriber_bundle
from tidegate_agents.policy.effects import drain_factor, publisher_moved, subscribers_moved
from tidegate_protocol.messages import Capacity


def edge(name: str) -> BrokerSample:
    """An edge of the experiment after the burst; the CPU in MHz stands for the matching rate."""
    arriving = {topic: ews.rate(topic, burst=True) for topic in ews.PLACED[name]}
    width = ews.bandwidth(name)
    return BrokerSample(
        name,
        Role.EDGE,
        sum(rate * ews.TOPICS[topic].message_bytes for topic, rate in arriving.items()),
        ews.offered_on(name, burst=True),
        sum(arriving.values()),
        Capacity(uplink_bytes_per_s=width, downlink_bytes_per_s=width, matching_per_s=ews.EDGES[name][0]),
    )


def topic_bundle(topic: int, subscribers: int | None = None) -> Bundle:
    spec = ews.TOPICS[topic]
    return subscriber_bundle(
        [
            SubscriberLoad(
                f"s{n}.0", f"t{topic}", ews.rate(topic, burst=True), spec.message_bytes, spec.deadline_s - 0.3
            )
            for n in range(subscribers or spec.subscribers)
        ]
    )


def test_topic_1_fits_on_b0_only_and_topic_14_nowhere() -> None:
    def fits(topic: int) -> list[str]:
        return [
            name
            for name in ("b0", "b2", "b3")
            if assess(Role.EDGE, subscribers_moved(topic_bundle(topic), edge("b1"), edge(name)).target_values).state
            is LoadState.LOW
        ]

    assert fits(14) == []
    assert fits(1) == ["b0"]


def test_moving_topic_1_to_b0_in_numbers() -> None:
    effect = subscribers_moved(topic_bundle(1), edge("b1"), edge("b0"))
    assert utilizations(effect.source_after)[Metric.UPLINK] == pytest.approx(0.99)
    assert effect.target_values[Metric.UPLINK] == pytest.approx(0.874, abs=0.001)
    assert effect.source_after.bytes_in_per_s == edge("b1").bytes_in_per_s - 50 * 200
    assert effect.target_after.messages_in_per_s == edge("b0").messages_in_per_s + 50
    assert drain_factor(edge("b1"), effect.source_after) == pytest.approx(1.07 / 0.99)
    assert drain_factor(edge("b0"), effect.target_after) == 1


def test_moving_topic_1_ends_the_overload_of_topic_8_and_the_backlog_is_gone_at_62_s() -> None:
    before = edge("b1")
    after = subscribers_moved(topic_bundle(1), before, edge("b0")).source_after
    depth = ews.depth_at("b1", 8, 34)
    thresholds = [paper_depth(0.8, 200, 200 / 1.07 * factor, 0.5) for factor in (1.0, drain_factor(before, after))]
    assert (thresholds[0] or 0.0) < depth < (thresholds[1] or 0.0)

    backlog_bytes = 4 * (before.bytes_offered_per_s - ews.bandwidth("b1"))
    spare = ews.bandwidth("b1") - after.bytes_offered_per_s
    assert 34 + backlog_bytes / spare == pytest.approx(62)


def test_part_of_a_bundle_still_needs_the_topic_on_both_sides() -> None:
    source, target = edge("b1"), edge("b0")
    part = topic_bundle(1, subscribers=3)
    split = subscribers_moved(part, source, target, some_stay=True)
    assert split.source_after.bytes_in_per_s == source.bytes_in_per_s
    assert split.source_after.bytes_offered_per_s == source.bytes_offered_per_s - 3 * 50 * 200
    assert split.target_after.bytes_in_per_s == target.bytes_in_per_s + 50 * 200
    joined = subscribers_moved(part, source, target, target_has_topic=True)
    assert joined.target_after.bytes_in_per_s == target.bytes_in_per_s
    assert joined.target_after.messages_in_per_s == target.messages_in_per_s


@pytest.mark.parametrize(
    ("uplink", "before", "after", "factor"),
    [
        (1000, 1070, 990, 1.07 / 0.99),
        (1000, 1200, 1100, 1.2 / 1.1),
        (1000, 500, 400, 1.0),
        (1000, 500, 2000, 0.5),
        (1000, 1500, 3000, 0.5),
        (1000, 1500, 0, 1.0),
        (None, 1500, 1000, 1.0),
    ],
)
def test_drain_factor(uplink: float | None, before: float, after: float, factor: float) -> None:
    def sample(offered: float) -> BrokerSample:
        return BrokerSample("e", Role.EDGE, 0, offered, 0, Capacity(uplink_bytes_per_s=uplink))

    assert drain_factor(sample(before), sample(after)) == pytest.approx(factor)


# Heads: change of (source downlink, source uplink, target downlink, target uplink) in units of the publisher's rate.


@pytest.mark.parametrize(
    ("edges", "neighbours", "change"),
    [
        # P_n: only the downlink is freed.
        (0, [], (-1, 0, 1, 0)),
        # P_r whose subscribers are behind the target: both sides win.
        (0, ["h2"], (-1, -1, 0, 0)),
        # P_r whose subscribers are behind another neighbour: it comes back and costs a copy.
        (0, ["h3"], (0, 0, 1, 1)),
        # P_rl: the source saves the copy to the target, which has to send it back instead.
        (2, ["h2"], (0, -1, 0, 1)),
        # P_l: nothing is freed.
        (2, [], (0, 0, 1, 1)),
    ],
)
def test_moving_a_publisher(edges: int, neighbours: list[str], change: tuple[int, int, int, int]) -> None:
    load = PublisherLoad("p", "t", 10, 100, edges, frozenset(neighbours))
    source = BrokerSample("h1", Role.HEAD, 5000, 5000, 50)
    target = BrokerSample("h2", Role.HEAD, 5000, 5000, 50)
    effect = publisher_moved(load, source, target)
    after = (
        effect.source_after.bytes_in_per_s,
        effect.source_after.bytes_offered_per_s,
        effect.target_after.bytes_in_per_s,
        effect.target_after.bytes_offered_per_s,
    )
    assert tuple((value - 5000) / 1000 for value in after) == change
