"""Insights at a head: which one is in force, what it does to placements, what edges are told; and what it can't do."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import Driver, of, replies, sent, subscribe
from tests.support.decisions import of_kind
from tidegate_agents.head.insights import REFRESH_S, UPLINK_SPREAD_MAX
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import Action, Decision, MessageReceived, Record, SetTimer, TimerFired
from tidegate_protocol import decisions as d
from tidegate_protocol.insight import (
    CorrelatedPair,
    EdgeInsight,
    EdgeUplink,
    Insight,
    InsightReply,
    RateForecast,
    UnusedReason,
)
from tidegate_protocol.messages import Capacity, EdgeGoodbye, EdgeHello, OutputPrepare, Refusal, SubscribeReply
from tidegate_protocol.operations import OverviewReply, OverviewRequest

MADE_AT_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000


def insight(*pairs: tuple[str, str], made_s: float = 0.0, **given: object) -> Insight:
    values = {
        "cluster": "c",
        "made_at_us": MADE_AT_US + round(made_s * 1e6),
        "valid_for_us": DAY_US,
        "pairs": tuple(CorrelatedPair(topic_a=one, topic_b=other, coefficient=0.9) for one, other in pairs),
        **given,
    }
    return Insight.model_validate(values)


def forecast(topic: str, level: float, **given: float) -> RateForecast:
    values = {"topic": topic, "level_per_s": level, "error_per_s": 0.0, "horizon_us": DAY_US, **given}
    return RateForecast.model_validate(values)


def hello(driver: Driver, edge: str, uplink: float | None = None) -> None:
    """An edge without subscriptions, whose uplink is configured or not."""
    driver.tell(
        EdgeHello(
            edge=edge,
            cluster="c",
            client_url=f"amqp://{edge}:1",
            link_url=f"amqp://{edge}:2",
            capacity=Capacity(uplink_bytes_per_s=uplink),
            registry_count=0,
            registry_digest=registry_digest(()),
        )
    )


def cluster(*edges: str, uplink: float | None = None) -> Driver:
    driver = Driver()
    for edge in edges:
        hello(driver, edge, uplink)
    return driver


def placed(driver: Driver, subscriber: str, pattern: str) -> tuple[str, Decision]:
    """Subscribe with everybody answering at once: where to, and why."""
    actions = driver.tell(subscribe(subscriber, pattern))
    later = driver.bind(actions)
    for prepare in sent(actions, OutputPrepare):
        later += driver.ready(prepare)
    (reply,) = replies(later, SubscribeReply)
    (decision,) = of_kind(decisions(later), d.Placed)
    return reply.edge, decision


def decisions(actions: list[Action]) -> list[Decision]:
    return [record.decision for record in of(actions, Record)]


def state(driver: Driver) -> OverviewReply:
    """What an operator is told; edges do not answer here."""
    actions = driver.tell(OverviewRequest())
    waiting = [timer.name for timer in of(actions, SetTimer) if timer.name.startswith("operations")]
    for name in waiting:
        actions += driver.give(TimerFired(name))
    (reply,) = replies(actions, OverviewReply)
    return reply


# In force


def test_an_insight_is_taken_and_the_sender_told_what_of_it() -> None:
    driver = cluster("e1", "e2")
    hello(driver, "e2", uplink=1e6)
    message = insight(
        ("rain", "flood"),
        ("rain", "rain"),
        age_us=60_000_000,
        forecasts=(forecast("rain", 5.0), forecast("old", 5.0, horizon_us=1)),
        capacities=tuple(EdgeUplink(edge=edge, uplink_bytes_per_s=1e6) for edge in ("e1", "e2", "e9")),
    )
    actions = driver.tell(message)
    (taken,) = replies(actions, InsightReply)
    assert (taken.pairs, taken.forecasts, taken.capacities, taken.repeated) == (1, 2, 3, False)
    assert taken.left_us == DAY_US - 60_000_000
    assert [(one.name, one.reason) for one in taken.unused] == [
        ("e2", UnusedReason.CONFIGURED),
        ("e9", UnusedReason.NO_SUCH_EDGE),
        ("old", UnusedReason.HORIZON_PASSED),
    ]
    assert [one.kind for one in decisions(actions)] == ["insight-taken"]


def test_a_newer_one_replaces_an_older_one_and_never_the_reverse() -> None:
    driver = cluster("e1")
    driver.tell(insight(("a", "b"), made_s=100))
    (refusal,) = replies(driver.tell(insight(("c", "d"), made_s=40)), Refusal)
    assert refusal.field == "made_at_us"
    assert "60 s older" in refusal.message
    (again,) = replies(driver.tell(insight(("c", "d"), made_s=100)), InsightReply)
    assert again.repeated
    assert again.pairs == 1
    driver.tell(insight(("c", "d"), ("e", "f"), made_s=101))
    shown = state(driver).insight
    assert shown is not None
    assert (shown.pairs, shown.refused) == (2, 1)


def test_repeating_it_does_not_prolong_it() -> None:
    driver = cluster("e1")
    driver.tell(insight(("a", "b"), valid_for_us=10_000_000))
    driver.now += 8.0
    driver.tell(insight(("a", "b"), valid_for_us=10_000_000))
    actions = driver.tick(3.0)
    assert [one.label for one in of_kind(decisions(actions), d.InsightOver)] == ["expired"]
    assert state(driver).insight is None


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"cluster": "elsewhere"}, "cluster"),
        ({"age_us": DAY_US, "valid_for_us": DAY_US}, "valid_for_us"),
    ],
)
def test_what_is_not_for_us_or_stale_is_refused_and_counted(wrong: dict[str, object], field: str) -> None:
    driver = cluster("e1", "e2")
    driver.tell(insight(("a", "b"), made_s=-1))
    actions = driver.tell(insight(("rain", "flood"), **wrong))
    (refusal,) = replies(actions, Refusal)
    assert refusal.field == field
    assert [one.kind for one in decisions(actions)] == ["insight-refused"]
    assert not sent(actions, EdgeInsight)
    shown = state(driver).insight
    assert shown is not None
    assert (shown.made_at_us, shown.refused) == (MADE_AT_US - 1_000_000, 1)


def test_one_from_the_future_keeps_others_out_only_as_long_as_it_is_valid() -> None:
    """Whoever made it had a clock that was a year ahead. Clocks are not compared, so nobody here can tell."""
    driver = cluster("e1")
    driver.tell(insight(("a", "b"), made_s=365 * 86_400, valid_for_us=10_000_000))
    assert replies(driver.tell(insight(("c", "d"))), Refusal)
    driver.tick(11.0)
    assert replies(driver.tell(insight(("c", "d"))), InsightReply)


def test_withdrawing_forgets_whatever_is_in_force() -> None:
    driver = cluster("e1", "e2")
    driver.tell(insight(("rain", "flood"), made_s=1000, forecasts=(forecast("rain", 5.0),)))
    actions = driver.tell(insight(withdraws=True))
    (taken,) = replies(actions, InsightReply)
    assert taken.left_us == 0
    assert [one.label for one in of_kind(decisions(actions), d.InsightOver)] == ["withdrawn"]
    assert state(driver).insight is None
    assert replies(driver.tell(insight(("c", "d"))), InsightReply)


def test_nothing_survives_a_restart() -> None:
    driver = cluster("e1")
    driver.tell(insight(("a", "b"), made_s=100))
    fresh = cluster("e1")
    assert replies(fresh.tell(insight(("a", "b"), made_s=1)), InsightReply)


# Placement


def test_topics_known_to_rise_together_are_placed_apart() -> None:
    driver = cluster("e1", "e2")
    driver.tell(insight(("rain", "flood")))
    first, _ = placed(driver, "s1", "rain")
    placed(driver, "s2", "calm")  # on the other edge, so that both are equally full
    placed(driver, "s3", "calm")
    second, why = placed(driver, "s4", "flood")
    assert first != second
    assert (why.reason, why.edge) == (d.PlacementReason.APART_FROM_CORRELATED, second)
    assert why.advice is not None
    assert why.advice.coefficient == 0.9
    assert d.Rejected(first, d.Rejection.CORRELATED, other="rain") in why.rejected
    shown = state(driver).insight
    assert shown is not None
    assert shown.placements == 1


def test_without_an_insight_or_after_it_has_expired_placements_are_as_ever() -> None:
    def course(driver: Driver) -> list[tuple[str, Decision]]:
        return [placed(driver, f"s{n}", topic) for n, topic in enumerate(("rain", "calm", "calm", "flood", "#"))]

    plain = course(cluster("e1", "e2"))
    expired = cluster("e1", "e2")
    expired.tell(insight(("rain", "flood"), ("calm", "flood"), valid_for_us=1_000_000))
    expired.now += 1.0  # before any tick could have noticed
    assert course(expired) == plain


def test_topics_of_patterns_are_kept_apart_too_but_not_from_themselves() -> None:
    driver = cluster("e1", "e2", "e3")
    driver.tell(insight(("rain.north", "river.north"), ("rain.north", "rain.south")))
    first, _ = placed(driver, "s1", "river.#")
    driver.tick()  # patterns with wildcards are looked at every period
    second, _ = placed(driver, "s2", "rain.*")
    third, why = placed(driver, "s3", "#")
    assert first != second
    assert third not in (first, second)
    assert why.advice is None, "everything is in it: it can't be kept apart from anything"


def test_subscribers_of_one_pattern_stay_together_whatever_an_insight_says() -> None:
    driver = cluster("e1", "e2")
    first, _ = placed(driver, "s1", "rain")
    driver.tell(insight(("rain", "flood"), ("rain", "rain")))
    again, why = placed(driver, "s2", "rain")
    assert again == first
    assert why.reason is d.PlacementReason.SAME_PATTERN


def test_unknown_topics_and_edges_change_nothing() -> None:
    driver = cluster("e1", "e2")
    plain = placed(cluster("e1", "e2"), "s", "rain")
    unknown = EdgeUplink(edge="nowhere", uplink_bytes_per_s=1e13)
    driver.tell(insight(("x", "y"), capacities=(unknown,), forecasts=(forecast("z", 1e9),)))
    assert placed(driver, "s", "rain") == plain
    assert not sent(driver.tick(), EdgeInsight)


def test_a_capacity_counts_only_where_none_is_configured_and_within_bounds() -> None:
    driver = cluster()
    hello(driver, "e1", uplink=1_000.0)
    hello(driver, "e2", uplink=1_000.0)
    hello(driver, "e3")
    absurd = tuple(EdgeUplink(edge=edge, uplink_bytes_per_s=1e13) for edge in ("e1", "e2", "e3"))
    driver.tell(insight(capacities=absurd))
    _, why = placed(driver, "s1", "rain")
    assert why.advice is not None
    assert why.advice.uplinks == (d.UplinkHint("e3", UPLINK_SPREAD_MAX * 1_000.0),)
    assert ("e1", 1_000.0) in [(one.edge, one.left_bytes_per_s) for one in why.scores]


def test_a_capacity_of_nearly_nothing_is_bounded_as_well() -> None:
    driver = cluster("e1")
    hello(driver, "e2", uplink=1_000.0)
    driver.tell(insight(capacities=(EdgeUplink(edge="e1", uplink_bytes_per_s=1e-6),)))
    _, why = placed(driver, "s1", "rain")
    assert why.advice is not None
    assert d.UplinkHint("e1", 1_000.0 / UPLINK_SPREAD_MAX) in why.advice.uplinks


# Edges


def told(actions: list[Action], edge: str) -> EdgeInsight:
    (message,) = [send.message for send in sent(actions, EdgeInsight, edge)]
    assert isinstance(message, EdgeInsight)
    return message


def test_an_edge_is_told_the_forecasts_of_its_patterns_and_its_capacity() -> None:
    driver = cluster("e1", "e2")
    edge, _ = placed(driver, "s1", "rain.north")
    other = "e2" if edge == "e1" else "e1"
    driver.tick()
    message = insight(
        age_us=10_000_000,
        forecasts=(
            forecast("rain.north", 50.0, trend_per_s=2.0, error_per_s=5.0, horizon_us=70_000_000),
            forecast("snow", 9.0),
        ),
        capacities=(EdgeUplink(edge=other, uplink_bytes_per_s=1e6),),
    )
    actions = driver.tell(message)
    (one,) = told(actions, edge).forecasts
    assert (one.pattern, one.level_per_s, one.trend_per_s) == ("rain.north", 65.0, 2.0)
    assert one.left_us == 60_000_000
    assert told(actions, edge).uplink_bytes_per_s is None
    assert told(actions, other).uplink_bytes_per_s == 1e6
    assert not sent(driver.tick(), EdgeInsight), "nothing has changed"


def test_patterns_with_wildcards_get_the_sum_of_their_topics() -> None:
    driver = cluster("e1")
    placed(driver, "s1", "rain.*")
    driver.tick()
    rates = (forecast("rain.north", 50.0), forecast("rain.south", 8.0), forecast("snow", 9.0))
    actions = driver.tell(insight(forecasts=rates))
    assert [(one.pattern, one.level_per_s) for one in told(actions, "e1").forecasts] == [("rain.*", 58.0)]


def test_edges_are_told_again_now_and_then_and_when_they_are_back() -> None:
    driver = cluster("e1")
    driver.tell(insight(capacities=(EdgeUplink(edge="e1", uplink_bytes_per_s=1e6),)))
    quiet = [action for _ in range(3) for action in driver.tick()]
    assert not sent(quiet, EdgeInsight)
    driver.give(MessageReceived(EdgeGoodbye(edge="e1")))
    driver.tick()
    hello(driver, "e1")
    back = told(driver.tick(), "e1")
    driver.now += REFRESH_S
    hello(driver, "e1")
    again = told(driver.tick(), "e1")
    assert again.number > back.number
    assert again.left_us < back.left_us


def test_edges_are_told_that_it_is_over_and_nothing_afterwards() -> None:
    driver = cluster("e1")
    driver.tell(insight(capacities=(EdgeUplink(edge="e1", uplink_bytes_per_s=1e6),), valid_for_us=1_500_000))
    driver.now += 1.0
    hello(driver, "e1")
    message = told(driver.tick(), "e1")
    assert (message.left_us, message.uplink_bytes_per_s, message.forecasts) == (0, None, ())
    hello(driver, "e1")
    assert not sent(driver.tick(), EdgeInsight)
