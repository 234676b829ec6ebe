"""`tidegate publish`: messages from the command line.

With the publisher for threads, because reading standard input may take for ever: what was read is sent meanwhile, and
Ctrl-C interrupts the reading.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Final

import click

from tidegate import Publisher
from tidegate_experiments.pacing import Pacer

from ..console import json_option, out, print_json, url_option

_COUNT_MAX: Final = 10_000_000


class _Attribute(click.ParamType[tuple[str, str | int | float | bool]]):
    """NAME=VALUE, where whole numbers, floating-point numbers, true and false are taken as such."""

    name = "name=value"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str | int | float | bool]:
        name, equals, text = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} has no '=': write NAME=VALUE", param, ctx)
        if text in {"true", "false"}:
            return name, text == "true"
        for kind in (int, float):
            try:
                return name, kind(text)
            except ValueError:
                continue
        return name, text


@click.command("publish")
@click.argument("topic")
@click.argument("body", required=False)
@url_option
@click.option("--name", help="Name of this publisher; made up if not given.")
@click.option("--attribute", "-a", "attributes", type=_Attribute(), multiple=True, help="May be repeated.")
@click.option("--count", type=click.IntRange(1, _COUNT_MAX), default=1, help="How often to send BODY.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Messages per second; as fast as possible if not given."
)
@click.option("--transient", is_flag=True, help="Don't have RabbitMQ write the messages to disk.")
@json_option
def command(
    topic: str,
    body: str | None,
    url: str,
    name: str | None,
    attributes: tuple[tuple[str, str | int | float | bool], ...],
    count: int,
    rate: float | None,
    transient: bool,
    as_json: bool,
) -> None:
    """Publish BODY on TOPIC, or every line of standard input if there is no BODY.

    Returns when RabbitMQ has confirmed all of them.
    """
    if body is None and count != 1:
        raise click.UsageError(
            "--count repeats BODY: give one, or leave out --count to send the lines of standard input"
        )
    bodies = _lines() if body is None else (body.encode() for _ in range(count))
    sent, seconds = _publish(url, name, topic, bodies, dict(attributes), rate, not transient)
    if as_json:
        print_json({"topic": topic, "confirmed": sent, "seconds": round(seconds, 3)})
    else:
        out().print(f"{sent} confirmed on {topic} in {seconds:.2f} s")


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\r\n")


def _publish(
    url: str,
    name: str | None,
    topic: str,
    bodies: Iterator[bytes],
    attributes: dict[str, str | int | float | bool],
    rate: float | None,
    persistent: bool,
) -> tuple[int, float]:
    began = time.monotonic()
    sent = 0
    with Publisher(url, name=name) as publisher:
        pacer = Pacer(rate)
        for body in bodies:
            if pause_s := pacer.pause_s(time.monotonic()):
                time.sleep(pause_s)
            publisher.publish(topic, body, attributes=attributes, persistent=persistent)
            sent += 1
        publisher.flush()
    return sent, time.monotonic() - began
