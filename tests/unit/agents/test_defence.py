"""Publishers that flood: named, asked to slow down, cut off, forgotten."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import subscription
from tests.support.parts_driver import PartsDriver, decisions, messages, of
from tidegate_agents.config import BalancingConfig
from tidegate_agents.head.publishers import defence
from tidegate_agents.load.metrics import BrokerSample, PublisherSample, Role
from tidegate_agents.machine import Action, DisconnectPublisher, HeadSampled
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.publishers import ThrottleOrder


def driver(**limits: float) -> PartsDriver:
    found = PartsDriver(balancing=BalancingConfig(flood_samples_needed=3, containment_s=30.0, **limits))  # type: ignore[arg-type]
    found.edge("e1")
    found.context.ledger.found("e1", subscription(pattern="wanted"))
    found.hello("p~1", "wanted")
    return found


def flood(
    found: PartsDriver, rate: float, topic: str = "wanted", size: float = 10.0, name: str = "p~1"
) -> list[Action]:
    return found.sample(PublisherSample(name, topic, rate, size), PublisherSample("good~1", "wanted", 1.0, 10.0))


def test_without_limits_nobody_is_contained() -> None:
    found = driver()
    for _ in range(10):
        assert not messages(flood(found, 1e6), ThrottleOrder)


def test_a_flood_is_named_after_enough_samples_in_a_row_and_asked_to_keep_to_the_limit() -> None:
    found = driver(publisher_messages_per_s_max=100.0)
    assert not messages(flood(found, 500.0), ThrottleOrder)
    assert not messages(flood(found, 500.0), ThrottleOrder)
    actions = flood(found, 500.0)
    (order,) = messages(actions, ThrottleOrder)
    assert (order.publisher, order.messages_per_s, order.for_us) == ("p~1", 100.0, 30_000_000)
    (decision,) = decisions(actions, d.FloodingPublisher)
    assert (decision.publisher, decision.session, decision.topics) == ("p~1", "p~1", ("wanted",))
    assert (decision.value_per_s, decision.limit_per_s) == (500.0, 100.0)
    assert not decision.disconnected


def test_samples_below_the_limit_in_between_start_the_count_anew() -> None:
    found = driver(publisher_messages_per_s_max=100.0)
    for rate in (500.0, 500.0, 50.0, 500.0, 500.0):
        assert not messages(flood(found, rate), ThrottleOrder)
    assert messages(flood(found, 500.0), ThrottleOrder)


def test_a_report_that_stands_for_several_samples_is_held_against_its_publisher_once() -> None:
    found = driver(publisher_messages_per_s_max=100.0)

    def heard(rate: float, *, again: bool) -> list[Action]:
        found.now += 1.0
        unheard = frozenset({"p~1"}) if again else frozenset[str]()
        sample = PublisherSample("p~1", "wanted", rate, 10.0)
        return found.give(HeadSampled(BrokerSample("h", Role.HEAD), (sample,), unheard=unheard))

    for again in (False, True, True, False, True):
        assert not messages(heard(500.0, again=again), ThrottleOrder)
    assert messages(heard(500.0, again=False), ThrottleOrder), "the third that is new"


def test_whoever_does_not_listen_is_disconnected_after_as_many_samples_again() -> None:
    found = driver(publisher_messages_per_s_max=100.0)
    for _ in range(3):
        flood(found, 500.0)
    # Orders get lost: it is told again with every sample in which it is still above.
    assert messages(flood(found, 500.0), ThrottleOrder)
    assert messages(flood(found, 500.0), ThrottleOrder)
    actions = flood(found, 500.0)
    (cut,) = of(actions, DisconnectPublisher)
    assert cut.publisher == "p~1"
    assert decisions(actions, d.FloodingPublisher)[0].disconnected
    # It comes back and floods on: the same course once more.
    later = [action for _ in range(6) for action in flood(found, 500.0)]
    assert decisions(later, d.FloodingPublisher)
    assert of(later, DisconnectPublisher)


def test_whoever_listens_is_left_alone_and_forgotten() -> None:
    found = driver(publisher_messages_per_s_max=100.0)
    for _ in range(3):
        flood(found, 500.0)
    assert "p~1" in found.parts.defence
    actions = [action for _ in range(29) for action in flood(found, 100.0)]
    assert not messages(actions, ThrottleOrder)
    assert "p~1" in found.parts.defence
    assert decisions(flood(found, 100.0), d.PublisherBehaves)
    assert "p~1" not in found.parts.defence


def test_bytes_are_limited_by_the_rate_at_which_they_fit() -> None:
    found = driver(publisher_bytes_per_s_max=1_000.0)
    actions = [action for _ in range(3) for action in flood(found, 10.0, size=500.0)]
    (order,) = messages(actions, ThrottleOrder)
    assert order.messages_per_s == pytest.approx(2.0)
    assert isinstance(order.found, d.FloodingPublisher)
    assert order.found.reason is d.Flood.BYTES


def test_only_topics_nobody_subscribes_to_count_as_useless() -> None:
    found = driver(useless_messages_per_s_max=5.0)
    for _ in range(5):
        assert not messages(flood(found, 500.0, "wanted"), ThrottleOrder)
    actions = [action for _ in range(3) for action in flood(found, 50.0, "unheard")]
    (order,) = messages(actions, ThrottleOrder)
    assert order.messages_per_s == pytest.approx(5.0)
    assert isinstance(order.found, d.FloodingPublisher)
    assert (order.found.reason, order.found.topics) == (d.Flood.USELESS, ("unheard",))


def test_a_foreign_client_gets_no_order_but_is_cut_off_all_the_same() -> None:
    found = driver(publisher_messages_per_s_max=100.0)
    actions = [action for _ in range(6) for action in flood(found, 500.0, name="amqp-client")]
    assert not messages(actions, ThrottleOrder)
    assert decisions(actions, d.FloodingPublisher)
    assert [cut.publisher for cut in of(actions, DisconnectPublisher)] == ["amqp-client"]


def test_the_number_of_flooders_watched_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defence, "FLOODERS_MAX", 2)
    found = driver(publisher_messages_per_s_max=1.0)
    samples = [PublisherSample(f"x{number}~1", "wanted", 10.0, 1.0) for number in range(5)]
    actions = [action for _ in range(3) for action in found.sample(*samples)]
    assert len(decisions(actions, d.FloodingPublisher)) == 2
