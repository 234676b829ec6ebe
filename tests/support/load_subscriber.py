"""A subscriber process that can be killed at any moment: a message is written to its file first, acknowledged after.

    python -m tests.support.load_subscriber URL NAME FILE PATTERN

One line per message handed to the application: its id, whether RabbitMQ had delivered it before, and whether it was
collected from an edge that had been away. Each run of the process starts with a line `# run`. Ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tidegate import AsyncSubscriber


async def main(url: str, name: str, file: Path, pattern: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with file.open("a", buffering=1) as book:
        book.write("# run\n")
        async with AsyncSubscriber(url, name=name) as subscriber:
            subscription = await subscriber.subscribe(pattern, deadline=3600, acknowledge="manual")
            try:
                async for message in subscription:
                    book.write(f"{message.id} {int(message.redelivered)} {int(message.collected)}\n")
                    await message.ack()
            except asyncio.CancelledError:
                task.uncancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
