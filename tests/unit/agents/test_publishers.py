"""Who publishes what: rates, paths, and what edges and neighbours are told of them."""

from __future__ import annotations

import math

import pytest

from tests.support.agents_driver import Driver, replies, sent, subscription
from tests.support.parts_driver import PartsDriver, messages
from tidegate_agents.config import BalancingConfig
from tidegate_agents.head.publishers import paths, streams as publishers
from tidegate_agents.head.publishers.credibility import ROUND_TRIP_S_FLOOR
from tidegate_agents.load.metrics import PublisherSample
from tidegate_agents.policy.placement import ExpectedLoad
from tidegate_protocol.balancing.paths import PatternPath, PatternPaths, PublishedTopics, TopicPath
from tidegate_protocol.balancing.publishers import ThrottleOrder
from tidegate_protocol.messages import EdgeHello, Passing, PublisherHello, PublisherWelcome


def stream(publisher: str, topic: str, rate: float, size: float = 100.0, round_trip_s: float = 0.0) -> PublisherSample:
    return PublisherSample(publisher, topic, rate, size, round_trip_s)


def told(driver: PartsDriver, edge: str, seconds: float = 1.0) -> dict[str, PatternPath]:
    actions = driver.tick(seconds)
    return {
        path.pattern: path
        for send in sent(actions, PatternPaths, edge)
        if isinstance(send.message, PatternPaths)
        for path in send.message.paths
    }


def published(driver: PartsDriver, to: str, seconds: float = 1.0) -> dict[str, int]:
    actions = driver.tick(seconds)
    return {
        path.topic: path.path_us
        for send in sent(actions, PublishedTopics, to)
        if isinstance(send.message, PublishedTopics)
        for path in send.message.topics
    }


def test_publishers_may_name_their_accounts_once_every_edge_passes_them_on() -> None:
    """A link that does not would stop at the first such message. An edge of an earlier version says nothing of it."""
    greeting = EdgeHello(
        edge="e1", cluster="c", client_url="amqp://e1:1", link_url="amqp://e1:2", registry_count=0, registry_digest="0"
    )
    for checked in (False, True):
        driver = Driver(checked_accounts=checked)
        for says, passes in ((False, False), (True, True), (None, True), (False, False)):
            driver.tell(greeting.model_copy(update={"accounts_passed": Passing.of(says)}))
            (welcome,) = replies(driver.tell(PublisherHello(publisher="p~1")), PublisherWelcome)
            assert welcome.checked_accounts == (checked and passes)


def test_rates_are_smoothed_and_summed_over_publishers() -> None:
    driver = PartsDriver()
    driver.sample(stream("p~1", "a", 10.0), stream("q~1", "a", 5.0, 200.0))
    assert driver.parts.publishers.expected() == {"a": ExpectedLoad(2_000.0, 15.0)}
    driver.sample(stream("p~1", "a", 12.0), stream("q~1", "a", 5.0, 200.0))
    expected = driver.parts.publishers.expected()["a"]
    assert expected == ExpectedLoad(0.25 * 1_200 + 0.75 * 1_000 + 1_000, 10.5 + 5.0), "one more in a second is chance"
    driver.sample(stream("p~1", "a", 20.0), stream("q~1", "a", 5.0, 200.0))
    assert driver.parts.publishers.expected()["a"] == ExpectedLoad(2_000.0 + 1_000.0, 25.0), "twice as many are not"


def test_a_pattern_in_use_expects_all_topics_it_matches_and_nothing_is_claimed_without_a_measurement() -> None:
    driver = PartsDriver()
    driver.edge("e1")
    driver.context.ledger.found("e1", subscription(pattern="x.*"))
    driver.context.ledger.found("e1", subscription(number=1, pattern="y.#"))
    driver.tick()
    driver.hello("p~1", "y.1")
    driver.sample(stream("p~1", "x.1", 1.0), stream("p~1", "x.2", 2.0), stream("p~1", "x.2.3", 4.0))
    expected = driver.parts.publishers.expected()
    assert expected["x.*"] == ExpectedLoad(300.0, 3.0)
    assert "y.#" not in expected
    assert "y.1" not in expected


def test_a_publisher_that_stops_fades_and_is_forgotten() -> None:
    driver = PartsDriver()
    driver.sample(stream("p~1", "a", 10.0))
    driver.sample()
    assert driver.parts.publishers.expected()["a"].messages_per_s == 2.5
    for _ in range(20):
        driver.sample()
    assert driver.parts.publishers.expected() == {}
    assert not driver.parts.publishers.loads()


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_sample_that_is_no_number_is_passed_over(wrong: float) -> None:
    driver = PartsDriver(balancing=BalancingConfig(publisher_messages_per_s_max=100.0))
    driver.hello("p~1", "a", round_trip_s=0.2)
    for _ in range(10):
        actions = driver.sample(stream("p~1", "a", wrong), stream("p~1", "b", 1.0, wrong), stream("q~1", "a", 1.0))
        actions += driver.sample(stream("p~1", "a", 1.0, round_trip_s=wrong), stream("q~1", "a", 1.0))
        assert not messages(actions, ThrottleOrder)
    assert driver.parts.publishers.expected() == {"a": ExpectedLoad(100.0, 1.0)}
    assert driver.parts.paths.path_of("a").path_us == 100_000


def test_steady_rates_come_to_rest_exactly() -> None:
    driver = PartsDriver()
    driver.sample(stream("p~1", "a", 10.0))
    for _ in range(30):
        driver.sample(stream("p~1", "a", 12.3))
    assert driver.parts.publishers.expected()["a"] == ExpectedLoad(12.3 * 100.0, 12.3)


def test_edges_are_told_the_worst_path_and_the_sides_once() -> None:
    driver = PartsDriver("n")
    driver.edge("e1")
    driver.context.ledger.found("e1", subscription(pattern="a.*"))
    driver.context.ledger.found("e1", subscription(number=1, pattern="nothing"))
    driver.hello("p~1", "a.1", round_trip_s=0.2)
    driver.hello("q~1", "a.2", round_trip_s=0.4)
    assert told(driver, "e1") == {"a.*": PatternPath(pattern="a.*", path_us=200_000, local=True)}
    assert told(driver, "e1") == {}
    driver.sample(round_trips={"n": 0.4})
    driver.tell(PublishedTopics(head="n", topics=(TopicPath(topic="a.3", path_us=500_000),)))
    assert told(driver, "e1") == {"a.*": PatternPath(pattern="a.*", path_us=700_000, local=True, remote=True)}


def test_an_edge_is_told_when_the_last_publisher_has_gone() -> None:
    driver = PartsDriver()
    driver.edge("e1")
    driver.context.ledger.found("e1", subscription(pattern="a"))
    driver.hello("p~1", "a", round_trip_s=0.2)
    assert told(driver, "e1")["a"].local
    driver.parts.publishers.gone("p~1")
    assert told(driver, "e1") == {"a": PatternPath(pattern="a", path_us=0)}


def test_only_those_who_publish_make_the_way_longer() -> None:
    driver = PartsDriver()

    def path_us() -> int:
        return driver.parts.paths.path_of("a").path_us

    driver.hello("far~1", "a", round_trip_s=10.0**6)
    assert path_us() == ROUND_TRIP_S_FLOOR / 2 * 1e6, "nobody else is there: better than nothing, but hardly believed"
    driver.hello("young~1", "a")
    driver.hello("good~1", "a", round_trip_s=0.2)
    assert path_us() == 100_000, "the nearest who has said how far it is"
    driver.hello("far~1", "a", round_trip_s=10.0**6)
    driver.sample(stream("good~1", "a", 1.0, round_trip_s=0.2), stream("far~1", "b", 1.0))
    assert path_us() == 100_000
    driver.sample(stream("good~1", "a", 1.0, round_trip_s=0.2), stream("near~1", "a", 1.0, round_trip_s=0.1))
    assert path_us() == 100_000, "the worst of those who publish"
    for _ in range(30):
        driver.sample()
    driver.hello("good~1", "a", round_trip_s=0.2)
    assert path_us() == 100_000, "also while it is silent"
    driver.sample(stream("far~1", "a", 1.0, round_trip_s=10.0))
    assert path_us() > 1_000_000
    driver.parts.publishers.gone("far~1")
    assert path_us() == 100_000


def test_a_round_trip_that_hardly_changes_is_not_told_again() -> None:
    driver = PartsDriver("n")
    driver.edge("e1")
    driver.context.ledger.found("e1", subscription(pattern="a"))
    driver.sample(stream("p~1", "a", 1.0, round_trip_s=0.2))
    assert told(driver, "e1")
    driver.sample(stream("p~1", "a", 1.0, round_trip_s=0.21))
    assert not told(driver, "e1")
    driver.sample(stream("p~1", "a", 1.0, round_trip_s=0.5))
    assert told(driver, "e1")["a"].path_us > 200_000


def test_an_edge_that_comes_back_is_told_everything_and_all_are_now_and_then() -> None:
    driver = PartsDriver()
    driver.edge("e1")
    driver.context.ledger.found("e1", subscription(pattern="a"))
    driver.hello("p~1", "a", round_trip_s=0.2)
    assert told(driver, "e1")
    driver.context.registry.edges["e1"].alive = False
    assert not told(driver, "e1")
    driver.context.registry.edges["e1"].alive = True
    assert told(driver, "e1")
    refresh_s = paths.EDGE_REFRESH_PERIODS * driver.context.config.balancing.global_period_s
    assert not told(driver, "e1", refresh_s / 2)
    assert told(driver, "e1", refresh_s)


def test_neighbours_are_told_what_is_published_here_and_behind_the_others_but_not_their_own() -> None:
    driver = PartsDriver("m", "n")
    driver.sample(stream("p~1", "here", 1.0, round_trip_s=0.2), round_trips={"m": 0.4, "n": 0.2})
    driver.tell(PublishedTopics(head="m", topics=(TopicPath(topic="far", path_us=50_000),)))
    actions = driver.tick()
    to = {send.to: send.message for send in sent(actions, PublishedTopics) if isinstance(send.message, PublishedTopics)}
    assert {path.topic: path.path_us for path in to["n"].topics} == {"here": 100_000, "far": 250_000}
    assert {path.topic: path.path_us for path in to["m"].topics} == {"here": 100_000}
    assert not messages(driver.tick(), PublishedTopics)


def test_what_a_neighbour_does_not_repeat_is_forgotten() -> None:
    driver = PartsDriver("m", "n")
    driver.edge("e1")
    driver.context.ledger.found("e1", subscription(pattern="far"))
    driver.tell(PublishedTopics(head="m", topics=(TopicPath(topic="far", path_us=50_000),)))
    assert told(driver, "e1")["far"].remote
    period_s = driver.context.config.balancing.global_period_s
    for _ in range(paths.KEPT_REFRESHES * paths.TOPICS_REFRESH_PERIODS):
        last = told(driver, "e1", period_s)
    assert last["far"].remote is False
    assert published(driver, "n", period_s * paths.TOPICS_REFRESH_PERIODS) == {}


def test_too_many_topics_are_covered_by_one_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "TOPICS_PER_REPORT_MAX", 2)
    driver = PartsDriver("m")
    for number in range(4):
        driver.hello(f"p{number}~1", f"t.{number}", round_trip_s=0.1 * (number + 1))
    (message,) = messages(driver.tick(), PublishedTopics)
    assert {path.topic for path in message.topics} == {"t.0", "t.1"}
    assert message.other_path_us == 200_000
    # Whoever is told so takes it for every pattern, and passes it on.
    other = PartsDriver("h", "n", head="m")
    other.edge("e1")
    other.context.ledger.found("e1", subscription(pattern="t.3"))
    other.tell(message)
    actions = other.tick()
    (paths_told,) = messages(actions, PatternPaths)
    assert paths_told.paths == (PatternPath(pattern="t.3", path_us=200_000, remote=True),)
    (passed_on,) = [m.message for m in sent(actions, PublishedTopics, "n")]
    assert isinstance(passed_on, PublishedTopics)
    assert passed_on.other_path_us == 200_000


def test_keys_that_are_no_topics_have_a_rate_but_no_path_and_markers_have_neither() -> None:
    driver = PartsDriver("m")
    driver.sample(stream("p~1", "a..b", 5.0), stream("p~1", "tidegate.marker.x.h", 5.0))
    assert [load.topic for load in driver.parts.publishers.loads()] == ["a..b"]
    assert not messages(driver.tick(), PublishedTopics)


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "STREAMS_MAX", 2)
    driver = PartsDriver()
    driver.sample(*[stream("p~1", f"t.{number}", 1.0) for number in range(5)])
    driver.sample(*[stream("p~1", f"t.{number}", 1.0) for number in range(5)])
    assert len(driver.parts.publishers.loads()) == 2
    kinds = [decision.kind for decision in driver.context.chronicle.decisions]
    assert kinds.count("publishers-full") == 1


def test_the_links_that_carry_a_publisher_are_counted_for_the_analysis() -> None:
    driver = PartsDriver("m", "n")
    driver.edge("e1")
    driver.edge("e2")
    driver.context.ledger.found("e1", subscription(pattern="a.*"))
    driver.context.ledger.found("e2", subscription(number=1, pattern="a.1"))
    driver.context.routes.need("n", "a.#")
    driver.sample(stream("p~1", "a.1", 2.0), stream("p~1", "b", 2.0))
    first, second = driver.parts.publishers.loads()
    assert (first.edges, first.neighbours) == (2, frozenset({"n"}))
    assert (second.edges, second.neighbours) == (0, frozenset())
    assert driver.parts.publishers.wanted("a.1")
    assert not driver.parts.publishers.wanted("b")
