"""docker-compose.yml, whole: it comes up, the SDK on this machine uses it, a burst moves subscribers, parts are killed,
and at the end nothing is left.

Grafana is left out: everything else must not need it. With TIDEGATE_UPGRADE=all every broker is upgraded, a minute and
a half, instead of one edge and the head.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from tests.support.compose import BROKERS, EDGES, SERVICES, Project, build, run
from tests.support.containers import docker_problem
from tests.support.observing import Seen, check_calls, check_names, check_panels, check_rules, wait_for_outcome
from tests.support.prometheus import Prometheus
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber
from tidegate_experiments.demo.load import Load

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

ALL = (*BROKERS, *(f"{broker}-rabbitmq" for broker in BROKERS))
LONGEST_S = 400.0
"""Of a load; it is stopped when all has been seen."""
SOME = 10
SCRAPE_S = 5.0
"""As in deploy/prometheus/prometheus.yml."""
SOURCE = "topk(1, max by (broker) (max_over_time(tidegate_broker_offered_utilization_ratio[2m])))"
"""The busiest edge that Prometheus has seen: the one that the burst filled, or the one that came to help."""
MAY_BE_EMPTY = {"Offered matching": "nobody has filters, and no rate of matching is configured"}
WIDE_BYTES_PER_S = "5000000"


@pytest.fixture(scope="module", autouse=True)
def docker() -> None:
    problem = docker_problem()
    if problem is not None:
        pytest.skip(f"docker-compose.yml is not tested: {problem}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def project(docker: None) -> AsyncIterator[Project]:
    await build()
    with Project(
        TIDEGATE_LOAD_STEADY_S="6", TIDEGATE_LOAD_BURST_S="18",
        TIDEGATE_EDGE_UPLINK_BYTES_PER_S=WIDE_BYTES_PER_S, TIDEGATE_HEAD_UPLINK_BYTES_PER_S=WIDE_BYTES_PER_S,
        TIDEGATE_HEAD_DOWNLINK_BYTES_PER_S=WIDE_BYTES_PER_S,
    ) as project:  # fmt: skip
        try:
            await project.up(*SERVICES)
            yield project
        finally:
            await project.down()


async def test_a_setting_that_is_missing_is_named_before_anything_is_started() -> None:
    with Project(TIDEGATE_HEAD_PORT="") as wrong:
        code, _, error = await wrong.compose("config", "-q", check=False)
    assert code != 0
    assert "TIDEGATE_HEAD_PORT" in error


async def test_a_setting_that_is_wrong_is_named_and_nothing_is_started() -> None:
    await build()
    with Project(TIDEGATE_EDGE_DOWNLINK_BYTES_PER_S="ten") as wrong:
        try:
            code, _, _ = await wrong.compose("up", "-d", "--wait", *SERVICES, check=False)
            assert code != 0
            assert "variable TIDEGATE_EDGE_DOWNLINK_BYTES_PER_S" in await wrong.logs("setup")
            _, running, _ = await wrong.compose("ps", "-q", "--status", "running")
            assert not running
        finally:
            await wrong.down()
        assert not await wrong.leftovers()


async def test_the_file_is_clean_for_every_profile() -> None:
    for profile in ("", "load", "analytics", "multi", "*"):
        with Project() as project:
            _, _, warnings = await project.compose("--profile", profile, "config", "-q")
        assert not warnings


async def test_prometheus_reaches_every_process_and_every_rabbitmq(project: Project) -> None:
    url = f"http://127.0.0.1:{project.port('TIDEGATE_PROMETHEUS_PORT')}/api/v1/targets"
    health: dict[tuple[str, str], str] = {}

    async def all_up() -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            found = (await http.get(url)).json()["data"]["activeTargets"]
        health.update({(one["labels"]["job"], one["labels"].get("broker", "")): one["health"] for one in found})
        return set(health.values()) == {"up"}

    await eventually(all_up, f"all targets are up: {health}")
    assert {(job, broker) for job in ("tidegate", "rabbitmq") for broker in BROKERS} <= health.keys()


async def test_the_sdk_on_this_machine_publishes_and_subscribes(project: Project) -> None:
    async with (
        AsyncSubscriber(await project.url("subscriber"), name="subscriber-siren") as subscriber,
        AsyncPublisher(await project.url("publisher"), name="publisher-buoy") as publisher,
    ):
        subscription = await subscriber.subscribe("quake.#", deadline=5)
        await publisher.publish("quake.alert", b"magnitude 6.1")
        async with asyncio.timeout(30):
            async for message in subscription:
                assert message.body == b"magnitude 6.1"
                break
        await subscription.unsubscribe()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the profile `load` said at its end, and what Prometheus saw of it."""

    words: str
    seen: Seen

    def count(self, what: str) -> int:
        """A number of its summary."""
        found = re.search(rf"(\d+) {what}", self.words)
        assert found is not None, self.words
        return int(found[1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loaded(project: Project) -> AsyncIterator[Loaded]:
    prometheus = Prometheus(f"http://127.0.0.1:{project.port('TIDEGATE_PROMETHEUS_PORT')}")
    try:
        began_s = time.time()
        await project.compose("--profile", "load", "up", "load")
        words = (await project.logs("load")).splitlines()[-1]
        await wait_for_outcome(prometheus, "2m")
        source = await prometheus.ask("query", query=SOURCE, time=time.time())
        broker = source["result"][0]["metric"]["broker"]
        yield Loaded(words, Seen(prometheus, began_s, time.time(), broker, SCRAPE_S))
    finally:
        await prometheus.close()


async def test_the_profile_load_bursts_and_moves_subscribers_and_loses_nothing(loaded: Loaded) -> None:
    assert "Moved: load-" in loaded.words
    assert loaded.count("published") > 1000
    assert [loaded.count(what) for what in ("lost", "doubled", "out of order")] == [0, 0, 0], loaded.words


async def test_every_query_of_every_panel_has_returned_data_meanwhile(loaded: Loaded) -> None:
    await check_panels(loaded.seen, MAY_BE_EMPTY)


async def test_every_rule_has_been_evaluated_meanwhile_and_had_something_to_look_at(loaded: Loaded) -> None:
    await check_rules(loaded.seen)
    await check_names(loaded.seen)


async def test_nobody_has_been_called_meanwhile(loaded: Loaded) -> None:
    await check_calls(loaded.seen)


@asynccontextmanager
async def load_on(project: Project, name: str, **sizes: float) -> AsyncIterator[Load]:
    """A load while something happens; at the end of it messages flow, and nothing that was confirmed is lost."""
    wanted = {"topics": 2, "subscribers": 2, "rate": 20, "deadline": 5, "edge_bytes_per_s": 100_000} | sizes
    load = Load(await project.url("load"), f"load-{name}", **wanted)
    async with load:
        await load.join()
        publishing = asyncio.create_task(load.publish(LONGEST_S))
        try:
            await flows(load)
            yield load
            await flows(load)
            load.stop()
            await publishing
            await load.settle()
        finally:
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
        outcome = load.outcome()
        print(name, outcome)
        assert (outcome.lost, outcome.doubled, outcome.out_of_order) == (0, 0, 0), outcome
        assert outcome.published > 100
        assert set(load.places().values()) <= set(EDGES)


async def flows(load: Load, names: Collection[str] | None = None) -> None:
    """Wait until some messages more have come to all subscribers, or to these."""
    watches = [watch for watch in load.watches if names is None or watch.name in names]
    before = {watch.name: watch.judge.deliveries for watch in watches}
    await eventually(
        lambda: all(watch.judge.deliveries > before[watch.name] + SOME for watch in watches),
        f"messages come to {names or 'all'}",
    )


def served(load: Load) -> tuple[str, list[str]]:
    """An edge with subscribers, and who they are."""
    places = load.places()
    edge = sorted(places.values())[0]
    return edge, [name for name, at in places.items() if at == edge]


async def test_what_crashes_under_load_is_started_again_and_nothing_is_lost(project: Project) -> None:
    async with load_on(project, "crash") as load:
        for victim in ("head", f"{served(load)[0]}-rabbitmq"):
            await project.crash(victim)
            await project.healthy(*ALL)
            await flows(load)


async def test_processes_may_be_killed(project: Project) -> None:
    """Messages flow on without that of an edge, and without the head's; started again each takes its place."""
    async with load_on(project, "p") as load:
        edge, names = served(load)
        for victim in (edge, "head"):
            await project.kill(victim)
            await flows(load, names)
            assert not await project.started(victim)
            await project.up(victim)


async def test_the_rabbitmq_of_an_edge_may_be_killed(project: Project) -> None:
    """Its subscribers are placed elsewhere by themselves; what had waited for them they collect when it is back."""
    async with load_on(project, "er") as load:
        edge, names = served(load)
        await project.kill(f"{edge}-rabbitmq")

        def elsewhere() -> bool:
            places = load.places()
            return all(places[name] in set(EDGES) - {edge} for name in names)

        await eventually(elsewhere, f"{names} are placed elsewhere than on {edge}")
        await flows(load, names)
        assert not await project.started(f"{edge}-rabbitmq")
        await project.up(f"{edge}-rabbitmq")
        await project.healthy(*ALL)


async def test_the_rabbitmq_of_the_head_may_be_killed(project: Project) -> None:
    """Publishers wait and publish again what was not confirmed."""
    async with load_on(project, "hr"):
        await project.kill("head-rabbitmq")
        await project.up("head-rabbitmq")
        await project.healthy(*ALL)


async def test_with_a_keeper_what_is_killed_comes_back_by_itself_and_what_is_stopped_does_not(project: Project) -> None:
    async with project.keeper(), load_on(project, "k"):
        for victim in ("edge-2", "head-rabbitmq"):
            before = await project.started(victim)
            await project.compose("kill", victim)
            await project.started_again(victim, before)
            if victim == "edge-2":
                await project.compose("stop", "edge-4")
        # The keeper has seen the stop by now: it takes one event after the other.
        assert not await project.started("edge-4")
        await project.up("edge-4")
        await project.healthy(*ALL)


async def test_an_upgrade_one_by_one_loses_nothing_and_makes_nothing_late(project: Project) -> None:
    async with load_on(project, "u", topics=4, rate=10, subscribers=1, deadline=5) as load:
        edges = EDGES if os.environ.get("TIDEGATE_UPGRADE") == "all" else served(load)[:1]
        before = {broker: await project.started(broker) for broker in (*edges, "head")}
        await run("deploy/compose/rolling-upgrade.sh", *edges, environ=project.settings)
        after = {broker: await project.started(broker) for broker in before}
        assert all(after[broker] not in ("", started) for broker, started in before.items())
    assert load.outcome().late == 0, load.outcome()


async def test_taken_down_it_leaves_nothing(project: Project) -> None:
    assert await project.leftovers()
    await project.down()
    assert not await project.leftovers()
