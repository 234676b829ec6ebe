"""What the broker processes tell of themselves during a live run: metrics while it lasts, decisions from their logs.

Metrics are asked for with a few bytes of HTTP, once per second and broker. What can't be read is left out: a run is
judged by what its clients got, and by this only as far as it is there.
"""

from __future__ import annotations

import asyncio
import calendar
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidegate_experiments.burst.recorder import DecisionRow
from tidegate_protocol.decisions import from_plain
from tidegate_protocol.names import OUTPUT_PREFIX

PERIOD_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 2.0
DEPTH: Final = "tidegate_output_depth_messages{"
THRESHOLD: Final = "tidegate_output_threshold_messages{"
OFFERED: Final = "tidegate_broker_offered_bytes_per_second "
SENT: Final = "tidegate_control_sent_messages_total{"


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of one broker at one moment; queues by the name of their subscriber."""

    at_us: int
    broker: str
    depths: dict[str, float] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    offered_bytes_per_s: float | None = None
    control_sent: int = 0


async def ask(broker: str, http_url: str) -> Reading | None:
    """The metrics of one broker now; None where it does not answer."""
    parts = urlsplit(http_url)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: tidegate\r\n\r\n")
                text = (await reader.read()).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return parse(broker, text, time.time_ns() // 1000)


def parse(broker: str, text: str, at_us: int) -> Reading:
    """Read what of the metrics is of interest here."""
    depths: dict[str, float] = {}
    thresholds: dict[str, float] = {}
    offered: float | None = None
    sent = 0.0
    for line in text.splitlines():
        if line.startswith(DEPTH):
            depths[_subscriber(line)] = _value(line)
        elif line.startswith(THRESHOLD):
            thresholds[_subscriber(line)] = _value(line)
        elif line.startswith(OFFERED):
            offered = _value(line)
        elif line.startswith(SENT):
            sent += _value(line)
    return Reading(at_us, broker, depths, thresholds, offered, round(sent))


def _value(line: str) -> float:
    return float(line.rpartition(" ")[2])


def _subscriber(line: str) -> str:
    queue = line.partition('queue="')[2].partition('"')[0]
    return queue.removeprefix(OUTPUT_PREFIX).rpartition(".")[0]


class Listener:
    """Asks all brokers every period and keeps what they say."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)
        self.readings: list[Reading] = []

    async def look(self) -> None:
        """Ask everybody once."""
        found = await asyncio.gather(*(ask(broker, url) for broker, url in self._urls.items()))
        self.readings += [reading for reading in found if reading is not None]

    async def run(self, began_us: int, duration_s: float) -> None:
        """Ask at whole seconds of the run, until it is over."""
        for second in range(1, int(duration_s) + 1):
            await asyncio.sleep(max(began_us / 1e6 + second * PERIOD_S - time.time(), 0.0))
            await self.look()

    def control_sent(self, until_us: int) -> int:
        """Control messages that brokers sent up to then, over those before the first look."""
        total = 0
        for broker in self._urls:
            counts = [one.control_sent for one in self.readings if one.broker == broker and one.at_us <= until_us]
            total += counts[-1] - counts[0] if counts else 0
        return total


def decisions(logs: Path, brokers: list[str], began_us: int) -> list[DecisionRow]:
    """Every decision in the brokers' logs, in the order of their times."""
    rows = [row for broker in brokers for row in _decisions(logs / f"{broker}.log", broker, began_us)]
    rows.sort(key=lambda row: row.at_s)
    return rows


def _decisions(log: Path, broker: str, began_us: int) -> Iterator[DecisionRow]:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            said = json.loads(line)
            if "record" not in said:
                continue
            at_s = _unix_s(said["time"]) - began_us / 1e6
            decision = from_plain(said["record"])
        except (ValueError, KeyError, TypeError):
            continue  # a line that is no decision
        yield DecisionRow(at_s, broker, decision)


def _unix_s(moment: str) -> float:
    """The time of a log line, `2024-05-01T12:00:00.123Z`."""
    whole, _, fraction = moment.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction or 0}")
