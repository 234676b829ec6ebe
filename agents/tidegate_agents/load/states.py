"""The load state of a broker, and why: LOW takes load, OVERLOAD gives some away, HIGH does neither.

Seed 000 Table III, with its two gaps (a value *equal* to a threshold) closed: LOW if all
metrics are below their low threshold, OVERLOAD if any is above its high one, HIGH otherwise. Which metric has
which thresholds is a table, `THRESHOLDS`; the high threshold of queue depth comes with each queue.

Invariants:

- the state follows from the findings: a broker is LOW if and only if there is none;
- every finding names the metric, the value and the threshold it was compared with, and for a queue depth the
  subscription;
- a queue in migration, and one whose deadline is infeasible, is not judged; the latter is named;
- a metric without a known capacity is not judged either and is named. It does not keep a broker from LOW:
  capacities are learned from backlogs, so one that is unknown has been enough so far.

Where confirmation is asked for, a value above its high threshold in too few consecutive samples makes the
broker HIGH, not OVERLOAD: not to be given more, not yet to be relieved. The caller hands back `above` of the
last assessment; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from types import MappingProxyType
from typing import Final, Protocol

from tidegate_protocol.decisions import Finding as Finding, Hints, LoadStateChanged
from tidegate_protocol.parts import LoadState as LoadState

from .metrics import Metric, Role

NAMED_MAX: Final = 16
"""How many findings a decision names."""

QUEUE_FINDINGS_MAX: Final = 64
"""How many queues past their threshold get a finding each: the worst."""


NO_QUEUES: Final[frozenset[str]] = frozenset()


class JudgedQueue(Protocol):
    """What judging a queue needs of it."""

    @property
    def name(self) -> str: ...

    @property
    def depth(self) -> float: ...

    @property
    def migrating(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The thresholds of one metric; None where it has none, or where each value brings its own."""

    low: float | None
    high: float | None


THRESHOLDS: Final[Mapping[tuple[Role, Metric], Limits]] = MappingProxyType(
    {
        (Role.HEAD, Metric.DOWNLINK): Limits(0.90, 0.95),
        (Role.HEAD, Metric.UPLINK): Limits(0.90, 0.95),
        (Role.EDGE, Metric.DOWNLINK): Limits(0.90, 0.95),
        (Role.EDGE, Metric.MATCHING): Limits(0.90, 0.95),
        # A busy uplink is no reason to move anyone; only a deadline in danger is, and that the depths tell.
        (Role.EDGE, Metric.UPLINK): Limits(0.90, None),
        (Role.EDGE, Metric.QUEUE_DEPTH): Limits(None, None),
    }
)
"""Seed 000 §IV.B, which took the numbers from PEER."""

Key = tuple[Metric, str]
"""A metric and, for queue depth, the subscription (otherwise an empty string)."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The state of a broker and everything it rests on, worst first."""

    state: LoadState
    findings: tuple[Finding, ...]
    above: Mapping[Key, int]
    """How often in a row each value has been above its high threshold; goes into the next assessment."""
    unknown: tuple[Metric, ...] = ()
    infeasible: tuple[str, ...] = ()
    migrating: int = 0
    """How many queues were left out for that reason."""
    overloaded_queues: frozenset[str] = NO_QUEUES
    """All of them; of the queues past their threshold `findings` holds the worst only."""
    unnamed: int = 0
    """How many queues past their threshold have no finding of their own."""

    @property
    def overloads(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.state is LoadState.OVERLOAD)

    @property
    def overloaded_metrics(self) -> tuple[Metric, ...]:
        """The metrics to relieve, in the order of `Metric`."""
        return tuple(sorted({finding.metric for finding in self.overloads}, key=_METRIC_ORDER.__getitem__))

    def decision(self, broker: str, hints: Hints | None = None) -> LoadStateChanged:
        named = self.findings[:NAMED_MAX]
        others = max(len(self.findings) + self.unnamed - 1, 0)
        infeasible = self.infeasible[:NAMED_MAX]
        return LoadStateChanged(broker, self.state, named, others, self.unknown, infeasible, hints)


def assess(
    role: Role,
    values: Mapping[Metric, float | None],
    queues: Iterable[tuple[JudgedQueue, float | None]] = (),
    *,
    above: Mapping[Key, int] = MappingProxyType({}),
    samples_needed: Mapping[Metric, int] = MappingProxyType({}),
    thresholds: Mapping[tuple[Role, Metric], Limits] = THRESHOLDS,
) -> Assessment:
    """Judge one sample: the utilizations, and each queue with its threshold (None: infeasible).

    Queues known to be in time may be left out: they leave no trace in an assessment. `above` is that of the
    assessment before; metrics not in `samples_needed` need one sample.
    """
    findings: list[Finding] = []
    unknown: list[Metric] = []
    for metric, value in values.items():
        if value is None:
            unknown.append(metric)
            continue
        limits = thresholds[role, metric]
        if limits.high is not None and value > limits.high:
            findings.append(_above_high(metric, value, limits.high, above, samples_needed))
        elif limits.low is not None and value >= limits.low:
            findings.append(Finding(metric, "", value, limits.low, LoadState.HIGH))
    counted: dict[Key, int] = {
        (finding.metric, ""): finding.samples
        for finding in findings
        if finding.state is LoadState.OVERLOAD or finding.samples < finding.samples_needed
    }
    needed = samples_needed.get(Metric.QUEUE_DEPTH, 1)
    infeasible: list[str] = []
    migrating = 0
    past: list[_Past] = []
    for queue, threshold in queues:
        if queue.migrating:
            migrating += 1
        elif threshold is None:
            infeasible.append(queue.name)
        elif (depth := queue.depth) > threshold:
            samples = 1
            if needed > 1:
                key = (Metric.QUEUE_DEPTH, queue.name)
                before = above.get(key, 0)
                samples = counted[key] = before + 1 if before < needed else needed
            past.append((samples < needed, threshold - depth, queue.name, depth, threshold, samples))
    findings += _worst_queues(past, needed)
    findings.sort(key=_worst_first)
    state = findings[0].state if findings else LoadState.LOW
    return Assessment(
        state,
        tuple(findings),
        MappingProxyType(counted),
        tuple(sorted(unknown)),
        tuple(sorted(infeasible)),
        migrating,
        frozenset([name for unconfirmed, _, name, _, _, _ in past if not unconfirmed]) if past else NO_QUEUES,
        max(len(past) - QUEUE_FINDINGS_MAX, 0),
    )


_Past = tuple[bool, float, str, float, float, int]
"""A queue past its threshold, in the order worst first: unconfirmed, threshold − depth, name, depth, threshold,
samples. Not a class: there may be tens of thousands in one sample."""


def _worst_queues(past: list[_Past], needed: int) -> list[Finding]:
    worst = past if len(past) <= QUEUE_FINDINGS_MAX else nsmallest(QUEUE_FINDINGS_MAX, past)
    return [
        Finding(
            Metric.QUEUE_DEPTH,
            name,
            depth,
            threshold,
            LoadState.HIGH if unconfirmed else LoadState.OVERLOAD,
            samples,
            needed,
        )
        for unconfirmed, _, name, depth, threshold, samples in worst
    ]


def _above_high(
    metric: Metric, value: float, threshold: float, above: Mapping[Key, int], samples_needed: Mapping[Metric, int]
) -> Finding:
    needed = samples_needed.get(metric, 1)
    # Counting further than is needed would tell nothing, and an agent runs for months.
    samples = min(above.get((metric, ""), 0) + 1, needed)
    state = LoadState.OVERLOAD if samples >= needed else LoadState.HIGH
    return Finding(metric, "", value, threshold, state, samples, needed)


_METRIC_ORDER: Final = {metric: position for position, metric in enumerate(Metric)}


def _worst_first(finding: Finding) -> tuple[bool, int, float, str]:
    excess = finding.value - finding.threshold
    return finding.state is not LoadState.OVERLOAD, _METRIC_ORDER[finding.metric], -excess, finding.queue
