"""One sample of every message of operators, every field filled in."""

from __future__ import annotations

from typing import Final

from tidegate_protocol import decisions as d, drops, insight as i, messages as m, operations as o, quarantine as q
from tidegate_protocol.balancing.loads import BrokerLoad, MetricReport
from tidegate_protocol.balancing.sessions import Candidate, PlannedMove
from tidegate_protocol.parts import Metric

CAPACITY: Final = m.Capacity(uplink_bytes_per_s=1.25e6, downlink_bytes_per_s=2.5e6, matching_per_s=4000.0)
QUOTA_USE: Final = o.QuotaUse(account="siren", tenant="coast", quota=d.Quota.SUBSCRIPTIONS, used=1000.0, limit=1000.0)
LOAD: Final = BrokerLoad(
    broker="edge-1",
    state=m.LoadState.OVERLOAD,
    busy=True,
    bytes_in_per_s=2.5e5,
    bytes_offered_per_s=1.3e6,
    messages_in_per_s=900.0,
    capacity=CAPACITY,
)
MOVE: Final = PlannedMove(
    subscriber="siren-7",
    number=2,
    target="edge-2",
    bytes_in_per_s=1e4,
    bytes_out_per_s=8e4,
    messages_in_per_s=50.0,
)
SET_ASIDE: Final = q.SetAside(
    id="q-1-7",
    target="edge-1",
    reason=d.SetAsideReason.TOO_LARGE,
    detail="PRECONDITION_FAILED",
    account="buoy",
    publisher="buoy~1",
    topic="alert.fire",
    size_bytes=2_000_000,
    at_us=1_700_000_000_000_000,
    whole=False,
)
INSIGHT: Final = i.InsightState(
    made_at_us=1_700_000_000_000_000,
    age_us=90_000_000,
    left_us=86_310_000_000,
    pairs=1,
    forecasts=2,
    capacities=3,
    placements=4,
    refused=5,
    last_refusal=d.InsightRefused("north", d.InsightRefusal.EXPIRED, 1, 2, 3, "", 12.0),
)
QUEUE: Final = o.QueueState(
    edge="edge-1",
    queue="out.siren-7.2",
    subscriber="siren-7",
    number=2,
    pattern="alert.*.north.#",
    deadline_s=0.3,
    allowed_wait_s=0.21,
    depth=52.0,
    threshold=43.0,
    enqueue_per_s=100.0,
    drain_per_s=93.5,
    migrating=True,
    away=True,
    slow=True,
    infeasible=True,
)
CAUSE: Final = d.Cause(Metric.QUEUE_DEPTH, 52.0, 43.0, "out.siren-7.2", "edge-2")
REJECTED: Final = (d.Rejected("edge-3", d.Rejection.STATE, state=m.LoadState.HIGH),)
BUNDLES: Final = (d.BundleMove("alert.*.north.#", "edge-2", 1),)
EFFECTS: Final = (d.Effect("edge-1", Metric.UPLINK, 1.1, after=0.988),)
PLANNED: Final = d.SessionPlanned(
    "edge-1", d.PlanOutcome.RELIEVED, BUNDLES, 2, effects=EFFECTS, rejected=REJECTED, session="edge-1~7~3"
)
TOLD: Final = o.Told(
    broker="edge-1", ago_us=4_500_000, decision="session-planned", session="edge-1~7~3", record=PLANNED
)
BROKER: Final = o.BrokerState(
    broker="edge-1",
    role=o.Role.EDGE,
    state=m.LoadState.OVERLOAD,
    doing=o.Doing(activity=o.Activity.SOURCE, sessions=("edge-1~7~3",), phase=o.SourcePhase.MOVING, left_s=2.5),
    samples=61,
    metrics={"uplink": MetricReport(value=1.068, low=0.9, high=0.95)},
    unknown=("matching",),
    capacity=CAPACITY,
    session_s=0.54,
    subscriptions=19,
    past=7,
    queues=(QUEUE,),
    slow=("out.chart-1.0",),
    infeasible=("out.far-1.0",),
    dropped=12,
    dropping=("out.siren-7.2",),
    alarms=("memory",),
)
SESSION: Final = o.SessionState(
    session="edge-1~7~3",
    source="edge-1",
    phase="ended",
    began=d.SessionCandidates("edge-1", Metric.QUEUE_DEPTH, 2, 1, CAUSE, session="edge-1~7~3"),
    started_ago_us=5_000_000,
    ended_ago_us=4_400_000,
    moved=8,
    failed=1,
    targets={"edge-2": 8},
)
CULPRIT: Final = o.Culprit(
    what="flooding-publisher",
    client="buoy-3~k2f9x",
    broker="head-1",
    ago_us=3_000_000,
    text="floods",
    record=d.FloodingPublisher("buoy-3~k2f9x", d.Flood.MESSAGES, False, 4000.0, 200.0, 200.0, 60.0, 3, ("alert",)),
)

OPERATIONS: Final[tuple[m.ControlMessage, ...]] = (
    o.OverviewRequest(queues=5),
    o.OverviewReply(
        cluster="north",
        head="head-1",
        version="0.1.0",
        policy="peer-wd",
        paused=True,
        edges=(
            o.EdgeStatus(
                edge="edge-1",
                alive=True,
                draining=False,
                subscriptions=19,
                patterns=4,
                capacity=CAPACITY,
                seen_ago_s=0.4,
            ),
        ),
        neighbours=(o.NeighbourStatus(head="head-2", alive=True, needs=3, offered=4),),
        clusters={"head-2": m.LoadState.LOW},
        publishers=12,
        brokers=(BROKER,),
        sessions=(SESSION,),
        culprits=(CULPRIT,),
        missing=("edge-9",),
        insight=INSIGHT,
        quotas=(QUOTA_USE,),
        links=(TOLD,),
    ),
    o.ExplainRequest(about="edge-1~7~3"),
    o.ExplainReply(
        about="edge-1~7~3",
        what=o.Explained.SESSION,
        cluster="north",
        head="head-1",
        policy="peer-wd",
        paused=True,
        decisions=(TOLD,),
        cut=2,
        brokers=(BROKER,),
        queues=(QUEUE,),
        sessions=(SESSION,),
        culprits=(CULPRIT,),
        missing=("edge-9",),
        insight=INSIGHT,
    ),
    o.PlanRequest(),
    o.PlanReply(
        cluster="north",
        head="head-1",
        policy="peer-wd",
        paused=True,
        head_state=m.LoadState.LOW,
        head_plan=o.HeadPlan.ASK_NEIGHBOURS,
        neighbours=("head-2",),
        edges=(
            o.Rehearsal(
                edge="edge-1",
                state=m.LoadState.OVERLOAD,
                due=True,
                blocked=o.Doing(activity=o.Activity.PAUSED),
                cause=CAUSE,
                nothing=o.NothingDue.NO_DANGER,
                worst=d.Finding(Metric.QUEUE_DEPTH, "out.siren-7.2", 52.0, 43.0, m.LoadState.OVERLOAD, 1, 2),
                outcome=d.PlanOutcome.RELIEVED,
                neighbours_first=True,
                relieved=True,
                moves=(MOVE,),
                bundles=BUNDLES,
                effects=EFFECTS,
                rejected=REJECTED,
                closest=QUEUE,
            ),
        ),
        missing=("edge-9",),
    ),
    o.PauseRequest(paused=True),
    o.PauseReply(cluster="north", paused=True, changed=True, under_way=1),
    q.QuarantineRequest(verb=q.Verb.REPLAY, ids=("q-1-7",), target="edge-1", account="buoy"),
    q.QuarantineReply(
        verb=q.Verb.SHOW,
        total=2,
        chosen=1,
        done=1,
        entries=(SET_ASIDE,),
        shown=q.Shown(properties={"user_id": "buoy"}, headers={"kind": "a"}, body="Ym9keQ=="),
    ),
    o.InspectRequest(queues=5, latest=50, session="edge-1~7~3", subscriber="siren-7", broker="edge-2"),
    o.InspectReply(state=BROKER, load=LOAD, decisions=(TOLD,), cut=2, queues=(QUEUE,), culprits=(CULPRIT,)),
    o.RehearseRequest(
        candidates=(
            Candidate(cluster="north", head="head-1", load=LOAD, patterns=("alert.*.north.#",), extra_path_us=100_000),
        ),
        rejected=REJECTED,
        resting=("out.siren-7.2",),
    ),
    o.RehearseReply(
        rehearsal=o.Rehearsal(edge="edge-1", state=m.LoadState.LOW, nothing=o.NothingDue.NO_DANGER, closest=QUEUE)
    ),
    drops.DropsRequest(order=drops.DropsOrder.REPLAY, edge="edge-1", subscriber="siren-7", number=2),
    drops.DropsReply(
        outputs=(
            drops.DroppedOutput(
                edge="edge-1",
                queue="out.siren-7.2",
                reasons={d.DropReason.LIMIT: 120},
                held=100,
                held_bytes=40_000,
                latest_ago_us=2_000_000,
                replaying=True,
                replayed=20,
                outcome=d.ReplayOutcome.NOT_READING,
            ),
        ),
        messages=(
            drops.DroppedMessage(
                edge="edge-1",
                queue="out.siren-7.2",
                topic="alert.quake.north.1",
                reason=d.DropReason.LIMIT,
                message_id="buoy~1:alert.quake.north.1:7",
                account="buoy",
                size_bytes=400,
                preview="M 7.1",
            ),
        ),
        begun=1,
        purged=3,
        missing=("edge-9",),
        without=("edge-8",),
    ),
)
