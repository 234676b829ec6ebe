"""Everything that is in a telemetry stream, read while a test goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from tidegate_brokers.observe.telemetry.reader import EARLIEST, TelemetryReader, reading
from tidegate_brokers.settings.urls import ServerUrl
from tidegate_protocol.telemetry import Record, TelemetryRecord

Kind = TypeVar("Kind", bound=Record)


@dataclass
class Seen:
    """Records by offset. A message that is none fails the test that looks at it."""

    records: dict[int, TelemetryRecord] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """All of one kind, in the order of the stream."""
        return [record for _, record in sorted(self.records.items()) if isinstance(record, kind)]

    @property
    def kinds(self) -> Counter[str]:
        return Counter(record.kind for record in self.records.values())

    def by(self, broker: str) -> int:
        """How many were written by this broker."""
        return sum(record.broker == broker for record in self.records.values())


@asynccontextmanager
async def following(url: str, since: str | int = EARLIEST) -> AsyncIterator[Seen]:
    """Read a head's stream in the background."""
    seen = Seen()

    async def follow(reader: TelemetryReader) -> None:
        async for read in reader:
            if read.problem is not None:
                seen.problems.append(f"{read.offset}: {read.problem}")
                continue
            assert read.offset not in seen.records, "an offset came twice"
            seen.records[read.offset] = read.record
            assert read.kind == read.record.kind, "the type of the message is the kind of the record"

    async with reading(ServerUrl.parse(url), since) as reader:
        task = asyncio.create_task(follow(reader))
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
