"""The worker's order: one object after another where it matters, side by side where it does not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiormq.exceptions import ChannelClosed
from prometheus_client import CollectorRegistry

from tidegate_agents.machine import (
    Action,
    ActionFailed,
    BindMarker,
    ChangeRoutes,
    DeleteOutput,
    Event,
    LimitOutput,
    MarkerBound,
    PublishMarker,
)
from tidegate_brokers.observe.counters import BrokerMetrics
from tidegate_brokers.plane.edge import EdgePlane
from tidegate_brokers.plane.fences import FenceWatch
from tidegate_brokers.plane.head import HeadPlane
from tidegate_brokers.plane.worker import REFUSALS_MAX, SIDE_BY_SIDE_MAX, PlaneWorker
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_protocol.messages import Subscription


def bind(subscriber: str, key: str = "k") -> BindMarker:
    return BindMarker(subscriber, 0, key)


def delete(subscriber: str) -> DeleteOutput:
    return DeleteOutput(
        Subscription(subscriber=subscriber, number=0, pattern="t", deadline_us=1_000_000, expires_s=600)
    )


class Plane(EdgePlane):
    """Performs nothing: notes what is under way at once, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        super().__init__(1)
        self.performed: list[Action] = []
        self.at_once = 0
        self.refused: set[str] = set()
        self._under_way = 0

    async def perform(self, channel: Any, management: Any, action: Action) -> Event | None:
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        if self.object_of(action) in self.refused:
            raise ChannelClosed(404, "no queue")
        self.performed.append(action)
        return MarkerBound(action.subscriber, action.number, action.key) if isinstance(action, BindMarker) else None


class Bench:
    """A worker with its plane, and without a connection."""

    def __init__(self) -> None:
        self.plane = Plane()
        self.events: list[Event] = []
        url = ServerUrl.parse("amqp://guest:guest@localhost/")
        metrics = BrokerMetrics(CollectorRegistry(), "edge", "north", "coast")
        self.worker = PlaneWorker(
            self.plane, url, cast(Any, None), self.events.append, metrics, cast(Any, None), routine_every_s=60.0
        )

    async def step(self) -> list[Action]:
        """Carry out what may be carried out now."""
        actions = self.worker._next()
        await self.worker._perform([cast(Any, None)] * SIDE_BY_SIDE_MAX, actions)
        return actions


async def test_different_queues_are_served_side_by_side_and_no_more_than_so_many() -> None:
    bench = Bench()
    for number in range(SIDE_BY_SIDE_MAX + 3):
        bench.worker.submit(bind(f"s{number}"))
    assert len(await bench.step()) == SIDE_BY_SIDE_MAX == bench.plane.at_once
    assert len(await bench.step()) == 3
    assert bench.worker.idle
    assert [event.subscriber for event in bench.events if isinstance(event, MarkerBound)] == [
        f"s{number}" for number in range(SIDE_BY_SIDE_MAX + 3)
    ]


async def test_one_queue_is_served_in_order_and_a_limit_alone() -> None:
    bench = Bench()
    actions = [bind("a"), bind("b"), delete("a"), LimitOutput("b", 0, 10), bind("c")]
    for action in actions:
        bench.worker.submit(action)
    assert [await bench.step() for _ in range(4)] == [actions[:2], actions[2:3], actions[3:4], actions[4:]]
    assert bench.plane.performed == actions


async def test_what_is_refused_stays_first_until_it_is_given_up_and_harms_no_neighbour() -> None:
    bench = Bench()
    bench.plane.refused = {"out.bad.0"}
    for subscriber in ("good", "bad", "better"):
        bench.worker.submit(bind(subscriber))
    for _ in range(REFUSALS_MAX):
        with pytest.raises(ChannelClosed):
            await bench.step()
    assert bench.worker.idle
    assert bench.plane.performed == [bind("good"), bind("better")]
    (failed,) = [event for event in bench.events if isinstance(event, ActionFailed)]
    assert failed.action == bind("bad")


def test_markers_of_a_head_are_published_side_by_side_and_everything_else_in_turn() -> None:
    url = ServerUrl.parse("amqp://guest:guest@localhost/")
    plane = HeadPlane("h", url, frozenset(), 1, 1, FenceWatch(lambda key: None))
    objects = [plane.object_of(PublishMarker(f"tidegate.marker.m{number}.h", ("a", "b"))) for number in range(3)]
    assert None not in objects
    assert len(set(objects)) == len(objects)
    assert plane.object_of(ChangeRoutes(1, "a", ("t",))) is None
