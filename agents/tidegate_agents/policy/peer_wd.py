"""PEER with deadlines, the default policy (seeds 000 and 001): move load only where a deadline is in danger.

*Detection*: an edge is relieved if it is in OVERLOAD, that is if some queue is past its dynamic threshold or a static
high threshold is passed. A queue past its threshold while the uplink has room is no reason: nobody who leaves would
make it drain faster; nor is one whose backlog is being worked off in time. *Candidates* are the brokers reported LOW,
least loaded in the overloaded metric first. *Selection*: bundles in the offloading order, each to the first candidate
that stays LOW in every metric with it, until the source is predicted out of OVERLOAD. If whole bundles don't suffice,
what is left is split.

*As a last resort*, where nobody here or in other clusters stays LOW and a deadline would be missed, a broker is filled
up further, but not into overload: a busy broker is better than a late message.

Invariant: no selection pushes a candidate out of LOW, or as a last resort into overload, by its own estimate;
one that would be no improvement is empty and says why; what was tried and rejected is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Unpack

from tidegate_protocol.balancing.sessions import CANDIDATES_MAX, MOVES_PER_SESSION_MAX, SHARED_PATTERNS_MAX, Candidate
from tidegate_protocol.decisions import Cause, PlanOutcome, Rejected, Rejection

from ..load.metrics import Metric, Role, utilizations
from ..load.states import THRESHOLDS, Limits, LoadState
from ..load.threshold import ThresholdKind
from .bundles import Bundle, offloading_order
from .interface import LoadView, Movable, QueueLoad, Selection, Trigger, is_necessary, sample_of
from .placement import EdgeView, Known, Placement, place
from .selecting import Selecting

WORTH_SHARE: Final = 0.03
"""Of the uplink: a plan that carries this much more away is worth leaving the offloading order for, and splitting
bundles that could have gone whole."""
NOTHING_HELPS: Final = PlanOutcome.NO_IMPROVEMENT


class PeerWdPolicy:
    """Stateless, as all policies are."""

    name = "peer-wd"
    limits: Mapping[tuple[Role, Metric], Limits] = THRESHOLDS

    def detect(self, view: LoadView) -> Trigger | None:
        """A trigger if the edge is in OVERLOAD and moving somebody away may help."""
        metric = overload_to_relieve(view)
        if metric is None:
            return None
        candidates, rejected = low_brokers(view, metric)
        finding = next(found for found in view.assessment.overloads if found.metric is metric)
        patterns = sorted({queue.pattern for queue in view.judged})
        named = patterns
        if len(patterns) > SHARED_PATTERNS_MAX:
            # Only then does it matter which are named; otherwise the order is worked out when there are candidates.
            order = offloading_order(Role.EDGE, metric, view.movable(()).bundles)
            named = [bundle.topic for bundle in order[:SHARED_PATTERNS_MAX]]
        return Trigger(
            Cause(metric, finding.value, finding.threshold, finding.queue),
            is_necessary(view.assessment),
            candidates,
            tuple(named),
            rejected,
            high_brokers(view) if metric is Metric.QUEUE_DEPTH else (),
            urgent=metric is Metric.QUEUE_DEPTH and is_urgent(view),
        )

    def rank(self, trigger: Trigger, candidates: Iterable[Candidate], *, session: str = "") -> tuple[Candidate, ...]:
        """Least utilized in the overloaded metric first; the next metrics and the name decide between equals.

        A way that is longer costs every message of every client, so candidates of other clusters come last.
        """
        relieved = Metric.UPLINK if trigger.metric is Metric.QUEUE_DEPTH else trigger.metric

        def position(candidate: Candidate) -> tuple[int, float, float, str]:
            values = utilizations(sample_of(candidate.load))
            value = values.get(relieved)
            worst = max((v for v in values.values() if v is not None), default=0.0)
            return candidate.extra_path_us, 1.0 if value is None else value, worst, candidate.load.broker

        return tuple(sorted(candidates, key=position))

    def select(
        self,
        view: LoadView,
        trigger: Trigger,
        candidates: Sequence[Candidate],
        *,
        resting: Collection[str] = frozenset(),
        session: str = "",
    ) -> Selection:
        """Bundles in offloading order, whole ones first, until the source is predicted out of OVERLOAD.

        The order says who had better go; filled up in that order, candidates may be left with room that is too small
        for anybody else. Then it is tried once more with the largest first, and taken if that carries more away.
        """
        started = partial(
            Selecting,
            view,
            trigger.metric,
            candidates,
            self.limits,
            moves_max=MOVES_PER_SESSION_MAX,
            last_resort=trigger.last_resort,
        )
        movable = view.movable(resting)
        chosen = started()
        chosen.note_left_out(resting)
        _in_order(chosen, offloading_order(Role.EDGE, trigger.metric, movable.bundles), movable.queues)
        if not chosen.done:
            packed = started()
            packed.note_left_out(resting)
            _largest_first(packed, movable)
            if packed.relieved or _carries_more_away(packed, chosen):
                chosen = packed
        return chosen.selection(NOTHING_HELPS)

    def place(self, pattern: str, edges: Iterable[EdgeView], **known: Unpack[Known]) -> Placement | None:
        """By the rules of `placement`."""
        return place(pattern, edges, **known)


def _in_order(chosen: Selecting, order: Iterable[Bundle], movable: Mapping[str, QueueLoad]) -> None:
    order = list(order)
    for bundle in order:
        if chosen.done:
            return
        chosen.try_whole(bundle)
    gone = {name for move in chosen.moves for name in move.bundle.clients}
    for bundle in order:
        # Once the source is relieved this does nothing.
        chosen.try_part([movable[name] for name in bundle.clients if name not in gone])


def _largest_first(chosen: Selecting, movable: Movable) -> None:
    """What is hard to place goes where it just fits; what is small fills the gaps."""
    for bundle in sorted(movable.bundles, key=lambda one: (-one.bytes_out_per_s / len(one.clients), one.topic)):
        if chosen.done:
            return
        chosen.try_tight([movable.queues[name] for name in bundle.clients])


def _carries_more_away(one: Selecting, other: Selecting) -> bool:
    """Whether the source is left with less by more than estimates err."""
    uplink = one.source.capacity.uplink_bytes_per_s or other.source.bytes_offered_per_s
    return other.source.bytes_offered_per_s - one.source.bytes_offered_per_s > WORTH_SHARE * uplink


def overload_to_relieve(view: LoadView) -> Metric | None:
    """The overloaded metric that moving clients away would relieve, in the order in which overloads are named."""
    for metric in view.assessment.overloaded_metrics:
        if metric is not Metric.QUEUE_DEPTH or (view.uplink_limits and deadline_in_danger(view)):
            return metric
    return None


def deadline_in_danger(view: LoadView) -> bool:
    """Whether a queue past its threshold will be late unless somebody moves.

    An uplink that is offered more than it carries lets every queue grow. One that carries all it is offered works its
    backlog off, as it does after a session; then only a wait that is too long already is a danger.
    """
    used = utilizations(view.broker)[Metric.UPLINK]
    if used is None or used > 1.0:
        return True
    kept = 1.0 - view.rule.margin
    past = view.assessment.overloaded_queues
    return any(
        queue.depth > kept * queue.allowed_wait_s * queue.drain_predicted_per_s
        for queue in view.queues
        if queue.name in past
    )


def is_urgent(view: LoadView) -> bool:
    """Whether a deadline would be missed before a session after the next sample could help.

    That is what the projected threshold asks, whichever is used. The paper's is often passed long before.
    """
    rule = replace(view.rule, kind=ThresholdKind.PROJECTED)
    past = view.assessment.overloaded_queues
    thresholds = ((queue.depth, rule.of(queue)) for queue in view.queues if queue.name in past)
    return any(threshold is not None and depth > threshold for depth, threshold in thresholds)


def high_brokers(view: LoadView) -> tuple[str, ...]:
    """Who is not overloaded by the last reports, least loaded first: for a last resort.

    Also those reported busy: reports are up to two periods old, and the head knows who is free by now.
    """
    found = []
    for name, report in view.peers.items():
        value = report.metrics.get(Metric.UPLINK)
        if report.state in (LoadState.LOW, LoadState.HIGH):
            found.append((1.0 if value is None else value.value, name))
    return tuple(name for _, name in sorted(found)[:CANDIDATES_MAX])


def low_brokers(view: LoadView, metric: Metric) -> tuple[tuple[str, ...], tuple[Rejected, ...]]:
    """Who is LOW and free by the last reports, least loaded first, and why the others are not taken."""
    relieved = str(Metric.UPLINK if metric is Metric.QUEUE_DEPTH else metric)
    found: list[tuple[float, str]] = []
    rejected: list[Rejected] = []
    for name, report in view.peers.items():
        if report.state is not LoadState.LOW:
            rejected.append(Rejected(name, Rejection.STATE, state=report.state))
        elif report.busy:
            rejected.append(Rejected(name, Rejection.BUSY))
        else:
            value = report.metrics.get(relieved)
            found.append((1.0 if value is None else value.value, name))
    found.sort()
    rejected += [Rejected(name, Rejection.TOO_MANY) for _, name in found[CANDIDATES_MAX:]]
    return tuple(name for _, name in found[:CANDIDATES_MAX]), tuple(rejected)
