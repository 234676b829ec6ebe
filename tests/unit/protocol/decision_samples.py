"""One sample of every kind of decision, every field filled in, and the golden files made of them.

Run this file to write the golden files anew, and look at the difference before you commit it: a changed file means
that what was written before can't be read in that field any more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tidegate_protocol import decisions as d
from tidegate_protocol.parts import LoadState, Metric, RefusalReason
from tidegate_protocol.rights import Verdict

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "decisions"
SESSION: Final = "edge-1~5~2"
QUEUE: Final = "out.siren-7.2"
CAUSE: Final = d.Cause(Metric.UPLINK, 0.31, 0.1, QUEUE, "edge-2")
HINTS: Final = d.Hints(1e6, (d.QueueForecast(QUEUE, 40.0, 21.5),))
REJECTED: Final = (
    d.Rejected("edge-2", d.Rejection.STATE, state=LoadState.HIGH),
    d.Rejected(
        "alert.*",
        d.Rejection.WOULD_OVERLOAD,
        "edge-3",
        True,
        LoadState.HIGH,
        Metric.UPLINK,
        0.94,
        0.9,
        "alert.#",
        "as told",
    ),
)
FINDING: Final = d.Finding(Metric.QUEUE_DEPTH, QUEUE, 23.0, 18.25, LoadState.OVERLOAD, 2, 3)
EFFECTS: Final = (d.Effect("edge-1", Metric.UPLINK, 1.07, after=0.82),)

LOAD: Final[tuple[d.Decision, ...]] = (
    d.LoadStateChanged(
        "edge-1", LoadState.OVERLOAD, (FINDING,), 4, (Metric.MATCHING,), ("out.far-1.0",), HINTS, session=SESSION
    ),
    d.SlowSubscriber(
        QUEUE, "siren-7", "alert.*", d.SlownessOutcome.SLOW, 20.0, 4.0, 90.0, 0.95, 18.25, 0.7, 1000, session=SESSION
    ),
    d.DeadlinesJudged(
        "edge-1", d.DeadlineOutcome.INFEASIBLE, 3, (d.DeadlineOfQueue(QUEUE, 0.1, -0.02),), session=SESSION
    ),
    d.UplinkNarrowed("edge-1", 9e5, 1e6, 5e5, session=SESSION),
    d.AlarmsChanged("edge-1", d.AlarmOutcome.RAISED, ("memory",), session=SESSION),
)
SESSIONS: Final[tuple[d.Decision, ...]] = (
    d.SessionNotStarted("edge-1", "peer-wd", FINDING, True, session=SESSION),
    d.SessionRequested(
        "edge-1", CAUSE, True, True, 2, 0.5, 0.2, 1.0, 3,
        d.Danger(QUEUE, 23.0, 18.25, 20.0, 16.5, 1.5, 1.2), 1.07, HINTS, REJECTED, session=SESSION,
    ),
    d.SessionRefused("edge-1", d.SessionRefusal.IN_SESSION, "edge-2~1~1", session=SESSION),
    d.SessionCandidates("edge-1", Metric.QUEUE_DEPTH, 2, 1, CAUSE, REJECTED, session=SESSION),
    d.RemotesAsked("head-1", (d.RemoteBroker("head-2", "edge-9"),), REJECTED, session=SESSION),
    d.SessionWidened(
        "edge-1", d.Reach.LAST_RESORT, d.PlanOutcome.NO_ROOM, 2, 1, 1, REJECTED, session=SESSION
    ),
    d.SessionPlanned(
        "edge-1", d.PlanOutcome.RELIEVED, (d.BundleMove("alert.*", "edge-0", 4),), 2, 1, 4, 1.3, EFFECTS, REJECTED,
        session=SESSION,
    ),
    d.SessionPlan("edge-1", d.PlanOutcome.RELIEVED, 4, 2, REJECTED, session=SESSION),
    d.SessionFailed(
        "edge-1", d.SessionOutcome.REFUSED, 10.0, 1, 2, RefusalReason.CONFLICT, "edge-1 is being drained",
        session=SESSION,
    ),
    d.SessionEnded("edge-1", d.SessionOutcome.MOVES_ENDED, 4, 1, 1.5, 1.2, 0.6, session=SESSION),
    d.SessionLeft("edge-0", d.SessionOutcome.END_UNHEARD, session=SESSION),
    d.Stabilized(
        "edge-1", d.StabilizedReason.LOAD_MOVED, 3.0, 8.2e5, 8.1e5, (d.Measured(Metric.UPLINK, 0.82, 0.81),), 1,
        d.ClosestQueue(QUEUE, 12.0, 18.25), session=SESSION,
    ),
)  # fmt: skip
MOVES: Final[tuple[d.Decision, ...]] = (
    d.MigrationEnded(
        "head-1~1~m7", "siren-7", "alert.*", "edge-1", "edge-0", d.MoveOutcome.UNFIT, ("edge-0",),
        "PRECONDITION_FAILED", REJECTED[0], True, session=SESSION,
    ),
    d.AcceptanceEnded(
        "siren-7", "alert.*", "head-2", "edge-0", d.MoveOutcome.UNFIT, ("edge-0",), "no such queue",
        REJECTED[0], session=SESSION,
    ),
    d.AcceptEndUnheard("head-2", 5, session=SESSION),
    d.MoveBelieved("siren-7", "alert.*", "edge-0", session=SESSION),
    d.DepartureLearned("siren-7", "alert.*", "head-2", "edge-9", session=SESSION),
    d.SentAfter("siren-7", "alert.*", "head-2", "edge-9", session=SESSION),
    d.GuestsUnheard("head-2", d.GuestsUnheardReason.NO_ANSWER, 3, session=SESSION),
)  # fmt: skip
PLACES: Final[tuple[d.Decision, ...]] = (
    d.Placed(
        "alert.*", d.PlacementReason.APART_FROM_CORRELATED, "edge-0", "siren-7",
        (d.EdgeScore("edge-0", 4, 5e5, 0.7, 1e5),), d.Advice(60.0, 0.9, (d.UplinkHint("edge-0", 1e6),)), REJECTED,
        session=SESSION,
    ),
    d.PlaceSettled("siren-7", "alert.*", "edge-0", ("edge-1",), session=SESSION),
    d.PlaceAbandoned("siren-7", "alert.*", "edge-1", session=SESSION),
    d.Removed("siren-7", 2, "edge-1", session=SESSION),
    d.CollectionEnded(
        "head-1~1~c3", "siren-7", "alert.*", "edge-1", d.CollectionOutcome.CLIENT_REFUSED, "unknown", session=SESSION
    ),
    d.OutputListed(QUEUE, d.OutputOutcome.ADOPTED, session=SESSION),
)  # fmt: skip
PUBLISHERS: Final[tuple[d.Decision, ...]] = (
    d.PublisherSession("head-1", (d.Cause(Metric.UPLINK, 0.97, 0.95),), session=SESSION),
    d.PublisherPlan(
        "head-1", d.PlanOutcome.RELIEVED, (d.PublisherMove("buoy~1", "head-2"),), EFFECTS, REJECTED, session=SESSION
    ),
    d.PublisherMoveEnded(
        "buoy~1", "head-1", "head-2", d.PublisherOutcome.REFUSED, "head-2", "is HIGH", True, session=SESSION
    ),
    d.PublisherSessionEnded("head-1", d.SessionOutcome.MOVES_ENDED, 1, 2, 1.5, 10.0, session=SESSION),
    d.PublisherExpected("buoy~1", "head-2", session=SESSION),
    d.ExpectationEnded("buoy~1", "head-2", d.ExpectationOutcome.FENCE_SEEN, session=SESSION),
    d.FloodingPublisher("buoy~1", d.Flood.USELESS, True, 900.0, 100.0, 80.0, 60.0, 3, ("noise",), session=SESSION),
    d.PublisherBehaves("buoy~1", 60.0, session=SESSION),
    d.PublishersFull("buoy~1", 20_000, session=SESSION),
)
ACCOUNTS: Final[tuple[d.Decision, ...]] = (
    d.QuotaWatched("siren", "coast", d.Quota.SUBSCRIPTIONS, d.QuotaStage.NEAR, 801.0, 1000.0, session=SESSION),
    d.FloodingAccount(
        "crowd", d.Flood.MESSAGES, d.Containment.ASKED, 1000.0, 50.0, 60.0, 2, 3, ("crowd-1~1",), session=SESSION
    ),
    d.AccountReleased("crowd", 60.0, session=SESSION),
    d.UntrueReports("rival", "rival~1", d.Untruth.ROUND_TRIP, 60.0, 0.5, "quake.alert", session=SESSION),
    d.GreedySubscriber(
        "out.hoard-1.0", "hoard-1", "#", "hoard", d.Flood.MESSAGES, 900.0, 100.0, 0.8, 100, session=SESSION
    ),
)
BROKERS: Final[tuple[d.Decision, ...]] = (
    d.EdgePresence("edge-1", d.Presence.SILENT, session=SESSION),
    d.NeighbourPresence("head-2", d.Presence.HEARD, session=SESSION),
    d.EdgeForgotten("edge-1", 3600.0, session=SESSION),
    d.RegistryRead("edge-1", d.RegistryOutcome.READ, 12, 2, 1, 1, session=SESSION),
    d.HelloRefused("edge-1", RefusalReason.INVALID, "edge-1 belongs to cluster south", session=SESSION),
    d.RoutesRefused("head-2", d.RoutesRefusal.LIMIT, 900, "too many patterns", session=SESSION),
    d.ActionRefused("DeclareOutput", "PRECONDITION_FAILED", session=SESSION),
    d.DrainOrdered("edge-1", d.DrainOrder.DRAIN, session=SESSION),
    d.Drained("edge-1", session=SESSION),
    d.DrainWaits("edge-1", "alert.*", REJECTED, session=SESSION),
    d.BalancingSwitched("north", d.BalancingSwitch.PAUSED, session=SESSION),
    d.AccountsAllowed("head-1", d.AccountsOutcome.WITHHELD, ("edge-2",), session=SESSION),
    d.AccountRefused("rival", d.ControlRefusal.NOT_YOURS, 3, "rival may not speak for buoy", session=SESSION),
)
INSIGHTS: Final[tuple[d.Decision, ...]] = (
    d.InsightTaken("north", 3, 2, 1, 60.0, 3540.0, session=SESSION),
    d.InsightRefused("north", d.InsightRefusal.OLDER, 3, 2, 1, "south", 30.0, session=SESSION),
    d.InsightOver("head-1", d.InsightEnd.EXPIRED, session=SESSION),
    d.InsightTold("edge-1", 2, 3540.0, 1e6, session=SESSION),
)
RIGHTS: Final[tuple[d.Decision, ...]] = (
    d.SubscriptionForbidden("siren-7", "alert.#", Verdict.NOT_COVERED, session=SESSION),
    d.SubscriptionRevoked("siren-7", "alert.*", "edge-1", Verdict.NO_RIGHT, session=SESSION),
    d.RulesTaken("edge-1", 12, 3, session=SESSION),
)
DROPS: Final[tuple[d.Decision, ...]] = (
    d.MessagesDropped(QUEUE, d.DropReason.LIMIT, 120, 4000, session=SESSION),
    d.DropsReplayed(QUEUE, d.ReplayOutcome.NOT_READING, 20, 100, "gone", session=SESSION),
    d.DropsPurged(QUEUE, 120, session=SESSION),
)
LINKS: Final[tuple[d.Decision, ...]] = (
    d.MessageSetAside(
        "edge-1", d.SetAsideReason.TOO_LARGE, "q-1-7", "buoy", "buoy~1", "alert.fire", 2_000_000,
        "PRECONDITION_FAILED - message size 2000000 is larger than configured max size 1048576", session=SESSION,
    ),
    d.LinkRelayed("edge-1", d.RelayOutcome.STANDS_STILL, 120, 1, 11.5, "no answer", session=SESSION),
    d.LinkLimitDiffers("head-1", "edge-1", d.LinkLimit.MESSAGE, 16_777_216, 1_048_576, session=SESSION),
)  # fmt: skip
SAMPLES: Final = (
    *(*LOAD, *SESSIONS, *MOVES, *PLACES, *PUBLISHERS, *ACCOUNTS, *BROKERS, *INSIGHTS, *RIGHTS, *DROPS, *LINKS),
)


def golden_text(sample: d.Decision) -> str:
    return json.dumps(d.to_plain(sample), indent=2) + "\n"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.json"):
        path.unlink()
    for one in SAMPLES:
        (GOLDEN / f"{one.kind}.json").write_text(golden_text(one))
