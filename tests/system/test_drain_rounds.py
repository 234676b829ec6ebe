"""Drain each edge in turn under load: all leave, nothing is lost or doubled, order is kept.

Beside the publishers of the SDK there are plain AMQP ones, whose messages carry no id: some with distinct messages, on
topics of their own and on one that the SDK publishes too, and some that say the same again and again on a short topic.

One round drains every edge once and uses it again. More rounds by hand:

    TIDEGATE_DRAIN_ROUNDS=10 pytest tests/system/test_drain_rounds.py
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.backends import Launch

from .arena import arena
from .load import Feed, Listener

EDGES = ("north", "south", "cape", "bay")
TOPICS = ("quake.alert", "tide.level", "buoy.pressure", "social.report", "wind.speed")
PER_TOPIC = 4
RATE_PER_S = 20.0
UPLINK_BYTES_PER_S = 1_000_000.0
ROUNDS = int(os.environ.get("TIDEGATE_DRAIN_ROUNDS", "1"))
PLAIN = (
    Feed("bare-0", "quake.alert", RATE_PER_S, 200, contents=0),
    Feed("bare-1", "rain.gauge", RATE_PER_S, 200, contents=0),
    Feed("switch", "s", RATE_PER_S, 0, contents=1),
    Feed("meter", "m", RATE_PER_S, 0, contents=5),
)
FEEDS = (*(Feed(f"sensor-{number}", topic, RATE_PER_S, 200) for number, topic in enumerate(TOPICS)), *PLAIN)
AUDIENCES = {
    f"audience-{half}": tuple(
        Listener(f"{topic.partition('.')[0]}-{half}{number}", topic, 5.0)
        for topic in sorted({feed.topic for feed in FEEDS})
        for number in range(PER_TOPIC // 2)
    )
    for half in ("a", "b")
}


@pytest.mark.timeout(300 + 300 * ROUNDS)
async def test_every_edge_is_drained_in_turn_under_load(launch: Launch, tmp_path: Path) -> None:
    made = arena(
        launch,
        tmp_path / "load",
        EDGES,
        compact=True,
        uplink_bytes_per_s=UPLINK_BYTES_PER_S,
        feeds=FEEDS,
        audiences=AUDIENCES,
    )
    async with made as here:
        try:
            for number in range(1, ROUNDS + 1):
                started_s = time.monotonic()
                left = {}
                for edge in EDGES:
                    left[edge] = await here.drain(edge)
                    await here.drained(edge)
                    await here.drain(edge, False)
                places = Counter(queue.edge for queue in await here.queues())
                print(f"round {number}: {time.monotonic() - started_s:.1f} s; had to leave {left}; now {dict(places)}")
                assert sum(left.values()) >= len(here.load.listeners), "nobody had to leave"
                await here.settled()
            here.load.stop_feeds()
            await here.settled_for_good()
            print(f"handed over: {sum(len(handed.got) for handed in here.load.handed.values())}")
        except Exception as error:
            error.add_note(f"logs, books and control messages: {here.keep_logs(tmp_path / 'failed')}")
            raise
