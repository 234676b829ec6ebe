"""An edge whose RabbitMQ is short of something: seen, shown, and spared new subscriptions until that is over."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner

from tests.support.node_pool import LentNode
from tests.support.waiting import eventually
from tidegate import AsyncSubscriber
from tidegate_cli.main import cli
from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.nodes import RabbitNode

ENOUGH = "disk_free_limit.absolute = 50MB"
NEVER_ENOUGH = "disk_free_limit.absolute = 1000000GB"


async def restart_with(node: RabbitNode, before: str, after: str) -> None:
    assert isinstance(node, LentNode)
    text = node.configuration.read_text()
    assert before in text
    node.configuration.write_text(text.replace(before, after))
    await node.kill()  # quicker than to stop it
    await node.start()


async def test_an_edge_whose_rabbitmq_has_an_alarm_gets_nobody_new_until_it_is_over(
    nodes_cluster: EmbeddedCluster,
) -> None:
    (name,) = nodes_cluster.clusters
    url = nodes_cluster.url(name)
    short, well = sorted(broker.name for broker in nodes_cluster.brokers.values() if broker.kind == "edge")
    node = nodes_cluster.node(short)

    async def status() -> str:
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["status", "--url", url])
        return result.output if result.exit_code == 0 else ""

    async def shown() -> bool:
        return "alarm: disk" in await status()

    async def over() -> bool:
        said = await status()
        return short in said and "alarm" not in said and "No answer" not in said

    await restart_with(node, ENOUGH, NEVER_ENOUGH)
    await eventually(shown, "the alarm is shown")
    async with AsyncSubscriber(url, name="siren") as subscriber:
        made = [await subscriber.subscribe(f"alert.{n}", deadline=1.0, callback=lambda _: None) for n in range(3)]
        assert {one.statistics().edge for one in made} == {well}
        await restart_with(node, NEVER_ENOUGH, ENOUGH)
        await eventually(over, "the alarm is over")
        later = await subscriber.subscribe("alert.later", deadline=1.0, callback=lambda _: None)
        assert later.statistics().edge == short
