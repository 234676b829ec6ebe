"""From decisions, samples and reports to records: every number is where an analyst looks for it."""

from __future__ import annotations

import math

import pytest

from tidegate_agents.config import EdgeConfig
from tidegate_agents.edge import EdgeAgent
from tidegate_agents.machine import Decision, EdgeSampled, HeadSampled, Started
from tidegate_agents.metrics import BrokerSample, PublisherSample, SubscriptionSample
from tidegate_agents.metrics import Role as AgentRole
from tidegate_brokers.telemetry.clients import REPORTS_PER_S, STREAMS_MAX, PublisherBook, SubscriberDesk
from tidegate_brokers.telemetry.decisions import ORDERS_MAX, DecisionRecords
from tidegate_brokers.telemetry.origin import Origin
from tidegate_brokers.telemetry.samples import EdgeSamples, HeadSamples
from tidegate_brokers.telemetry.settling import SETTLED_S, HeadOutcomes
from tidegate_protocol import telemetry as t
from tidegate_protocol.balancing import MigrateOrder, PublisherMoveOrder
from tidegate_protocol.messages import Capacity, PublisherReport, Subscription, TopicCount
from tidegate_protocol.operations import Role
from tidegate_protocol.parts import LoadState
from tidegate_protocol.reports import MigrationGap, SubscriberReport, SubscriptionDigest

EDGE = Origin("north", "edge-1", Role.EDGE, "peer-wd", 7)
HEAD = Origin("north", "head-1", Role.HEAD, "peer-wd", 7)
SESSION = "edge-1~5~2"


def special(records: DecisionRecords, decision: Decision, now: float = 0.0) -> t.TelemetryRecord | None:
    """The record besides the decision itself."""
    first, *rest = records.decided(decision, 5, now)
    assert isinstance(first, t.DecisionMade)
    assert first.decision == decision.kind
    assert all(t.decode(t.encode(record)) == record for record in (first, *rest))
    assert len(rest) <= 1
    return rest[0] if rest else None


# Decisions


def test_a_decision_is_cut_to_what_a_record_holds() -> None:
    numbers = {f"n{number}": float(number) for number in range(200)} | {"endless": math.inf}
    rejected = {f"r{number}": "w" * 5_000 for number in range(200)}
    decision = Decision("placement", "s" * 5_000, "r" * 5_000, {"nothing": math.nan} | numbers, rejected)
    (record,) = DecisionRecords(EDGE).decided(decision, 5, 0.0)
    assert isinstance(record, t.DecisionMade)
    assert len(record.numbers) == t.NUMBERS_MAX
    assert "nothing" not in record.numbers
    assert len(record.rejected) == t.REJECTED_MAX
    assert len(t.encode(record)) < t.RECORD_BYTES_MAX


def test_states_are_told_with_the_one_before() -> None:
    records = DecisionRecords(EDGE)
    first = special(records, Decision("load-state", "edge-1", "LOW: all metrics below their low thresholds"))
    assert isinstance(first, t.StateChange)
    assert (first.state, first.before) == (LoadState.LOW, None)
    then = special(records, Decision("load-state", "edge-1", "OVERLOAD: uplink 1.1 > 0.95"))
    assert isinstance(then, t.StateChange)
    assert (then.state, then.before, records.state) == (LoadState.OVERLOAD, LoadState.LOW, LoadState.OVERLOAD)


def test_a_session_has_a_beginning_a_prediction_an_end_and_an_outcome() -> None:
    records = DecisionRecords(EDGE)
    numbers = {"necessary": 1.0, "remote": 0.0}
    began = special(records, Decision("session-requested", "edge-1", "late soon", numbers, session=SESSION), 10.0)
    assert isinstance(began, t.SessionBegan)
    assert (began.session, began.source, began.necessary, began.remote) == (SESSION, "edge-1", True, False)
    plan = {
        "moves": 4.0,
        "source.drain_factor": 1.25,
        "source.uplink.before": 1.07,
        "source.uplink.after": 0.85,
        "target.edge-0.uplink.before": 0.4,
        "target.edge-0.uplink.after": 0.62,
        "candidates": 2.0,
    }
    predicted = special(records, Decision("session-planned", "edge-1", "to edge-0", plan, session=SESSION))
    assert isinstance(predicted, t.Prediction)
    assert (predicted.moves, predicted.drain_factor) == (4, 1.25)
    assert {(e.broker, e.metric): (e.before, e.after) for e in predicted.effects} == {
        ("edge-1", "uplink"): (1.07, 0.85),
        ("edge-0", "uplink"): (0.4, 0.62),
    }
    ended_numbers = {"moved": 4.0, "failed": 1.0, "duration_s": 0.6}
    ended = special(records, Decision("session-ended", "edge-1", "4 moved", ended_numbers, session=SESSION), 10.75)
    assert isinstance(ended, t.SessionEnded)
    assert (ended.moved, ended.failed, ended.duration_us) == (4, 1, 750_000)
    measured = {
        "after_s": 2.0,
        "offered_bytes_per_s": 86.0,
        "predicted_bytes_per_s": 85.0,
        "uplink.predicted": 0.85,
        "uplink.measured": 0.86,
        "matching.measured": 0.1,
        "queues_past": 2.0,
    }
    outcome = special(records, Decision("stabilized", "edge-1", "the load has moved", measured, session=SESSION))
    assert isinstance(outcome, t.Outcome)
    assert (outcome.session, outcome.after_us, outcome.queues_past) == (SESSION, 2_000_000, 2)
    assert {m.metric: (m.predicted, m.measured) for m in outcome.metrics} == {
        "uplink": (0.85, 0.86),
        "matching": (None, 0.1),
    }


def test_the_head_that_leads_a_session_does_not_tell_its_end_a_second_time() -> None:
    assert special(DecisionRecords(HEAD), Decision("session-ended", "edge-1", "done", session=SESSION)) is None


def test_a_session_whose_beginning_is_not_known_ends_without_a_duration() -> None:
    ended = special(DecisionRecords(EDGE), Decision("session-failed", "edge-1", "refused", session=SESSION))
    assert isinstance(ended, t.SessionEnded)
    assert (ended.moved, ended.duration_us) == (0, None)


def test_a_drain_is_a_session_of_its_edge() -> None:
    records = DecisionRecords(HEAD)
    began = special(records, Decision("drain", "edge-1", "an operator asked"), 1.0)
    assert isinstance(began, t.SessionBegan)
    assert (began.session, began.source, began.broker) == ("drain~edge-1", "edge-1", "head-1")
    ended = special(records, Decision("drained", "edge-1", "nothing is left on it"), 3.0)
    assert isinstance(ended, t.SessionEnded)
    assert (ended.session, ended.duration_us) == ("drain~edge-1", 2_000_000)


def order(subscriber: str = "siren-7") -> MigrateOrder:
    return MigrateOrder(
        migration="head-1~5~m3",
        subscriber=subscriber,
        pattern="alert.#",
        edge_from="edge-1",
        number_from=0,
        edge="edge-0",
        number=1,
        url="amqp://edge-0",
        queue="out.siren-7.1",
        head="head-1",
        heads=("head-1",),
        timeout_us=1,
    )


@pytest.mark.parametrize(("kind", "moved"), [("migration-ended", True), ("migration-failed", False)])
def test_a_migration_is_joined_with_the_order_that_began_it(kind: str, moved: bool) -> None:
    records = DecisionRecords(HEAD)
    records.ordered(order(), 1.0)
    decision = Decision(kind, "siren-7 alert.# from edge-1 to edge-0", "why", session=SESSION)
    record = special(records, decision, 1.5)
    assert isinstance(record, t.Migration)
    assert (record.client, record.pattern, record.source, record.target) == ("siren-7", "alert.#", "edge-1", "edge-0")
    assert (record.moved, record.migration, record.session) == (moved, "head-1~5~m3", SESSION)
    assert record.duration_us == 500_000
    again = special(records, decision)
    assert isinstance(again, t.Migration)
    assert (again.migration, again.duration_us) == ("", None), "an order belongs to one migration"


def test_orders_are_remembered_within_bounds() -> None:
    records = DecisionRecords(HEAD)
    for number in range(ORDERS_MAX + 1):
        records.ordered(order(f"siren-{number}"), 1.0)
    forgotten = special(records, Decision("migration-ended", "siren-0 alert.# from edge-1 to edge-0", "moved"))
    assert isinstance(forgotten, t.Migration)
    assert forgotten.migration == ""


def test_a_head_s_session_moves_publishers_and_is_measured_afterwards() -> None:
    records, outcomes = DecisionRecords(HEAD), HeadOutcomes(HEAD)
    records.followed = outcomes.decided
    name = "head-1~5~p1"
    began = special(records, Decision("publisher-session", "head-1", "uplink 1.1 > 0.95", session=name), 1.0)
    assert isinstance(began, t.SessionBegan)
    assert began.clients is t.Moved.PUBLISHERS
    numbers = {"uplink.before": 1.1, "uplink.after": 0.8, "uplink.head-2.after": 0.5}
    plan = special(records, Decision("publisher-plan", "head-1", "buoy~1>head-2", numbers, session=name), 1.0)
    assert isinstance(plan, t.Prediction)
    assert {(e.broker, e.metric): (e.before, e.after) for e in plan.effects} == {
        ("head-1", "uplink"): (1.1, 0.8),
        ("head-2", "uplink"): (None, 0.5),
    }
    move = PublisherMoveOrder(move=f"{name}-0", publisher="buoy~1", head="head-2", url="amqp://h", timeout_us=1)
    records.ordered(move, 2.0)
    moved = special(records, Decision("publisher-moved", "buoy~1>head-2", "moved", session=name), 3.0)
    assert isinstance(moved, t.Migration)
    assert (moved.client, moved.source, moved.target, moved.duration_us) == ("buoy~1", "head-1", "head-2", 1_000_000)
    special(records, Decision("publisher-session-ended", "head-1", "1 moved", {"moved": 1.0}, session=name), 4.0)
    assert outcomes.sampled(head_sample(), 5, 4.0 + SETTLED_S / 2) == []
    (outcome,) = outcomes.sampled(head_sample(), 5, 4.0 + SETTLED_S)
    assert isinstance(outcome, t.Outcome)
    assert [(m.metric, m.predicted, m.measured) for m in outcome.metrics] == [("uplink", 0.8, 0.5)]
    assert outcomes.sampled(head_sample(), 5, 100.0) == [], "once"


def test_a_plan_without_moves_predicts_nothing() -> None:
    plan = Decision("publisher-plan", "head-1", "no neighbour has room", {"uplink.before": 1.0, "uplink.after": 1.0})
    assert special(DecisionRecords(HEAD), plan) is None


# Samples


def head_sample() -> HeadSampled:
    broker = BrokerSample("head-1", AgentRole.HEAD, 10.0, 50.0, 1.0, Capacity(uplink_bytes_per_s=100.0))
    streams = (PublisherSample("buoy~1", "a", 1.0, 10.0), PublisherSample("buoy~1", "b", 1.0, 10.0))
    return HeadSampled(broker, streams)


def edge_agent(queues: int) -> tuple[EdgeAgent, EdgeSampled]:
    agent = EdgeAgent(
        EdgeConfig(
            edge="edge-1",
            cluster="north",
            head="head",
            client_url="amqp://edge-1",
            link_url="amqp://edge-1",
            incarnation=1,
            capacity=Capacity(uplink_bytes_per_s=1_000.0),
        )
    )
    outputs = tuple(
        Subscription(subscriber=f"s{n}", number=0, pattern="a.#", deadline_us=1_000_000, expires_s=60)
        for n in range(queues)
    )
    agent.handle(Started(outputs=outputs), 0.0)
    samples = tuple(SubscriptionSample(f"out.s{n}.0", "a.#", 2.0, 1.0, float(n), 0.0, 0.0, 10.0) for n in range(queues))
    return agent, EdgeSampled(BrokerSample("edge-1", AgentRole.EDGE, 5.0, 500.0, 2.0), samples)


def test_the_load_of_an_edge_and_its_worst_queues() -> None:
    agent, sample = edge_agent(3 * t.QUEUES_MAX)
    agent.handle(sample, 1.0)
    load, thresholds = EdgeSamples(EDGE, agent, 1.0, 10.0).sampled(sample, 5, 1.0)
    assert isinstance(load, t.LoadSample)
    assert (load.uplink, load.downlink) == (0.5, None)
    assert (load.bytes_offered_per_s, load.bytes_used_per_s) == (500.0, 10.0 * 3 * t.QUEUES_MAX)
    assert load.waiting == sum(range(3 * t.QUEUES_MAX))
    assert load.subscriptions == 3 * t.QUEUES_MAX
    assert isinstance(thresholds, t.Thresholds)
    assert len(thresholds.queues) == t.QUEUES_MAX
    assert [queue.depth for queue in thresholds.queues] == [
        float(3 * t.QUEUES_MAX - 1 - n) for n in range(t.QUEUES_MAX)
    ]
    assert t.decode(t.encode(thresholds)) == thresholds


def test_load_is_told_once_per_period_also_if_samples_come_a_little_early() -> None:
    agent, sample = edge_agent(1)
    agent.handle(sample, 1.0)
    samples = EdgeSamples(EDGE, agent, 1.0, 10.0)
    moments = [number * 0.99 for number in range(100)]
    told = [record.kind for now in moments for record in samples.sampled(sample, 5, now)]
    assert 97 <= told.count("load") <= 100
    assert 9 <= told.count("thresholds") <= 11
    often = [number * 0.25 for number in range(400)]
    samples = EdgeSamples(EDGE, agent, 1.0, 10.0)
    told = [record.kind for now in often for record in samples.sampled(sample, 5, now)]
    assert 98 <= told.count("load") <= 102


def test_the_load_of_a_head() -> None:
    samples = HeadSamples(HEAD, 1.0)
    (load,) = samples.sampled(head_sample(), LoadState.HIGH, 5, 0.0)
    assert isinstance(load, t.LoadSample)
    assert (load.role, load.state, load.uplink, load.publishers) == (Role.HEAD, LoadState.HIGH, 0.5, 1)
    assert samples.sampled(head_sample(), LoadState.HIGH, 5, 0.1) == []


# Reports


def report(number: int, run: int = 1, subscriber: str = "siren-7") -> SubscriberReport:
    digest = SubscriptionDigest(
        pattern="alert.#", edge="edge-1", deadline_us=5, elapsed_us=9, received=3, late=1, buckets=(4,), counts=(3,)
    )
    gap = MigrationGap(migration="m", pattern="alert.#", source="edge-0", target="edge-1", gap_us=7)
    return SubscriberReport(subscriber=subscriber, run=run, number=number, digests=(digest,), gaps=(gap,))


def test_a_report_is_taken_once() -> None:
    desk = SubscriberDesk(HEAD, 10.0)
    digest, gap = desk.records(report(1), 5)
    assert isinstance(digest, t.LatencyDigest)
    assert (digest.subscriber, digest.number, digest.received, digest.late) == ("siren-7", 1, 3, 1)
    assert isinstance(gap, t.MigrationGapTold)
    assert gap.gap_us == 7
    assert desk.records(report(1), 5) == [], "repeated"
    assert len(desk.records(report(2), 5)) == 2
    assert desk.records(report(1), 5) == [], "late"
    assert len(desk.records(report(1, run=2), 5)) == 2, "of another run of the subscriber"


def test_many_reporters_are_told_to_report_less_often() -> None:
    desk = SubscriberDesk(HEAD, 10.0)
    desk.records(report(1), 5)
    assert desk.answer(report(1)).after_us == 10_000_000
    reporters = round(40 * REPORTS_PER_S)
    for number in range(reporters):
        desk.records(report(1, subscriber=f"s{number}"), 5)
    assert desk.answer(report(1)).after_us >= 40_000_000


def published(publisher: str, topics: int = 1) -> PublisherReport:
    counts = tuple(
        TopicCount(topic=f"t{n}", messages=2, bytes=20, gaps=2, gap_s_sum=1.0, gap_s2_sum=0.6) for n in range(topics)
    )
    return PublisherReport(publisher=publisher, elapsed_us=1_000_000, topics=counts, round_trip_us=3)


def test_the_reports_of_a_period_add_up() -> None:
    book = PublisherBook(HEAD, 0.0)
    for _ in range(3):
        book.reported(published("buoy~1"))
    book.reported(
        PublisherReport(publisher="old~1", elapsed_us=1, topics=(TopicCount(topic="t", messages=1, bytes=1),))
    )
    rates, old = book.take(5, 10.0)
    assert isinstance(rates, t.PublisherRates)
    assert (rates.publisher, rates.elapsed_us, rates.active_us) == ("buoy~1", 10_000_000, 3_000_000)
    (topic,) = rates.topics
    assert (topic.topic, topic.messages, topic.bytes, topic.gaps) == ("t0", 6, 60, 6)
    assert (topic.gap_s_sum, topic.gap_s2_sum) == (pytest.approx(3.0), pytest.approx(1.8))
    assert isinstance(old, t.PublisherRates)
    assert old.topics[0].gaps == 0, "a publisher of an older version does not tell them"
    assert book.take(5, 20.0) == []


def test_reports_that_nobody_would_believe_add_up_to_a_record_all_the_same() -> None:
    book = PublisherBook(HEAD, 0.0)
    count = TopicCount(topic="t", messages=10**12, bytes=10**15, gaps=10**12, gap_s_sum=1e9, gap_s2_sum=1e18)
    for _ in range(10_000):
        book.reported(PublisherReport(publisher="buoy~1", elapsed_us=10**13, topics=(count,)))
    (record,) = book.take(5, 10.0)
    assert isinstance(record, t.PublisherRates)
    assert record.topics[0].bytes == 2**63 - 1
    assert t.decode(t.encode(record)) == record


def test_publishers_are_written_within_bounds_and_the_rest_is_counted() -> None:
    book, each = PublisherBook(HEAD, 0.0), t.TOPICS_MAX
    publishers = STREAMS_MAX // each + 3
    for number in range(publishers):
        book.reported(published(f"buoy-{number}~1", each))
    records = book.take(5, 1.0)
    told = sum(len(record.topics) for record in records if isinstance(record, t.PublisherRates))
    assert told == STREAMS_MAX
    assert book.left_out > 0
    assert all(len(t.encode(record)) < t.RECORD_BYTES_MAX for record in records)
