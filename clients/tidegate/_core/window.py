"""The window of a publisher: where each unsettled publication is, and which are sent again.

Invariants:

- a publication is in exactly one place: waiting, in flight, rejected, or settled;
- at most `window` publications (or one larger than `window_bytes`) are unsettled;
- publications that were in flight when a channel was lost are sent again before newer ones, in the order of publishing;
- while rejected publications wait to be sent again, nothing newer is sent, so that a link that is full for a moment
  disturbs the order as little as a pipeline allows;
- while the window is paused it hands out nothing and goes on filling.

The window has no clock and no connection: time is an argument, and the driver writes what `take` returns. It does not
know how a publication is numbered or encoded, so that simulated publishers drive it too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from .config import Backoff, Limits
from .errors import NotConfirmed

REJECTED_BACKOFF: Final = Backoff(first_s=0.05, limit_s=2.0)


class Publication:
    """One message on its way. `error` says why it failed once it is settled."""

    __slots__ = ("attempts", "body", "error", "id", "listener", "order", "properties", "settled", "topic")

    def __init__(self, message_id: str, topic: str, properties: bytes, body: bytes) -> None:
        self.id = message_id
        self.order = 0
        self.topic = topic
        self.properties = properties
        self.body = body
        self.attempts = 0
        self.settled = False
        self.error: Exception | None = None
        self.listener: Callable[[], None] | None = None

    def settle(self, error: Exception | None = None) -> None:
        """Mark as confirmed, or as failed with `error`, and tell the listener."""
        self.error = error
        self.settled = True
        if self.listener is not None:
            self.listener()


Entry = TypeVar("Entry", bound=Publication)


class Window(Generic[Entry]):
    """Publications of one publisher, from their entry to their confirmation."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.retries = 0
        self.paused = False
        self.probe_tag = 0
        """The delivery tag whose confirmation is being timed; 0 while none is."""
        self._probed_at = 0.0
        self._fastest_s: float | None = None
        self._round_trip_s = 0.0
        self._order = 0
        self._bytes = 0
        self._unsettled = 0
        self._waiting: deque[Entry] = deque()
        self._in_flight: dict[int, Entry] = {}
        self._rejected: list[Entry] = []
        self._rejected_until = 0.0
        self._next_tag = 1
        self._failure: NotConfirmed | None = None

    @property
    def full(self) -> bool:
        """Whether the next publication must wait for a confirmation."""
        return self._unsettled >= self._limits.window or self._bytes >= self._limits.window_bytes

    @property
    def roomy(self) -> bool:
        """Whether enough places are free to be worth waking a thread that waits for one."""
        return self._unsettled * 4 <= self._limits.window * 3 and self._bytes < self._limits.window_bytes

    @property
    def unsettled(self) -> int:
        return self._unsettled

    @property
    def has_rejected(self) -> bool:
        return bool(self._rejected)

    @property
    def in_flight(self) -> int:
        """Publications written to the channel that RabbitMQ has not answered yet."""
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """Publications that are not written to a channel, or have to be written again."""
        return len(self._waiting)

    @property
    def last_order(self) -> int:
        """The number of the youngest publication."""
        return self._order

    def settled_up_to(self, order: int) -> bool:
        """Whether every publication up to number `order` is settled."""
        if not self._unsettled:
            return True
        places = (self._waiting, self._in_flight.values(), self._rejected)
        return all(publication.order > order for place in places for publication in place)

    def take_failure(self) -> NotConfirmed | None:
        """The first publication that failed since this was last asked."""
        failure, self._failure = self._failure, None
        return failure

    def enter(self, publication: Entry) -> None:
        """Give a publication its order and a place."""
        self._order = publication.order = self._order + 1
        self._unsettled += 1
        self._bytes += len(publication.body)
        self._waiting.append(publication)

    def take(self, now: float) -> list[Entry]:
        """What to write to the channel now, in this order."""
        if self.paused:
            return []
        if self._rejected:
            # Publications in flight are settled within a round trip; then the rejected ones go back to their place.
            if self._in_flight or now < self._rejected_until:
                return []
            self._waiting.extendleft(sorted(self._rejected, key=_order, reverse=True))
            self._rejected.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        if taken and not self.probe_tag:
            self.probe_tag, self._probed_at = self._next_tag, now
        for publication in taken:
            publication.attempts += 1
            self._in_flight[self._next_tag] = publication
            self._next_tag += 1
        return taken

    def due_in_s(self, now: float) -> float | None:
        """When `take` should be called again although nothing happens; None if only an event can make a
        difference.
        """
        if not self._rejected or self._in_flight or self.paused:
            return None
        return max(0.0, self._rejected_until - now)

    def opened(self) -> None:
        """There is a new channel: delivery tags start again at 1, and nothing is in flight on it."""
        self.lost()
        self._next_tag = 1

    def lost(self) -> None:
        """The channel is gone: all publications in flight or rejected are sent again, oldest first."""
        again = [*self._in_flight.values(), *self._rejected]
        self.retries += len(again)
        self._waiting.extendleft(sorted(again, key=_order, reverse=True))
        self._in_flight.clear()
        self._rejected.clear()
        self.probe_tag = 0

    def probed(self, now: float) -> None:
        """The confirmation that is being timed has come."""
        took_s = now - self._probed_at
        self.probe_tag = 0
        self._fastest_s = took_s if self._fastest_s is None else min(self._fastest_s, took_s)

    def round_trip_us(self) -> int:
        """From publishing to the confirmation, the fastest since this was last asked; 0 before there is one."""
        # The fastest, because the others waited behind publications of our own.
        if self._fastest_s is not None:
            self._round_trip_s, self._fastest_s = self._fastest_s, None
        return round(self._round_trip_s * 1e6)

    def acked(self, tag: int, multiple: bool) -> int:
        """RabbitMQ took responsibility. Returns how many publications that settles."""
        if not multiple:
            publication = self._in_flight.pop(tag, None)
            if publication is None:
                return 0
            self._settle(publication)
            return 1
        return sum(1 for publication in self._pop_up_to(tag) if self._settle(publication))

    def nacked(self, tag: int, multiple: bool, now: float, chance: float) -> int:
        """RabbitMQ rejected. Try again after a pause, up to a bound.

        Returns how many have failed for good.
        """
        single = self._in_flight.pop(tag, None) if not multiple else None
        rejected = self._pop_up_to(tag) if multiple else [single] if single is not None else []
        failed = 0
        for publication in rejected:
            if publication.attempts >= self._limits.publish_attempts:
                problem = "RabbitMQ rejected it each time: a link is full"
                self._settle(publication, NotConfirmed(publication.id, publication.attempts, problem))
                failed += 1
                continue
            self.retries += 1
            self._rejected.append(publication)
            pause_s = REJECTED_BACKOFF.delay_s(publication.attempts - 1, chance)
            self._rejected_until = max(self._rejected_until, now + pause_s)
        return failed

    def fail(self, keep: Callable[[Entry], bool], problem: str) -> int:
        """Fail what waits and is not to be kept. Returns how many that were; what is in flight is RabbitMQ's to
        answer.
        """
        left = [publication for publication in self._waiting if not keep(publication)]
        if left:
            self._waiting = deque(publication for publication in self._waiting if keep(publication))
        for publication in left:
            self._settle(publication, NotConfirmed(publication.id, publication.attempts, problem))
        return len(left)

    def abandon(self, problem: str) -> int:
        """Fail everything that is unsettled, at the end of a publisher's life. Returns how many there were."""
        self.lost()
        left = list(self._waiting)
        self._waiting.clear()
        for publication in left:
            self._settle(publication, NotConfirmed(publication.id, publication.attempts, problem))
        return len(left)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        places = [*self._waiting, *self._in_flight.values(), *self._rejected]
        assert len({publication.id for publication in places}) == len(places) == self._unsettled
        assert not any(publication.settled for publication in places)
        assert self._bytes == sum(len(publication.body) for publication in places)
        assert self._unsettled <= self._limits.window
        assert list(self._in_flight) == sorted(self._in_flight)
        assert [p.order for p in self._waiting] == sorted(p.order for p in self._waiting)

    def _pop_up_to(self, tag: int) -> list[Entry]:
        tags = []
        for candidate in self._in_flight:
            if candidate > tag:
                break
            tags.append(candidate)
        return [self._in_flight.pop(candidate) for candidate in tags]

    def _settle(self, publication: Entry, error: NotConfirmed | None = None) -> bool:
        self._failure = self._failure or error
        self._unsettled -= 1
        self._bytes -= len(publication.body)
        publication.settle(error)
        return True


def _order(publication: Entry) -> int:
    return publication.order
