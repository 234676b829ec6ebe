"""HLD, the load detector of a head, and the load reports between clusters.

Every sample of a head is smoothed and judged by the thresholds of seed 000 §IV.B: a head has no queues of subscribers,
only links. In OVERLOAD its publishers are considered for a move to a neighbour (`publisher_moves`). What always holds:

- the state is that of the last sample; before the first one nothing is known and nobody is told anything;
- the reports of the cluster's edges (local PIE) expire by themselves, and so do those of neighbouring clusters;
- a report about this cluster goes to the neighbours by the rules for local ones, once per global period: the mean of
  each metric over the edges that can take load (seed 002 §3.3.1.2). It says LOW only if there is such an edge and
  this head, through which everything would go, is LOW itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidegate_protocol.balancing import BrokerLoad, HeadLoad, HeadLoadRequest, MetricReport, PieGlobal, PieLocal
from tidegate_protocol.messages import Capacity, LoadState, RefusalReason

from .config import SILENT_PERIODS_MAX
from .context import HeadContext
from .machine import HeadSampled, ReplyAddress, Send
from .metrics import BrokerSample, Role, utilizations
from .pie import PiePublisher, PieTable
from .publisher_arrivals import PublisherArrivals
from .publisher_moves import PublisherMoves
from .rates import smooth
from .states import Assessment, assess


@dataclass(frozen=True, slots=True)
class _Heard:
    report: PieGlobal
    until_s: float


class HeadLoads:
    """This head's load, its edges' reports, its neighbours' reports."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._sample: BrokerSample | None = None
        self._assessment: Assessment | None = None
        self._edges = PieTable(context.config.head, context.config.cluster)
        self._clusters: dict[str, _Heard] = {}
        self._global = PiePublisher()
        self._global_due_s = 0.0
        self._moves: PublisherMoves | None = None
        self._arrivals: PublisherArrivals | None = None

    def use(self, moves: PublisherMoves, arrivals: PublisherArrivals) -> None:
        """Who acts on an overload, and who expects publishers from others."""
        self._moves, self._arrivals = moves, arrivals

    # This head

    def sampled(self, event: HeadSampled) -> None:
        """Smooth and judge one sample, if it can be reckoned with; otherwise the one before stands."""
        if not event.broker.finite:
            return
        before = self._assessment
        self._sample = sample = self._smoothed(event.broker)
        above = before.above if before is not None else {}
        self._assessment = assessment = assess(Role.HEAD, utilizations(sample), above=above)
        if before is None or before.state is not assessment.state:
            self._context.decide(assessment.decision(self._context.config.head))
        if self._moves is not None:
            expecting = self._arrivals is not None and self._arrivals.busy
            self._moves.assessed(assessment, sample, expecting)

    def _smoothed(self, sample: BrokerSample) -> BrokerSample:
        before, configured, seen = self._sample, self._context.config.capacity, sample.capacity
        capacity = Capacity(
            uplink_bytes_per_s=configured.uplink_bytes_per_s or seen.uplink_bytes_per_s,
            downlink_bytes_per_s=configured.downlink_bytes_per_s or seen.downlink_bytes_per_s,
        )
        if before is None:
            return replace(sample, broker=self._context.config.head, role=Role.HEAD, capacity=capacity)
        return BrokerSample(
            broker=self._context.config.head,
            role=Role.HEAD,
            bytes_in_per_s=smooth(sample.bytes_in_per_s, before.bytes_in_per_s),
            bytes_offered_per_s=smooth(sample.bytes_offered_per_s, before.bytes_offered_per_s),
            messages_in_per_s=smooth(sample.messages_in_per_s, before.messages_in_per_s),
            capacity=capacity,
        )

    @property
    def sample(self) -> BrokerSample | None:
        """The smoothed load; None before the first sample."""
        return self._sample

    @property
    def state(self) -> LoadState:
        """Of the last sample; N/A before the first one."""
        return LoadState.NOT_AVAILABLE if self._assessment is None else self._assessment.state

    @property
    def busy(self) -> bool:
        """Whether publishers are being moved from here, or to here."""
        moves, arrivals = self._moves, self._arrivals
        return (moves is not None and moves.busy) or (arrivals is not None and arrivals.busy)

    def why_not_take(self) -> str | None:
        """Why this head can't take publishers now; None if it can."""
        if self.state is not LoadState.LOW:
            return f"{self._context.config.head} is {self.state}"
        if self._moves is not None and self._moves.busy:
            return f"{self._context.config.head} is in a session of its own"
        return None

    def load_asked(self, message: HeadLoadRequest, reply_to: ReplyAddress | None) -> None:
        """A neighbour that is overloaded asks whether we could take publishers."""
        context, sample = self._context, self._sample
        if sample is None or context.stopping:
            context.refuse(reply_to, RefusalReason.NOT_READY, "the load of this head is not known")
            return
        if context.paused:
            context.refuse(reply_to, RefusalReason.NOT_READY, "an operator has paused balancing here")
            return
        if not context.config.publisher_url:
            text = "publisher_url is not configured: publishers could not be told where to connect"
            context.refuse(reply_to, RefusalReason.NOT_READY, text)
            return
        load = BrokerLoad(
            broker=context.config.head,
            state=self.state,
            busy=self.busy,
            bytes_in_per_s=sample.bytes_in_per_s,
            bytes_offered_per_s=sample.bytes_offered_per_s,
            messages_in_per_s=sample.messages_in_per_s,
            capacity=sample.capacity,
        )
        url = context.config.publisher_url
        context.reply(reply_to, HeadLoad(session=message.session, load=load, publisher_url=url))

    # The edges of this cluster

    def edge_reported(self, message: PieLocal) -> None:
        self._edges.heard(message, self._context.now)

    def reports(self) -> dict[str, PieLocal]:
        """The reports of the edges that have not expired, in the order of names."""
        return self._edges.fresh(self._context.now)

    def able(self) -> list[str]:
        """The edges that can take load: LOW, not busy, alive, known and not being drained."""
        edges = self._context.registry.edges
        return [
            name
            for name, report in self.reports().items()
            if report.state is LoadState.LOW and not report.busy and name in edges
            if edges[name].alive and edges[name].settled and not edges[name].draining
        ]

    # Clusters

    def tick(self) -> None:
        """Every period: see whether a report to the neighbouring clusters is due."""
        context, now = self._context, self._context.now
        self._edges.expire(now)
        for name in [name for name, heard in self._clusters.items() if heard.until_s <= now]:
            del self._clusters[name]
        if now < self._global_due_s or not context.routes.offers:
            return
        self._global_due_s = now + context.config.balancing.global_period_s
        report = self._cluster_report()
        if report is None or not self._global.published(_as_local(report)):
            return
        for name in sorted(context.routes.offers):
            context.do(Send(name, report))

    def _cluster_report(self) -> PieGlobal | None:
        reports = self.reports()
        if not reports:
            return None
        able = self.able()
        state = LoadState.HIGH
        if self.state not in (LoadState.LOW, LoadState.NOT_AVAILABLE):
            state = LoadState.NOT_AVAILABLE
        elif able:
            state = LoadState.LOW
        elif any(report.state is LoadState.OVERLOAD for report in reports.values()):
            state = LoadState.OVERLOAD
        config = self._context.config
        return PieGlobal(
            cluster=config.cluster,
            head=config.head,
            state=state,
            metrics=_means([reports[name] for name in able]),
            period_s=config.balancing.global_period_s,
        )

    def cluster_reported(self, message: PieGlobal) -> None:
        if message.head in self._context.routes.offers:
            until_s = self._context.now + SILENT_PERIODS_MAX * message.period_s
            self._clusters[message.head] = _Heard(message, until_s)

    def cluster_states(self) -> Mapping[str, LoadState]:
        """What the neighbouring clusters have reported lately, by their head."""
        now = self._context.now
        return {name: h.report.state for name, h in sorted(self._clusters.items()) if h.until_s > now}

    def validate(self) -> None:
        """Raise AssertionError if something is remembered of somebody who is no neighbour."""
        self._edges.validate()
        assert self._clusters.keys() <= self._context.routes.offers.keys()
        assert (self._sample is None) == (self._assessment is None)


def _means(reports: list[PieLocal]) -> dict[str, MetricReport]:
    """The mean of each metric over those that have it; the thresholds are the same for all."""
    values: dict[str, list[MetricReport]] = {}
    for report in reports:
        for metric in sorted(report.metrics):
            values.setdefault(metric, []).append(report.metrics[metric])
    return {
        metric: MetricReport(value=sum(part.value for part in parts) / len(parts), low=parts[0].low, high=parts[0].high)
        for metric, parts in sorted(values.items())
    }


def _as_local(report: PieGlobal) -> PieLocal:
    """The same report in the form for which the rules of publication are written."""
    return PieLocal(
        broker=report.head,
        cluster=report.cluster,
        state=report.state,
        metrics=report.metrics,
        period_s=report.period_s,
    )
