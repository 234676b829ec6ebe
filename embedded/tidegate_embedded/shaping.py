"""The arithmetic of a shaped link, without sockets and without a clock of its own: time is an argument.

A `Lane` is a broker's uplink or downlink: ONE first-in-first-out queue over all connections of that broker, emptied at
the lane's bandwidth in small slices. One queue for all is the point: a share per connection would let a quiet
subscription overtake a busy one, which no real uplink does. A `DelayLine` is the way of one connection in one
direction: what goes in comes out later, in the same order.

Invariants: bytes leave in the order they came. Over any stretch in which a lane is never empty it passes bandwidth ×
time, to within one slice and what one late timer makes up. Nothing is dropped here.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

SLICE_BYTES: Final = 2048
"""Two kilobytes keep the grain of sharing below one message of the experiments and its overhead affordable."""
SLICE_S: Final = 0.001
"""A fast lane takes larger slices, because timers are no finer than this."""
CATCH_UP_S: Final = 0.05
"""How much a lane may make up for a timer that came late; more would be a burst that the link could not have sent."""
QUEUE_S: Final = 4.0
"""How long a lane's queue may be, in seconds of its bandwidth. Long enough that connections share a busy lane in the
order of arrival; bounded, so that the sender feels the rest."""
QUEUE_BYTES_MIN: Final = 64 * 1024

T = TypeVar("T")


class Lane(Generic[T]):
    """A token bucket with one FIFO for all flows that use it; `T` identifies a flow."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._queue: deque[tuple[T, memoryview]] = deque()
        self._free_at_s = 0.0
        self.bytes_per_s = bytes_per_s
        self.queued_bytes = 0
        self.passed_bytes = 0

    @property
    def queue_bytes_max(self) -> int:
        """Above this, flows should stop feeding the lane."""
        return max(QUEUE_BYTES_MIN, int((self.bytes_per_s or 0) * QUEUE_S))

    @property
    def is_full(self) -> bool:
        """Whether flows should wait. An unshaped lane never holds anything back."""
        return self.queued_bytes >= self.queue_bytes_max

    def set_rate(self, bytes_per_s: float | None, now_s: float) -> None:
        """Change the bandwidth; what has been promised for the past stays as it was."""
        self.bytes_per_s = bytes_per_s
        self._free_at_s = now_s

    def push(self, flow: T, data: bytes, now_s: float) -> None:
        """Queue bytes of one flow. Empty `data` is a mark that keeps its place, e.g. the end of a flow."""
        if not self._queue:
            self._free_at_s = max(self._free_at_s, now_s)
        self._queue.append((flow, memoryview(data)))
        self.queued_bytes += len(data)

    def pop_due(self, now_s: float) -> list[tuple[T, memoryview]]:
        """Everything that has been sent completely by now."""
        sent: list[tuple[T, memoryview]] = []
        if self.bytes_per_s is None:
            sent.extend(self._queue)
            self._queue.clear()
            self.passed_bytes += self.queued_bytes
            self.queued_bytes = 0
            return sent
        due_s = self.next_due_s()
        if due_s is not None:
            # Counted from when the slice was due: on a slow lane a slice takes longer than what may be made up.
            self._free_at_s += max(0.0, now_s - due_s - CATCH_UP_S)
        while self._queue:
            flow, data = self._queue[0]
            size = min(len(data), self._slice_bytes())
            done_at_s = self._free_at_s + size / self.bytes_per_s
            if done_at_s > now_s:
                break
            self._free_at_s = done_at_s
            if size == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = (flow, data[size:])
            self.queued_bytes -= size
            self.passed_bytes += size
            sent.append((flow, data[:size]))
        return sent

    def next_due_s(self) -> float | None:
        """When `pop_due` has something again; None when the lane is empty."""
        if not self._queue:
            return None
        if self.bytes_per_s is None:
            return self._free_at_s
        size = min(len(self._queue[0][1]), self._slice_bytes())
        return self._free_at_s + size / self.bytes_per_s

    def forget(self, flow: T) -> None:
        """Drop what a flow that is gone still has in the queue."""
        kept = deque((other, data) for other, data in self._queue if other is not flow)
        self._queue = kept
        self.queued_bytes = sum(len(data) for _, data in kept)

    def _slice_bytes(self) -> int:
        return max(SLICE_BYTES, int((self.bytes_per_s or 0) * SLICE_S))


class DelayLine:
    """Holds bytes for a while and gives them back in order, even when the delay shrinks meanwhile."""

    def __init__(self, delay_s: float) -> None:
        self._line: deque[tuple[float, memoryview]] = deque()
        self._last_due_s = 0.0
        self.delay_s = delay_s
        self.held_bytes = 0

    def push(self, data: memoryview, now_s: float) -> None:
        """Take bytes in."""
        self._last_due_s = max(self._last_due_s, now_s + self.delay_s)
        self._line.append((self._last_due_s, data))
        self.held_bytes += len(data)

    def pop_due(self, now_s: float) -> list[memoryview]:
        """Everything whose time has come."""
        due: list[memoryview] = []
        while self._line and self._line[0][0] <= now_s:
            _, data = self._line.popleft()
            self.held_bytes -= len(data)
            due.append(data)
        return due

    def next_due_s(self) -> float | None:
        """When `pop_due` has something again; None when the line is empty."""
        return self._line[0][0] if self._line else None
