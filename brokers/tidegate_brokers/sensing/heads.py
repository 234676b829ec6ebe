"""The sample of a head: what comes in, what its links are asked to carry, and which publisher sends how much.

RabbitMQ counts what each account sends, not on which topics; publishers of ours report that themselves, about once a
second, and are believed as far as RabbitMQ's counts allow (`head/publishers/credibility`). Invariants:

- a report stands for its publisher until the next one, or until it is too old: a publisher that stops is at 0 soon.
  It is news once: a sample names the publishers for which an older report stands;
- a rate is never taken over less than a second: the last report before a goodbye may cover a few milliseconds, and a
  handful of messages in that time is no flood;
- what a link is asked to carry is taken where messages are enqueued for it, so that it may be more than it carries;
- sizes are bytes on the wire: of what waits on a link, or else of what publishers report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate_agents.head.publishers.credibility import Believed, Claim, Credit, believed
from tidegate_agents.load.metrics import BrokerSample, PublisherSample, Role
from tidegate_agents.machine import HeadSampled
from tidegate_protocol.messages import TOPICS_PER_PUBLISHER_MAX, Capacity, PublisherReport
from tidegate_protocol.names import INGRESS_PREFIX, LINK_PREFIX, PUBLISH_EXCHANGE

from .accounts import AccountWatch
from .edges import ELAPSED_S_MIN, SIZE_SHARE
from .exposition import MESSAGE_BYTES, MESSAGES, Exposition
from .queues import Differences
from .wire import wire_overhead_bytes

OVERHEAD_BYTES: Final = wire_overhead_bytes("#")
"""Of a message whose topic is not known."""
REPORT_AGE_MAX_S: Final = 3.0
REPORT_S_MIN: Final = 1.0
"""How much time a report covers at least; publishers report about once a second."""
REPORTED_MAX: Final = 100_000
"""Publishers times topics that are remembered; what comes beyond is not named, but counted in the whole."""


@dataclass(frozen=True, slots=True)
class _ReportedStream:
    """What one publisher sends on one topic, by its latest report."""

    sample: PublisherSample
    until_s: float


class LatestReports:
    """The latest reports of all publishers."""

    def __init__(self) -> None:
        self._streams: dict[str, dict[str, _ReportedStream]] = {}
        self._accounts: dict[str, str] = {}
        """By publisher, who sent its latest report."""
        self._news: set[str] = set()
        """Those of them who have reported since `take_unheard`."""
        self._count = 0

    def reported(self, report: PublisherReport, now_s: float, account: str = "") -> None:
        """Take over a report. One that names as many topics as fit may have left some for the next: those stay."""
        elapsed_s = max(report.elapsed_us / 1e6, REPORT_S_MIN)
        streams = self._streams.get(report.publisher, {})
        before = len(streams)
        kept = dict(streams) if len(report.topics) >= TOPICS_PER_PUBLISHER_MAX else {}
        for count in report.topics:
            if count.messages <= 0 or (count.topic not in kept and self._count + len(kept) - before >= REPORTED_MAX):
                continue
            sample = PublisherSample(
                report.publisher,
                count.topic,
                count.messages / elapsed_s,
                count.bytes / count.messages + wire_overhead_bytes(count.topic),
                report.round_trip_us / 1e6,
            )
            kept[count.topic] = _ReportedStream(sample, now_s + max(REPORT_AGE_MAX_S, 2.0 * elapsed_s))
        self._put(report.publisher, kept)
        if kept:
            self._news.add(report.publisher)
            self._accounts[report.publisher] = account

    def fresh(self, now_s: float) -> tuple[PublisherSample, ...]:
        """What publishers send now, in the order of their ids and topics."""
        for publisher, streams in list(self._streams.items()):
            old = [topic for topic, stream in streams.items() if stream.until_s <= now_s]
            if old:
                self._put(publisher, {topic: stream for topic, stream in streams.items() if topic not in old})
        return tuple(streams[topic].sample for _, streams in sorted(self._streams.items()) for topic in sorted(streams))

    def claims(self, now_s: float) -> tuple[Claim, ...]:
        """What publishers say that they send now, and which account said so."""
        return tuple(Claim(self._accounts[sample.publisher], sample) for sample in self.fresh(now_s))

    def take_unheard(self) -> frozenset[str]:
        """The publishers whose last report was there already when this was last asked."""
        unheard = frozenset(self._streams.keys() - self._news)
        self._news.clear()
        return unheard

    def _put(self, publisher: str, streams: dict[str, _ReportedStream]) -> None:
        self._count += len(streams) - len(self._streams.pop(publisher, {}))
        if streams:
            self._streams[publisher] = streams
        else:
            self._news.discard(publisher)
            self._accounts.pop(publisher, None)


class HeadSampler:
    """Makes samples of one head from successive answers."""

    def __init__(
        self,
        broker: str,
        capacity: Capacity,
        accounts: AccountWatch | None = None,
        may_publish: Callable[[str, str], bool] = lambda account, topic: True,
        user: str = "",
    ) -> None:
        """`accounts`: what RabbitMQ counts of each; without it reports are believed, but for their round trips. `user`:
        the head's own account, which clients may share.
        """
        self._user = user
        self._broker = broker
        self._capacity = capacity
        self._accounts = accounts
        self._may_publish = may_publish
        self._credit = Credit()
        self.publishers = LatestReports()
        self._enqueued, self._published, self._forwarded = Differences(), Differences(), Differences()
        self._moment_s: float | None = None
        self._link_bytes: dict[str, float] = {}
        """Size of a body by link queue."""

    def taken(
        self, answer: Exposition, moment_s: float, neighbour_round_trip_s: Mapping[str, float]
    ) -> HeadSampled | None:
        """The sample between the last answer and this one; None for the first."""
        first = self._moment_s is None
        elapsed_s = moment_s - self._moment_s if self._moment_s is not None else 0.0
        if not first and elapsed_s < ELAPSED_S_MIN:
            return None
        self._moment_s = moment_s
        enqueued, _ = self._enqueued.taken(answer.enqueued(LINK_PREFIX))
        published, _ = self._published.taken(answer.received(PUBLISH_EXCHANGE))
        forwarded, _ = self._forwarded.taken(answer.received(INGRESS_PREFIX))
        self._learn_sizes(answer)
        if first:
            return None
        found = self._believed(moment_s, sum(published.values()) / elapsed_s)
        publishers = found.samples
        mean = self._mean_bytes(publishers)
        messages_in = (sum(published.values()) + sum(forwarded.values())) / elapsed_s
        offered = sum(
            count / elapsed_s * (self._link_bytes[queue] + OVERHEAD_BYTES if queue in self._link_bytes else mean)
            for queue, count in enqueued.items()
        )
        broker = BrokerSample(
            self._broker,
            Role.HEAD,
            bytes_in_per_s=messages_in * mean,
            bytes_offered_per_s=offered,
            messages_in_per_s=messages_in,
            capacity=self._capacity,
        )
        return HeadSampled(
            broker,
            publishers,
            dict(neighbour_round_trip_s),
            self.publishers.take_unheard(),
            self._accounts.take_news() if self._accounts is not None else None,
            found.untrue,
        )

    def _believed(self, moment_s: float, published_per_s: float) -> Believed:
        claims = self.publishers.claims(moment_s)
        accounts = self._accounts
        measured = accounts.measured(moment_s) if accounts is not None else None
        if measured and published_per_s > 0.0 and not any(one.published_per_s for one in measured.values()):
            measured = None  # a RabbitMQ without such statistics, or one that has none yet
        complete = accounts is None or accounts.complete
        claiming = sorted({claim.account for claim in claims})
        unverified = self._credit.left(moment_s, claiming, measured if complete else None)
        return believed(
            claims, measured, published_per_s, unverified, self._may_publish, complete=complete, shared=(self._user,)
        )

    def _learn_sizes(self, answer: Exposition) -> None:
        if not answer.has(MESSAGE_BYTES):
            return
        counts = answer.per_queue(MESSAGES, LINK_PREFIX)
        self._link_bytes = {queue: size for queue, size in self._link_bytes.items() if queue in counts}
        for queue, total in answer.per_queue(MESSAGE_BYTES, LINK_PREFIX).items():
            if counts.get(queue, 0.0) > 0.0 and total > 0.0:
                size, before = total / counts[queue], self._link_bytes.get(queue)
                self._link_bytes[queue] = size if before is None else before + SIZE_SHARE * (size - before)

    def _mean_bytes(self, publishers: tuple[PublisherSample, ...]) -> float:
        """Of one message on the wire: by what publishers report, else by what waits on links."""
        messages = sum(stream.messages_per_s for stream in publishers)
        if messages > 0.0:
            return sum(stream.messages_per_s * stream.message_bytes for stream in publishers) / messages
        if self._link_bytes:
            return sum(self._link_bytes.values()) / len(self._link_bytes) + OVERHEAD_BYTES
        return OVERHEAD_BYTES
