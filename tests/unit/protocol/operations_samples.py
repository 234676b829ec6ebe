"""One sample of every message of operators, every field filled in."""

from __future__ import annotations

from typing import Final

from tidegate_protocol import balancing as b
from tidegate_protocol import insight as i
from tidegate_protocol import messages as m
from tidegate_protocol import operations as o

CAPACITY: Final = m.Capacity(uplink_bytes_per_s=1.25e6, downlink_bytes_per_s=2.5e6, matching_per_s=4000.0)
LOAD: Final = b.BrokerLoad(
    broker="edge-1",
    state=m.LoadState.OVERLOAD,
    busy=True,
    bytes_in_per_s=2.5e5,
    bytes_offered_per_s=1.3e6,
    messages_in_per_s=900.0,
    capacity=CAPACITY,
)
MOVE: Final = b.PlannedMove(
    subscriber="siren-7",
    number=2,
    target="edge-2",
    bytes_in_per_s=1e4,
    bytes_out_per_s=8e4,
    messages_in_per_s=50.0,
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
    last_refusal="it expired 12 s ago",
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
TOLD: Final = o.Told(
    broker="edge-1",
    ago_us=4_500_000,
    decision="session-planned",
    subject="edge-1",
    reason="the source is predicted out of OVERLOAD: 8 of level.# to edge-2",
    numbers={"source.uplink.before": 1.068, "source.uplink.after": 0.988},
    rejected={"tide.# to edge-2": "would not stay LOW: uplink 0.996 ≥ 0.9"},
    session="edge-1~7~3",
)
BROKER: Final = o.BrokerState(
    broker="edge-1",
    role=o.Role.EDGE,
    state=m.LoadState.OVERLOAD,
    doing="in session edge-1~7~3 as its source: moving",
    samples=61,
    metrics={"uplink": b.MetricReport(value=1.068, low=0.9, high=0.95)},
    unknown=("matching",),
    capacity=CAPACITY,
    session_s=0.54,
    subscriptions=19,
    past=7,
    queues=(QUEUE,),
    slow=("out.chart-1.0",),
    infeasible=("out.far-1.0",),
    alarms=("memory",),
)
SESSION: Final = o.SessionState(
    session="edge-1~7~3",
    source="edge-1",
    phase="ended",
    reason="queue-depth of out.siren-7.2 52 > 43",
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
    text="asked to slow down: publisher_messages_per_s_max: 4000/s > 200/s",
    numbers={"messages_per_s": 4000.0},
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
        head_text="would move no publisher: it is LOW",
        edges=(
            o.Rehearsal(
                edge="edge-1",
                state=m.LoadState.OVERLOAD,
                due=True,
                blocked="balancing is paused",
                metric="queue-depth",
                reason="queue-depth of out.siren-7.2 52 > 43",
                plan="the source is predicted out of OVERLOAD: 1 of alert.*.north.# to edge-2",
                relieved=True,
                moves=(MOVE,),
                numbers={"source.uplink.after": 0.988},
                rejected={"edge-3": "reported HIGH"},
                closest=QUEUE,
            ),
        ),
        missing=("edge-9",),
    ),
    o.PauseRequest(paused=True),
    o.PauseReply(cluster="north", paused=True, changed=True, under_way=1),
    o.InspectRequest(queues=5, latest=50, session="edge-1~7~3", subscriber="siren-7", broker="edge-2"),
    o.InspectReply(state=BROKER, load=LOAD, decisions=(TOLD,), cut=2, queues=(QUEUE,), culprits=(CULPRIT,)),
    o.RehearseRequest(
        candidates=(
            b.Candidate(
                cluster="north", head="head-1", load=LOAD, patterns=("alert.*.north.#",), extra_path_us=100_000
            ),
        ),
        unfit={"edge-3": "is being drained"},
        resting=("out.siren-7.2",),
    ),
    o.RehearseReply(
        rehearsal=o.Rehearsal(edge="edge-1", state=m.LoadState.LOW, reason="nothing is late", closest=QUEUE)
    ),
)
