"""Runs `ews-burst` once and keeps what came of it. The only place here that looks at a clock, for `wall_s`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidegate_agents.machine import HeadSampled
from tidegate_simulator.observer import Observer
from tidegate_simulator.world import World

from .recorder import Recorder
from .result import EwsResult, sum_up
from .scenario import EwsOptions, scenario


@dataclass(frozen=True, slots=True)
class EwsRun:
    """One run: what was asked for, what came out, and everything that was seen on the way."""

    options: EwsOptions
    result: EwsResult
    recorder: Recorder


Progress = Callable[[int, int], None]
"""How many seconds of virtual time are over, and of how many."""


class _Ticker(Observer):
    """Tells the progress once per sample of the head, and never changes anything. What still waits when publishers have
    ended takes its time, too, and is counted.
    """

    def __init__(self, progress: Progress, total_s: float) -> None:
        self._progress = progress
        self._total = round(total_s)

    def head_sampled(self, head: str, sample: HeadSampled, now: float) -> None:
        if now < self._total:
            self._progress(int(now), self._total)

    def ended(self, world: World, now: float) -> None:
        self._progress(self._total, self._total)


def run_ews(options: EwsOptions, *, progress: Progress | None = None, besides: Iterable[Observer] = ()) -> EwsRun:
    """Simulate the experiment once; those `besides` may look on, too."""
    began = time.perf_counter()
    recorder = Recorder()
    observers: list[Observer] = [recorder, *besides]
    wanted = scenario(options)
    if progress is not None:
        observers.append(_Ticker(progress, wanted.duration_s + wanted.settle_s))
    world = World(wanted, observers=tuple(observers))
    world.run()
    wall_s = time.perf_counter() - began
    return EwsRun(options, sum_up(options, recorder, trace_hash=world.trace_hash, wall_s=wall_s), recorder)
