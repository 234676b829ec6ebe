"""docker-compose.yml, whole: it comes up, the SDK on this machine uses it, a burst moves subscribers, parts are killed,
and at the end nothing is left.

Grafana is left out: everything else must not need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.compose import BROKERS, EDGES, SERVICES, Project, build, run
from tests.support.containers import docker_problem
from tests.support.waiting import eventually
from tidegate import AsyncPublisher, AsyncSubscriber
from tidegate_cli.load import Load

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

SETTLED_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def docker() -> None:
    problem = docker_problem()
    if problem is not None:
        pytest.skip(f"docker-compose.yml is not tested: {problem}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def project(docker: None) -> AsyncIterator[Project]:
    await build()
    project = Project(TIDEGATE_LOAD_STEADY_S="6", TIDEGATE_LOAD_BURST_S="18")
    try:
        await project.up(*SERVICES)
        yield project
    finally:
        await project.down()


async def test_a_setting_that_is_missing_is_named_before_anything_is_started() -> None:
    code, _, error = await Project(TIDEGATE_HEAD_PORT="").compose("config", "-q", check=False)
    assert code != 0
    assert "TIDEGATE_HEAD_PORT" in error


async def test_a_setting_that_is_wrong_is_named_and_nothing_is_started() -> None:
    await build()
    wrong = Project(TIDEGATE_EDGE_DOWNLINK_BYTES_PER_S="ten")
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
        _, _, warnings = await Project().compose("--profile", profile, "config", "-q")
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


async def test_the_profile_load_bursts_and_moves_subscribers_and_loses_nothing(project: Project) -> None:
    await project.compose("--profile", "load", "up", "load")
    outcome = json.loads((await project.logs("load")).partition("| ")[2])
    assert outcome["moved"], outcome
    assert outcome["published"] > 1000
    assert (outcome["lost"], outcome["doubled"], outcome["out_of_order"]) == (0, 0, 0), outcome


@pytest.mark.parametrize("part", ["processes", "RabbitMQs"])
async def test_what_is_killed_under_load_comes_back_and_nothing_is_lost(project: Project, part: str) -> None:
    victims = ("head", "edge-2") if part == "processes" else ("edge-3-rabbitmq", "head-rabbitmq")
    load = Load(
        await project.url("load"), f"load-{part[0].lower()}",
        edge_bytes_per_s=100_000, topics=4, subscribers=2, rate=10, deadline=5,
    )  # fmt: skip
    async with load:
        await load.join()
        publishing = asyncio.create_task(load.publish(SETTLED_S))
        try:
            for victim in victims:
                before = load.outcome().delivered
                await eventually(lambda before=before: load.outcome().delivered > before + 50, "messages flow")
                await project.kill(victim)
            await project.healthy(*BROKERS, *(f"{broker}-rabbitmq" for broker in BROKERS))
            before = load.outcome().delivered
            await eventually(lambda: load.outcome().delivered > before + 50, "messages flow again")
            load.stop()
            await publishing
            await load.settle()
        finally:
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
        outcome = load.outcome()
        assert (outcome.lost, outcome.doubled, outcome.out_of_order) == (0, 0, 0), outcome
        assert outcome.published > 100
        assert set(load.places().values()) <= set(EDGES)


async def test_an_upgrade_one_by_one_loses_nothing_and_makes_nothing_late(project: Project) -> None:
    load = Load(
        await project.url("load"), "load-u",
        edge_bytes_per_s=100_000, topics=4, subscribers=1, rate=10, deadline=10,
    )  # fmt: skip
    async with load:
        await load.join()
        publishing = asyncio.create_task(load.publish(SETTLED_S))
        try:
            edge = sorted(load.places().values())[0]
            await run("deploy/compose/rolling-upgrade.sh", edge, environ=project.settings)
            before = load.outcome().delivered
            await eventually(lambda: load.outcome().delivered > before + 50, "messages flow")
            load.stop()
            await publishing
            await load.settle()
        finally:
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
        outcome = load.outcome()
        assert (outcome.lost, outcome.doubled, outcome.out_of_order, outcome.late) == (0, 0, 0, 0), outcome


async def test_taken_down_it_leaves_nothing(project: Project) -> None:
    assert await project.leftovers()
    await project.down()
    assert not await project.leftovers()
