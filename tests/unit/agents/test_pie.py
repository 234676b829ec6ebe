"""Local load reports: when they are published, and how long they are believed."""

from __future__ import annotations

from tests.support.agents_driver import of, subscription
from tests.support.edge_driver import EdgeDriver
from tidegate_agents.load.metrics import BrokerSample, Role, SubscriptionSample
from tidegate_agents.load.pie import PiePublisher, PieTable, pie_report
from tidegate_agents.machine import Announce
from tidegate_protocol.balancing.loads import MetricReport, PieLocal
from tidegate_protocol.messages import Capacity, LoadState


def report(
    uplink: float, state: LoadState = LoadState.LOW, *, busy: bool = False, broker: str = "b1", cluster: str = "c"
) -> PieLocal:
    metrics = {"uplink": MetricReport(value=uplink)}
    return PieLocal(broker=broker, cluster=cluster, state=state, busy=busy, metrics=metrics, period_s=1.0)


def test_what_is_unchanged_is_published_every_other_period() -> None:
    publisher = PiePublisher()
    assert [publisher.published(report(0.5)) for _ in range(6)] == [True, False] * 3


def test_what_changed_by_more_than_the_threshold_is_published_at_once() -> None:
    publisher = PiePublisher()
    values = [0.5, 0.52, 0.526, 0.55, 0.552]
    assert [publisher.published(report(value)) for value in values] == [True, False, True, False, True]


def test_a_change_of_state_or_of_business_is_published_at_once() -> None:
    publisher = PiePublisher()
    assert publisher.published(report(0.5))
    assert publisher.published(report(0.5, LoadState.HIGH))
    assert publisher.published(report(0.5, LoadState.HIGH, busy=True))
    assert not publisher.published(report(0.5, LoadState.HIGH, busy=True))


def test_a_metric_that_becomes_known_is_published_at_once() -> None:
    publisher = PiePublisher()
    sample = BrokerSample("b1", Role.EDGE, 100, 100, 10)
    known = BrokerSample("b1", Role.EDGE, 100, 100, 10, Capacity(uplink_bytes_per_s=200))
    first, second = (pie_report(s, "c", LoadState.LOW, busy=False, period_s=1.0) for s in (sample, known))
    assert first.metrics == {}
    assert second.metrics == {"uplink": MetricReport(value=0.5, low=0.9)}
    assert publisher.published(first)
    assert publisher.published(second)


def test_a_report_is_believed_for_three_periods() -> None:
    table = PieTable("me", "c")
    assert table.heard(report(0.5), 10.0)
    assert table.get("b1", 12.9) == report(0.5)
    assert table.fresh(13.0) == {}
    assert table.get("b1", 13.0) is None
    table.heard(report(0.6), 11.0)
    assert table.fresh(13.5) == {"b1": report(0.6)}
    table.forget("b1")
    assert table.fresh(11.0) == {}


def test_reports_of_oneself_and_of_other_clusters_are_not_kept() -> None:
    table = PieTable("me", "c")
    assert not table.heard(report(0.5, broker="me"), 0.0)
    assert not table.heard(report(0.5, cluster="d"), 0.0)
    assert table.fresh(0.0) == {}
    table.validate()


def test_the_table_is_bounded_and_sorted() -> None:
    table = PieTable("me", "c", entries_max=2)
    assert table.heard(report(0.5, broker="z"), 0.0)
    assert table.heard(report(0.5, broker="a"), 1.0)
    assert not table.heard(report(0.5, broker="m"), 2.0)
    assert list(table.fresh(2.0)) == ["a", "z"]
    # The room of one that expired is free.
    assert table.heard(report(0.5, broker="m"), 3.5)
    assert list(table.fresh(3.5)) == ["a", "m"]
    table.validate()


def test_an_edge_announces_its_load_every_other_period_if_nothing_changes() -> None:
    driver = EdgeDriver("e", [subscription()], Capacity(uplink_bytes_per_s=10_000))
    for _ in range(10):
        driver.sample([SubscriptionSample("out.s.0", "a", 10, 10, 0, 4, 0.4, 100)])
    announced = of(driver.done, Announce)
    assert len(announced) == 5
    assert announced[0].message.metrics["uplink"].value == 0.1
    assert announced[0].message.state is LoadState.LOW
