"""Processes that share the work of many runs, and that never outlive whoever started them.

A pool's own processes wait for work for ever if their parent is killed, so each of them watches whether its parent is
still there. Knows nothing of what is run.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final, TypeVar

LOOK_EVERY_S: Final = 0.5

Given = TypeVar("Given")
Made = TypeVar("Made")


def map_in_order(
    work: Callable[[Given], Made], given: Iterable[Given], *, jobs: int, at_once: int = 1
) -> Iterator[Made]:
    """What `work` makes of each, in the order given, `jobs` processes sharing it, each taking `at_once` at a time."""
    # Started afresh rather than forked: a child must not inherit the locks and threads of whoever calls this.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with, initargs=(os.getpid(),)) as pool:
        try:
            yield from pool.map(work, given, chunksize=at_once)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with(parent: int) -> None:
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os._exit(1)
