"""Dashboards and alerts on a real Prometheus that scrapes a real cluster while a burst is on and somebody is moved.

Every query of every panel runs and returns data, or is listed here with the reason why it may be empty; every rule is
evaluated without an error; and nothing is called in that went as it should.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from deploy.grafana import draw
from tests.support.dashboards import NAMES, Target, all_targets, panels
from tests.support.prometheus import PROMETHEUS, RABBITMQ, Prometheus, Scraped, alerts, metrics_in, prometheus
from tests.support.waiting import eventually
from tidegate_brokers.embedded.cluster import EmbeddedCluster
from tidegate_brokers.topology import TelemetrySpec, Topology
from tidegate_cli import story
from tidegate_cli.early_warning import EarlyWarning

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.docker]

STEADY_S, LONGEST_S = 3.0, 200.0
AWAITED = {
    "a move": 'sum(tidegate_migrations_ended_total{outcome="moved", clients="subscribers"})',
    "the pause it made": "sum(increase(tidegate_migration_gap_seconds_count[20s]))",
    "what came of it": "sum(increase(tidegate_prediction_error_ratio_count[20s]))",
}
"""The burst goes on until then."""
RATE = "10s"
SOURCE = "north"
"""The edge that the story overloads."""
WIDE_BYTES_PER_S, MATCHING_PER_S = 1e6, 1e4

MAY_BE_EMPTY = {
    "malformed:": "no control message was malformed",
    "not sent:": "every control message could be sent",
    "refused:": "no request was refused",
    "action refused:": "RabbitMQ refused nothing",
    "opened again:": "no connection was lost",
    "Alerts that fire": "none does where all goes well",
    "Why nobody was moved": "somebody was moved at the first attempt",
}
"""By the beginning of a line's name, or by the title of a panel."""
DRAWN = ("cluster", "deadlines")
"""Together they have panels of every kind."""
ABSENT = {"rabbitmq_alarms_file_descriptor_limit": "RabbitMQ 4 has no such limit any more"}
CALLED = {"TidegateDeadlineInDanger", "TidegateDeadlineMissed"}
"""Alerts that a slow machine may raise in a burst; all others mean that something is wrong."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A Prometheus that has seen the story."""

    prometheus: Prometheus
    began_s: float
    ended_s: float


def topology() -> Topology:
    """The story's, with every capacity known and reports that come soon."""
    told = story.topology()
    (cluster,) = told.cluster
    wide = {"downlink_bytes_per_s": WIDE_BYTES_PER_S}
    edges = tuple(edge.model_copy(update={**wide, "matching_per_s": MATCHING_PER_S}) for edge in cluster.edge)
    head = cluster.head.model_copy(update={**wide, "uplink_bytes_per_s": WIDE_BYTES_PER_S})
    cluster = cluster.model_copy(update={"head": head, "edge": edges})
    return told.model_copy(update={"cluster": (cluster,), "telemetry": TelemetrySpec(detail_period_s=2.0)})


def targets(cluster: EmbeddedCluster) -> list[Scraped]:
    found = []
    for broker in cluster.brokers.values():
        whose = (broker.cluster, broker.name, broker.kind)
        found.append(Scraped("tidegate", urlsplit(broker.http_url).netloc, *whose))
        found.append(Scraped("rabbitmq", f"{broker.node.host}:{broker.node.prometheus_port}", *whose))
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seen]:
    directory = tmp_path_factory.mktemp("observability")
    async with EmbeddedCluster(topology(), compact=True) as cluster, prometheus(targets(cluster), directory) as asked:
        began_s = time.time()
        async with EarlyWarning(cluster.url(story.CLUSTER)) as scenario:
            feeds = asyncio.create_task(scenario.publish(LONGEST_S))
            try:
                await scenario.join()
                await asyncio.sleep(STEADY_S)
                scenario.shake()
                for what, query in AWAITED.items():
                    await eventually(partial(positive, asked, query), f"Prometheus has seen {what}", 60)
            except AssertionError as error:
                raise AssertionError(f"{error}; decisions: {await decisions(asked)}") from None
            finally:
                feeds.cancel()
                await asyncio.gather(feeds, return_exceptions=True)
            await scenario.settle()
            assert scenario.outcome().complete
            # The last step of a query is up to one second before its end.
            yield Seen(asked, began_s, time.time() + 1.0)


async def positive(asked: Prometheus, query: str) -> bool:
    return await asked.value(query) > 0.0


async def decisions(asked: Prometheus) -> dict[str, str]:
    found = await asked.ask("query", query="sum by (broker, decision, reason) (tidegate_decisions_total) > 0")
    return {" ".join(one["metric"].values()): one["value"][1] for one in found["result"]}


async def test_every_target_is_up(seen: Seen) -> None:
    found = (await seen.prometheus.ask("query", query="up"))["result"]
    assert len(found) == 2 * (1 + len(story.EDGES))
    assert {one["metric"]["broker"] for one in found if one["value"][1] == "1"} == {story.HEAD, *story.EDGES}


async def rows_of(seen: Seen, target: Target) -> int:
    """How many lines a query has over the whole story."""
    query = target.resolved(broker=SOURCE if target.dashboard == "broker" else ".*", rate=RATE)
    window = {"start": seen.began_s, "end": seen.ended_s, "step": 1.0}
    data = await seen.prometheus.ask("query_range", query=query, **window)
    return sum(any(value != "NaN" for _, value in one["values"]) for one in data["result"])


async def test_every_query_of_every_panel_returns_data(seen: Seen) -> None:
    counts = [(target, await rows_of(seen, target)) for target in all_targets()]
    empty = [(target.panel, target.legend, target.expr) for target, count in counts if not count]
    unexplained = [
        one for one in empty if not any(one[0] == known or one[1].startswith(known) for known in MAY_BE_EMPTY)
    ]
    assert unexplained == []
    print(f"{len(all_targets())} queries, {len(empty)} empty: {[one[:2] for one in empty]}")


async def test_every_rule_is_evaluated_and_has_something_to_look_at(seen: Seen) -> None:
    groups = (await seen.prometheus.ask("rules"))["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert rules.keys() == {alert["alert"] for alert in alerts()}
    assert {name: rule.get("lastError") for name, rule in rules.items() if rule["health"] != "ok"} == {}
    for alert in alerts():
        for metric in metrics_in(alert["expr"]) - ABSENT.keys():
            assert await seen.prometheus.value(f"count({metric})") > 0.0, f"{alert['alert']}: {metric}"


async def test_nobody_is_called_while_all_goes_well(seen: Seen) -> None:
    query = 'max_over_time(ALERTS{alertstate="firing"}[2m])'
    fired = {one["metric"]["alertname"] for one in (await seen.prometheus.ask("query", query=query))["result"]}
    assert fired <= CALLED


async def test_what_is_said_to_be_rabbitmq_s_is(seen: Seen) -> None:
    names = set(await seen.prometheus.ask("label/__name__/values"))
    assert RABBITMQ - ABSENT.keys() <= names
    assert PROMETHEUS - {"ALERTS"} <= names


async def test_figures_agree_with_what_happened(seen: Seen) -> None:
    ask = seen.prometheus.value
    moved = await ask('sum(tidegate_migrations_ended_total{outcome="moved"})')
    assert moved == await ask("sum(tidegate_migration_duration_seconds_count)")
    assert await ask("sum(tidegate_subscriptions_count)") == await ask("sum(tidegate_topic_subscriptions_count)")
    assert await ask('sum(tidegate_sessions_ended_total{outcome=~"moved|partly"})') >= 1.0
    offered = f'tidegate_broker_offered_utilization_ratio{{resource="uplink", broker="{SOURCE}"}}'
    assert await ask(f"max_over_time({offered}[2m])") > 1.0, "the burst offers more than the uplink carries"


async def test_dashboards_can_be_drawn(seen: Seen, tmp_path: Path) -> None:
    for name in DRAWN:
        variables = {"cluster": ".*", "topic": ".*", "broker": ".*"}
        window = draw.Window(seen.prometheus.url, seen.began_s, seen.ended_s, 1.0, variables, RATE)
        await asyncio.to_thread(draw.draw, name, window, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 20_000
    kinds = {name: {panel["type"] for panel in panels(name)} for name in NAMES}
    assert set().union(*kinds.values()) == set().union(*(kinds[name] for name in DRAWN)) == draw.DRAWING.keys()
