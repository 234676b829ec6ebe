"""What streams there are and how far they reach, on all brokers: the driver's view.

A connection is kept from one call to the next while calls come often, as from a query that polls; with seldom calls it
is closed at once, because nobody would answer RabbitMQ's heartbeats in between. RabbitMQ going away is waited out, as
often as `connectRetries` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

from .errors import InvalidOption, Transient
from .link import Link
from .listing import list_streams
from .offsets import StreamKey
from .options import Broker, Settings
from .points import Points
from .probe import Probe
from .retries import with_retries

KEEP_S: Final = 10.0
LISTING_S: Final = 1.0
"""How old a list of queues may be: a query that polls does not ask the management API ten times a second."""

T = TypeVar("T")


class Survey:
    """Asks all brokers of the settings. The end of a stream is the offset that its next message will have, or less."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._links: dict[str, Link] = {}
        self._used_at: dict[str, float] = {}
        self._newest: dict[StreamKey, int | None] = {}
        self._listed: list[StreamKey] = []
        self._listed_at = float("-inf")

    def streams(self, *, fresh: bool = False) -> list[StreamKey]:
        """All streams to read, sorted. Those of a pattern are looked up, at most once in `LISTING_S` unless `fresh`."""
        settings = self._settings
        if settings.pattern is None:
            return sorted(StreamKey(broker.name, name) for broker in settings.brokers for name in settings.streams)
        if fresh or self._clock() >= self._listed_at + LISTING_S:
            self._listed = sorted(key for broker in settings.brokers for key in self._list(broker, settings.pattern))
            self._listed_at = self._clock()
        return list(self._listed)

    def _list(self, broker: Broker, pattern: str) -> list[StreamKey]:
        names = with_retries(lambda: list_streams(broker, pattern, self._settings.tls), self._settings.connect_retries)
        return [StreamKey(broker.name, name) for name in names]

    def ends(self, keys: Collection[StreamKey]) -> dict[StreamKey, int]:
        """For each stream the offset after its last message; 0 for an empty one."""
        found: dict[StreamKey, int] = {}
        for broker, names in self._by_broker(keys).items():
            known = {name: self._newest.get(StreamKey(broker, name)) for name in names}
            newest = self._ask(broker, lambda probe, known=known: probe.newest(known))  # type: ignore[misc]
            for name, offset in newest.items():
                key = StreamKey(broker, name)
                self._newest[key] = -1 if offset is None else offset
                found[key] = 0 if offset is None else offset + 1
        return found

    def beginnings(self, keys: Collection[StreamKey], ends: Mapping[StreamKey, int]) -> dict[StreamKey, int]:
        """For each stream the offset of its first message; 0 for an empty one, which is known by its end."""
        found = {key: 0 for key in keys if ends[key] == 0}
        for broker, names in self._by_broker(set(keys) - found.keys()).items():
            earliest = self._ask(broker, lambda probe, names=names: probe.earliest(names))  # type: ignore[misc]
            found |= {StreamKey(broker, name): offset or 0 for name, offset in earliest.items()}
        return found

    def resolve(
        self, points: Points, keys: Collection[StreamKey], ends: Mapping[StreamKey, int]
    ) -> dict[StreamKey, int]:
        """What the user said of where to begin or to end, as offsets."""
        points.check_names(keys)
        wanted = {key: points.of(key) for key in keys}
        found = self.beginnings([key for key, point in wanted.items() if point == "earliest"], ends)
        found |= self._since({key: point for key, point in wanted.items() if isinstance(point, datetime)}, ends)
        for key, point in wanted.items():
            if point == "latest":
                found[key] = ends[key]
            elif isinstance(point, int):
                if point > ends[key]:
                    problem = f"{point}, but stream {key.stream!r} of {key.broker} ends at {ends[key]}"
                    raise InvalidOption(points.option, problem, "give an offset that the stream has reached, or latest")
                found[key] = point
        return {key: min(offset, ends[key]) for key, offset in found.items()}

    def _since(self, times: Mapping[StreamKey, datetime], ends: Mapping[StreamKey, int]) -> dict[StreamKey, int]:
        found = {key: ends[key] for key in times}
        past = [key for key, moment in times.items() if moment < datetime.now(UTC) and ends[key] > 0]
        for broker, names in self._by_broker(past).items():
            asked = {name: times[StreamKey(broker, name)] for name in names}
            offsets = self._ask(broker, lambda probe, asked=asked: probe.since(asked))  # type: ignore[misc]
            found |= {StreamKey(broker, name): offset for name, offset in offsets.items() if offset is not None}
        return found

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _ask(self, name: str, question: Callable[[Probe], T]) -> T:
        """Put a question to a broker, over the connection of the last call if it is fresh."""
        broker = self._settings.broker(name)
        before_s = self._clock() - self._used_at.get(name, float("-inf"))
        if before_s > KEEP_S:
            self._drop(name)

        def once() -> T:
            try:
                if name not in self._links:
                    self._links[name] = Link(broker, self._settings.tls)
                return question(Probe(self._links[name], self._settings.read_timeout_s))
            except BaseException:
                self._drop(name)
                raise

        try:
            answer = once() if name in self._links else None
        except Transient:
            answer = None  # a kept connection may be stale, which says nothing about RabbitMQ
        if answer is None:
            answer = with_retries(once, self._settings.connect_retries)
        if before_s > KEEP_S:
            self._drop(name)
        self._used_at[name] = self._clock()
        return answer

    def _drop(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            link.close()

    @staticmethod
    def _by_broker(keys: Collection[StreamKey]) -> dict[str, list[str]]:
        grouped: dict[str, list[str]] = {}
        for key in sorted(keys):
            grouped.setdefault(key.broker, []).append(key.stream)
        return grouped
