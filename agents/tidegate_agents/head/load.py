"""HLD, the load detector of a head, and the load reports between clusters.

Every sample of a head is smoothed and judged by the thresholds of seed 000 §IV.B: a head has no queues of subscribers,
only links. In OVERLOAD its publishers are considered for a move to a neighbour (`publishers/leaving`). Invariants:

- the state is that of the last sample; before the first sample nothing is known and no neighbour is told anything;
- the reports of the cluster's edges (local PIE) expire by themselves, and so do those of neighbouring clusters;
- a report about this cluster goes to the neighbours by the rules for local ones, once per global period: the mean of
  each metric over the edges that can take load (seed 002 §3.3.1.2). It says LOW only if there is such an edge and
  this head, through which everything would go, is LOW itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidegate_protocol.balancing.loads import MetricReport, PieGlobal, PieLocal
from tidegate_protocol.balancing.publishers import HeadLoad, HeadLoadRequest, PublisherExpect
from tidegate_protocol.decisions import Rejected, Rejection
from tidegate_protocol.messages import Capacity, LoadState
from tidegate_protocol.rendering import refusals

from ..config import SILENT_PERIODS_MAX
from ..kit.dispatch import Dispatch
from ..load.metrics import BrokerSample, Role, utilizations
from ..load.pie import PiePublisher, PieTable, load_of
from ..load.rates import smooth
from ..load.states import Assessment, assess
from ..machine import HeadSampled, ReplyAddress, Send
from .context import HeadContext
from .publishers.arriving import PublisherArrivals
from .publishers.leaving import PublisherMoves


@dataclass(frozen=True, slots=True)
class _Heard:
    report: PieGlobal
    until_s: float


class HeadLoads:
    """This head's load, its edges' reports, its neighbours' reports."""

    def __init__(self, context: HeadContext, moves: PublisherMoves, arrivals: PublisherArrivals) -> None:
        """`moves` acts on an overload, `arrivals` expects publishers from other heads."""
        self._context = context
        self._moves = moves
        self._arrivals = arrivals
        self._sample: BrokerSample | None = None
        self._assessment: Assessment | None = None
        self._edges = PieTable(context.config.head, context.config.cluster)
        self._clusters: dict[str, _Heard] = {}
        self._global = PiePublisher()
        self._global_due_s = 0.0

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(HeadSampled, self.sampled)
        dispatch.on_message(HeadLoadRequest, self.on_load_request)
        dispatch.on_message(PublisherExpect, self.on_publisher_expect)
        dispatch.on_message(PieLocal, self.on_edge_report)
        dispatch.on_message(PieGlobal, self.on_cluster_report)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

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
        self._moves.assessed(assessment, sample, self._arrivals.busy)

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
        return self._moves.busy or self._arrivals.busy

    def on_publisher_expect(self, message: PublisherExpect, reply_to: ReplyAddress | None) -> None:
        """A neighbour that is overloaded wants to send us a publisher."""
        self._arrivals.on_expect(message, reply_to, self._why_not_take())

    def _why_not_take(self) -> Rejected | None:
        """Why this head can't take publishers now; None if it can."""
        if self.state is not LoadState.LOW:
            return Rejected(self._context.config.head, Rejection.STATE, state=self.state)
        return Rejected(self._context.config.head, Rejection.BUSY) if self._moves.busy else None

    def on_load_request(self, message: HeadLoadRequest, reply_to: ReplyAddress | None) -> None:
        """A neighbour that is overloaded asks whether we could take publishers."""
        context, sample = self._context, self._sample
        url = context.config.publisher_url
        if sample is None or context.stopping:
            context.refuse(reply_to, refusals.load_unknown(context.config.head))
        elif context.paused:
            context.refuse(reply_to, refusals.paused(context.config.cluster))
        elif not url:
            context.refuse(reply_to, refusals.not_configured("publisher_url"))
        else:
            load = load_of(sample, self.state, busy=self.busy)
            context.reply(reply_to, HeadLoad(session=message.session, load=load, publisher_url=url))

    # The edges of this cluster

    def on_edge_report(self, message: PieLocal, _: ReplyAddress | None) -> None:
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
            if edges[name].ready and not edges[name].draining
        ]

    # Clusters

    def _tick(self) -> None:
        """Every period: see whether a report to the neighbouring clusters is due."""
        context, now = self._context, self._context.now
        self._edges.expire(now)
        for name in [name for name, heard in self._clusters.items() if heard.until_s <= now]:
            del self._clusters[name]
        if now < self._global_due_s or not context.routes.offers:
            return
        self._global_due_s = now + context.config.balancing.global_period_s
        report = self._cluster_report()
        if report is None or not self._global.published(report):
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

    def on_cluster_report(self, message: PieGlobal, _: ReplyAddress | None) -> None:
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
