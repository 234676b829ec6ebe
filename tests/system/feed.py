"""A process that publishes: steadily, and several times as much in a burst.

    python -m tests.system.feed URL DIRECTORY NAME:TOPIC:RATE:BYTES:FACTOR […]

One publisher per argument, each with a file of its name: one line per message that RabbitMQ has confirmed, its id.
SIGUSR1 begins a burst (FACTOR times the rate), SIGUSR2 ends it. Ends on SIGTERM, after everything is confirmed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.system.load import orphaned
from tidegate import AsyncPublisher, AsyncReceipt, NotConfirmed


@dataclass
class Pace:
    """What all feeds of the process share."""

    burst: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def set_burst(self, burst: bool) -> None:
        self.burst = burst


async def feed(url: str, directory: Path, argument: str, pace: Pace) -> None:
    name, topic, rate, size, factor = argument.split(":")
    loop = asyncio.get_running_loop()
    pending: set[asyncio.Task[None]] = set()
    with (directory / name).open("a", buffering=1) as book:
        async with AsyncPublisher(url, name=name) as publisher:
            due_s = loop.time()
            while not pace.stop.is_set():
                task = asyncio.create_task(note(await publisher.publish(topic, b"." * int(size)), book))
                pending.add(task)
                task.add_done_callback(pending.discard)
                due_s += 1 / (float(rate) * (float(factor) if pace.burst else 1.0))
                # A publisher that was held up does not make up for it: that would be a burst nobody asked for.
                due_s = max(due_s, loop.time() - 1.0)
                await asyncio.sleep(max(due_s - loop.time(), 0.0))
            await asyncio.gather(*pending)


async def note(receipt: AsyncReceipt, book: IO[str]) -> None:
    try:
        await receipt
    except NotConfirmed as error:
        print(f"{receipt.id} was not confirmed: {error}", flush=True)
    else:
        book.write(f"{receipt.id}\n")


async def main(url: str, directory: Path, arguments: list[str]) -> None:
    pace = Pace()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, pace.stop.set)
    loop.add_signal_handler(signal.SIGUSR1, pace.set_burst, True)
    loop.add_signal_handler(signal.SIGUSR2, pace.set_burst, False)
    watch = asyncio.create_task(orphaned())
    watch.add_done_callback(lambda _: pace.stop.set())
    async with asyncio.TaskGroup() as group:
        for argument in arguments:
            group.create_task(feed(url, directory, argument, pace))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
