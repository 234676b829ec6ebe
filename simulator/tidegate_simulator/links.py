"""Links that carry messages from a head: FIFO, with bandwidth, queueing and delay, and cut at times.

    link queue → the head's uplink (shared by its links, FIFO) → delay → the target's own stages → target

Invariants:

- messages of a link arrive in the order in which they were sent;
- a message is unconfirmed until it was taken over by the target and the confirm has come back; one that was
  unconfirmed when the link was cut is sent again, before anything newer. Those that had arrived are duplicates then;
- nothing is lost: what can't be sent waits.

Knows no topics and no bindings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappush

from tidegate._core.identity import identity_of

from .kernel import Kernel


class Message:
    """A message of the data plane. A marker or fence has no id; its topic is its key."""

    __slots__ = ("account", "carried", "content", "id", "identity", "index", "published_s", "size_bytes", "topic")

    def __init__(
        self,
        identity: str | None,
        index: int,
        topic: str,
        size_bytes: float,
        published_s: float,
        content: bytes | None = None,
        account: str | None = None,
        carried: str | None = None,
    ) -> None:
        self.id = identity
        self.account = account
        """Who published it."""
        self.carried = carried or identity
        """The id it carries, where that is another's than its own."""
        self.identity = identity_of(account, self.carried, checked_accounts=False)
        """What its subscribers know it by."""
        self.content = content
        """The body of a plain message: all that its subscriber can tell it by. Its id is none of ours then, and known
        to the checkers only."""
        self.index = index
        """A number of its own in this run, for the trace."""
        self.topic = topic
        self.size_bytes = size_bytes
        self.published_s = published_s


class Pipe:
    """Bandwidth that is shared in the order of asking; without a limit it takes no time."""

    __slots__ = ("free_s", "seconds_per_byte")

    def __init__(self, bytes_per_s: float | None) -> None:
        self.seconds_per_byte = 0.0 if bytes_per_s is None else 1.0 / bytes_per_s
        self.free_s = 0.0

    def through(self, now: float, size_bytes: float) -> float:
        """When something of this size, ready at `now`, has passed."""
        start = self.free_s if self.free_s > now else now
        self.free_s = done = start + size_bytes * self.seconds_per_byte
        return done


Stages = Callable[[float, float], float]
"""From the time of arrival and the size to the time when the target has taken the message over. Asked in the order of
arrival, and only by the one link that leads there."""


def no_stages(arrival_s: float, size_bytes: float) -> float:
    return arrival_s


class Link:
    """One link queue and what carries it away. Runs while nothing stops it."""

    __slots__ = (
        "_deliver",
        "_epoch",
        "_in_flight",
        "_kernel",
        "_stages",
        "_unconfirmed",
        "_uplink",
        "delay_s",
        "running",
        "sent_again",
        "stopped_by",
        "target",
        "transferred",
        "waiting",
    )

    def __init__(
        self,
        kernel: Kernel,
        target: str,
        uplink: Pipe,
        delay_s: float,
        deliver: Callable[[Message], None],
        stages: Stages = no_stages,
    ) -> None:
        self._kernel = kernel
        self._uplink = uplink
        self._stages = stages
        self._deliver = deliver
        self._epoch = 0
        self._in_flight: deque[tuple[float, Message]] = deque()
        self._unconfirmed: deque[tuple[float, Message]] = deque()
        self.target = target
        self.delay_s = delay_s
        self.waiting: deque[Message] = deque()
        self.stopped_by: set[str] = set()
        self.running = True
        self.transferred = 0
        self.sent_again = 0

    def send(self, message: Message) -> None:
        """Put a message into the link queue, or straight onto the line."""
        if self.running:
            self._transmit(message)
        else:
            self.waiting.append(message)

    def _transmit(self, message: Message) -> None:
        kernel, uplink, size_bytes = self._kernel, self._uplink, message.size_bytes
        departure_s = uplink.free_s if uplink.free_s > kernel.now else kernel.now
        uplink.free_s = departure_s = departure_s + size_bytes * uplink.seconds_per_byte
        due_s = self._stages(departure_s + self.delay_s, size_bytes)
        in_flight = self._in_flight
        in_flight.append((due_s, message))
        self._unconfirmed.append((due_s + self.delay_s, message))
        if len(in_flight) == 1:
            kernel.count = count = kernel.count + 1
            heappush(kernel.heap, (due_s, count, self._arrive, self._epoch))

    def _arrive(self, epoch: int) -> None:
        if epoch != self._epoch:
            return  # the link was cut since
        kernel, in_flight, unconfirmed = self._kernel, self._in_flight, self._unconfirmed
        _, message = in_flight.popleft()
        if in_flight:
            kernel.count = count = kernel.count + 1
            heappush(kernel.heap, (in_flight[0][0], count, self._arrive, epoch))
        while unconfirmed and unconfirmed[0][0] <= kernel.now:
            unconfirmed.popleft()
        self.transferred += 1
        self._deliver(message)

    def stop(self, reason: str) -> None:
        """Carry nothing from now on; what is unconfirmed goes back to the front of the queue."""
        self.stopped_by.add(reason)
        if not self.running:
            return
        self.running = False
        now = self._kernel.now
        back = [message for confirmed_s, message in self._unconfirmed if confirmed_s > now]
        self.waiting.extendleft(reversed(back))
        self.sent_again += len(back)
        self._unconfirmed.clear()
        self._in_flight.clear()
        self._epoch += 1

    def start(self, reason: str) -> None:
        """This reason to stand still is over."""
        self.stopped_by.discard(reason)
        if self.stopped_by or self.running:
            return
        self.running = True
        waiting, self.waiting = self.waiting, deque()
        for message in waiting:
            self._transmit(message)

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self.waiting and not self._in_flight
