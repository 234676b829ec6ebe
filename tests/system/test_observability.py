"""Dashboards and alerts on a real Prometheus that scrapes a real cluster while a burst is on and somebody is moved.

What must hold of it is in `tests/support/observing.py`, because it must hold of Docker's cluster, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from deploy.grafana import draw
from tests.support.dashboards import NAMES, panels
from tests.support.observing import ABSENT, Seen, check_calls, check_names, check_panels, check_rules, wait_for_outcome
from tests.support.prometheus import Prometheus, Scraped, prometheus
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import TelemetrySpec, Topology
from tidegate_experiments.demo import story
from tidegate_experiments.demo.early_warning import EarlyWarning

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.docker]

STEADY_S, LONGEST_S = 3.0, 200.0
SCRAPE_S = 1.0
SOURCE = "north"
"""The edge that the story overloads."""
MOVED = "social.report"
"""What goes elsewhere then."""
WIDE_BYTES_PER_S, MATCHING_PER_S = 1e6, 1e4

DRAWN = ("cluster", "deadlines")
"""Together they have panels of every kind."""


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
                # The burst goes on until then.
                await wait_for_outcome(asked, "20s")
            except AssertionError as error:
                raise AssertionError(f"{error}; decisions: {await decisions(asked)}") from None
            finally:
                feeds.cancel()
                await asyncio.gather(feeds, return_exceptions=True)
            await scenario.settle()
            assert scenario.outcome().complete
            # The last step of a query is up to one second before its end.
            yield Seen(asked, began_s, time.time() + SCRAPE_S, SOURCE, SCRAPE_S)


async def decisions(asked: Prometheus) -> dict[str, str]:
    found = await asked.ask("query", query="sum by (broker, decision, reason) (tidegate_decisions_total) > 0")
    return {" ".join(one["metric"].values()): one["value"][1] for one in found["result"]}


async def test_every_target_is_up(seen: Seen) -> None:
    found = (await seen.prometheus.ask("query", query="up"))["result"]
    assert len(found) == 2 * (1 + len(story.EDGES))
    assert {one["metric"]["broker"] for one in found if one["value"][1] == "1"} == {story.HEAD, *story.EDGES}


async def test_every_query_of_every_panel_returns_data(seen: Seen) -> None:
    await check_panels(seen)


async def test_every_rule_is_evaluated_and_has_something_to_look_at(seen: Seen) -> None:
    await check_rules(seen, {**ABSENT, "tidegate_quota_used_ratio": "the only account there is has no quota"})


async def test_nobody_is_called_while_all_goes_well(seen: Seen) -> None:
    await check_calls(seen)


async def test_what_is_said_to_be_rabbitmq_s_is(seen: Seen) -> None:
    await check_names(seen)


async def test_whoever_has_moved_is_judged_where_it_came_to(seen: Seen) -> None:
    for figure in ("depth_messages", "threshold_messages"):
        there = f'tidegate_topic_{figure}{{topic="{MOVED}", broker!="{SOURCE}"}}'
        assert await seen.prometheus.value(f"count(last_over_time({there}[{seen.lasted}]))", seen.ended_s) == 1.0


async def test_figures_agree_with_what_happened(seen: Seen) -> None:
    ask = seen.prometheus.value
    moved = await ask('sum(tidegate_migrations_ended_total{outcome="moved"})')
    assert moved == await ask("sum(tidegate_migration_duration_seconds_count)")
    assert await ask("sum(tidegate_subscriptions_count)") == await ask("sum(tidegate_topic_subscriptions_count)")
    assert await ask('sum(tidegate_sessions_ended_total{outcome=~"moved|partly"})') >= 1.0
    offered = f'tidegate_broker_offered_utilization_ratio{{resource="uplink", broker="{SOURCE}"}}'
    assert await ask(f"max_over_time({offered}[2m])") > 1.0, "the burst offers more than the uplink carries"


async def test_dashboards_can_be_drawn(seen: Seen, tmp_path: Path) -> None:
    variables = {"cluster": ".*", "topic": ".*", "broker": ".*"}
    with draw.client() as http:
        window = draw.Window(seen.prometheus.url, seen.began_s, seen.ended_s, seen.scrape_s, variables, seen.rate, http)
        for name in DRAWN:
            await asyncio.to_thread(draw.draw, name, window, tmp_path / f"{name}.png")
            assert (tmp_path / f"{name}.png").stat().st_size > 20_000
    kinds = {name: {panel["type"] for panel in panels(name)} for name in NAMES}
    assert set().union(*kinds.values()) == set().union(*(kinds[name] for name in DRAWN)) == draw.DRAWING.keys()
