"""The load of a head, and the reports between clusters."""

from __future__ import annotations

import math

import pytest

from tests.support.parts_driver import PartsDriver, answers, decisions, messages
from tidegate_agents.config import BalancingConfig
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.loads import MetricReport, PieGlobal, PieLocal
from tidegate_protocol.balancing.publishers import HeadLoad, HeadLoadRequest
from tidegate_protocol.messages import LoadState, Refusal


def report(edge: str, uplink: float, state: LoadState = LoadState.LOW, busy: bool = False) -> PieLocal:
    metrics = {"uplink": MetricReport(value=uplink, low=0.9)}
    return PieLocal(broker=edge, cluster="cluster-h", state=state, busy=busy, metrics=metrics, period_s=1.0)


def with_edges(*reports: PieLocal) -> PartsDriver:
    driver = PartsDriver("n", balancing=BalancingConfig(global_period_s=1.0))
    for one in reports:
        driver.edge(one.broker)
        driver.tell(one)
    return driver


@pytest.mark.parametrize(
    ("bytes_in", "bytes_out", "state"),
    [
        (0.0, 0.0, LoadState.LOW),
        (899.0, 899.0, LoadState.LOW),
        (900.0, 0.0, LoadState.HIGH),
        (0.0, 950.0, LoadState.HIGH),
        (951.0, 0.0, LoadState.OVERLOAD),
        (0.0, 2_000.0, LoadState.OVERLOAD),
    ],
)
def test_a_head_is_judged_by_its_links(bytes_in: float, bytes_out: float, state: LoadState) -> None:
    driver = PartsDriver()
    actions = driver.sample(bytes_in=bytes_in, bytes_out=bytes_out)
    assert driver.parts.loads.state is state
    assert decisions(actions, d.LoadStateChanged)


def test_load_is_smoothed_and_a_state_is_told_only_when_it_changes() -> None:
    driver = PartsDriver()
    driver.sample(bytes_out=500.0)
    assert decisions(driver.sample(bytes_out=1_040.0), d.LoadStateChanged)
    assert driver.parts.loads.state is LoadState.HIGH  # 0.75 · 1040 + 0.25 · 500 = 905
    assert decisions(driver.sample(bytes_out=1_040.0), d.LoadStateChanged)
    assert driver.parts.loads.state is LoadState.OVERLOAD
    assert not decisions(driver.sample(bytes_out=1_040.0), d.LoadStateChanged)


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_sample_that_is_no_number_is_passed_over(wrong: float) -> None:
    driver = PartsDriver()
    driver.sample(bytes_in=wrong)
    assert driver.parts.loads.sample is None
    driver.sample(bytes_in=500.0)
    driver.sample(bytes_in=wrong)
    driver.sample(bytes_out=wrong)
    assert driver.parts.loads.sample is not None
    assert driver.parts.loads.sample.bytes_in_per_s == 500.0
    for _ in range(5):
        driver.sample(bytes_in=2_000.0)
    assert driver.parts.loads.state is LoadState.OVERLOAD


def test_the_load_is_told_to_a_neighbour_that_asks_once_it_is_known() -> None:
    driver = PartsDriver("n")
    assert answers(driver.tell(HeadLoadRequest(session="s", head="n")), Refusal)
    driver.sample(bytes_in=300.0, bytes_out=400.0)
    (reply,) = answers(driver.tell(HeadLoadRequest(session="s", head="n")), HeadLoad)
    assert (reply.load.state, reply.load.busy, reply.publisher_url) == (LoadState.LOW, False, "amqp://h:1")
    assert (reply.load.bytes_in_per_s, reply.load.bytes_offered_per_s) == (300.0, 400.0)


def test_the_cluster_is_reported_as_the_mean_over_the_edges_that_can_take_load() -> None:
    driver = with_edges(
        report("e1", 0.2), report("e2", 0.6), report("e3", 0.95, LoadState.HIGH), report("e4", 0.1, busy=True)
    )
    (message,) = messages(driver.tick(0.5), PieGlobal)
    assert (message.cluster, message.head, message.state) == ("cluster-h", "h", LoadState.LOW)
    assert message.metrics["uplink"].value == pytest.approx(0.4)


def test_an_unchanged_report_is_suppressed_once_but_not_twice_and_a_change_is_told() -> None:
    driver = with_edges(report("e1", 0.2))

    def tick(value: float) -> bool:
        driver.tell(report("e1", value))
        return bool(messages(driver.tick(), PieGlobal))

    assert [tick(0.2), tick(0.21), tick(0.21), tick(0.21), tick(0.3)] == [True, False, True, False, True]


def test_a_cluster_without_room_says_so() -> None:
    high = with_edges(report("e1", 0.95, LoadState.HIGH))
    assert [m.state for m in messages(high.tick(0.5), PieGlobal)] == [LoadState.HIGH]
    overloaded = with_edges(report("e1", 0.95, LoadState.HIGH), report("e2", 1.2, LoadState.OVERLOAD))
    assert [m.state for m in messages(overloaded.tick(0.5), PieGlobal)] == [LoadState.OVERLOAD]
    behind_a_full_head = with_edges(report("e1", 0.1))
    behind_a_full_head.sample(bytes_out=930.0, after_s=0.5)
    assert [m.state for m in messages(behind_a_full_head.tick(0.1), PieGlobal)] == [LoadState.NOT_AVAILABLE]


def test_reports_expire_after_three_periods() -> None:
    driver = with_edges(report("e1", 0.2))
    driver.tell(PieGlobal(cluster="x", head="n", state=LoadState.HIGH, period_s=5.0))
    driver.tell(PieGlobal(cluster="y", head="stranger", state=LoadState.HIGH, period_s=5.0))
    assert driver.parts.loads.able() == ["e1"]
    assert driver.parts.loads.cluster_states() == {"n": LoadState.HIGH}
    driver.tick(3.0)
    assert driver.parts.loads.able() == []
    assert driver.parts.loads.cluster_states() == {"n": LoadState.HIGH}
    driver.tick(12.0)
    assert driver.parts.loads.cluster_states() == {}


def test_edges_that_are_away_or_drained_can_take_no_load() -> None:
    driver = with_edges(report("e1", 0.2), report("e2", 0.2), report("e3", 0.2))
    edges = driver.context.registry.edges
    edges["e1"].alive, edges["e2"].draining = False, True
    assert driver.parts.loads.able() == ["e3"]
