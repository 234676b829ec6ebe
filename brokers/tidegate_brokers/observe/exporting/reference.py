"""Every metric that a head or an edge exports: name, type, labels and meaning, taken from the objects that export it.

`docs/metrics.md` is exactly what `render` makes, and tests compare dashboards and alerts with `exported`. Nothing runs
here: registries are filled as those of real processes are, and given one sample, so that every family shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from tidegate_agents.config import EdgeConfig as AgentConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.metrics import BrokerSample, Role, SubscriptionSample
from tidegate_agents.load.states import THRESHOLDS
from tidegate_agents.machine import DropCount, DropsCounted, EdgeSampled, Started
from tidegate_protocol.decisions import BY_KIND, LABELS as REASONS, DropReason, Quota, RelayOutcome, SetAsideReason
from tidegate_protocol.messages import Capacity, Subscription
from tidegate_protocol.operations import QuotaUse
from tidegate_protocol.parts import LoadState
from tidegate_protocol.telemetry import LatencyDigest

from ...links.gauges import QuarantineMetrics
from ...sensing.gauges import Sensed, SensedCollector, SensingMetrics
from ...sensing.trips import ProbedTrip
from ..counters import BrokerMetrics
from ..telemetry.gauges import TelemetryMetrics
from .deliveries import DeliveryMetrics
from .drops import DropMetrics
from .load import EdgeLoadMetrics, HeadLoadMetrics
from .quotas import QuotaMetrics
from .records import HeadRecordMetrics, RecordMetrics

CAPACITY: Final = Capacity(uplink_bytes_per_s=1e6, downlink_bytes_per_s=1e6, matching_per_s=1e3)
SUFFIXES: Final = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
TITLES: Final = {
    "broker": "Load of a broker",
    "topic": "Topics, on edges",
    "output": "Output queues, on edges",
    "subscriptions": "Subscriptions, on edges",
    "delivery": "Deliveries, on heads",
    "decisions": "Decisions, sessions and moves",
    "link": "Links and other brokers",
    "control": "Control messages and connections",
    "sensing": "Sensing and RabbitMQ",
    "telemetry": "Telemetry",
    "process": "The process itself",
}
PARTS: Final = {
    "session": "decisions", "sessions": "decisions", "migration": "decisions", "migrations": "decisions",
    "prediction": "decisions", "balancing": "decisions", "edge": "link", "neighbour": "link", "routes": "link",
    "quarantine": "link",
    "requests": "control", "connection": "control", "rules": "control", "rabbitmq": "sensing",
    "record": "telemetry", "agent": "process", "build": "process", "event": "process", "actions": "process",
    "publishers": "broker", "quota": "broker", "dropped": "output",
}  # fmt: skip
"""Under which heading the parts go that have none of their own."""
ROLES: Final = {
    "tidegate_link_forwarded_messages": ("head",),
    "tidegate_link_state_info": ("head",),
    "tidegate_link_waiting_messages": ("head",),
    "tidegate_routes_count": ("head",),
    "tidegate_subscriptions_count": ("edge",),
}
"""Of what both kinds of brokers have, and only one ever sets."""
LABELS: Final = (
    ("`topic`", "a topic pattern that somebody subscribes to: at most `topic_series_max` of them, the rest is `other`"),
    ("`queue`", "an output queue: the `output_series_max` with most waiting, or with most dropped"),
    ("`resource`", "`uplink`, `downlink`, `matching`; of alarms `memory`, `disk`, `file-descriptors`"),
    ("`state`", "`LOW`, `HIGH`, `OVERLOAD`, `N/A`; of a link's shovel `running`, `starting`, `terminated`, `missing`"),
    ("`clients`", "`subscribers`, `publishers`"),
    ("`outcome`", "of a session `moved`, `partly`, `nothing`; of a move `moved`, `stayed`; of a link that was helped "
     + ", ".join(f"`{outcome}`" for outcome in RelayOutcome)),
    ("`reason` of messages set aside", ", ".join(f"`{reason}`" for reason in SetAsideReason)),
    ("`decision`", f"one of {len(BY_KIND)} kinds: " + ", ".join(f"`{kind}`" for kind in sorted(BY_KIND))),
    ("`reason`", f"of decisions, sessions and moves one of {len(REASONS)}: "
     + ", ".join(f"`{reason}`" for reason in sorted(REASONS))),
    ("`reason` of dropped messages", ", ".join(f"`{reason}`" for reason in DropReason)),
    ("`reason` of refusals", "`no-edge`, `not-ready`, `unknown`, `conflict`, `limit`, `invalid`, `failed`, "
     "`not-allowed`"),
    ("`reason` of dropped records", "`buffer-full`, `unconfirmed`, `refused`, `too-large`, `too-many`, `stopped`"),
    ("`reason` of unsent messages", "`no-connection`, `nobody-there`, `too-many`, `too-large`"),
    ("`reason` of malformed messages", "`not-json`, `unknown-kind`, `unknown-version`, `invalid-field`, `too-large`, "
     "`kind-not-allowed`, `not-yours`, `no-request`, `bad-reply-to`"),
    ("`activity`", "`watching`, `source`, `target`, `stabilizing`"),
    ("`bound`", "`low`, `high`"),
    ("`necessary`", "`yes`, `no`, `unknown`"),
    ("`link_kind`", "`edge`, `head`: where the link leads"),
    ("`connection`", "`data-plane`, `control`, `telemetry`, `neighbour-NAME`"),
    ("`action`", "the kind of change that RabbitMQ refused"),
    ("`target`, `edge`, `neighbour`", "a broker of the configuration, or one that has said hello"),
    ("`kind`", "of a control message; load reports are `pie-local` and `pie-global`"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, as somebody who writes a query wants to know it."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str
    roles: tuple[str, ...]

    @property
    def series(self) -> tuple[str, ...]:
        """The names that appear in queries."""
        return tuple(self.name + suffix for suffix in SUFFIXES.get(self.type, ("",)))

    @property
    def part(self) -> str:
        """The heading it belongs under."""
        first = self.name.split("_")[1]
        return first if first in TITLES else PARTS[first]


def families() -> list[Family]:
    """All that heads and edges export about themselves, by name."""
    found: dict[str, Family] = {}
    for role, registry in (("head", _head()), ("edge", _edge())):
        for family in _read(registry, role):
            if role not in ROLES.get(family.name, (role,)):
                continue
            known = found.get(family.name)
            roles = (role,) if known is None else (*known.roles, role)
            labels = family.labels if known is None else known.labels or family.labels
            found[family.name] = Family(family.name, family.type, labels, family.text, roles)
    return [found[name] for name in sorted(found)]


def exported() -> frozenset[str]:
    """Every name of a series that a query may use."""
    return frozenset(name for family in families() for name in family.series)


def render() -> str:
    """The page, as Markdown."""
    lines = [_INTRODUCTION]
    by_part: dict[str, list[Family]] = {part: [] for part in TITLES}
    for family in families():
        by_part[family.part].append(family)
    for part, title in TITLES.items():
        lines += ["", f"## {title}", "", "| metric | type | labels | of | meaning |", "| --- | --- | --- | --- | --- |"]
        for family in by_part[part]:
            name = family.series[0] if family.type == "counter" else family.name
            labels = ", ".join(f"`{label}`" for label in family.labels)
            cells = (f"`{name}`", family.type, labels, " and ".join(family.roles), family.text)
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "## Labels", "", "| label | values |", "| --- | --- |"]
    lines += [f"| {label} | {values} |" for label, values in LABELS]
    return "\n".join(lines) + "\n" + _BOUNDS


# The registries of processes that never ran


def _read(registry: CollectorRegistry, role: str) -> Iterator[Family]:
    for family in registry.collect():
        if not family.samples:
            continue
        labels: dict[str, None] = {}
        for sample in family.samples:
            labels |= dict.fromkeys(label for label in sample.labels if label not in ("le", "quantile"))
        yield Family(family.name, family.type, tuple(labels), family.documentation, (role,))


def _counted(registry: CollectorRegistry, role: str) -> None:
    """What is counted as it happens; each with one child, so that its labels show."""
    records = HeadRecordMetrics if role == "head" else RecordMetrics
    counted = (BrokerMetrics(registry, role, "b", "c"), SensingMetrics(registry), TelemetryMetrics(registry))
    for metrics in (*counted, records(registry)):
        for metric in vars(metrics).values():
            if isinstance(metric, MetricWrapperBase) and metric._labelnames:
                metric.labels(*metric._labelnames)


def _head() -> CollectorRegistry:
    registry = CollectorRegistry()
    _counted(registry, "head")
    QuarantineMetrics(registry).expect("target")
    use = QuotaUse(account="a", tenant="", quota=Quota.SUBSCRIPTIONS, used=1, limit=1)
    registry.register(QuotaMetrics(lambda: (use,)))
    sensed = Sensed(BrokerSample("b", Role.HEAD, capacity=CAPACITY))
    registry.register(HeadLoadMetrics(sensed, lambda: LoadState.LOW, lambda: False))
    registry.register(SensedCollector(sensed, _trips, lambda: 1e6, lambda queue: None, 0))
    deliveries = DeliveryMetrics(1)
    deliveries.taken(_DIGEST)
    registry.register(deliveries)
    return registry


def _edge() -> CollectorRegistry:
    registry = CollectorRegistry()
    _counted(registry, "edge")
    agent = EdgeAgent(AgentConfig(edge="b", cluster="c", head="h", client_url="u", link_url="u", incarnation=1,
                                  capacity=CAPACITY))  # fmt: skip
    subscription = Subscription(subscriber="s", number=0, pattern="t", deadline_us=1_000_000, expires_s=600)
    sample = SubscriptionSample("out.s.0", "t", 1.0, 1.0, 0.0, 0.0, 0.0, 100.0)
    broker = BrokerSample("b", Role.EDGE, capacity=CAPACITY)
    agent.handle(Started(outputs=(subscription,)), 0.0)
    agent.handle(EdgeSampled(broker, (sample,)), 1.0)
    sensed = Sensed(broker, (sample,))
    registry.register(EdgeLoadMetrics(agent, sensed, THRESHOLDS, 1))
    agent.handle(DropsCounted((DropCount("out.s.0", DropReason.LIMIT, 1),)), 2.0)
    registry.register(DropMetrics(agent.drops, 1))
    registry.register(SensedCollector(sensed, _trips, lambda: 1e6, lambda queue: 1.0, 1))
    return registry


def _trips() -> dict[str, ProbedTrip]:
    trip = ProbedTrip()
    trip.answered(0.0, 0.1, 0.0, 0.05)
    return {"b": trip}


_DIGEST: Final = LatencyDigest(
    time_us=1, cluster="c", broker="b", subscriber="s", run=1, number=1, pattern="t", deadline_us=1_000_000,
    elapsed_us=1, received=1, buckets=(1,), counts=(1,), latency_us_sum=1,
)  # fmt: skip

_INTRODUCTION: Final = """\
# Metrics

What `/metrics` of every head and every edge exports, in the text format of Prometheus. This page is made from the code
(`make docs`; `tidegate_brokers.observe.exporting.reference`). Besides, there are the usual `process_*` and
`python_info`.

Dashboards and alerts (`deploy/grafana`, `deploy/prometheus/rules`) expect two labels on every target, `cluster` and
`broker`, on those of Tidegate's processes (job `tidegate`) and on those of their RabbitMQs (job `rabbitmq`). They come
from the scrape configuration, as labels of targets do:

```yaml
scrape_configs:
  - job_name: tidegate
    static_configs:
      - targets: [head:15780]
        labels: {cluster: coast, broker: coast-head, role: head}
      - targets: [harbour:15781]
        labels: {cluster: coast, broker: harbour, role: edge}
  - job_name: rabbitmq
    static_configs:
      - targets: [rabbit-1:15692]
        labels: {cluster: coast, broker: coast-head}
      - targets: [rabbit-2:15692]
        labels: {cluster: coast, broker: harbour}
```

**Where the figures come from.** Brokers count what they handle anyway: samples of RabbitMQ, decisions, control
messages, the reports of clients. Nothing is measured for metrics alone, and nothing depends on them. Decisions,
sessions, moves and predictions are counted from the records that telemetry writes, whether or not it writes them.
Deliveries are what subscribers report to their head about every ten seconds; with `telemetry = false` they are asked
to do so for `/metrics` alone, and with `delivery_metrics = false` besides not at all. A subscriber made with
`telemetry=False` is in no figure.

**Utilization.** *Offered* is what is asked of a capacity, measured where messages are enqueued: of an uplink it may
pass 1. *Used* is what was carried: of an edge's uplink what subscribers acknowledged; of downlink and matching what
came in, which is all that can be seen of them. A head has no *used*: see what its links forwarded. Without a known
capacity there is neither.

**Latencies.** `tidegate_delivery_latency_seconds` has edges at the usual places and one at every deadline (the first
12 there are); they are right to 2 %. `tidegate_delivery_latency_deadline_ratio` is latency over deadline, so that
topics with different deadlines can be put together; its edge at 1 is exact, as is
`tidegate_delivery_late_messages_total`.

**Counters with labels** appear with the first event they count, so that `increase()` does not see that one. Those that
alerts rest on, and the usual ends of sessions and moves, are there from the beginning, at 0."""

_BOUNDS: Final = """
## How many series there are

What clients choose does not decide it. An edge has at most 10 · (`topic_series_max` + 1) for topics and 7 ·
`output_series_max` for queues, a head at most 46 · (`topic_series_max` + 1) for topics; both have a few hundred
others, most of them one per kind of control message and per kind of decision with its reason that have occurred.
"""

if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
