"""Placement: each rule by itself, and the paper's table."""

from __future__ import annotations

from tests.support.decisions import rejections
from tidegate_agents.policy.placement import EdgeView, ExpectedLoad, place
from tidegate_protocol.decisions import PlacementReason, Rejected, Rejection
from tidegate_protocol.messages import Capacity

# Seed 000 Table V: CPU in MHz stands for the matching rate; bandwidth is both uplink and downlink.
EDGES = {"b0": (800, 6.5), "b1": (1500, 8.0), "b2": (1300, 5.0), "b3": (1000, 8.0)}
# Seed 000 Table VI: publishers, subscribers, bytes per message.
TOPICS = {
    1: (1, 8, 200),
    2: (2, 2, 800),
    3: (5, 1, 1000),
    4: (4, 2, 400),
    5: (3, 3, 200),
    6: (1, 1, 400),
    7: (2, 5, 300),
    8: (2, 7, 400),
    9: (5, 2, 500),
    10: (4, 4, 200),
    11: (1, 5, 600),
    12: (3, 2, 400),
    13: (1, 6, 200),
    14: (2, 3, 300),
    15: (4, 5, 200),
}
# Seed 001 Table 7.
PLACED = {"b0": [5, 6, 7, 11, 15], "b1": [1, 3, 8, 14], "b2": [10, 12], "b3": [2, 4, 9, 13]}
MESSAGES_PER_S = 50


def test_topics_are_placed_as_in_the_paper() -> None:
    bandwidth = {name: mbps * 1e6 / 8 for name, (_, mbps) in EDGES.items()}
    capacity = {
        name: Capacity(uplink_bytes_per_s=bandwidth[name], downlink_bytes_per_s=bandwidth[name], matching_per_s=cpu)
        for name, (cpu, _) in EDGES.items()
    }
    expected = {
        f"t{topic}": ExpectedLoad(bytes_per_s=publishers * MESSAGES_PER_S * size)
        for topic, (publishers, _, size) in TOPICS.items()
    }
    placed: dict[str, dict[str, int]] = {name: {} for name in EDGES}
    reasons = {}
    for topic, (_, subscribers, _) in TOPICS.items():
        views = [EdgeView(name, capacity[name], sum(patterns.values()), patterns) for name, patterns in placed.items()]
        placement = place(f"t{topic}", views, subscribers=subscribers, expected=expected)
        assert placement is not None
        placed[placement.edge][f"t{topic}"] = subscribers
        reasons[topic] = placement.decision.reason
    assert {name: sorted(int(t[1:]) for t in topics) for name, topics in placed.items()} == PLACED
    assert [topic for topic, reason in reasons.items() if reason.startswith("near-tie")] == [8, 14]


def view(name: str, patterns: dict[str, int] | None = None, **capacity: float) -> EdgeView:
    patterns = patterns or {}
    return EdgeView(name, Capacity(**capacity), sum(patterns.values()), patterns)


def test_no_edge_gives_no_placement() -> None:
    assert place("a", []) is None


def test_one_pattern_goes_to_one_edge_even_if_another_is_emptier() -> None:
    placement = place("a.*", [view("e1", {"a.*": 9}), view("e2")])
    assert placement is not None
    assert placement.edge == "e1"
    assert (placement.decision.reason, placement.decision.edge) == (PlacementReason.SAME_PATTERN, "e1")
    assert "e2" in rejections(placement.decision)


def test_an_overlapping_pattern_is_not_the_same_one() -> None:
    placement = place("a.b", [view("e1", {"a.*": 1}), view("e2")])
    assert placement is not None
    assert placement.edge == "e2"


def test_correlated_patterns_are_kept_apart() -> None:
    edges = [view("e1", {"rain": 1}), view("e2", {"x": 5})]
    placement = place("flood", edges, correlated={"flood": {"rain"}})
    assert placement is not None
    assert placement.edge == "e2"
    assert Rejected("e1", Rejection.CORRELATED, other="rain") in placement.decision.rejected


def test_correlated_patterns_share_an_edge_where_there_is_no_other() -> None:
    placement = place("flood", [view("e1", {"rain": 1})], correlated={"flood": {"rain"}})
    assert placement is not None
    assert placement.edge == "e1"


def test_without_capacities_the_edge_with_fewest_subscriptions_wins_then_the_name() -> None:
    placement = place("a", [view("e3"), view("e1", {"x": 1}), view("e2")])
    assert placement is not None
    assert placement.edge == "e2"
    assert ("e1", 1) in [(one.edge, one.subscriptions) for one in placement.decision.scores]


def test_without_loads_capacity_is_shared_among_the_subscriptions() -> None:
    edges = [view("e1", {"x": 3}, uplink_bytes_per_s=800.0), view("e2", {"y": 1}, uplink_bytes_per_s=300.0)]
    placement = place("a", edges)
    assert placement is not None
    assert placement.edge == "e1"  # 800/4 against 300/2


def test_an_edge_that_would_leave_the_low_state_is_passed_over() -> None:
    expected = {"a": ExpectedLoad(bytes_per_s=10.0, messages_per_s=95.0)}
    edges = [
        view("e1", uplink_bytes_per_s=1_000.0, matching_per_s=100.0),
        view("e2", uplink_bytes_per_s=500.0, matching_per_s=1_000.0),
    ]
    placement = place("a", edges, expected=expected)
    assert placement is not None
    assert placement.edge == "e2"
    assert Rejected("e1", Rejection.METRIC_TOO_HIGH, value=0.95, limit=0.9) in placement.decision.rejected


def test_a_decision_names_what_the_caller_ruled_out() -> None:
    draining = Rejected("e2", Rejection.DRAINING)
    placement = place("a", [view("e1")], excluded=[draining])
    assert placement is not None
    assert placement.decision.rejected == (draining,)


def test_what_is_known_of_correlations_says_when_it_decided() -> None:
    edges = [view("e1", {"rain": 1}), view("e2", {"x": 5})]
    decided = place("flood", edges, correlated={"flood": {"rain"}})
    agreed = place("flood", [view("e1", {"rain": 9}), view("e2", {"x": 1})], correlated={"flood": {"rain"}})
    assert decided is not None
    assert agreed is not None
    assert (decided.edge, decided.decision.reason) == ("e2", PlacementReason.APART_FROM_CORRELATED)
    assert (agreed.edge, agreed.decision.reason) == ("e2", PlacementReason.FEWEST_SUBSCRIPTIONS)


def test_keeping_apart_never_leads_to_an_edge_that_would_not_stay_low() -> None:
    """What is known of correlations may be wrong: it must not fill one edge up while another has room."""
    expected = {"flood": ExpectedLoad(100.0), "rain": ExpectedLoad(50.0), "x": ExpectedLoad(850.0)}
    edges = [
        view("e1", {"rain": 1}, uplink_bytes_per_s=1_000.0),
        view("e2", {"x": 1}, uplink_bytes_per_s=1_000.0),
    ]
    placement = place("flood", edges, expected=expected, correlated={"flood": {"rain"}})
    assert placement is not None
    assert placement.edge == "e1", "e2 would be at 95 %"
    assert placement.decision.edge == "e1"


def test_where_every_edge_holds_something_correlated_that_counts_twice() -> None:
    expected = {"flood": ExpectedLoad(50.0), "rain": ExpectedLoad(300.0), "hail": ExpectedLoad(100.0)}
    expected["x"] = ExpectedLoad(150.0)
    edges = [
        view("e1", {"rain": 1}, uplink_bytes_per_s=1_000.0),
        view("e2", {"hail": 1, "x": 2}, uplink_bytes_per_s=1_000.0),
    ]
    plain = place("flood", edges, expected=expected)
    advised = place("flood", edges, expected=expected, correlated={"flood": {"rain", "hail"}})
    assert plain is not None
    assert advised is not None
    assert plain.edge == "e1", "700 B/s left against 600"
    assert advised.edge == "e2", "500 B/s left against 400, with what is correlated counted twice"
    assert ("e2", 100.0) in [(one.edge, one.correlated_bytes_per_s) for one in advised.decision.scores]
