"""A process that subscribes and can be killed at any moment: a message is written down first, acknowledged after.

    python -m tests.system.audience URL DIRECTORY NAME:PATTERN:DEADLINE […]

One subscriber per argument, each with a file of its name: a line `# run` at each start of the process, then one line
per message handed to the application, its id (`load` says which that is), with a star if it was collected from an edge
that had been away.
A head that can't be reached is tried again. Ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import IO

from tests.system.load import orphaned
from tidegate import AsyncSubscriber, AsyncSubscription, Message, TidegateError
from tidegate_protocol.ids import MessageId

RETRY_S = 0.5


async def listen(url: str, directory: Path, argument: str) -> None:
    name, pattern, deadline = argument.split(":")
    with (directory / name).open("a", buffering=1) as book:
        book.write("# run\n")
        subscriber, subscription = await subscribed(url, name, pattern, float(deadline))
        try:
            await take(subscription, book)
        finally:
            await subscriber.close()


async def subscribed(url: str, name: str, pattern: str, deadline: float) -> tuple[AsyncSubscriber, AsyncSubscription]:
    while True:
        subscriber = AsyncSubscriber(url, name=name)
        try:
            await subscriber.open()
            return subscriber, await subscriber.subscribe(pattern, deadline, acknowledge="manual")
        except TidegateError as error:
            print(f"{name}: {error!r}; once more", flush=True)
            await subscriber.close()
            await asyncio.sleep(RETRY_S)


async def take(subscription: AsyncSubscription, book: IO[str]) -> None:
    async for message in subscription:
        book.write(f"{identity(message)}{'*' if message.collected else ''}\n")
        await message.ack()


def identity(message: Message) -> str:
    body = message.body.decode()
    if message.id is not None or MessageId.parse(body) is not None:
        return message.id or body
    return f"={message.topic}:{body}"


async def main(url: str, directory: Path, arguments: list[str]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    watch = asyncio.create_task(orphaned())
    watch.add_done_callback(lambda _: task.cancel())
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            for argument in arguments:
                group.create_task(listen(url, directory, argument))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
