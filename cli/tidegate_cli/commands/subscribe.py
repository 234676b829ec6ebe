"""`tidegate subscribe`: watch messages come in, with their age."""

from __future__ import annotations

import asyncio
import signal

import click
from rich.markup import escape

from tidegate import AsyncSubscriber, AsyncSubscription, Message

from ..console import err, json_option, out, print_json, run, url_option


@click.command("subscribe")
@click.argument("pattern")
@click.option(
    "--deadline",
    type=float,
    required=True,
    metavar="SECONDS",
    help="How old a message may be when it arrives.",
)
@url_option
@click.option("--name", help="Keep the subscription under this name while away; made up, and given up, if not given.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after that many messages.")
@json_option
def command(pattern: str, deadline: float, url: str, name: str | None, count: int | None, as_json: bool) -> None:
    """Receive what matches PATTERN (`*` is one word, `#` any number of words) until Ctrl-C."""
    run(_subscribe(pattern, deadline, url, name, count, as_json))


async def _subscribe(
    pattern: str, deadline: float, url: str, name: str | None, count: int | None, as_json: bool
) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    async with AsyncSubscriber(url, name=name) as subscriber:
        subscription = await subscriber.subscribe(pattern, deadline=deadline)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        if not as_json:
            err().print(f"subscribed to {pattern} on edge {subscription.edge}, deadline {deadline:g} s; Ctrl-C to stop")
        try:
            await _receive(subscription, count, as_json)
        except asyncio.CancelledError:
            task.uncancel()
        _summarise(subscription, as_json)


async def _receive(subscription: AsyncSubscription, count: int | None, as_json: bool) -> None:
    received = 0
    async for message in subscription:
        if as_json:
            print_json(_describe(message))
        else:
            _show(message)
        received += 1
        if received == count:
            return


def _show(message: Message) -> None:
    age = "   age ?" if message.age_s is None else f"{message.age_s * 1000:8.1f} ms"
    mark = "[red]LATE[/red] " if message.late else ""
    attributes = "".join(f" {name}={value}" for name, value in message.attributes.items())
    body = message.body.decode(errors="backslashreplace")
    out().print(
        f"{age}  {mark}[bold]{escape(message.topic)}[/bold]{escape(attributes)}  {escape(body)}", soft_wrap=True
    )


def _describe(message: Message) -> dict[str, object]:
    return {
        "topic": message.topic,
        "body": message.body.decode(errors="backslashreplace"),
        "attributes": dict(message.attributes),
        "id": message.id,
        "age_s": message.age_s,
        "late": message.late,
    }


def _summarise(subscription: AsyncSubscription, as_json: bool) -> None:
    statistics = subscription.statistics()
    if as_json:
        return
    err().print(
        f"{statistics.received} received, {statistics.late} late, {statistics.duplicates} duplicates removed"
        + (f", p99 {statistics.latency_p99_s * 1000:.1f} ms" if statistics.latency_count else "")
    )
