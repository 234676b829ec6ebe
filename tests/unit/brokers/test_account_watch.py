"""From RabbitMQ's rows to what accounts send."""

from __future__ import annotations

from tidegate_agents.head.publishers.credibility import UNVERIFIED_S_MAX
from tidegate_agents.load.metrics import AccountSample
from tidegate_brokers.rabbit.management import Senders
from tidegate_brokers.sensing.accounts import MEASURED_AGE_MAX_S, AccountWatch, account_samples
from tidegate_brokers.sensing.exposition import RECEIVED, ExpositionReader
from tidegate_brokers.sensing.heads import HeadSampler
from tidegate_protocol.decisions import Untruth
from tidegate_protocol.messages import Capacity, PublisherReport, TopicCount

WALL_S = 1_000_000.0


def rate(value: float) -> dict[str, float]:
    return {"rate": value}


def connection(user: object, bytes_per_s: float, **more: object) -> dict[str, object]:
    return {"user": user, "recv_oct_details": rate(bytes_per_s), **more}


def channel(user: object, per_s: float, consumers: int = 0, lost: float = 0.0) -> dict[str, object]:
    statistics = {"publish_details": rate(per_s), "drop_unroutable_details": rate(lost)}
    return {"user": user, "consumer_count": consumers, "message_stats": statistics}


def test_rows_are_put_together_by_account() -> None:
    rows = Senders(
        [connection("crowd", 100.0), connection("crowd", 50.0), connection("siren", 5.0)],
        [channel("crowd", 10.0, lost=3.0), channel("crowd", 2.0, consumers=1), {"user": "crowd"}],
    )
    assert account_samples(rows, WALL_S) == [
        AccountSample("crowd", 12.0, 150.0, 3.0, 2, 10.0),
        AccountSample("siren", 0.0, 5.0, 0.0, 1, 0.0),
    ]


def test_rows_that_cannot_be_read_are_left_out() -> None:
    odd: list[dict[str, object]] = [{}, {"user": 5}, {"user": "a", "recv_oct_details": "x"}, {"user": "a", "stats": 3}]
    assert account_samples(Senders(odd, [*odd, channel(None, 5.0)]), WALL_S) == [AccountSample("a", 0.0, 0.0, 0.0, 2)]


def test_a_young_connection_counts_from_its_beginning() -> None:
    row = connection("a", 0.0, recv_oct=8_000, connected_at=(WALL_S - 4.0) * 1000.0)
    assert account_samples(Senders([row], []), WALL_S)[0].bytes_per_s == 2_000.0
    assert account_samples(Senders([row], []), WALL_S + 60.0)[0].bytes_per_s == 0.0, "an old one that rests"


def test_what_was_measured_is_news_once_and_old_after_a_while() -> None:
    watch = AccountWatch(lambda rows: None)  # type: ignore[arg-type,return-value]
    assert watch.measured(0.0) is None
    assert watch.take_news() is None
    watch.taken(Senders([connection("a", 1.0)], []), 10.0, WALL_S)
    assert watch.take_news() == (AccountSample("a", 0.0, 1.0, 0.0, 1),)
    assert watch.take_news() is None
    assert watch.measured(10.0 + MEASURED_AGE_MAX_S) is not None
    assert watch.measured(10.1 + MEASURED_AGE_MAX_S) is None


def report(publisher: str, messages: int, trip_us: int = 0) -> PublisherReport:
    counted = TopicCount(topic="quake.alert", messages=messages, bytes=messages * 100)
    return PublisherReport(publisher=publisher, elapsed_us=1_000_000, topics=(counted,), round_trip_us=trip_us)


def test_a_sampler_believes_what_was_measured_and_names_who_lies() -> None:
    watch = AccountWatch(lambda rows: None)  # type: ignore[arg-type,return-value]
    sampler = HeadSampler("h", Capacity(), watch)
    nothing = ExpositionReader("/").read("")
    found = None
    for second in range(int(UNVERIFIED_S_MAX) + 3):
        now_s = float(second)
        watch.taken(Senders([connection("buoy", 9_000.0)], [channel("buoy", 30.0)]), now_s, WALL_S)
        sampler.publishers.reported(report("buoy~1", 30, 10_000), now_s, "buoy")
        sampler.publishers.reported(report("rival~1", 10**9, 60_000_000), now_s, "rival")
        found = sampler.taken(nothing, now_s, {}) or found
    assert found is not None
    assert [one.publisher for one in found.publishers] == ["buoy~1"]
    assert [(one.account, one.reason) for one in found.untrue] == [("rival", Untruth.UNMEASURED)]
    assert found.accounts == (AccountSample("buoy", 30.0, 9_000.0, 0.0, 1, 30.0),)


def test_where_rabbitmq_tells_no_rates_reports_are_believed() -> None:
    watch = AccountWatch(lambda rows: None)  # type: ignore[arg-type,return-value]
    sampler = HeadSampler("h", Capacity(), watch)
    labels = 'channel="<0.1.0>",vhost="/",exchange="tidegate.publish"'
    reader, found = ExpositionReader("/"), None
    for second in range(int(UNVERIFIED_S_MAX) + 3):
        watch.taken(Senders([{"user": "buoy"}], [{"user": "buoy"}]), float(second), WALL_S)
        sampler.publishers.reported(report("buoy~1", 30, 10_000), float(second), "buoy")
        text = f"# TYPE {RECEIVED} counter\n{RECEIVED}{{{labels}}} {30 * second}\n"
        found = sampler.taken(reader.read(text), float(second), {}) or found
    assert found is not None
    assert found.broker.messages_in_per_s == 30.0
    assert [one.messages_per_s for one in found.publishers] == [30.0]
    assert not found.untrue
