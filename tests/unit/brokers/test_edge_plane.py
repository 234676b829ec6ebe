"""What an edge's plane remembers, and takes away again, where RabbitMQ says that a queue is gone.

What RabbitMQ itself does with it is tested against a real one, in tests/integration/test_hands.py.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiormq.exceptions import ChannelNotFoundEntity

from tidegate_agents.machine import LimitOutput
from tidegate_brokers.edge_plane import LIMIT_PREFIX, EdgePlane
from tidegate_protocol.messages import Subscription

SLOW = Subscription(subscriber="slow-one", number=3, pattern="alert.#", deadline_us=1_000_000, expires_s=600)
QUEUE = "out.slow-one.3"


class NoQueues:
    """A channel to a RabbitMQ in which every queue has expired."""

    @property
    def connection(self) -> NoQueues:
        return self

    async def channel(self, **_: object) -> NoQueues:
        return self

    async def exchange_declare(self, *_: object, **__: object) -> None:
        pass

    async def queue_declare(self, queue: str, *, passive: bool) -> None:
        raise ChannelNotFoundEntity(404, f"no queue {queue}")


class Policies:
    """A management API that knows policies alone."""

    def __init__(self) -> None:
        self.present: dict[str, object] = {}
        self.silent = False

    async def bindings_from(self, exchange: str) -> list[object]:
        return []

    async def policy(self, name: str) -> object:
        return self.present.get(name)

    async def put_policy(self, name: str, body: object) -> None:
        self.present[name] = body

    async def delete_policy(self, name: str) -> None:
        if self.silent:
            raise TimeoutError
        self.present.pop(name, None)


async def test_the_limit_of_a_queue_goes_with_it_when_it_expires() -> None:
    plane, policies = EdgePlane(1_000, outputs={QUEUE: SLOW}), Policies()
    channel, api = cast(Any, NoQueues()), cast(Any, policies)
    await plane.perform(channel, api, LimitOutput(SLOW.subscriber, SLOW.number, 5))
    assert list(policies.present) == [LIMIT_PREFIX + QUEUE]
    policies.silent = True
    with pytest.raises(TimeoutError):
        await plane.list_outputs(channel, api)
    policies.silent = False
    assert (await plane.list_outputs(channel, api)).outputs == (), "and is tried again until it is gone"
    assert policies.present == {}
    assert plane.limits == {}
