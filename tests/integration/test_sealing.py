"""What a broker has been told stands in RabbitMQ's log, and never as its last entry: that one a crash may cost.

Looks into the log of Mnesia, so it needs a RabbitMQ that has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.test_hands import MIB, connected, head_plane
from tidegate_agents.machine import BindMarker, ChangeRoutes, DeclareOutput
from tidegate_brokers.plane.edge import EdgePlane
from tidegate_embedded.nodes import ChildNode, rabbit_nodes
from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import SEAL_EXCHANGE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[ChildNode]:
    async with rabbit_nodes(["rabbit"]) as nodes:
        yield nodes["rabbit"]


def assert_sealed(node: ChildNode, change: str) -> None:
    (log,) = node.configuration.parent.glob("data/**/LATEST.LOG")
    entries = log.read_bytes()
    assert 0 < entries.rfind(change.encode()) < entries.rfind(SEAL_EXCHANGE.encode())


def subscription(number: int) -> Subscription:
    return Subscription(
        subscriber="siren", number=number, pattern=f"quake.{number}", deadline_us=1_000_000, expires_s=60
    )


async def test_a_head_seals_its_routes_those_it_repairs_too(node: ChildNode) -> None:
    async with connected(node, "routes") as (channel, api):
        plane = head_plane(node, "routes", [])
        await plane.assert_all(channel, api)
        await plane.perform(channel, api, ChangeRoutes(1, "edge", add=("quake.alert",)))
        assert_sealed(node, "quake.alert")
        plane.routes["edge"].add("tide.level")
        await plane.assert_all(channel, api)
        assert_sealed(node, "tide.level")
        sealed = plane.seal.pressed
        await plane.assert_all(channel, api)
        assert plane.seal.pressed == sealed, "where nothing was missing nothing is written"


async def test_an_edge_seals_output_queues_and_markers_those_it_repairs_too(node: ChildNode) -> None:
    async with connected(node, "outputs") as (channel, api):
        plane = EdgePlane(MIB)
        await plane.assert_all(channel, api)
        await plane.perform(channel, api, DeclareOutput(subscription(0)))
        assert_sealed(node, "quake.0")
        await plane.perform(channel, api, BindMarker("siren", 0, "tidegate.marker.m1.*"))
        assert_sealed(node, "tidegate.marker.m1")
        plane.outputs["out.siren.1"] = subscription(1)
        await plane.assert_all(channel, api)
        assert_sealed(node, "quake.1")


async def test_those_who_come_together_share_a_seal(node: ChildNode) -> None:
    count = 40
    async with connected(node, "shared") as (channel, api):
        plane = EdgePlane(MIB)
        await plane.assert_all(channel, api)
        await asyncio.gather(*[plane.perform(channel, api, DeclareOutput(subscription(n))) for n in range(count)])
        assert_sealed(node, f"quake.{count - 1}")
        assert 0 < plane.seal.pressed < count
