"""A process of plain AMQP publishers: bare pika, no message ids, nothing of the SDK.

    python -m tests.system.plain_feed URL DIRECTORY NAME:TOPIC:RATE:BYTES:CONTENTS […]

One publisher per argument, each with a file of its name: one line per message that RabbitMQ has confirmed, its id as
`load` understands it. With CONTENTS 0 all messages are distinct; otherwise their contents repeat after so many, as
those of a device that says the same again and again. Ends on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from threading import Event, Thread

import pika

from tests.system.load import PARENT_CHECK_S
from tidegate_protocol.names import PUBLISH_EXCHANGE

BEHIND_MAX_S = 1.0
"""A publisher that was held up does not make up for more than this."""


def feed(url: str, directory: Path, argument: str, stop: Event) -> None:
    name, topic, rate, _, contents = argument.split(":")
    with (
        pika.BlockingConnection(pika.URLParameters(url)) as connection,
        (directory / name).open("a", buffering=1) as book,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        sequence, due_s = 0, time.monotonic()
        while not stop.wait(max(due_s - time.monotonic(), 0.0)):
            if int(contents):
                identity, body = f"={topic}:{sequence}", f"{sequence % int(contents)}/{contents}"
            else:
                identity = body = f"{name}~0:{topic}:{sequence}"
            channel.basic_publish(PUBLISH_EXCHANGE, topic, body.encode())
            book.write(f"{identity}\n")
            sequence += 1
            due_s = max(due_s + 1 / float(rate), time.monotonic() - BEHIND_MAX_S)


def main(url: str, directory: Path, arguments: list[str]) -> None:
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threads = [Thread(target=feed, args=(url, directory, argument, stop)) for argument in arguments]
    for thread in threads:
        thread.start()
    parent = os.getppid()
    while not stop.wait(PARENT_CHECK_S):
        if os.getppid() != parent:
            stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
