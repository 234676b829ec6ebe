"""Clients moved about while everything fails: nothing is lost, and everybody ends up in exactly one place."""

from __future__ import annotations

import pytest

from tests.support.migration_world import World
from tidegate_protocol.balancing.drains import DrainRequest

SEEDS = range(12)
SETTLE_S = 400.0


def disturb(world: World, what: str) -> None:
    """One thing that happens."""
    random = world.random
    edge = random.choice(sorted(world.edges))
    client = random.choice(sorted(world.clients))
    match what:
        case "balance":
            world.balance(edge)
        case "drain" | "undrain":
            world.tell(edge, DrainRequest(edge=edge, draining=what == "drain"))
        case "head":
            world.crash_head()
            world.after(random.random() * 3, world.start_head)
        case "edge-process":
            world.edges[edge].up = False
            world.after(random.random() * 12, lambda: setattr(world.edges[edge], "up", True))
        case "edge":
            world.edges[edge].up = world.edges[edge].reachable = False

            def back() -> None:
                world.edges[edge].up = world.edges[edge].reachable = True

            world.after(random.random() * 20, back)
        case "client":
            world.clients[client].crash()
            world.after(random.random() * 3, lambda: setattr(world.clients[client], "up", True))


def settle(world: World) -> None:
    """No more faults, everybody back, time to agree."""
    world.loss = world.duplication = 0.0
    world.delay_max_s = 0.02
    world.run(25.0)
    for edge in sorted(world.edges):
        world.tell(edge, DrainRequest(edge=edge, draining=False))
    world.run(SETTLE_S)
    world.check()


CALM = ["balance"] * 4 + ["drain", "undrain"]


@pytest.mark.parametrize("seed", SEEDS)
def test_without_faults_nothing_is_lost_doubled_or_out_of_order(seed: int) -> None:
    world = World(seed)
    world.run(8.0)
    for _ in range(25):
        disturb(world, world.random.choice(CALM))
        world.run(world.random.random() * 6)
    settle(world)
    assert world.removed_in_use == 0
    assert world.moved > 0
    for client in world.clients.values():
        assert client.disorder == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_under_faults_nothing_is_lost_and_everybody_ends_in_one_place(seed: int) -> None:
    world = World(seed)
    world.run(8.0)
    world.loss, world.duplication, world.delay_max_s = world.random.choice(
        [(0.05, 0.05, 0.2), (0.3, 0.2, 1.5), (0.0, 0.3, 3.0)]
    )
    for _ in range(25):
        disturb(world, world.random.choice([*CALM, "head", "edge-process", "edge", "client"]))
        world.run(world.random.random() * 6)
    settle(world)
