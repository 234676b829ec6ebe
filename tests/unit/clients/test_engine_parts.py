"""Small parts around a subscription's machine: the gap of a move, timers, who listens to which head."""

from __future__ import annotations

import asyncio

import pytest

from tidegate._aio import AioRuntime
from tidegate._config import Address, Backoff, Timeouts
from tidegate._gap import AFTER_S, GapMeter
from tidegate._heads import Heads
from tidegate._timers import TIMER_CHANCE, Timers


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
