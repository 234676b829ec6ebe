"""Load samples: what waits, what is offered, and the utilizations of seed 000 Tables I and II."""

from __future__ import annotations

import pytest

from tests.support import ews
from tidegate_agents.load.metrics import (
    BrokerSample,
    Metric,
    Role,
    SubscriptionSample,
    carried_share,
    offered_bytes_per_s,
    utilizations,
)
from tidegate_protocol.messages import Capacity


def subscription(ready: float, unacknowledged: float, drain_per_s: float, round_trip_s: float) -> SubscriptionSample:
    return SubscriptionSample("s.0", "t", drain_per_s, drain_per_s, ready, unacknowledged, round_trip_s, 400)


def test_what_is_in_flight_does_not_wait() -> None:
    # 100 messages/s over 0.4 s of round trip: 40 unacknowledged messages are nothing unusual.
    assert subscription(0, 40, 100, 0.4).depth == 0
    assert subscription(7, 40, 100, 0.4).depth == pytest.approx(7)
    assert subscription(0, 65, 100, 0.4).depth == pytest.approx(25)


def test_a_depth_is_never_negative() -> None:
    assert subscription(0, 10, 100, 0.4).depth == 0


@pytest.mark.parametrize(
    ("edge", "before", "after"), [("b0", 0.751, 0.775), ("b1", 0.70, 1.07), ("b2", 0.448, 0.896), ("b3", 0.63, 0.95)]
)
def test_uplinks_of_the_experiment(edge: str, before: float, after: float) -> None:
    for burst, expected in ((False, before), (True, after)):
        queues = [
            SubscriptionSample(f"s{topic}-{n}.0", f"t{topic}", ews.rate(topic, burst=burst), 0, 0, 0, 0, spec)
            for topic in ews.PLACED[edge]
            for spec in [ews.TOPICS[topic].message_bytes]
            for n in range(ews.TOPICS[topic].subscribers)
        ]
        capacity = Capacity(uplink_bytes_per_s=ews.bandwidth(edge))
        sample = BrokerSample(edge, Role.EDGE, bytes_offered_per_s=offered_bytes_per_s(queues), capacity=capacity)
        assert utilizations(sample)[Metric.UPLINK] == pytest.approx(expected, abs=0.001)


def test_the_metrics_of_each_kind_of_broker() -> None:
    capacity = Capacity(uplink_bytes_per_s=1000, downlink_bytes_per_s=500, matching_per_s=100)
    head = BrokerSample("h", Role.HEAD, 250, 1500, 60, capacity)
    edge = BrokerSample("e", Role.EDGE, 250, 1500, 60, capacity)
    assert utilizations(head) == {Metric.UPLINK: 1.5, Metric.DOWNLINK: 0.5}
    assert utilizations(edge) == {Metric.UPLINK: 1.5, Metric.DOWNLINK: 0.5, Metric.MATCHING: 0.6}


def test_an_unknown_capacity_leaves_the_metric_unknown() -> None:
    sample = BrokerSample("e", Role.EDGE, 250, 1500, 60, Capacity(downlink_bytes_per_s=500))
    assert utilizations(sample) == {Metric.UPLINK: None, Metric.DOWNLINK: 0.5, Metric.MATCHING: None}


def test_every_flow_gets_the_same_share_of_a_full_uplink() -> None:
    def share(offered: float, uplink: float | None) -> float:
        capacity = Capacity(uplink_bytes_per_s=uplink)
        return carried_share(BrokerSample("e", Role.EDGE, bytes_offered_per_s=offered, capacity=capacity))

    assert share(ews.offered_on("b1", burst=True), ews.bandwidth("b1")) == pytest.approx(1 / 1.07)
    assert share(900, 1000) == 1
    assert share(900, None) == 1
