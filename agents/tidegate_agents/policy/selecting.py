"""Putting a selection together: bundle by bundle, with the effect on both sides estimated at every step.

A policy decides in which order to try what; this keeps the estimates, and refuses what would do harm. Invariant: no
candidate is pushed out of LOW in any metric by what it is given, all moves together (as a last resort: not into
overload); no subscription goes where its deadline could not be met; nothing is moved that would not relieve the
overloaded metric; and it is done as soon as the source is predicted out of OVERLOAD and, if queues were past their
thresholds, to carry what it is offered, with nothing late that waits by then.

**Backlog that only time drains.** Where so much waits already that no move could save it, trying on would empty the
source for nothing. So it is also done once the uplink is below its low threshold: then the backlog goes as fast as a
sensible load allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import Effect, PlanOutcome, Rejected, Rejection

from ..load.metrics import BrokerSample, Metric, Role, utilizations
from ..load.states import Assessment, Limits, LoadState, assess
from .bundles import Bundle, subscriber_bundle
from .effects import drain_factor, subscribers_moved
from .interface import REJECTED_MAX, LoadView, QueueLoad, SelectedMove, Selection, sample_of

BOTTLENECK_SHARE: Final = 0.95
"""From this utilization on an uplink may be what holds queues back: at a steady load of less, it drains them."""


LAST_RESORT_UPLINK: Final = 0.99
"""As a last resort an uplink is filled up to this: a FIFO carries all it is offered up to 1, and estimates err."""


@dataclass(slots=True)
class _Target:
    candidate: Candidate
    before: BrokerSample
    now: BrokerSample
    patterns: set[str]

    @property
    def name(self) -> str:
        return self.candidate.load.broker

    def room(self) -> tuple[float, str]:
        """Bytes per second that its uplink could still carry; the name decides between equals."""
        uplink = self.now.capacity.uplink_bytes_per_s
        return inf if uplink is None else uplink - self.now.bytes_offered_per_s, self.name


class Selecting:
    """A selection in the making. `candidates` are tried in the order given."""

    def __init__(
        self,
        view: LoadView,
        metric: Metric,
        candidates: Iterable[Candidate],
        limits: Mapping[tuple[Role, Metric], Limits],
        *,
        moves_max: int,
        last_resort: bool = False,
    ) -> None:
        self.moves: list[SelectedMove] = []
        self.source = view.broker
        self._view = view
        self._metric = metric
        self._limits = limits
        self._last_resort = last_resort
        self._left = moves_max
        self._rejected: dict[tuple[str, str, bool], Rejected] = {}
        self._moved: set[str] = set()
        self._counts = Counter([queue.pattern for queue in view.queues])
        self._targets: list[_Target] = []
        for candidate in candidates:
            name = candidate.load.broker
            takes_load = candidate.load.state is LoadState.LOW or (
                last_resort and candidate.load.state is LoadState.HIGH
            )
            if not takes_load or candidate.load.busy:
                state = None if candidate.load.busy else candidate.load.state
                why = Rejection.BUSY if candidate.load.busy else Rejection.STATE
                self._reject(Rejected(name, why, state=state))
            elif name != view.name:
                sample = sample_of(candidate.load)
                self._targets.append(_Target(candidate, sample, sample, set(candidate.patterns)))
        self.overloaded = view.assessment.overloaded_queues
        # The worst is checked first; as long as it stays, the others need not be looked at.
        past = [(q.depth - (q.threshold or 0.0), q.name, q) for q in view.judged if q.name in self.overloaded]
        self._pending = [queue for _, _, queue in sorted(past)]
        self.relieved = self._is_relieved()

    @property
    def done(self) -> bool:
        return self.relieved or self._left <= 0 or not self._targets

    def note_left_out(self, resting: Collection[str]) -> None:
        """Say which queues are not to be moved whatever happens."""
        for queue in [q for q in self._view.queues if q.away or q.migrating or q.slow or q.name in resting]:
            if queue.name in resting:
                why = Rejection.MOVED_RECENTLY
            elif queue.away:
                why = Rejection.AWAY
            else:
                why = Rejection.MIGRATING if queue.migrating else Rejection.TOO_SLOW
            self._reject(Rejected(queue.name, why))

    def try_whole(self, bundle: Bundle) -> bool:
        """Give the bundle to the first candidate that can take it."""
        some_stay = len(bundle.clients) < self._counts[bundle.topic]
        if not self._relieves(bundle, some_stay):
            self._reject(Rejected(bundle.topic, Rejection.NO_RELIEF, metric=self._metric))
            return False
        if len(bundle.clients) > self._left:
            self._reject(Rejected(bundle.topic, Rejection.TOO_MANY))
            return False
        for target in self._targets:
            why_not = self._why_not(bundle, target, some_stay)
            if why_not is None:
                self._move(bundle, target, some_stay)
                return True
            self._reject(why_not)
        return False

    def try_part(self, members: Sequence[QueueLoad]) -> bool:
        """Split the bundle of `members`: as many as fit on each candidate, but no more than are needed."""
        return self._spread(members, self._targets, len(members) - 1)

    def try_tight(self, members: Sequence[QueueLoad]) -> bool:
        """The same, but the candidate that has least room comes first, and all of them may go."""
        return self._spread(members, sorted(self._targets, key=_Target.room), len(members))

    def _spread(self, members: Sequence[QueueLoad], targets: Sequence[_Target], most: int) -> bool:
        left = sorted(members, key=lambda queue: (-queue.allowed_wait_s, queue.name))[: self._left]
        most = min(most, self._left)
        moved = False
        for target in targets:
            if most < 1 or self.relieved:
                break

            def fits(count: int, target: _Target = target, left: list[QueueLoad] = left) -> bool:
                part, some_stay = self._part(left, count)
                return self._relieves(part, some_stay) and self._why_not(part, target, some_stay) is None

            fitting = _largest(most, fits)
            if fitting == 0:
                part, some_stay = self._part(left, 1)
                why_not = self._why_not(part, target, some_stay) or Rejected(
                    part.topic, Rejection.NO_RELIEF, target.name, metric=self._metric
                )
                self._reject(replace(why_not, part=True))
                continue

            def too_few(count: int, left: list[QueueLoad] = left) -> bool:
                return not self._would_relieve(subscriber_bundle(left[:count], self.overloaded))

            needed = min(_largest(fitting, too_few) + 1, fitting)
            part, some_stay = self._part(left, needed)
            self._move(part, target, some_stay)
            left = left[needed:]
            most -= needed
            moved = True
        return moved

    def _part(self, left: Sequence[QueueLoad], count: int) -> tuple[Bundle, bool]:
        """The first `count` of a bundle, and whether others of it stay."""
        part = subscriber_bundle(left[:count], self.overloaded)
        return part, count < self._counts[part.topic]

    def selection(self, nothing: PlanOutcome) -> Selection:
        """What has been chosen; with the outcome `nothing` if that is nothing."""
        outcome = PlanOutcome.RELIEVED if self.relieved else PlanOutcome.PARTLY_RELIEVED
        if not self.moves and self.relieved:
            outcome = PlanOutcome.OVERLOAD_PASSED
        elif not self.moves:
            outcome = nothing if self._targets else PlanOutcome.NO_ROOM
        return Selection(
            tuple(self.moves),
            outcome,
            self.relieved,
            self.source,
            self._factor(),
            self._effects(),
            tuple(self._rejected.values()),
        )

    # Estimates

    def _why_not(self, bundle: Bundle, target: _Target, some_stay: bool) -> Rejected | None:
        longer_s = target.candidate.extra_path_us / 1e6
        if longer_s > 0.0 and bundle.allowed_wait_s is not None:
            rate = bundle.messages_in_per_s
            allowed = self._view.rule.depth(bundle.allowed_wait_s - longer_s, rate, rate)
            if allowed is None or allowed <= 0.0:
                return Rejected(bundle.topic, Rejection.TOO_FAR, target.name, value=longer_s)
        effect = subscribers_moved(
            bundle, self.source, target.now, target_has_topic=bundle.topic in target.patterns, some_stay=some_stay
        )
        after = assess(Role.EDGE, effect.target_values, thresholds=self._limits)
        if after.state is LoadState.LOW:
            return None
        uplink = effect.target_values[Metric.UPLINK]
        overrun = after.state is LoadState.OVERLOAD or (uplink is not None and uplink > LAST_RESORT_UPLINK)
        return would_overload(bundle.topic, target.name, after) if overrun or not self._last_resort else None

    def _move(self, bundle: Bundle, target: _Target, some_stay: bool) -> None:
        has_topic = bundle.topic in target.patterns
        effect = subscribers_moved(bundle, self.source, target.now, target_has_topic=has_topic, some_stay=some_stay)
        self.source, target.now = effect.source_after, effect.target_after
        target.patterns.add(bundle.topic)
        self.moves.append(SelectedMove(target.name, bundle, some_stay, has_topic))
        self._moved |= set(bundle.clients)
        self._counts[bundle.topic] -= len(bundle.clients)
        self._left -= len(bundle.clients)
        self.relieved = self._is_relieved()

    def _relieves(self, bundle: Bundle, some_stay: bool) -> bool:
        if self._metric in (Metric.QUEUE_DEPTH, Metric.UPLINK):
            return bundle.bytes_out_per_s > 0.0
        coming_in = bundle.bytes_in_per_s if self._metric is Metric.DOWNLINK else bundle.messages_in_per_s
        return coming_in > 0.0 and not some_stay

    def _would_relieve(self, part: Bundle) -> bool:
        before, moved, pending = self.source, self._moved, list(self._pending)
        self.source = subscribers_moved(part, before, before, some_stay=True).source_after
        self._moved = moved | set(part.clients)
        relieved = self._is_relieved()
        self.source, self._moved, self._pending = before, moved, pending
        return relieved

    def _is_relieved(self) -> bool:
        values = utilizations(self.source)
        for metric, value in values.items():
            high = self._limits[Role.EDGE, metric].high
            if value is not None and high is not None and value > high:
                return False
        factor = self._factor()
        uplink, low = values[Metric.UPLINK], self._limits[Role.EDGE, Metric.UPLINK].low
        if self.overloaded and uplink is not None and uplink > 1.0:
            return False  # the backlog would go on growing, and pass the thresholds again
        if self._moved and uplink is not None and low is not None and uplink < low and factor > 1.0:
            return True
        while self._pending:
            queue = self._pending[-1]
            if queue.name not in self._moved:
                rule = self._view.rule
                threshold = rule.of(queue, factor)
                if threshold is not None and (queue.depth > threshold or rule.late_when_helped(queue, factor)):
                    return False
            # A queue that is in time at this factor is so at every larger one, and the factor only grows.
            self._pending.pop()
        return True

    def _factor(self) -> float:
        """How many times as fast the queues that stay are drained.

        While there is a backlog an uplink is busy also at a little less than its capacity, and what comes out of it
        is shared as what goes in.
        """
        before, after = self._view.broker, self.source
        uplink = before.capacity.uplink_bytes_per_s
        limiting = self._view.uplink_limits and uplink is not None
        if limiting and uplink is not None and before.bytes_offered_per_s >= BOTTLENECK_SHARE * uplink:
            return before.bytes_offered_per_s / max(after.bytes_offered_per_s, 1.0)
        return drain_factor(before, after)

    # Telling

    def _reject(self, rejected: Rejected) -> None:
        if len(self._rejected) < REJECTED_MAX:
            self._rejected.setdefault((rejected.name, rejected.target, rejected.part), rejected)

    def _effects(self) -> tuple[Effect, ...]:
        used = {move.target for move in self.moves}
        sides = [(self._view.broker, self.source), *((t.before, t.now) for t in self._targets if t.name in used)]
        return tuple(effect for before, after in sides for effect in effects(before, after))


def would_overload(name: str, target: str, after: Assessment) -> Rejected:
    """`name` is not moved to `target`, because of what the target's load would be after it."""
    worst = after.findings[0]
    state, metric, value, limit = after.state, worst.metric, worst.value, worst.threshold
    return Rejected(name, Rejection.WOULD_OVERLOAD, target, state=state, metric=metric, value=value, limit=limit)


def effects(before: BrokerSample, after: BrokerSample) -> tuple[Effect, ...]:
    """What becomes of the metrics of a broker, as far as they are known."""
    values = utilizations(before)
    return tuple(
        Effect(before.broker, metric, values[metric], after=value)
        for metric, value in utilizations(after).items()
        if value is not None
    )


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest count up to `most` for which `holds`, if it holds for none above one for which it does not."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
