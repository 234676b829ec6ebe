"""What processes export: bounded whatever clients do, right to the figure, and documented."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.protocol.decision_samples import SAMPLES
from tidegate_agents.config import EdgeConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.metrics import BrokerSample, Role, SubscriptionSample
from tidegate_agents.load.states import THRESHOLDS
from tidegate_agents.machine import EdgeSampled, Started
from tidegate_brokers.observe.exporting import reference
from tidegate_brokers.observe.exporting.classes import OTHER, SILENT_S, TopicLabels
from tidegate_brokers.observe.exporting.deliveries import SHARE_EDGES, DeliveryMetrics, shares
from tidegate_brokers.observe.exporting.load import EdgeLoadMetrics
from tidegate_brokers.observe.exporting.records import MOVES_MAX, RETURN_S, HeadRecordMetrics, RecordMetrics
from tidegate_brokers.observe.telemetry.decisions import DecisionRecords
from tidegate_brokers.observe.telemetry.origin import Origin
from tidegate_brokers.sensing.gauges import Sensed, SensedCollector
from tidegate_protocol import decisions as d
from tidegate_protocol import telemetry as t
from tidegate_protocol.latency import LATENCY_US_MAX, bucket_of
from tidegate_protocol.messages import Capacity, Subscription
from tidegate_simulator.observer import Observer
from tidegate_simulator.swarm import random_scenario
from tidegate_simulator.world import World

ROOT = Path(__file__).parents[3]
SUBSCRIPTIONS = 10_000
TOPICS_MAX, QUEUES_MAX = 50, 200
PER_TOPIC_ON_EDGE, PER_TOPIC_ON_HEAD, PER_QUEUE = 10, 46, 6

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(registry: CollectorRegistry) -> Samples:
    """Every series, by name and labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def header(time_us: int = 1) -> dict[str, object]:
    return {"time_us": time_us, "cluster": "north", "broker": "b"}


def digest(pattern: str, latencies_us: list[int], deadline_us: int = 1_000_000, **more: object) -> t.LatencyDigest:
    counts: dict[int, int] = {}
    for latency_us in latencies_us:
        counts[bucket_of(latency_us)] = counts.get(bucket_of(latency_us), 0) + 1
    fields = {
        **header(),
        "subscriber": "s",
        "run": 1,
        "number": 1,
        "pattern": pattern,
        "deadline_us": deadline_us,
        "elapsed_us": 1,
        "received": len(latencies_us),
        "late": sum(latency_us > deadline_us for latency_us in latencies_us),
        "latency_us_sum": sum(latencies_us),
        "buckets": tuple(sorted(counts)),
        "counts": tuple(counts[bucket] for bucket in sorted(counts)),
        **more,
    }
    return t.LatencyDigest.model_validate(fields)


# Cardinality


def crowded_edge(subscriptions: int) -> CollectorRegistry:
    """An edge with a topic and a deadline of its own for every subscription."""
    capacity = Capacity(uplink_bytes_per_s=1e6, downlink_bytes_per_s=1e6, matching_per_s=1e4)
    agent = EdgeAgent(
        EdgeConfig(edge="b", cluster="north", head="h", client_url="u", link_url="u", incarnation=1, capacity=capacity)
    )
    outputs = tuple(
        Subscription(subscriber=f"s{n}", number=0, pattern=f"topic.{n}", deadline_us=2_000_000 + n, expires_s=60)
        for n in range(subscriptions)
    )
    samples = tuple(
        SubscriptionSample(f"out.s{n}.0", f"topic.{n}", 2.0, 2.0, 1.0 + n % 7, 0.0, 0.0, 100.0)
        for n in range(subscriptions)
    )
    broker = BrokerSample("b", Role.EDGE, 1e5, 2e5, 100.0, capacity)
    agent.handle(Started(outputs=outputs), 0.0)
    for second in range(1, 4):
        agent.handle(EdgeSampled(broker, samples), float(second))
    registry = CollectorRegistry()
    RecordMetrics(registry)
    sensed = Sensed(broker, samples)
    registry.register(EdgeLoadMetrics(agent, sensed, THRESHOLDS, TOPICS_MAX))
    registry.register(SensedCollector(sensed, dict, lambda: 1e6, lambda queue: 1.0, QUEUES_MAX))
    return registry


def test_ten_thousand_subscriptions_export_no_more_series_than_configured(
    record_property: Callable[[str, object], None],
) -> None:
    few, many = crowded_edge(1), crowded_edge(SUBSCRIPTIONS)
    others = len(scraped(few)) - PER_TOPIC_ON_EDGE - PER_QUEUE
    began_s = time.perf_counter()
    text = generate_latest(many)
    took_s = time.perf_counter() - began_s
    samples = scraped(many)
    assert len(samples) <= others + PER_TOPIC_ON_EDGE * (TOPICS_MAX + 1) + PER_QUEUE * QUEUES_MAX
    assert value(samples, "tidegate_topic_subscriptions_count", topic=OTHER) == SUBSCRIPTIONS - TOPICS_MAX
    total = sum(v for (name, _), v in samples.items() if name == "tidegate_topic_subscriptions_count")
    assert total == SUBSCRIPTIONS, "nobody is left out of the sum"
    record_property("series", len(samples))
    record_property("scrape_s", took_s)
    record_property("scrape_bytes", len(text))
    print(f"{len(samples)} series, {len(text)} bytes, {took_s:.3f} s")


def test_ten_thousand_topics_at_a_head_export_no_more_series_than_configured() -> None:
    registry, deliveries = CollectorRegistry(), DeliveryMetrics(TOPICS_MAX)
    registry.register(deliveries)
    for n in range(SUBSCRIPTIONS):
        deliveries.taken(digest(f"topic.{n}", [1_000 + n], deadline_us=1_000 + 7 * n))
    samples = scraped(registry)
    assert len(samples) <= PER_TOPIC_ON_HEAD * (TOPICS_MAX + 1)
    assert value(samples, "tidegate_delivery_received_messages_total", topic=OTHER) == SUBSCRIPTIONS - TOPICS_MAX


def test_a_topic_keeps_its_label_and_a_silent_one_gives_it_away() -> None:
    labels = TopicLabels(2)
    assert [labels.label(topic, 0.0)[0] for topic in ("a", "b", "c", "a", OTHER)] == ["a", "b", OTHER, "a", OTHER]
    labels.label("b", SILENT_S)
    assert labels.label("c", SILENT_S) == ("c", "a")
    assert labels.label("b", SILENT_S) == ("b", None)
    labels.keep({"c"})
    assert labels.label("d", SILENT_S) == ("d", None)
    assert TopicLabels(0).label("a") == (OTHER, None)


# Load


def test_depth_and_threshold_are_those_of_the_queue_nearest_to_it() -> None:
    samples = scraped(crowded_edge(1))
    used = value(samples, "tidegate_topic_threshold_used_ratio", topic="topic.0")
    depth = value(samples, "tidegate_topic_depth_messages", topic="topic.0")
    threshold = value(samples, "tidegate_topic_threshold_messages", topic="topic.0")
    assert used == pytest.approx(depth / threshold)
    assert (depth, 0.0 < used < 1.0) == (1.0, True)
    assert value(samples, "tidegate_broker_offered_utilization_ratio", resource="uplink") == pytest.approx(0.2)
    assert value(samples, "tidegate_broker_used_utilization_ratio", resource="uplink") == pytest.approx(2e-4)
    assert value(samples, "tidegate_broker_threshold_utilization_ratio", resource="uplink", bound="low") == 0.9
    assert ("tidegate_broker_threshold_utilization_ratio", (("bound", "high"), ("resource", "uplink"))) not in samples
    states = {labels[0][1]: v for (name, labels), v in samples.items() if name == "tidegate_broker_state_info"}
    assert sum(states.values()) == 1.0


# Deliveries


def test_the_edge_at_the_deadline_is_exact() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(200):
        deadline_us = draw.randrange(1_000, 10_000_000)
        latencies = [round(deadline_us * draw.lognormvariate(0.0, 0.3)) for _ in range(50)]
        latencies += [deadline_us, deadline_us + 1, min(9 * deadline_us, LATENCY_US_MAX)]
        one = digest("a", latencies, deadline_us)
        found = shares(one)
        assert sum(found) == len(latencies)
        assert min(found) >= 0
        assert sum(found[: SHARE_EDGES.index(1.0) + 1]) == len(latencies) - one.late


def test_latencies_have_an_edge_at_every_deadline_and_add_up() -> None:
    registry, deliveries = CollectorRegistry(), DeliveryMetrics(5)
    registry.register(deliveries)
    deliveries.taken(digest("a", [100_000] * 8 + [1_400_000] * 2, deadline_us=1_250_000, missing=3))
    deliveries.taken(digest("b", [100_000], deadline_us=700_000))
    deliveries.taken(digest("a", [100_000] * 10, deadline_us=1_250_000, missing=1))
    samples = scraped(registry)
    bucket = "tidegate_delivery_latency_seconds_bucket"
    edges = {dict(labels)["le"] for name, labels in samples if name == bucket}
    assert {"0.7", "1.25", "0.005", "+Inf"} <= edges
    assert value(samples, bucket, topic="a", le="1.25") == 18
    assert value(samples, "tidegate_delivery_latency_seconds_count", topic="a") == 20
    assert value(samples, "tidegate_delivery_latency_seconds_sum", topic="a") == pytest.approx(4.6)
    assert value(samples, "tidegate_delivery_latency_deadline_ratio_bucket", topic="a", le="1.0") == 18
    assert value(samples, "tidegate_delivery_late_messages_total", topic="a") == 2
    assert value(samples, "tidegate_delivery_missing_messages", topic="a") == 1, "what stands last counts"
    assert value(samples, "tidegate_delivery_deadline_seconds", topic="b") == 0.7


# Records


def migration(client: str, source: str, target: str, time_us: int = 1, **more: object) -> t.Migration:
    fields = {"session": "x", "clients": "subscribers", "client": client, "pattern": "a", "reason": "moved"}
    return t.Migration.model_validate(
        {**header(time_us), **fields, "source": source, "target": target, "moved": True, "duration_us": 400_000, **more}
    )


def decided(decision: d.Decision) -> list[t.TelemetryRecord]:
    return DecisionRecords(Origin("north", "b", Role.HEAD, "peer-wd", 7)).decided(decision, 1, 0.0)


def test_sessions_moves_and_predictions_are_counted() -> None:
    registry = CollectorRegistry()
    counts = HeadRecordMetrics(registry)
    made: list[t.TelemetryRecord] = [
        t.SessionBegan.model_validate(
            {**header(), "session": "x", "source": "b", "clients": "subscribers", "policy": "p", "necessary": False}
        ),
        t.SessionEnded.model_validate(
            {**header(), "session": "x", "source": "b", "clients": "subscribers", "moved": 2, "failed": 1}
            | {"duration_us": 700_000, "reason": d.SessionOutcome.MOVES_ENDED}
        ),
        t.Outcome.model_validate(
            {**header(), "session": "x", "after_us": 1, "bytes_offered_per_s": 1.0}
            | {"metrics": ({"metric": "uplink", "measured": 0.9, "predicted": 0.94},)}
        ),
        migration("s1", "b1", "b0"),
        migration("s2", "b1", "b0", moved=False, reason=d.MoveOutcome.TIME_OUT),
        t.MigrationGapTold.model_validate(
            {**header(), "subscriber": "s1", "migration": "m", "pattern": "a", "source": "b1", "target": "b0"}
            | {"gap_us": 30_000, "held": 5}
        ),
        *decided(d.EdgePresence("b9", d.Presence.SILENT)),
        *decided(d.NeighbourPresence("h2", d.Presence.HEARD)),
    ]
    for record in made:
        counts.taken(record)
    samples = scraped(registry)
    assert value(samples, "tidegate_sessions_started_total", clients="subscribers", necessary="no") == 1
    labels = {"clients": "subscribers", "outcome": "partly", "reason": "moves-ended"}
    assert value(samples, "tidegate_sessions_ended_total", **labels) == 1
    assert value(samples, "tidegate_session_duration_seconds_sum") == 0.7
    assert value(samples, "tidegate_prediction_error_ratio_sum", resource="uplink") == pytest.approx(0.04)
    assert value(samples, "tidegate_prediction_last_error_ratio", resource="uplink") == pytest.approx(-0.04)
    labels = {"clients": "subscribers", "outcome": "stayed", "reason": "time-out"}
    assert value(samples, "tidegate_migrations_ended_total", **labels) == 1
    assert value(samples, "tidegate_migration_duration_seconds_count", clients="subscribers") == 1
    assert value(samples, "tidegate_migration_gap_seconds_sum") == 0.03
    assert value(samples, "tidegate_edge_up", edge="b9") == 0
    assert value(samples, "tidegate_neighbour_up", neighbour="h2") == 1
    assert value(samples, "tidegate_decisions_total", decision="edge-presence", reason="silent") == 1
    for heard in (d.EdgePresence("b9", d.Presence.HEARD), d.NeighbourPresence("h2", d.Presence.GOODBYE)):
        for record in decided(heard):
            counts.taken(record)
    samples = scraped(registry)
    assert value(samples, "tidegate_edge_up", edge="b9") == 1
    assert value(samples, "tidegate_neighbour_up", neighbour="h2") == 0
    for record in decided(d.EdgeForgotten("b9", 60.0)):
        counts.taken(record)
    assert ("tidegate_edge_up", (("edge", "b9"),)) not in scraped(registry)


def test_who_comes_back_soon_has_moved_for_nothing() -> None:
    registry = CollectorRegistry()
    counts = HeadRecordMetrics(registry)
    later_us = round(RETURN_S * 1e6)
    for record in (
        migration("s1", "b1", "b0", 1),
        migration("s1", "b0", "b1", 5),
        migration("s2", "b1", "b0", 1),
        migration("s2", "b0", "b2", 5),
        migration("s3", "b1", "b0", 1),
        migration("s3", "b0", "b1", 2 + later_us),
    ):
        counts.taken(record)
    assert value(scraped(registry), "tidegate_migrations_returned_total", clients="subscribers") == 1
    for n in range(MOVES_MAX + 10):
        counts.taken(migration(f"x{n}", "b1", "b0"))
    assert len(counts._last) == MOVES_MAX


class Counted(Observer):
    """All decisions of a run, counted as brokers count them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counts = HeadRecordMetrics(self.registry)
        self.kinds: set[str] = set()

    def decided(self, broker: str, decision: d.Decision, now: float) -> None:
        self.kinds.add(decision.kind)
        for record in decided(decision):
            self.counts.taken(record)


def test_what_agents_say_under_faults_has_a_label() -> None:
    counted = Counted()
    for seed in range(12):
        world = World(random_scenario(seed), observers=(counted,), validate_every_step=False)
        world.start()
        world.kernel.run(world.scenario.duration_s)
    samples = scraped(counted.registry)
    labels = [
        dict(labels) for (name, labels), number in samples.items() if name == "tidegate_decisions_total" and number
    ]
    assert {each["decision"] for each in labels} == counted.kinds
    assert len(counted.kinds) > len(d.DECISIONS) // 3, "the runs are too quiet to say anything"
    for each in labels:
        assert each["reason"] in labels_of(d.BY_KIND[each["decision"]])


def labels_of(kind: type[d.Decision]) -> set[str]:
    return {d.NO_REASON} if kind.labels is None else {str(member) for member in kind.labels}


def test_labels_of_decisions_are_from_a_set_that_is_fixed_and_small() -> None:
    assert len(d.BY_KIND) + len(d.LABELS) < 200
    registry = CollectorRegistry()
    counts = HeadRecordMetrics(registry)
    for sample in SAMPLES:
        for record in decided(sample):
            counts.taken(record)
    for name, labels in scraped(registry):
        found = dict(labels)
        if name == "tidegate_decisions_total":
            assert found["reason"] in labels_of(d.BY_KIND[found["decision"]])
        assert found.get("reason", d.NO_REASON) in d.LABELS


# The page


def test_the_page_is_made_from_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == reference.render(), "run `make docs`"


def test_names_have_units_and_every_metric_a_meaning() -> None:
    units = ("seconds", "bytes", "messages", "records", "ratio", "count", "info", "per_second", "up")
    for family in reference.families():
        assert family.name.startswith("tidegate_")
        assert family.text
        if family.type != "counter":
            assert family.name.endswith(units), family.name
