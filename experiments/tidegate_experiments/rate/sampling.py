"""When brokers are sampled in rate mode, and when they need not be.

Sampling a thousand subscriptions on a thousand edges every second for ten minutes would be 6·10⁸ samples, and nearly
all of them would say what the one before said. So an edge **rests** when

- its last `Rest.after` samples were identical: long enough for every smoothed rate to have arrived, as
  (1 − α)^15 < 10⁻⁹, and longer than a broker stabilizes;
- nothing waits;
- the last load report of its agent was neither OVERLOAD nor busy, as it is during a session and until that shows.

While it rests its agent is not sampled, and that last report is sent again every other period, as the agent would have
done. Everything else goes on: hellos, requests, timers. Any change of what arrives or of a queue, and any session that
begins or ends, wakes the edge before it happens, and from then on it is sampled as if it had been so all the time.
Every `Rest.heartbeat` periods it is sampled all the same; an answer that differs from the report repeated so far is
counted in `heartbeats_differing` and would show that resting was wrong. A sample that an agent asks for wakes its edge
too, and comes between the others: here they keep their turns, so that brokers stay spread over the period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate_agents.config import BalancingConfig
from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.parts import LoadState
from tidegate_simulator.kernel import Kernel
from tidegate_simulator.observer import Observer

from .brokers import Broker

REPORT_EVERY_PERIODS: Final = 2
"""How often the report of a broker at rest is repeated: a steady one is suppressed every other time."""

SAME_METRIC: Final = 1e-6
"""Utilizations that differ by less are the same: smoothing gets ever closer to a level and never quite there."""


@dataclass(frozen=True, slots=True)
class Rest:
    """When an edge may rest. `after` is None where none may."""

    after: int | None = 15
    after_start: int = 3
    """The same before anything has changed: the first sample of a rate is its level, so nothing is on its way."""
    heartbeat: int = 240


class Sampling:
    """Samples every broker once a period, and lets edges rest."""

    def __init__(
        self,
        kernel: Kernel,
        balancing: BalancingConfig,
        rest: Rest,
        repeat: Callable[[Broker, PieLocal], None],
        observers: tuple[Observer, ...],
        *,
        from_s: float = 0.0,
    ) -> None:
        """Edges are sampled from `from_s` on."""
        self._from_s = from_s
        self._kernel = kernel
        self._period_s = balancing.period_s
        self._rest_rule = rest
        self._after = None
        if rest.after is not None:
            self._after = max(rest.after, int(balancing.stabilizing_max_s / balancing.period_s) + 1)
        self._repeat_report = repeat
        self._observers = observers
        self.samples = 0
        """Subscriptions looked at, over all edges and periods."""
        self.heartbeats_differing = 0

    def begin(self, broker: Broker) -> None:
        """The broker has started: sample it at its next turn, and every period from then on."""
        broker.ticks = self._ticks_until(broker, self._kernel.now) + 1
        if broker.edge is not None:
            first = max(broker.ticks - 1, self._ticks_until(broker, self._from_s))
            self._kernel.at(self._time_of(broker, first), self._begin_edge, broker)
        else:
            self._kernel.at(self._time_of(broker, broker.ticks), self._sample_head, broker)

    def _begin_edge(self, broker: Broker) -> None:
        broker.plane.skip_to(self._kernel.now)
        broker.ticks = self._ticks_until(broker, self._kernel.now) + 1
        self._next_sample(broker)

    def wake(self, broker: Broker) -> None:
        """Something is about to change on an edge."""
        if not broker.resting:
            return
        broker.resting, broker.stirred = False, True
        broker.token += 1
        broker.ticks = self._ticks_until(broker, self._kernel.now)
        broker.plane.skip_to(self._time_of(broker, broker.ticks))
        broker.ticks += 1
        self._next_sample(broker)

    def soon(self, broker: Broker, after_s: float) -> None:
        """The agent of an edge wants a sample between two others."""
        self.wake(broker)
        self._kernel.after(after_s, self._sample_between, (broker, broker.token))

    # Time

    def _ticks_until(self, broker: Broker, now: float) -> int:
        """The last turn of a broker that is not after `now`."""
        return int((now - broker.phase_s) / self._period_s + 1e-9)

    def _time_of(self, broker: Broker, ticks: int) -> float:
        return broker.phase_s + ticks * self._period_s

    def _next_sample(self, broker: Broker) -> None:
        self._kernel.at(self._time_of(broker, broker.ticks), self._sample_edge, (broker, broker.token))

    # Samples

    def _sample_head(self, broker: Broker) -> None:
        assert broker.head is not None
        sample = broker.head.sample(self._kernel.now)
        for observer in self._observers:
            observer.head_sampled(broker.name, sample, self._kernel.now)
        broker.post(sample)
        broker.ticks += 1
        self._kernel.at(self._time_of(broker, broker.ticks), self._sample_head, broker)

    def _sample_edge(self, argument: tuple[Broker, int]) -> None:
        broker, token = argument
        if token != broker.token:
            return
        repeated = broker.last_report if broker.resting else None
        self._look(broker)
        if repeated is not None and broker.last_report is not None:
            self.heartbeats_differing += _differ(repeated[1], broker.last_report[1])
        broker.resting = self._may_rest(broker)
        if broker.resting:
            self._rest(broker)
        else:
            broker.ticks += 1
            self._next_sample(broker)

    def _sample_between(self, argument: tuple[Broker, int]) -> None:
        broker, token = argument
        now = self._kernel.now
        if token == broker.token and min(now - broker.plane.sampled_s, self._time_of(broker, broker.ticks) - now) > 0.0:
            self._look(broker)

    def _look(self, broker: Broker) -> None:
        sample = broker.plane.sample(self._kernel.now)
        self.samples += len(sample.subscriptions)
        for observer in self._observers:
            observer.edge_sampled(broker.name, sample, self._kernel.now)
        broker.post(sample)

    # Rest

    def _may_rest(self, broker: Broker) -> bool:
        plane, report = broker.plane, broker.last_report
        if self._after is None or report is None or plane.uplink.backlog_bytes:
            return False
        if report[1].busy or report[1].state is LoadState.OVERLOAD:
            return False
        return plane.steady >= (self._after if broker.stirred else self._rest_rule.after_start)

    def _rest(self, broker: Broker) -> None:
        """Repeat the last report until the next heartbeat, or until something happens."""
        assert broker.last_report is not None
        first = broker.last_report[0] + REPORT_EVERY_PERIODS
        wakes = broker.ticks + self._rest_rule.heartbeat
        self._kernel.at(self._time_of(broker, first), self._repeat, (broker, broker.token, wakes))

    def _repeat(self, argument: tuple[Broker, int, int]) -> None:
        broker, token, wakes = argument
        if token != broker.token:
            return
        assert broker.last_report is not None
        broker.ticks = self._ticks_until(broker, self._kernel.now)
        if broker.ticks >= wakes:
            broker.plane.skip_to(self._kernel.now - self._period_s)
            self._sample_edge((broker, token))
            return
        broker.last_report = (broker.ticks, broker.last_report[1])
        self._repeat_report(broker, broker.last_report[1])
        next_s = self._time_of(broker, broker.ticks + REPORT_EVERY_PERIODS)
        self._kernel.at(next_s, self._repeat, (broker, token, wakes))


def _differ(one: PieLocal, other: PieLocal) -> bool:
    """Whether two reports say different things, other than by the arithmetic of floats."""
    if (one.state, one.busy, one.metrics.keys()) != (other.state, other.busy, other.metrics.keys()):
        return True
    return any(abs(metric.value - other.metrics[name].value) > SAME_METRIC for name, metric in one.metrics.items())
