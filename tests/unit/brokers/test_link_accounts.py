"""A link that can't pass on the accounts of publishers writes its own over them, and only such a link."""

from __future__ import annotations

from typing import cast

import pytest

from tidegate_agents.machine import EnsureLink, LinkKind
from tidegate_brokers.plane.fences import FenceWatch
from tidegate_brokers.plane.head import ACCOUNT_OPTION, HeadPlane
from tidegate_brokers.rabbit.management import Json, Management
from tidegate_brokers.settings.urls import ServerUrl

URL = "amqp://link.h%C3%A9ad:pw@edge.example:5672/%2F"
OVER = {"user_id": "link.héad"}


class Shovels:
    """What RabbitMQ is told."""

    def __init__(self) -> None:
        self.put: list[Json] = []

    async def put_shovel(self, name: str, wanted: Json) -> None:
        self.put.append(wanted)


@pytest.mark.parametrize(
    ("passes", "present", "wanted", "again"),
    [
        (True, None, None, False),
        (None, None, None, False),
        (False, None, OVER, True),
        (True, OVER, None, True),
        (None, OVER, OVER, False),
        (False, OVER, OVER, False),
    ],
)
async def test_the_account_of_a_link_is_written_where_it_has_to_be(
    passes: bool | None, present: Json | None, wanted: Json | None, again: bool
) -> None:
    plane = HeadPlane("h", ServerUrl.parse("amqp://x"), frozenset(), 1, 1, FenceWatch(lambda key: None))
    link = EnsureLink("edge", LinkKind.EDGE, URL, passes)
    there = plane._shovel(EnsureLink("edge", LinkKind.EDGE, URL))
    if present is not None:
        there[ACCOUNT_OPTION] = present
    for found, is_put in ((there, again), (None, True)):
        shovels = Shovels()
        await plane._assert_shovel(cast(Management, shovels), link, found)
        assert bool(shovels.put) is is_put, "a shovel is not restarted without need"
        if found is not None and is_put:
            assert shovels.put[0].get(ACCOUNT_OPTION) == wanted
