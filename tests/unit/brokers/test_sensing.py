"""From RabbitMQ's text to samples: hostile names, counters that restart, ticks of another age, round trips, sizes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from tidegate_agents.load.metrics import SubscriptionSample
from tidegate_agents.machine import EdgeSampled
from tidegate_brokers.sensing.edges import EdgeSampler
from tidegate_brokers.sensing.exposition import (
    ACKED,
    CONSUMERS,
    MESSAGE_BYTES,
    MESSAGES,
    PUBLISHED,
    READY,
    RECEIVED,
    UNACKED,
    Exposition,
    ExpositionReader,
)
from tidegate_brokers.sensing.gauges import SensingMetrics
from tidegate_brokers.sensing.heads import REPORT_AGE_MAX_S, HeadSampler
from tidegate_brokers.sensing.queues import DepthEstimate, Differences
from tidegate_brokers.sensing.sensor import Sensor
from tidegate_brokers.sensing.source import MetricsSource, Scrape
from tidegate_brokers.sensing.trips import ProbedTrip, SubscriberTrip
from tidegate_brokers.sensing.wire import wire_overhead_bytes
from tidegate_protocol.messages import Capacity, PublisherReport, Subscription, TopicCount

VHOST = "edge one"
OUT = "out.siren.0"
OVERHEAD_BYTES = wire_overhead_bytes("alert.#")


def line(metric: str, labels: str, value: object) -> str:
    return f"{metric}{{{labels}}} {value}\n"


def section(metric: str, *lines: str) -> str:
    return f"# TYPE {metric} gauge\n# HELP {metric} Of that kind\n" + "".join(lines)


def queue_line(metric: str, value: object, queue: str = OUT, vhost: str = VHOST) -> str:
    return line(metric, f'vhost="{vhost}",queue="{queue}"', value)


def read(text: str, vhost: str = VHOST) -> Exposition:
    return ExpositionReader(vhost).read(text)


# The text


def test_only_the_lines_of_the_metric_and_of_the_virtual_host_are_read() -> None:
    text = section(READY, queue_line(READY, 7), queue_line(READY, 9, vhost="edge two"), queue_line(READY, 3, "link.x"))
    text += section(UNACKED, queue_line(UNACKED, 4)) + "\n"
    answer = read(text)
    assert answer.per_queue(READY, "out.") == {OUT: 7.0}
    assert answer.per_queue(UNACKED, "out.") == {OUT: 4.0}
    assert answer.per_queue(MESSAGES, "out.") == {}
    assert answer.has(READY)
    assert not answer.has("rabbitmq_detailed_queue_messages")


@pytest.mark.parametrize(
    "name",
    [
        'out.siren.0"} 99 #',
        'x",queue="out.siren.0',
        'out.a"b',
        "out.a\\b",
        "# TYPE rabbitmq_detailed_queue_messages_ready gauge",
        'out.siren.0"} 99',
    ],
)
def test_no_name_can_pass_for_another_queue_or_hide_it(name: str) -> None:
    text = section(READY, queue_line(READY, 1, name), queue_line(READY, 7), queue_line(READY, 2, name))
    assert read(text).per_queue(READY, "out.") == {OUT: 7.0}


def test_a_virtual_host_with_quotes_is_found_written_either_way() -> None:
    vhost = 'a"b\\c'
    for written in (vhost, 'a\\"b\\\\c'):
        text = section(READY, queue_line(READY, 5, vhost=written))
        assert read(text, vhost).per_queue(READY, "out.") == {OUT: 5.0}


def test_what_is_not_a_number_is_left_out() -> None:
    text = section(READY, queue_line(READY, "NaN"), queue_line(READY, "1.5e3", "out.other.0"))
    assert read(text).per_queue(READY, "out.") == {"out.other.0": 1500.0}


def test_lines_that_have_not_changed_are_not_read_again() -> None:
    reader = ExpositionReader(VHOST)
    text = section(READY, queue_line(READY, 7))
    first = reader.read(text).per_queue(READY, "out.")
    assert reader.read(text).per_queue(READY, "out.") is first
    assert reader.read(section(READY, queue_line(READY, 8))).per_queue(READY, "out.") == {OUT: 8.0}


# Counters


def test_a_counter_that_restarts_never_goes_backwards() -> None:
    differences = Differences()
    assert differences.taken([("c1", "q", 100.0)]) == ({}, set())
    assert differences.taken([("c1", "q", 130.0)]) == ({"q": 30.0}, set())
    assert differences.taken([("c1", "q", 5.0)]) == ({"q": 5.0}, set()), "the same name, begun anew"
    assert differences.taken([("c2", "q", 7.0)]) == ({"q": 7.0}, {"q"}), "another channel"
    assert differences.taken([]) == ({}, {"q"})


def test_several_channels_of_one_queue_add_up() -> None:
    differences = Differences()
    differences.taken([("c1", "q", 1.0), ("c2", "q", 1.0), ("c1", "r", 1.0)])
    assert differences.taken([("c1", "q", 4.0), ("c2", "q", 3.0), ("c1", "r", 1.0)])[0] == {"q": 5.0}


def test_what_a_queue_holds_belongs_to_the_moment_of_the_counters() -> None:
    """A queue that starts to grow by 50/s; its own tick is 0.9 s old."""
    held = DepthEstimate()
    for _ in range(20):
        assert held.now(100.0, 100.0, 20.0, 1.0) == pytest.approx(20.0)
    for second in range(1, 6):
        seen = 20.0 + 50.0 * max(second - 0.9, 0.0)
        assert held.now(150.0, 100.0, seen, 1.0) == pytest.approx(20.0 + 50.0 * second, abs=26.0)


def test_a_repeated_tick_does_not_stop_the_clock() -> None:
    held = DepthEstimate()
    for _ in range(20):
        held.now(100.0, 100.0, 20.0, 1.0)
    assert held.now(110.0, 100.0, 20.0, 1.0) == pytest.approx(30.0, abs=2.0)


def test_what_rabbitmq_drops_is_not_held_for_long() -> None:
    """A queue at its limit: 100/s come, 10/s are taken, the rest is dropped."""
    held = DepthEstimate()
    for _ in range(50):
        value = held.now(100.0, 10.0, 1000.0, 1.0)
        assert 900.0 <= value <= 1100.0


# Round trips


def test_the_round_trip_is_found_under_noise_and_kept_under_backlog() -> None:
    random = Random(1)
    trip = SubscriberTrip()
    rate, true_s = 100.0, 0.4
    for _ in range(60):
        held = sum(random.random() < 0.5 for _ in range(int(2 * rate * true_s)))
        trip.sampled(held, 0.0, rate + random.gauss(0.0, 5.0), 1.0)
    assert trip.estimate_s == pytest.approx(true_s, rel=0.15)
    before_s = trip.estimate_s
    for second in range(120):
        trip.sampled(rate * true_s + 5.0 * second, 0.0, rate, 1.0)
    assert trip.estimate_s == pytest.approx(before_s, rel=0.05), "waiting is no distance"


def test_nothing_is_learned_while_messages_are_ready_or_a_subscriber_is_new() -> None:
    trip = SubscriberTrip()
    for _ in range(30):
        trip.sampled(500.0, 300.0, 100.0, 1.0)
    assert trip.provisional_s is None
    trip.reconnected()
    trip.sampled(200.0, 0.0, 1.0, 1.0)
    assert trip.provisional_s is None, "its acknowledgements are still on their way"


def test_the_clock_offset_comes_from_the_fastest_probe() -> None:
    trip = ProbedTrip()
    assert trip.round_trip_s is None
    for sent_s, there_s, back_s in ((0.0, 0.9, 1.0), (10.0, 10.05, 10.1), (20.0, 20.1, 20.8), (30.0, 30.3, 30.4)):
        trip.answered(sent_s, back_s, 1000.0 + sent_s, 1007.0 + there_s)
    assert trip.clock_offset_s == pytest.approx(7.0)
    assert trip.clock_error_s == pytest.approx(0.05)
    assert trip.round_trip_s == pytest.approx(0.4)


# An edge


@dataclass
class FakeQueue:
    """One output queue as RabbitMQ would tell of it."""

    pattern: str
    published: float = 0.0
    acked: float = 0.0
    ready: float = 0.0
    unacked: float = 0.0
    consumers: int = 1
    body_bytes: float = 400.0
    channel: str = "<0.1.0>"


@dataclass
class FakeEdge:
    """An edge with its queues, and the sampler that looks at it."""

    queues: dict[str, FakeQueue]
    reader: ExpositionReader = field(default_factory=lambda: ExpositionReader(VHOST))
    sampler: EdgeSampler = field(default_factory=lambda: EdgeSampler("edge", Capacity(), 0.0))
    received: float = 0.0
    now_s: float = 0.0

    def text(self, sizes: bool) -> str:
        queues = self.queues.items()
        parts = [
            section(READY, *(queue_line(READY, q.ready, name) for name, q in queues)),
            section(UNACKED, *(queue_line(UNACKED, q.unacked, name) for name, q in queues)),
            section(MESSAGES, *(queue_line(MESSAGES, q.ready + q.unacked, name) for name, q in queues)),
            section(CONSUMERS, *(queue_line(CONSUMERS, q.consumers, name) for name, q in queues)),
            section(
                ACKED,
                *(
                    line(ACKED, f'channel="{q.channel}",vhost="{VHOST}",queue="{name}"', q.acked)
                    for name, q in queues
                    if q.consumers
                ),
            ),
            section(
                PUBLISHED,
                *(
                    line(
                        PUBLISHED,
                        f'channel="<0.9.0>",queue_vhost="{VHOST}",queue="{name}",exchange_vhost="{VHOST}",'
                        'exchange="tidegate.deliver"',
                        q.published,
                    )
                    for name, q in queues
                ),
            ),
            section(
                RECEIVED,
                line(RECEIVED, f'channel="<0.9.0>",vhost="{VHOST}",exchange="tidegate.deliver"', self.received),
            ),
        ]
        if sizes:
            lines = (queue_line(MESSAGE_BYTES, (q.ready + q.unacked) * q.body_bytes, name) for name, q in queues)
            parts.append(section(MESSAGE_BYTES, *lines))
        return "".join(parts)

    def sample(self, sizes: bool = True, migrating: frozenset[str] = frozenset()) -> EdgeSampled | None:
        outputs = {
            name: Subscription(subscriber="siren", number=0, pattern=q.pattern, deadline_us=1, expires_s=1)
            for name, q in self.queues.items()
        }
        answer = self.reader.read(self.text(sizes))
        reading = self.sampler.taken(answer, self.now_s, outputs, 0.1, 0.0, migrating)
        return None if reading is None else reading.sample

    def second(self, per_s: float = 100.0, **options: bool) -> EdgeSampled | None:
        """A second in which every queue gets `per_s` and, where somebody takes from it, loses as many."""
        self.now_s += 1.0
        self.received += per_s
        for queue in self.queues.values():
            queue.published += per_s
            queue.acked += per_s if queue.consumers else 0.0
            queue.ready += 0.0 if queue.consumers else per_s
        return self.sample(**options)

    def healthy(self) -> dict[str, SubscriptionSample]:
        """After half a minute of health."""
        for queue in self.queues.values():
            queue.unacked = 40.0 if queue.consumers else 0.0
        sample = None
        for _ in range(30):
            sample = self.second()
        assert sample is not None
        return {one.name: one for one in sample.subscriptions}


def test_a_healthy_edge() -> None:
    edge = FakeEdge({OUT: FakeQueue("alert.#"), "out.siren.1": FakeQueue("alert.#", body_bytes=600.0)})
    assert edge.sample() is None, "one answer has no rates"
    found = edge.healthy()
    assert found[OUT].enqueue_per_s == found[OUT].drain_per_s == pytest.approx(100.0)
    assert found[OUT].round_trip_s == pytest.approx(0.4)
    assert found[OUT].depth == pytest.approx(0.0, abs=1.0)
    assert found[OUT].message_bytes == pytest.approx(400 + OVERHEAD_BYTES)
    sample = edge.second()
    assert sample is not None
    assert sample.broker.messages_in_per_s == pytest.approx(100.0)
    assert sample.broker.bytes_offered_per_s == pytest.approx(100.0 * (1000 + 2 * OVERHEAD_BYTES))
    assert sample.head_round_trip_s == 0.1


def test_two_periods_count_together_unless_the_load_has_changed() -> None:
    edge = FakeEdge({OUT: FakeQueue("alert.#")})
    edge.sample()
    edge.healthy()

    def messages_in(per_s: float) -> float:
        sample = edge.second(per_s)
        assert sample is not None
        return sample.broker.messages_in_per_s

    assert messages_in(104.0) == pytest.approx(102.0)
    assert messages_in(96.0) == pytest.approx(100.0)
    assert messages_in(150.0) == pytest.approx(150.0)
    assert messages_in(160.0) == pytest.approx(160.0), "the rest of the change"
    assert messages_in(164.0) == pytest.approx(162.0)


def test_an_absent_subscriber_is_seen_as_absent_and_its_backlog_as_such() -> None:
    edge = FakeEdge({OUT: FakeQueue("alert.#", consumers=0)})
    edge.sample()
    found = edge.healthy()[OUT]
    assert not found.attached
    assert found.drain_per_s == 0.0
    assert found.depth == pytest.approx(3000.0, rel=0.1)
    sample = edge.second()
    assert sample is not None
    assert (sample.broker.messages_in_per_s, sample.broker.bytes_offered_per_s) == (pytest.approx(100.0), 0.0)


def test_a_backlog_behind_a_narrow_uplink_is_depth_and_no_round_trip() -> None:
    edge = FakeEdge({OUT: FakeQueue("alert.#")})
    edge.sample()
    edge.healthy()
    queue = edge.queues[OUT]
    for second in range(1, 21):
        edge.now_s += 1.0
        queue.published += 120.0
        queue.acked += 100.0
        queue.unacked += 20.0
        sample = edge.sample()
        assert sample is not None
        assert sample.subscriptions[0].depth == pytest.approx(20.0 * second, abs=11.0)


def test_a_size_is_that_of_the_pattern_until_the_queue_has_one() -> None:
    edge = FakeEdge({OUT: FakeQueue("alert.#", unacked=10.0), "out.siren.1": FakeQueue("alert.#")})
    edge.sample()
    edge.queues["out.siren.1"].unacked = 0.0
    sample = edge.second(sizes=False)
    assert sample is not None
    assert [one.message_bytes for one in sample.subscriptions] == [400.0 + OVERHEAD_BYTES] * 2


def test_a_queue_in_migration_teaches_no_round_trip() -> None:
    edge = FakeEdge({OUT: FakeQueue("alert.#")})
    edge.sample()
    before_s = edge.healthy()[OUT].round_trip_s
    edge.queues[OUT].unacked = 900.0
    for _ in range(30):
        edge.now_s += 1.0
        edge.queues[OUT].published += 100.0
        sample = edge.sample(migrating=frozenset({OUT}))
    assert sample is not None
    assert sample.subscriptions[0].round_trip_s == before_s


def test_an_edge_at_rest_gives_the_same_samples_again_without_looking() -> None:
    edge = FakeEdge({f"out.siren.{n}": FakeQueue(f"alert.{n}") for n in range(20)})
    samples = []
    for _ in range(5):
        edge.now_s += 1.0
        samples.append(edge.sample())
    assert samples[-1] is not None
    assert samples[-2] is not None
    assert samples[-1].subscriptions is samples[-2].subscriptions
    edge.queues[OUT].consumers = 0
    edge.now_s += 1.0
    changed = edge.sample()
    assert changed is not None
    assert [one.attached for one in changed.subscriptions] == [False] + [True] * 19


def test_a_queue_that_is_gone_is_forgotten() -> None:
    edge = FakeEdge({OUT: FakeQueue("alert.#"), "out.siren.1": FakeQueue("alert.#")})
    edge.sample()
    edge.second()
    del edge.queues[OUT]
    sample = edge.second()
    assert sample is not None
    assert [one.name for one in sample.subscriptions] == ["out.siren.1"]


# A head


def head_text(published: float, forwarded: float, waiting: int) -> str:
    def received(exchange: str, value: float) -> str:
        return line(RECEIVED, f'channel="<0.2.0>",vhost="{VHOST}",exchange="{exchange}"', value)

    link = (
        f'channel="<0.2.0>",queue_vhost="{VHOST}",queue="link.edge-1",'
        f'exchange_vhost="{VHOST}",exchange="tidegate.publish"'
    )
    return (
        section(RECEIVED, received("tidegate.publish", published), received("tidegate.ingress.head-2", forwarded))
        + section(PUBLISHED, line(PUBLISHED, link, published))
        + section(MESSAGES, queue_line(MESSAGES, waiting, "link.edge-1"))
        + section(MESSAGE_BYTES, queue_line(MESSAGE_BYTES, waiting * 300, "link.edge-1"))
    )


def report(messages: int, elapsed_s: float = 1.0, topic: str = "alert.wave") -> PublisherReport:
    counts = (TopicCount(topic=topic, messages=messages, bytes=messages * 500),)
    return PublisherReport(publisher="buoy~1", elapsed_us=round(elapsed_s * 1e6), topics=counts, round_trip_us=4000)


def test_the_load_of_a_head_and_of_its_publishers() -> None:
    sampler = HeadSampler("head", Capacity(uplink_bytes_per_s=1e6))
    reader = ExpositionReader(VHOST)
    assert sampler.taken(reader.read(head_text(0, 0, 2)), 0.0, {}) is None
    sampler.publishers.reported(report(200, 2.0), 1.5)
    sample = sampler.taken(reader.read(head_text(200, 100, 2)), 2.0, {"head-2": 0.2})
    assert sample is not None
    assert sample.broker.messages_in_per_s == 150.0
    assert sample.broker.bytes_in_per_s == pytest.approx(150.0 * (500 + wire_overhead_bytes("alert.wave")))
    assert sample.broker.bytes_offered_per_s == pytest.approx(100.0 * (300 + wire_overhead_bytes("#")))
    assert sample.neighbour_round_trip_s == {"head-2": 0.2}
    (stream,) = sample.publishers
    assert (stream.publisher, stream.topic, stream.messages_per_s) == ("buoy~1", "alert.wave", 100.0)
    assert stream.message_bytes == 500 + wire_overhead_bytes("alert.wave")
    assert stream.round_trip_s == 0.004


def test_a_report_counts_until_the_next_or_until_it_is_old() -> None:
    book = HeadSampler("head", Capacity()).publishers
    book.reported(report(100), 0.0)
    book.reported(report(50, topic="alert.fire"), 1.0)
    assert [(one.topic, one.messages_per_s) for one in book.fresh(1.5)] == [("alert.fire", 50.0)]
    assert book.fresh(1.0 + REPORT_AGE_MAX_S) == ()


def test_a_few_messages_in_the_moment_before_a_goodbye_are_no_high_rate() -> None:
    book = HeadSampler("head", Capacity()).publishers
    book.reported(report(100, elapsed_s=0.02), 0.0)
    assert [one.messages_per_s for one in book.fresh(0.5)] == [100.0]


def test_a_report_is_news_once() -> None:
    sampler, reader = HeadSampler("head", Capacity()), ExpositionReader(VHOST)

    def unheard(second: float) -> frozenset[str]:
        sample = sampler.taken(reader.read(head_text(0, 0, 0)), second, {})
        assert sample is not None
        assert [one.publisher for one in sample.publishers] == ["buoy~1"]
        return sample.unheard

    sampler.taken(reader.read(head_text(0, 0, 0)), 0.0, {})
    sampler.publishers.reported(report(100), 0.5)
    assert unheard(1.0) == frozenset()
    assert unheard(2.0) == {"buoy~1"}
    sampler.publishers.reported(report(100), 2.5)
    assert unheard(3.0) == frozenset()


# The rhythm


class StillSource(MetricsSource):
    """Nothing ever happens at this RabbitMQ."""

    def __init__(self) -> None:
        pass

    async def ask(self, families: tuple[str, ...], *, sizes: bool) -> Scrape:
        return Scrape(read(""), asyncio.get_running_loop().time(), 0)

    async def close(self) -> None:
        pass


async def test_a_sample_that_is_wanted_soon_need_not_wait_for_the_period() -> None:
    taken: list[float] = []
    done = asyncio.Event()

    def take(answer: Scrape) -> None:
        taken.append(answer.moment_s)
        if len(taken) == 1:
            sensor.soon(0.1)
        elif len(taken) == 2:
            done.set()

    sensor = Sensor(StillSource(), (), 3_600.0, lambda: 1, take, SensingMetrics(CollectorRegistry()))
    sensing = asyncio.create_task(sensor.run())
    await asyncio.wait_for(done.wait(), 60)
    await asyncio.sleep(0.3)
    sensing.cancel()
    assert len(taken) == 2, "the one after that is a period later again"
    assert taken[1] - taken[0] >= 0.1
