"""From decisions, samples and reports to records: every number is where an analyst looks for it."""

from __future__ import annotations

import math

import pytest

from tests.unit.protocol.decision_samples import SAMPLES
from tidegate_agents.config import EdgeConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.metrics import BrokerSample, PublisherSample, Role as AgentRole, SubscriptionSample
from tidegate_agents.machine import EdgeSampled, HeadSampled, Started
from tidegate_brokers.observe.telemetry.clients import REPORTS_PER_S, STREAMS_MAX, PublisherTotals, SubscriberDesk
from tidegate_brokers.observe.telemetry.decisions import ORDERS_MAX, DecisionRecords
from tidegate_brokers.observe.telemetry.origin import Origin
from tidegate_brokers.observe.telemetry.samples import EdgeSamples, HeadSamples
from tidegate_brokers.observe.telemetry.settling import SETTLED_S, HeadOutcomes
from tidegate_protocol import decisions as d, telemetry as t
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.balancing.publishers import PublisherMoveOrder
from tidegate_protocol.messages import Capacity, PublisherReport, Subscription, TopicCount
from tidegate_protocol.operations import Role
from tidegate_protocol.parts import RATE_MAX, LoadState, Metric
from tidegate_protocol.reports import MigrationGap, SubscriberReport, SubscriptionDigest

EDGE = Origin("north", "edge-1", Role.EDGE, "peer-wd", 7)
HEAD = Origin("north", "head-1", Role.HEAD, "peer-wd", 7)
SESSION = "edge-1~5~2"


def special(records: DecisionRecords, decision: d.Decision, now: float = 0.0) -> t.TelemetryRecord | None:
    """The record besides the decision itself."""
    first, *rest = records.decided(decision, 5, now)
    assert isinstance(first, t.DecisionMade)
    assert first.decision == decision.kind
    assert all(t.decode(t.encode(record)) == record for record in (first, *rest))
    assert len(rest) <= 1
    return rest[0] if rest else None


# Decisions


def test_a_decision_is_cut_to_what_a_record_holds() -> None:
    rejected = tuple(d.Rejected("n" * 5_000, d.Rejection.REFUSED, detail="w" * 5_000) for _ in range(500))
    plan = d.SessionPlanned(
        "s" * 5_000, d.PlanOutcome.NO_ROOM, (), 0, drain_factor=math.inf, rejected=rejected, session=SESSION
    )
    (record,) = DecisionRecords(EDGE).decided(plan, 5, 0.0)
    assert isinstance(record, t.DecisionMade)
    body = t.encode(record)
    assert len(body) < t.RECORD_BYTES_MAX
    read = t.decode(body)
    assert isinstance(read, t.DecisionMade)
    assert (read.decision, read.reason, read.session) == ("session-planned", "no-room", SESSION)
    assert isinstance(read.record, d.SessionPlanned)
    assert len(read.record.source) == d.TEXT_MAX
    assert len(read.record.rejected) == d.ITEMS_MAX
    assert read.record.drain_factor == RATE_MAX


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)
def test_every_kind_of_decision_is_written_whole(sample: d.Decision) -> None:
    first = DecisionRecords(HEAD).decided(sample, 5, 0.0)[0]
    assert isinstance(first, t.DecisionMade)
    assert (first.decision, first.reason, first.session) == (sample.kind, sample.label, sample.session)
    read = t.decode(t.encode(first))
    assert isinstance(read, t.DecisionMade)
    assert read.record == sample


def test_states_are_told_with_the_one_before() -> None:
    records = DecisionRecords(EDGE)
    first = special(records, d.LoadStateChanged("edge-1", LoadState.LOW))
    assert isinstance(first, t.StateChange)
    assert (first.state, first.before, first.reason) == (LoadState.LOW, None, "all-low")
    finding = d.Finding(Metric.UPLINK, "", 1.1, 0.95, LoadState.OVERLOAD)
    then = special(records, d.LoadStateChanged("edge-1", LoadState.OVERLOAD, (finding,)))
    assert isinstance(then, t.StateChange)
    assert (then.state, then.before, records.state) == (LoadState.OVERLOAD, LoadState.LOW, LoadState.OVERLOAD)
    assert then.reason == "uplink"


def requested(necessary: bool = True, remote: bool = False) -> d.SessionRequested:
    cause = d.Cause(Metric.UPLINK, 1.07, 0.95)
    return d.SessionRequested("edge-1", cause, necessary, remote, 2, 0.5, 0.2, 1.0, session=SESSION)


def test_a_session_has_a_beginning_a_prediction_an_end_and_an_outcome() -> None:
    records = DecisionRecords(EDGE)
    began = special(records, requested(), 10.0)
    assert isinstance(began, t.SessionBegan)
    assert (began.session, began.source, began.necessary, began.remote) == (SESSION, "edge-1", True, False)
    assert (began.clients, began.policy, began.reason) == (t.Moved.SUBSCRIBERS, "peer-wd", "uplink")
    effects = (
        d.Effect("edge-1", Metric.UPLINK, 1.07, after=0.85),
        d.Effect("edge-0", Metric.UPLINK, 0.4, after=0.62),
    )
    moves = (d.BundleMove("alert.#", "edge-0", 3), d.BundleMove("buoy.*", "edge-0", 1))
    plan = d.SessionPlanned("edge-1", d.PlanOutcome.RELIEVED, moves, 2, 0, 4, 1.25, effects, session=SESSION)
    predicted = special(records, plan)
    assert isinstance(predicted, t.Prediction)
    assert (predicted.moves, predicted.drain_factor) == (4, 1.25)
    assert {(e.broker, e.metric): (e.before, e.after) for e in predicted.effects} == {
        ("edge-1", "uplink"): (1.07, 0.85),
        ("edge-0", "uplink"): (0.4, 0.62),
    }
    end = d.SessionEnded("edge-1", d.SessionOutcome.MOVES_ENDED, 4, 1, 0.6, session=SESSION)
    ended = special(records, end, 10.75)
    assert isinstance(ended, t.SessionEnded)
    assert (ended.moved, ended.failed, ended.duration_us, ended.reason) == (4, 1, 750_000, "moves-ended")
    metrics = (d.Measured(Metric.UPLINK, 0.86, 0.85), d.Measured(Metric.MATCHING, 0.1))
    outcome = special(
        records,
        d.Stabilized("edge-1", d.StabilizedReason.LOAD_MOVED, 2.0, 86.0, 85.0, metrics, 2, session=SESSION),
    )
    assert isinstance(outcome, t.Outcome)
    assert (outcome.session, outcome.after_us, outcome.queues_past) == (SESSION, 2_000_000, 2)
    assert (outcome.bytes_offered_per_s, outcome.bytes_offered_predicted_per_s) == (86.0, 85.0)
    assert {m.metric: (m.predicted, m.measured) for m in outcome.metrics} == {
        "uplink": (0.85, 0.86),
        "matching": (None, 0.1),
    }


def test_the_head_that_leads_a_session_does_not_tell_its_end_a_second_time() -> None:
    end = d.SessionEnded("edge-1", d.SessionOutcome.MOVES_ENDED, 4, 1, session=SESSION)
    assert special(DecisionRecords(HEAD), end) is None
    assert special(DecisionRecords(EDGE), end) is not None


def test_a_session_whose_beginning_is_not_known_ends_without_a_duration() -> None:
    failed = d.SessionFailed("edge-1", d.SessionOutcome.REFUSED, 10.0, session=SESSION)
    ended = special(DecisionRecords(EDGE), failed)
    assert isinstance(ended, t.SessionEnded)
    assert (ended.moved, ended.duration_us, ended.reason) == (0, None, "refused")


def test_a_drain_is_a_session_of_its_edge() -> None:
    records = DecisionRecords(HEAD)
    began = special(records, d.DrainOrdered("edge-1", d.DrainOrder.DRAIN), 1.0)
    assert isinstance(began, t.SessionBegan)
    assert (began.session, began.source, began.broker) == ("drain~edge-1", "edge-1", "head-1")
    ended = special(records, d.Drained("edge-1"), 3.0)
    assert isinstance(ended, t.SessionEnded)
    assert (ended.session, ended.duration_us) == ("drain~edge-1", 2_000_000)
    assert special(records, d.DrainOrdered("edge-1", d.DrainOrder.UNDRAIN)) is None


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


def migrated(outcome: d.MoveOutcome = d.MoveOutcome.MOVED, subscriber: str = "siren-7") -> d.MigrationEnded:
    return d.MigrationEnded("head-1~5~m3", subscriber, "alert.#", "edge-1", "edge-0", outcome, session=SESSION)


@pytest.mark.parametrize(("outcome", "moved"), [(d.MoveOutcome.MOVED, True), (d.MoveOutcome.TIME_OUT, False)])
def test_a_migration_is_joined_with_the_order_that_began_it(outcome: d.MoveOutcome, moved: bool) -> None:
    records = DecisionRecords(HEAD)
    records.ordered(order(), 1.0)
    record = special(records, migrated(outcome), 1.5)
    assert isinstance(record, t.Migration)
    assert (record.client, record.pattern, record.source, record.target) == ("siren-7", "alert.#", "edge-1", "edge-0")
    assert (record.moved, record.migration, record.session) == (moved, "head-1~5~m3", SESSION)
    assert record.reason == outcome
    assert record.duration_us == 500_000
    again = special(records, migrated(outcome))
    assert isinstance(again, t.Migration)
    assert (again.migration, again.duration_us) == ("", None), "an order belongs to one migration"


def test_orders_are_remembered_within_bounds() -> None:
    records = DecisionRecords(HEAD)
    for number in range(ORDERS_MAX + 1):
        records.ordered(order(f"siren-{number}"), 1.0)
    forgotten = special(records, migrated(subscriber="siren-0"))
    assert isinstance(forgotten, t.Migration)
    assert forgotten.migration == ""
    kept = special(records, migrated(subscriber="siren-1"))
    assert isinstance(kept, t.Migration)
    assert kept.migration != ""


def test_a_head_s_session_moves_publishers_and_is_measured_afterwards() -> None:
    records, outcomes = DecisionRecords(HEAD), HeadOutcomes(HEAD)
    records.followed = outcomes.decided
    name = "head-1~5~p1"
    began = special(records, d.PublisherSession("head-1", (d.Cause(Metric.UPLINK, 1.1, 0.95),), session=name), 1.0)
    assert isinstance(began, t.SessionBegan)
    assert (began.clients, began.reason) == (t.Moved.PUBLISHERS, "uplink")
    effects = (d.Effect("head-1", Metric.UPLINK, 1.1, after=0.8), d.Effect("head-2", Metric.UPLINK, after=0.5))
    moves = (d.PublisherMove("buoy~1", "head-2"),)
    plan = special(records, d.PublisherPlan("head-1", d.PlanOutcome.RELIEVED, moves, effects, session=name), 1.0)
    assert isinstance(plan, t.Prediction)
    assert plan.moves == 1
    assert {(e.broker, e.metric): (e.before, e.after) for e in plan.effects} == {
        ("head-1", "uplink"): (1.1, 0.8),
        ("head-2", "uplink"): (None, 0.5),
    }
    move = PublisherMoveOrder(move=f"{name}-0", publisher="buoy~1", head="head-2", url="amqp://h", timeout_us=1)
    records.ordered(move, 2.0)
    ended = d.PublisherMoveEnded("buoy~1", "head-1", "head-2", d.PublisherOutcome.MOVED, session=name)
    moved = special(records, ended, 3.0)
    assert isinstance(moved, t.Migration)
    assert (moved.client, moved.source, moved.target, moved.duration_us) == ("buoy~1", "head-1", "head-2", 1_000_000)
    assert (moved.moved, moved.clients, moved.migration) == (True, t.Moved.PUBLISHERS, f"{name}-0")
    over = d.PublisherSessionEnded("head-1", d.SessionOutcome.MOVES_ENDED, 1, 0, 3.0, session=name)
    assert isinstance(special(records, over, 4.0), t.SessionEnded)
    assert outcomes.sampled(head_sample(), 5, 4.0 + SETTLED_S / 2) == []
    (outcome,) = outcomes.sampled(head_sample(), 5, 4.0 + SETTLED_S)
    assert isinstance(outcome, t.Outcome)
    assert [(m.metric, m.predicted, m.measured) for m in outcome.metrics] == [("uplink", 0.8, 0.5)]
    assert outcomes.sampled(head_sample(), 5, 100.0) == [], "once"


def test_a_plan_without_moves_predicts_nothing() -> None:
    effects = (d.Effect("head-1", Metric.UPLINK, 1.0, after=1.0),)
    assert special(DecisionRecords(HEAD), d.PublisherPlan("head-1", d.PlanOutcome.NO_ROOM, (), effects)) is None
    nobody = d.SessionPlanned("edge-1", d.PlanOutcome.NO_ROOM, (), 0, session=SESSION)
    assert special(DecisionRecords(EDGE), nobody) is None


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
    book = PublisherTotals(HEAD, 0.0)
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
    book = PublisherTotals(HEAD, 0.0)
    count = TopicCount(topic="t", messages=10**12, bytes=10**15, gaps=10**12, gap_s_sum=1e9, gap_s2_sum=1e18)
    for _ in range(10_000):
        book.reported(PublisherReport(publisher="buoy~1", elapsed_us=10**13, topics=(count,)))
    (record,) = book.take(5, 10.0)
    assert isinstance(record, t.PublisherRates)
    assert record.topics[0].bytes == 2**63 - 1
    assert t.decode(t.encode(record)) == record


def test_publishers_are_written_within_bounds_and_the_rest_is_counted() -> None:
    book, each = PublisherTotals(HEAD, 0.0), t.TOPICS_MAX
    publishers = STREAMS_MAX // each + 3
    for number in range(publishers):
        book.reported(published(f"buoy-{number}~1", each))
    records = book.take(5, 1.0)
    told = sum(len(record.topics) for record in records if isinstance(record, t.PublisherRates))
    assert told == STREAMS_MAX
    assert book.left_out > 0
    assert all(len(t.encode(record)) < t.RECORD_BYTES_MAX for record in records)
