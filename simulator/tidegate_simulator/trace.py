"""What happened, as a running hash and, if somebody wants to read it, as lines.

The hash covers every data message that was published, transferred or delivered, every control message with its
content, every step of an agent and every fault, each with its time to the last bit. Two runs with the same hash took
the same course.

Data messages are many, so that their records are packed numbers: text is made of them only while lines are kept, of
which there are at most `lines_max` (the last ones: a failure is explained by what came before it).
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from struct import Struct
from typing import Final

from .observer import Observer

BUFFER_BYTES: Final = 1 << 16
"""Hashing in large pieces is much cheaper than record by record."""
DIGEST_BYTES: Final = 16

pack_data: Final = Struct("<cdII").pack
"""A record of a data message: what happened, when, where, to which one."""


class Trace:
    """The record of one run."""

    __slots__ = ("_buffer", "_hash", "_now", "_stamp", "extend", "lines", "reading")

    def __init__(self, lines_max: int = 0) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self._buffer = bytearray()
        self._now = -1.0
        self._stamp = ""
        """The moment as text: much happens at one."""
        self.extend = self._buffer.extend
        """Takes a packed record. Open, with `pack_data`, to those for whom a call more per message is too much."""
        self.lines: deque[str] = deque(maxlen=lines_max)
        self.reading = lines_max > 0

    def data(self, kind: bytes, now: float, where: int, message: int) -> None:
        """A data message at one place; both are known by their numbers."""
        self.extend(pack_data(kind, now, where, message))

    def event(self, now: float, text: str, content: bytes = b"") -> None:
        """Anything else; `content` counts for the hash and is not shown."""
        if now != self._now:
            self._now, self._stamp = now, repr(now)
        buffer = self._buffer
        buffer += f"{self._stamp} {text}\n".encode()
        buffer += content
        # Brokers are stepped all the time, so that looking here is enough to keep the buffer small.
        if len(buffer) > BUFFER_BYTES:
            self._hash.update(buffer)
            buffer.clear()
        if self.reading:
            self.line(now, text)

    def line(self, now: float, text: str) -> None:
        """Only to be read: what the hash covers already in another form."""
        self.lines.append(f"{now:11.6f}  {text}")

    @property
    def digest(self) -> str:
        """The hash of everything so far."""
        copy = self._hash.copy()
        copy.update(self._buffer)
        return copy.hexdigest()


class DataLines(Observer):
    """Writes a line for every data message, where somebody reads."""

    def __init__(self, trace: Trace) -> None:
        self._line = trace.line

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        self._line(now, f"published {message_id}")

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        self._line(now, f"delivered {subscriber} {message_id}")
