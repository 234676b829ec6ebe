"""One sample of every kind of control message, every field filled in, and the golden files made of them.

Run this file to write the golden files anew, and look at the difference before you commit it: a changed file
means that processes of the old and the new version no longer understand each other in that field.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, get_args

from operations_samples import OPERATIONS, QUOTA_USE

from tidegate_protocol import insight as i, messages as m, reports as r
from tidegate_protocol.balancing.abroad import (
    AcceptEnd,
    AcceptReply,
    AcceptRequest,
    Guest,
    GuestKey,
    GuestList,
    GuestsNoted,
    RemoteLoads,
    RemoteLoadsRequest,
)
from tidegate_protocol.balancing.drains import DrainNotice, DrainReply, DrainRequest
from tidegate_protocol.balancing.loads import BrokerLoad, MetricReport, PieGlobal, PieLocal
from tidegate_protocol.balancing.markers import MarkerBind, MarkerReady, MarkerRequest, MarkerSent
from tidegate_protocol.balancing.migrations import (
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
)
from tidegate_protocol.balancing.paths import PatternPath, PatternPaths, PublishedTopics, TopicPath
from tidegate_protocol.balancing.places import CollectOrder, PlaceReply, PlaceRequest
from tidegate_protocol.balancing.publishers import (
    FenceSeen,
    HeadLoad,
    HeadLoadRequest,
    PublisherExpect,
    PublisherExpectReply,
    PublisherMoveAck,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
    ThrottleOrder,
)
from tidegate_protocol.balancing.sessions import (
    BalanceAccepted,
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    Candidate,
    LoadReply,
    LoadRequest,
    PlannedMove,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.decisions import Cause, Flood, FloodingPublisher, PlanOutcome, Reach
from tidegate_protocol.parts import Metric

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "control"

SUBSCRIPTION: Final = m.Subscription(
    subscriber="siren-7",
    number=2,
    pattern="alert.*.north.#",
    deadline_us=300_000,
    expires_s=600,
    origin="head-b",
    origin_edge="edge-b",
    origin_number=1,
)
CAPACITY: Final = m.Capacity(uplink_bytes_per_s=1.25e6, downlink_bytes_per_s=2.5e6, matching_per_s=4000.0)
METRICS: Final = {"uplink": MetricReport(value=0.93, low=0.9, high=0.95)}
PUBLISHER: Final = "buoy-3~k2f9x"
LOAD: Final = BrokerLoad(
    broker="edge-2",
    state=m.LoadState.LOW,
    busy=True,
    bytes_in_per_s=2.5e5,
    bytes_offered_per_s=5e5,
    messages_in_per_s=900.0,
    capacity=CAPACITY,
)
CANDIDATE: Final = Candidate(
    cluster="north", head="head-1", load=LOAD, patterns=("alert.*.north.#",), extra_path_us=100_000
)
MOVE: Final = PlannedMove(
    subscriber="siren-7",
    number=2,
    target="edge-2",
    bytes_in_per_s=1e4,
    bytes_out_per_s=8e4,
    messages_in_per_s=50.0,
)

FLOODING = FloodingPublisher(PUBLISHER, Flood.MESSAGES, False, 4000.0, 200.0, 200.0, 30.0, 3)

SAMPLES: Final[tuple[m.ControlMessage, ...]] = (
    m.SubscribeRequest(
        subscriber="siren-7", pattern="alert.*.north.#", deadline_us=300_000, expires_s=600, unreachable="edge-1"
    ),
    m.SubscribeReply(
        subscription=SUBSCRIPTION,
        edge="edge-1",
        url="amqp://127.0.0.1:5672/edge-1",
        queue="out.siren-7.2",
        awaiting=("head-2",),
        head="head-3",
        head_url="amqp://127.0.0.1:5672/head-3",
    ),
    m.UnsubscribeRequest(subscriber="siren-7", number=2, pattern="alert.*.north.#"),
    m.UnsubscribeReply(subscriber="siren-7", number=2),
    m.PublisherHello(publisher=PUBLISHER, topics=("alert.wave.north", "level.wave.north"), round_trip_us=4_200),
    m.PublisherWelcome(publisher=PUBLISHER, head="head-1", period_s=5.0, publish=("quake.*",)),
    m.PublisherGoodbye(publisher=PUBLISHER),
    m.PublisherReport(
        publisher=PUBLISHER,
        elapsed_us=1_000_400,
        topics=(
            m.TopicCount(
                topic="alert.wave.north", messages=200, bytes=80_000, gaps=199, gap_s_sum=0.995, gap_s2_sum=0.006
            ),
        ),
        round_trip_us=4_200,
    ),
    m.StatusRequest(),
    m.StatusReply(
        cluster="north",
        head="head-1",
        version="0.1.0",
        edges=(
            m.EdgeStatus(
                edge="edge-1",
                alive=True,
                draining=False,
                subscriptions=3,
                patterns=2,
                capacity=CAPACITY,
                seen_ago_s=0.5,
            ),
        ),
        neighbours=(m.NeighbourStatus(head="head-2", alive=True, needs=4, offered=2),),
        publishers=1,
    ),
    m.Refusal(
        reason=m.RefusalReason.NO_EDGE,
        message="no edge is alive",
        field="subscriber",
        retry_after_s=1.0,
        quota=QUOTA_USE,
    ),
    m.EdgeHello(
        edge="edge-1",
        cluster="north",
        client_url="amqp://127.0.0.1:5672/edge-1",
        link_url="amqp://127.0.0.1:5673/edge-1",
        capacity=CAPACITY,
        registry_count=3,
        registry_digest="0123456789abcdef",
        draining=True,
        paused=True,
        pause_version=7,
        alarms=("memory",),
        accounts_passed=m.Passing.YES,
    ),
    m.EdgeWelcome(
        head="head-1", cluster="north", period_s=1.0, incarnation=1_753_000_000_000, paused=True, pause_version=7
    ),
    m.EdgeGoodbye(edge="edge-1"),
    m.OutputPrepare(subscription=SUBSCRIPTION, marker="tidegate.marker.head-1~5~m3.*"),
    m.OutputReady(subscription=SUBSCRIPTION, queue="out.siren-7.2"),
    m.OutputRemove(subscriber="siren-7", number=2),
    m.OutputRemoved(edge="edge-1", subscriber="siren-7", number=2),
    m.RegistryRequest(after="out.siren-6.0"),
    m.RegistryPage(edge="edge-1", digest="0123456789abcdef", subscriptions=(SUBSCRIPTION,), after="out.siren-7.2"),
    m.Probe(broker="edge-1", takes=m.Takes(message_bytes=1_048_576, frame_bytes=131_072)),
    m.ProbeReply(clock_us=1_700_000_000_123_456),
    m.RoutesUpdate(
        head="head-1",
        version=8,
        base=7,
        add=("alert.#",),
        remove=("alert.*.north.#",),
        wait_s=2.5,
        accounts_passed=m.Passing.YES,
    ),
    m.RoutesAccepted(head="head-2", version=8, awaiting=("head-3",)),
    m.RoutesUnknownBase(head="head-2", have=6),
    PieLocal(broker="edge-1", cluster="north", state=m.LoadState.HIGH, busy=True, metrics=METRICS, period_s=1.0),
    PieGlobal(cluster="north", head="head-1", state=m.LoadState.LOW, metrics=METRICS, period_s=5.0),
    BalanceRequest(
        session="edge-1~5~1",
        edge="edge-1",
        metric=Metric.QUEUE_DEPTH,
        cause=Cause(Metric.QUEUE_DEPTH, 95.0, 80.0, "out.siren-7.2", "edge-2"),
        patterns=("alert.*.north.#",),
        candidates=("edge-2",),
        fallbacks=("edge-3",),
        reach=Reach.OCCUPIED,
    ),
    LoadRequest(session="edge-1~5~1"),
    LoadReply(session="edge-1~5~1", load=LOAD),
    BalanceCandidates(
        session="edge-1~5~1",
        candidates=(CANDIDATE,),
        resting=("out.siren-8.0",),
        occupied=("edge-3",),
        fallbacks_asked=True,
    ),
    BalancePlan(
        session="edge-1~5~1", edge="edge-1", moves=(MOVE,), outcome=PlanOutcome.RELIEVED, reach=Reach.LAST_RESORT
    ),
    BalanceAccepted(session="edge-1~5~1", moves=1),
    SessionNotice(
        session="edge-1~5~1",
        phase=SessionPhase.ENDED,
        source="edge-1",
        moved=1,
        failed=0,
        duration_us=480_000,
    ),
    MarkerBind(subscriber="siren-7", number=2, key="tidegate.marker.head-1~5~m3.*"),
    MarkerReady(subscriber="siren-7", number=2, key="tidegate.marker.head-1~5~m3.*"),
    MigrateOrder(
        migration="head-1~5~m3",
        subscriber="siren-7",
        pattern="alert.*.north.#",
        edge_from="edge-1",
        number_from=2,
        edge="edge-2",
        number=3,
        url="amqp://127.0.0.1:5672/edge-2",
        queue="out.siren-7.3",
        head="head-1",
        head_url="amqp://127.0.0.1:5672/head-1",
        heads=("head-1",),
        timeout_us=20_000_000,
    ),
    MigrationReport(
        migration="head-1~5~m3",
        subscriber="siren-7",
        stage=MigrationStage.MOVED,
        pattern="alert.*.north.#",
        edge="edge-2",
        number=3,
        other_edge="edge-1",
        other_number=2,
        reason="both markers came",
        unsettled=True,
    ),
    MigrationAck(migration="head-1~5~m3"),
    MigrateCancel(migration="head-1~5~m3", subscriber="siren-7", pattern="alert.*.north.#"),
    PlaceRequest(subscriber="siren-7", pattern="alert.*.north.#"),
    PlaceReply(subscriber="siren-7", pattern="alert.*.north.#", edge="edge-1", number=2, migration="head-1~5~m3"),
    CollectOrder(
        migration="head-1~5~m4",
        subscriber="siren-7",
        pattern="alert.*.north.#",
        edge="edge-1",
        number=2,
        url="amqp://127.0.0.1:5672/edge-1",
        queue="out.siren-7.2",
        heads=("head-1",),
        timeout_us=20_000_000,
    ),
    RemoteLoadsRequest(session="edge-1~5~1", head="head-1", patterns=("alert.*.north.#",)),
    RemoteLoads(session="edge-1~5~1", candidates=(CANDIDATE,)),
    AcceptRequest(
        migration="head-1~5~m3",
        head="head-1",
        edge="edge-9",
        subscription=SUBSCRIPTION,
        marker="tidegate.marker.head-1~5~m3.*",
        load=MOVE,
        source="edge-1",
    ),
    AcceptReply(
        migration="head-1~5~m3",
        edge="edge-9",
        number=3,
        url="amqp://127.0.0.1:5672/edge-9",
        queue="out.siren-7.3",
        head_url="amqp://127.0.0.1:5672/head-2",
    ),
    AcceptEnd(
        migration="head-1~5~m3",
        head="head-1",
        moved=True,
        edge="edge-9",
        subscriber="siren-7",
        pattern="alert.*.north.#",
        number=3,
    ),
    GuestList(
        head="head-2",
        guests=(
            Guest(
                subscription=SUBSCRIPTION,
                edge="edge-9",
                url="amqp://127.0.0.1:5672/edge-9",
                queue="out.siren-7.2",
                head="head-2",
                head_url="amqp://127.0.0.1:5672/head-2",
            ),
        ),
        complete=True,
        here=(GuestKey(subscriber="siren-8", number=1),),
    ),
    GuestsNoted(head="head-1"),
    MarkerRequest(migration="head-1~5~m3", head="head-1", key="tidegate.marker.head-1~5~m3"),
    MarkerSent(migration="head-1~5~m3", heads=("head-2", "head-3")),
    PublishedTopics(head="head-1", topics=(TopicPath(topic="alert.wave.north", path_us=2_000),), other_path_us=9_000),
    PatternPaths(
        head="head-1",
        paths=(PatternPath(pattern="alert.*.north.#", path_us=102_000, local=True, remote=True),),
    ),
    HeadLoadRequest(session="head-1~5~2", head="head-1"),
    HeadLoad(session="head-1~5~2", load=LOAD, publisher_url="amqp://127.0.0.1:5672/head-2"),
    PublisherExpect(move="head-1~5~p1", head="head-1", publisher=PUBLISHER, fence="tidegate.marker.head-1~5~p1.head-1"),
    PublisherExpectReply(move="head-1~5~p1"),
    PublisherMoveOrder(
        move="head-1~5~p1",
        publisher=PUBLISHER,
        head="head-2",
        url="amqp://127.0.0.1:5672/head-2",
        timeout_us=20_000_000,
    ),
    PublisherMoveReport(move="head-1~5~p1", publisher=PUBLISHER, stage=PublisherStage.PAUSED, reason="all confirmed"),
    PublisherMoveAck(move="head-1~5~p1"),
    FenceSeen(move="head-1~5~p1", head="head-2"),
    PublisherResume(move="head-1~5~p1", publisher=PUBLISHER, moved=True),
    ThrottleOrder(publisher=PUBLISHER, messages_per_s=200.0, for_us=30_000_000, found=FLOODING),
    DrainRequest(edge="edge-1", draining=True),
    DrainReply(edge="edge-1", draining=True, left=12),
    DrainNotice(draining=True),
    *OPERATIONS,
    r.SubscriberReport(
        subscriber="siren-7",
        run=1_700_000_000_000,
        number=3,
        digests=(
            r.SubscriptionDigest(
                pattern="alert.*.north.#",
                edge="edge-1",
                deadline_us=300_000,
                elapsed_us=10_000_400,
                received=200,
                late=2,
                late_unchecked=1,
                duplicates=1,
                reordered=1,
                missing=4,
                latency_us_sum=21_000_000,
                buckets=(390, 391, 420),
                counts=(120, 78, 2),
            ),
        ),
        gaps=(
            r.MigrationGap(
                migration="head-1~5~m3",
                pattern="alert.*.north.#",
                source="edge-1",
                target="edge-2",
                gap_us=55_000,
                held=7,
            ),
        ),
    ),
    r.ReportTaken(number=3, wanted=True, after_us=10_000_000),
    i.Insight(
        cluster="north",
        made_at_us=1_700_000_000_000_000,
        age_us=90_000_000,
        valid_for_us=86_400_000_000,
        withdraws=True,
        pairs=(i.CorrelatedPair(topic_a="rain.north", topic_b="river.north", coefficient=0.93),),
        forecasts=(
            i.RateForecast(
                topic="rain.north", level_per_s=40.0, trend_per_s=0.5, error_per_s=3.5, horizon_us=600_000_000
            ),
        ),
        capacities=(i.EdgeUplink(edge="edge-1", uplink_bytes_per_s=1.1e6),),
    ),
    i.InsightReply(
        cluster="north",
        head="head-1",
        made_at_us=1_700_000_000_000_000,
        left_us=86_310_000_000,
        repeated=True,
        pairs=1,
        forecasts=1,
        capacities=1,
        unused=(i.Unused(name="edge-9", reason=i.UnusedReason.NO_SUCH_EDGE),),
    ),
    i.EdgeInsight(
        head="head-1",
        incarnation=1_700_000_000_000,
        number=3,
        made_at_us=1_700_000_000_000_000,
        left_us=86_310_000_000,
        forecasts=(i.PatternForecast(pattern="rain.#", level_per_s=81.5, trend_per_s=0.5, left_us=510_000_000),),
        uplink_bytes_per_s=1.1e6,
    ),
)


def message_classes() -> tuple[type[m.ControlMessage], ...]:
    """Every member of the union, read from the union itself so that a new kind can't be forgotten."""
    return get_args(get_args(m.ControlMessage)[0])


def golden_text(message: m.ControlMessage) -> str:
    """What the golden file of this message holds: its wire form, laid out for people."""
    return json.dumps(json.loads(m.encode(message)), indent=2) + "\n"


if __name__ == "__main__":
    for sample in SAMPLES:
        (GOLDEN / f"{sample.kind}.json").write_text(golden_text(sample))
