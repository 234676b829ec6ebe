"""One sample of every kind of telemetry record, every field filled in, and the golden files made of them.

Run this file to write the golden files anew, and look at the difference before you commit it: a changed file means
that what was written before can't be read in that field any more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tidegate_protocol import decisions as d, telemetry as t
from tidegate_protocol.operations import Role
from tidegate_protocol.parts import LoadState

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "telemetry"
EDGE: Final[dict[str, Any]] = {"time_us": 1_700_000_000_123_456, "cluster": "north", "broker": "edge-1"}
HEAD: Final[dict[str, Any]] = {**EDGE, "broker": "head-1"}
SESSION: Final = "edge-1~5~2"

SAMPLES: Final[tuple[t.TelemetryRecord, ...]] = (
    t.LoadSample(
        **EDGE,
        role=Role.EDGE,
        state=LoadState.OVERLOAD,
        uplink=1.07,
        downlink=0.4,
        matching=0.2,
        bytes_in_per_s=2.5e5,
        bytes_offered_per_s=1.07e6,
        bytes_used_per_s=1e6,
        messages_in_per_s=900.0,
        uplink_bytes_per_s=1e6,
        downlink_bytes_per_s=6.25e5,
        matching_per_s=4500.0,
        subscriptions=12,
        waiting=31.5,
        queues_past=1,
        publishers=3,
    ),
    t.Thresholds(
        **EDGE,
        session_us=500_000,
        subscriptions=12,
        queues=(
            t.QueueThreshold(
                queue="out.siren-7.2",
                subscriber="siren-7",
                pattern="alert.*.north.#",
                deadline_us=1_500_000,
                allowed_wait_us=1_200_000,
                depth=20.5,
                threshold=18.25,
                enqueue_per_s=20.0,
                drain_per_s=16.7,
                enqueue_predicted_per_s=20.5,
                drain_predicted_per_s=16.5,
                migrating=True,
                away=True,
                slow=True,
            ),
        ),
    ),
    t.StateChange(**EDGE, role=Role.EDGE, state=LoadState.OVERLOAD, before=LoadState.HIGH, reason="queue-depth"),
    t.DecisionMade(
        **EDGE,
        decision="session-planned",
        reason="relieved",
        session=SESSION,
        record=d.SessionPlanned(
            "edge-1",
            d.PlanOutcome.RELIEVED,
            (d.BundleMove("alert.1", "edge-0", 4),),
            2,
            rejected=(d.Rejected("edge-2", d.Rejection.STATE, state=LoadState.HIGH),),
            session=SESSION,
        ),
    ),
    t.SessionBegan(
        **EDGE,
        session=SESSION,
        source="edge-1",
        clients=t.Moved.SUBSCRIBERS,
        policy="peer-wd",
        reason="queue-depth",
        necessary=True,
        remote=False,
    ),
    t.SessionEnded(
        **EDGE,
        session=SESSION,
        source="edge-1",
        clients=t.Moved.SUBSCRIBERS,
        reason="moves-ended",
        moved=4,
        failed=0,
        duration_us=700_000,
    ),
    t.Prediction(
        **EDGE,
        session=SESSION,
        source="edge-1",
        clients=t.Moved.SUBSCRIBERS,
        moves=4,
        drain_factor=1.25,
        effects=(t.Effect(broker="edge-1", metric="uplink", before=1.07, after=0.85),),
    ),
    t.Outcome(
        **EDGE,
        session=SESSION,
        reason="load-moved",
        after_us=2_100_000,
        metrics=(t.Measured(metric="uplink", measured=0.86, predicted=0.85),),
        bytes_offered_per_s=8.6e5,
        bytes_offered_predicted_per_s=8.5e5,
        queues_past=0,
    ),
    t.Migration(
        **HEAD,
        session=SESSION,
        migration="head-1~5~m3",
        clients=t.Moved.SUBSCRIBERS,
        client="siren-7",
        pattern="alert.*.north.#",
        source="edge-1",
        target="edge-0",
        moved=True,
        reason="moved",
        duration_us=620_000,
    ),
    t.MigrationGapTold(
        **HEAD,
        subscriber="siren-7",
        migration="head-1~5~m3",
        pattern="alert.*.north.#",
        source="edge-1",
        target="edge-0",
        gap_us=55_000,
        held=7,
    ),
    t.LatencyDigest(
        **HEAD,
        subscriber="siren-7",
        run=1_700_000_000_000,
        number=3,
        pattern="alert.*.north.#",
        edge="edge-1",
        deadline_us=1_500_000,
        elapsed_us=10_000_400,
        received=200,
        late=2,
        late_unchecked=1,
        duplicates=1,
        reordered=1,
        missing=4,
        latency_us_sum=61_000_000,
        buckets=(440, 441, 530),
        counts=(120, 78, 2),
    ),
    t.PublisherRates(
        **HEAD,
        publisher="buoy-3~k2f9x",
        elapsed_us=10_000_000,
        active_us=9_000_700,
        round_trip_us=4_200,
        topics=(
            t.TopicRate(topic="alert.wave.north", messages=200, bytes=80_000, gaps=199, gap_s_sum=9.95, gap_s2_sum=0.5),
        ),
    ),
    t.WriterStatus(**HEAD, run=1_700_000_000_000, written=12_000, dropped=3),
)


def golden_text(record: t.TelemetryRecord) -> str:
    """What the golden file of this record holds: its wire form, laid out for people."""
    return json.dumps(json.loads(t.encode(record)), indent=2) + "\n"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for sample in SAMPLES:
        (GOLDEN / f"{sample.kind}.json").write_text(golden_text(sample))
