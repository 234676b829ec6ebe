"""Processes that share the work of many runs, and that never outlive whoever started them.

A pool's own processes wait for work for ever if their parent is killed, so each of them watches whether its parent is
still there. Ctrl-C reaches all of them; only the parent heeds it, and tells them when nobody waits for their work any
more. Invariant: results come in the order given, and only so much work is handed out as keeps every process busy,
however much is given. Knows nothing of what is run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing.synchronize import Event
from typing import Final, TypeVar

LOOK_EVERY_S: Final = 0.5
TASKS_PER_JOB_MAX: Final = 8
"""Handed out for each process and not yet given back in order: one slow task does not leave the others idle."""

Given = TypeVar("Given")
Made = TypeVar("Made")


def map_in_order(
    work: Callable[[Given], Made], given: Iterable[Given], *, jobs: int, at_once: int = 1
) -> Generator[Made, None, None]:
    """What `work` makes of each, in the order given, `jobs` processes sharing it, each taking `at_once` at a time."""
    # Started afresh rather than forked: a child must not inherit the locks and threads of whoever calls this.
    context = multiprocessing.get_context("spawn")
    given_up = context.Event()
    initial = (os.getpid(), given_up)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare, initargs=initial) as pool:
        handed_out: deque[Future[list[Made]]] = deque()
        rest = iter(given)
        try:
            while task := tuple(islice(rest, at_once)):
                handed_out.append(pool.submit(_each, work, task))
                if len(handed_out) >= jobs * TASKS_PER_JOB_MAX:
                    yield from handed_out.popleft().result()
            while handed_out:
                yield from handed_out.popleft().result()
        except BaseException:
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _each(work: Callable[[Given], Made], task: tuple[Given, ...]) -> list[Made]:
    return [work(one) for one in task]


def _prepare(parent: int, given_up: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent, given_up), daemon=True).start()


def _watch(parent: int, given_up: Event) -> None:
    while os.getppid() == parent and not given_up.wait(LOOK_EVERY_S):
        pass
    os._exit(1)
