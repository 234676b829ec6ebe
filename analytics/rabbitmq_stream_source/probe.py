"""Asking RabbitMQ where streams begin and end, over AMQP 0-9-1, which has no such question.

- The earliest offset is that of the first message that a consumer at `first` gets.
- The newest: a consumer at `last` gets the last chunk, whole, and what comes after it. RabbitMQ hands over all there is
  in one go, as far as the prefetch reaches, so an answer to a later request on the same channel (the fence) comes after
  it: no guessing by silence. Where the newest is known from before, a consumer begins right there and gets that one
  message when nothing is new, instead of a chunk of thousands every time.
- An empty stream is the one case that only silence can tell. The number of messages in RabbitMQ's statistics helps in
  one direction: when it is not 0, the stream is not empty. It may be 0 for seconds after the first message, so silence
  is waited for; briefly where a mistake is harmless, because the stream is known as empty and is looked at again.

Offsets may have holes. RabbitMQ keeps notes of its own in a stream, and each takes an offset: what publishers have
sent, at the beginning of every new segment, and what consumers of the stream protocol have stored. What is found here
are always offsets of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from .errors import Silent, SourceError
from .link import Consumer, Link
from .tolerant import OFFSET_HEADER

AT_ONCE_MAX: Final = 64
"""Channels open at a time on one connection; RabbitMQ allows 2,047 unless configured otherwise."""
PREFETCH: Final = 5_000
"""A chunk of the last messages is usually smaller, so that one round is enough."""
KNOWN_PREFETCH: Final = 100
EMPTY_WAIT_S: Final = 2.0
EMPTY_AGAIN_WAIT_S: Final = 0.2
"""A stream that was empty a moment ago."""
ROUNDS_MAX: Final = 1_000


class _Look:
    """One consumer and what came of it."""

    def __init__(self, link: Link, stream: str, offset: object, prefetch: int) -> None:
        self.stream = stream
        self.first: int | None = None
        self.last: int | None = None
        self.unacked = 0
        self.fenced = False
        self.count: int | None = None
        self._prefetch = prefetch
        self._link = link
        self.consumer: Consumer = link.consume(stream, offset, prefetch, self._on_message)

    @property
    def error(self) -> SourceError | None:
        return self.consumer.error

    @property
    def settled(self) -> bool:
        """Something came, or nothing will."""
        return self.error is not None or self.first is not None

    @property
    def exhausted(self) -> bool:
        """RabbitMQ may have more, but was not allowed to send it."""
        return self.unacked >= self._prefetch

    def _on_message(self, _channel: object, _method: object, properties: Any, _body: bytes) -> None:
        offset = int(properties.headers[OFFSET_HEADER])
        if self.first is None:
            self.first = offset
            self._link.wake()
        self.last = offset
        self.unacked += 1

    def fence(self) -> None:
        self.fenced = False
        self.consumer.fence(self._passed)

    def ask_count(self) -> None:
        self.consumer.count(self._counted)

    def _passed(self) -> None:
        self.fenced = True

    def _counted(self, count: int) -> None:
        self.count = count


class Probe:
    """Looks at many streams of one broker at a time over one link."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s

    def earliest(self, streams: Iterable[str]) -> dict[str, int | None]:
        """The offset of the first message there is; None for an empty stream."""
        return self._in_groups(streams, lambda group: self._first_of(dict.fromkeys(group, "first"), EMPTY_WAIT_S))

    def since(self, times: Mapping[str, datetime]) -> dict[str, int | None]:
        """The first offset not older than a time, or a few before it (RabbitMQ attaches to a chunk); None: none yet."""
        # The client writes a time without its zone, as UTC, in whole seconds.
        plain = {stream: time.astimezone(UTC).replace(tzinfo=None) for stream, time in times.items()}
        return self._in_groups(plain, lambda group: self._since_of({stream: plain[stream] for stream in group}))

    def newest(self, known: Mapping[str, int | None]) -> dict[str, int | None]:
        """The offset of the last message; None for an empty stream.

        `known` says which streams, and what is known: the offset of a message near the end, -1 for "empty a moment
        ago", None for nothing.
        """
        result = self._in_groups(
            (stream for stream, offset in known.items() if offset is not None and offset >= 0),
            lambda group: self._newest_from({stream: known[stream] for stream in group}),
        )
        again = [stream for stream in result if result[stream] is None]
        unknown = [stream for stream, offset in known.items() if offset is None]
        empty = [stream for stream, offset in known.items() if offset == -1]
        result |= self._in_groups([*again, *unknown], lambda group: self._last_of(group, EMPTY_WAIT_S))
        return result | self._in_groups(empty, lambda group: self._last_of(group, EMPTY_AGAIN_WAIT_S))

    def _in_groups(
        self, streams: Iterable[str], work: Callable[[Sequence[str]], dict[str, int | None]]
    ) -> dict[str, int | None]:
        result: dict[str, int | None] = {}
        names = list(streams)
        for start in range(0, len(names), AT_ONCE_MAX):
            result |= work(names[start : start + AT_ONCE_MAX])
        return result

    def _first_of(self, offsets: Mapping[str, object], empty_wait_s: float) -> dict[str, int | None]:
        looks = self._begin(offsets, 1)
        self._until_settled(looks, empty_wait_s)
        return self._end(looks, lambda look: look.first)

    def _since_of(self, times: Mapping[str, object]) -> dict[str, int | None]:
        looks = self._begin(times, 1)
        # Nothing newer than that time is no error, however many messages there are.
        self._link.run(lambda: all(look.settled for look in looks), EMPTY_WAIT_S)
        return self._end(looks, lambda look: look.first)

    def _newest_from(self, offsets: Mapping[str, object]) -> dict[str, int | None]:
        """Begin at the newest of before. None where that was not enough: too much is new, or nothing comes at all."""
        looks = self._begin(offsets, KNOWN_PREFETCH)
        self._link.run(lambda: all(look.settled for look in looks), EMPTY_WAIT_S)
        self._pass_fences([look for look in looks if look.first is not None])
        return self._end(looks, lambda look: None if look.exhausted else look.last)

    def _last_of(self, streams: Sequence[str], empty_wait_s: float) -> dict[str, int | None]:
        looks = self._begin(dict.fromkeys(streams, "last"), PREFETCH)
        self._until_settled(looks, empty_wait_s)
        pending = [look for look in looks if look.first is not None]
        for _ in range(ROUNDS_MAX):
            self._pass_fences(pending)
            pending = [look for look in pending if look.exhausted]
            if not pending:
                break
            for look in pending:
                look.unacked = 0
                look.consumer.ack_all()
        return self._end(looks, lambda look: look.last)

    def _begin(self, offsets: Mapping[str, object], prefetch: int) -> list[_Look]:
        return [_Look(self._link, stream, offset, prefetch) for stream, offset in offsets.items()]

    def _until_settled(self, looks: list[_Look], empty_wait_s: float) -> None:
        """Wait for the first message of each; for those that say they have some, longer."""
        run = self._link.run
        if run(lambda: all(look.settled for look in looks), empty_wait_s):
            return
        silent = [look for look in looks if not look.settled]
        for look in silent:
            look.ask_count()
        if not run(lambda: all(look.settled or look.count is not None for look in silent), self._timeout_s):
            raise Silent(self._link.address, silent[0].stream, "it was asked for its length", self._timeout_s)
        filled = [look for look in silent if look.count]
        if not run(lambda: all(look.settled for look in filled), self._timeout_s):
            stuck = next(look for look in filled if not look.settled)
            raise Silent(self._link.address, stuck.stream, f"{stuck.count} messages are in it", self._timeout_s)

    def _pass_fences(self, looks: list[_Look]) -> None:
        for look in looks:
            look.fence()
        if not self._link.run(lambda: all(look.fenced or look.error is not None for look in looks), self._timeout_s):
            raise Silent(self._link.address, looks[0].stream, "its end was looked for", self._timeout_s)

    def _end(self, looks: list[_Look], result: Callable[[_Look], int | None]) -> dict[str, int | None]:
        for look in looks:
            if look.error is not None:
                raise look.error
        for look in looks:
            look.consumer.close()
        return {look.stream: result(look) for look in looks}
