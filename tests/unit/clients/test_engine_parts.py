"""Small parts around a subscription's machine: the gap of a move, timers, who listens to which head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tidegate._core.config import Address, Backoff, Timeouts
from tidegate._core.errors import TidegateError
from tidegate._core.gap import AFTER_S, GapMeter
from tidegate._core.inbox import Inbox
from tidegate._core.moves import Place
from tidegate._engine.data import SlotConsumer
from tidegate._engine.heads import Heads
from tidegate._engine.runtime import Consumer
from tidegate._engine.timers import TIMER_CHANCE, Timers
from tidegate._io.aio import AioRuntime


def test_the_gap_is_the_longest_pause_from_the_order_until_after_the_switch() -> None:
    meter = GapMeter()
    assert not meter.watching
    meter.begin(10.0)
    for now in (10.1, 10.4, 10.5):
        meter.delivered(now)
    assert meter.gap_s == 0.0  # it has not moved yet
    meter.end(moved=True, now=10.6)
    assert meter.gap_s == pytest.approx(0.3)
    meter.delivered(11.0)
    assert meter.gap_s == pytest.approx(0.5)
    assert meter.watching
    meter.delivered(10.6 + AFTER_S)
    assert not meter.watching
    assert meter.gap_s == pytest.approx(0.6)


def test_a_move_that_fails_leaves_the_gap_of_the_one_before() -> None:
    meter = GapMeter()
    meter.begin(0.0)
    meter.delivered(0.25)
    meter.end(moved=True, now=0.3)
    meter.begin(0.5)
    meter.delivered(5.0)
    assert meter.gap_s == pytest.approx(0.25)
    meter.end(moved=False, now=5.0)
    assert not meter.watching
    assert meter.gap_s == pytest.approx(0.25)


async def test_timers_fire_once_in_order_and_never_early() -> None:
    fired: list[tuple[str, float]] = []
    runtime = AioRuntime()
    done = asyncio.Event()

    def fire(name: str) -> None:
        fired.append((name, runtime.now()))
        if name == "first":
            timers.cancel("cancelled by another")
        if name == "last":
            done.set()

    timers = Timers(runtime, fire, "test")
    began = runtime.now()
    timers.set("last", 0.2)
    timers.set("moved", 0.0)
    timers.set("first", 0.02)
    timers.set("cancelled", 0.01)
    timers.set("cancelled by another", 0.05)
    timers.set("moved", 0.1)
    timers.cancel("cancelled")
    await asyncio.wait_for(done.wait(), 30)
    timers.set("never", 0.0)
    timers.stop()
    await runtime.close()
    assert [name for name, _ in fired] == ["first", "moved", "last"]
    for (_, at), after_s in zip(fired, (0.02, 0.1, 0.2), strict=True):
        assert at - began >= after_s - 1e-3
    assert 0 < TIMER_CHANCE < 1


async def test_a_head_matters_for_as_long_as_somebody_belongs_to_it() -> None:
    runtime = AioRuntime()
    home = Address.parse("amqp://user:secret@127.0.0.1:1/home")
    heads = Heads(runtime, home, "siren", "siren", Timeouts(), Backoff(), lambda head, message, to: None)
    other = "amqp://127.0.0.1:1/other"
    one, two = object(), object()
    assert heads.key("") == heads.key("amqp://127.0.0.1:1/home") == str(home)
    assert heads.control("amqp://127.0.0.1:1/home") is heads.home
    heads.join("", one)
    heads.join(other, one)
    heads.join(other, two)
    control = heads.control(other)
    assert (control.address.user, control.address.password) == ("user", "secret")
    heads.leave("", one)
    assert not heads.belongs(heads.key(""), one)
    heads.leave(other, one)
    assert heads.belongs(heads.key(other), two)
    assert heads.control(other) is control
    heads.forget(two)
    assert heads.control(other) is not control
    heads.join("not an address", one)
    assert not heads.belongs(heads.key("not an address"), one)
    await heads.close()
    await runtime.close()


class SlowToClose:
    """The only channel of the only connection; how long it takes to close is up to the test."""

    lost = None

    def __init__(self) -> None:
        self.acknowledged: list[tuple[int, bool]] = []
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()

    async def acknowledge(self, acks: Sequence[tuple[int, bool]]) -> None:
        self.acknowledged += acks

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()

    @asynccontextmanager
    async def attach(self, *_: object) -> AsyncIterator[SlowToClose]:
        yield self


async def test_leaving_is_over_when_all_is_settled_and_not_when_the_channel_has_closed() -> None:
    """The answer to a close comes through the very uplink whose backlog somebody is moved away from."""
    runtime, channel, inbox = AioRuntime(), SlowToClose(), Inbox(1.0, True, 80, 10)
    ended: list[TidegateError | None] = []
    place = Place("north", "amqp://127.0.0.1:1/north", "out.siren.0", 0)
    consumer = SlotConsumer(runtime, 1, place, inbox, lambda: None, lambda _, lost: ended.append(lost))
    inbox.receive(consumer.ledger, 1, "t", b"", "p~1:t:1", {"tidegate-published-us": 1}, False, 0.0)
    wanted = Consumer(place.queue, 80, cast(Any, None))
    running = asyncio.create_task(consumer.run(cast(Any, channel), cast(Any, None), wanted))
    await asyncio.sleep(0)
    consumer.leave(60.0)
    await asyncio.sleep(0.05)
    assert not ended, "the application has not settled what it was given"
    inbox.hand_over(inbox.buffer.popleft(), 0.0).ack()
    await consumer.acknowledge()
    await asyncio.wait_for(channel.closing.wait(), 30)
    assert ended == [None]
    assert channel.acknowledged == [(1, True)]
    channel.may_close.set()
    await asyncio.wait_for(running, 30)
    assert ended == [None], "it ends once"
    await runtime.close()
