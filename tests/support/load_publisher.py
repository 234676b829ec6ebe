"""A publisher process that can be killed at any moment: what it has written to its file was confirmed by RabbitMQ.

    python -m tests.support.load_publisher URL NAME FILE RATE TOPIC [TOPIC …]

One line per confirmed message: its id. Ends on SIGTERM, after everything is confirmed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tidegate import AsyncPublisher, AsyncReceipt


async def main(url: str, name: str, file: Path, rate: float, topics: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with file.open("a", buffering=1) as book:
        async with AsyncPublisher(url, name=name) as publisher:
            pending: set[asyncio.Task[None]] = set()
            turn = 0
            while not stop.is_set():
                receipt = await publisher.publish(topics[turn % len(topics)], b"." * 200)
                task = asyncio.create_task(note(receipt, book))
                pending.add(task)
                task.add_done_callback(pending.discard)
                turn += 1
                await asyncio.sleep(1 / rate)
            await asyncio.gather(*pending)


async def note(receipt: AsyncReceipt, book: object) -> None:
    await receipt
    book.write(f"{receipt.id}\n")  # type: ignore[attr-defined]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
