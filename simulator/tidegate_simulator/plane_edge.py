"""The data plane of a simulated edge: what its RabbitMQ would hold and do.

    link → downlink (FIFO) → matching → deliver exchange → output queues → uplink (FIFO) → delay → subscriber
                                                                 ↑  acknowledgements, after the same delay

Invariants:

- one uplink per edge carries what all its queues have to send, in the order in which messages became sendable. A
  message becomes sendable when its queue has a consumer whose prefetch leaves room;
- a queue has at most one consumer. When that is lost, what it did not acknowledge goes back to the front of the queue,
  in order, and what was not yet on the line is not sent;
- acknowledgements come in the order of deliveries. They are entered when somebody looks, with the time at which they
  came in: an event of their own is needed only where a consumer waits for room.

Decides nothing, and knows neither clients nor agents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappush
from typing import Final

from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import output_queue
from tidegate_protocol.topics import matches

from .kernel import Kernel
from .links import Message, Pipe
from .trace import Trace, pack_data

ROUTED_TOPICS_MAX: Final = 50_000
"""Topics whose queues are remembered; beyond it the memory starts anew."""


class OutputQueue:
    """What waits for one subscription, and the counters that samples are made of."""

    __slots__ = (
        "acked",
        "bytes_enqueued",
        "consumer",
        "enqueued",
        "limit",
        "markers",
        "name",
        "ready",
        "returned",
        "subscription",
        "unacked",
        "unused_since_s",
    )

    def __init__(self, subscription: Subscription, now: float) -> None:
        self.name = output_queue(subscription.subscriber, subscription.number)
        self.subscription = subscription
        self.markers: dict[str, None] = {}
        self.ready: deque[Message] = deque()
        self.returned: set[int] = set()
        """Plain messages that a consumer was sent and had not acknowledged when it went, by index."""
        self.unacked: deque[Message] = deque()
        self.consumer: Consumer | None = None
        self.limit: int | None = None
        self.enqueued = 0
        self.bytes_enqueued = 0.0
        self.acked = 0
        self.unused_since_s = now


class Consumer:
    """A subscriber's hold on a queue. `receive` is called for every message that reaches it."""

    __slots__ = ("alive", "lost", "prefetch", "queue", "receive")

    def __init__(
        self, queue: OutputQueue, prefetch: int, receive: Callable[[Message], None], lost: Callable[[bool], None]
    ) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.receive = receive
        self.lost = lost
        """Called when the queue (True) or its RabbitMQ (False) goes away; not when the subscriber itself leaves."""
        self.alive = True


class EdgePlane:
    """The deliver exchange with its queues and consumers, the way in and the way out."""

    def __init__(
        self,
        kernel: Kernel,
        trace: Trace,
        number: int,
        *,
        uplink_bytes_per_s: float | None,
        downlink_bytes_per_s: float | None,
        matching_per_s: float | None,
        client_delay_s: float,
        on_dropped: Callable[[str, Message], None],
    ) -> None:
        self._kernel = kernel
        self._record = trace.extend
        self._number = number
        self._downlink = Pipe(downlink_bytes_per_s)
        self._matching_s = 0.0 if matching_per_s is None else 1.0 / matching_per_s
        self._matching_free_s = 0.0
        self._seconds_per_byte = 0.0 if uplink_bytes_per_s is None else 1.0 / uplink_bytes_per_s
        self._uplink_free_s = 0.0
        self.delay_s = client_delay_s
        self._on_dropped = on_dropped
        self._routed: dict[str, tuple[OutputQueue, ...]] = {}
        self._line: deque[tuple[float, Consumer, Message]] = deque()
        """What is on its way out, with the time at which it leaves or left the edge."""
        self._epoch = 0
        self.acks: deque[tuple[float, Consumer, int]] = deque()
        self._wake_s: float | None = None
        """When the next look at the acknowledgements is due, if one is."""
        self.throttled: dict[str, OutputQueue] = {}
        """Queues that could send if their consumers' prefetch left room."""
        self.queues: dict[str, OutputQueue] = {}
        self.up = True
        self.messages_in = 0
        self.bytes_in = 0.0
        self.dropped = 0
        self.unrouted = 0

    # In

    def stages(self, arrival_s: float, size_bytes: float) -> float:
        """When a message that arrives at `arrival_s` has passed the downlink and the matching."""
        in_s = self._downlink.through(arrival_s, size_bytes)
        start_s = self._matching_free_s if self._matching_free_s > in_s else in_s
        self._matching_free_s = done_s = start_s + self._matching_s
        return done_s

    def arrive(self, message: Message) -> None:
        """A message has passed the stages: put it into every queue it matches."""
        kernel, size_bytes = self._kernel, message.size_bytes
        now = kernel.now
        self.messages_in += 1
        self.bytes_in += size_bytes
        queues = self._routed.get(message.topic)
        if queues is None:
            queues = self._queues_for(message.topic)
        self._record(pack_data(b"e", now, self._number, message.index))
        if not queues:
            self.unrouted += 1
            return
        line, takes_s = self._line, size_bytes * self._seconds_per_byte
        free_s = self._uplink_free_s
        if free_s < now:
            free_s = now
        for queue in queues:
            queue.enqueued += 1
            queue.bytes_enqueued += size_bytes
            consumer = queue.consumer
            if consumer is not None and not queue.ready and len(queue.unacked) < consumer.prefetch:
                # What `_transmit` does, written out: this happens to nearly every message.
                queue.unacked.append(message)
                free_s += takes_s
                self._uplink_free_s = free_s
                line.append((free_s, consumer, message))
                if len(line) == 1:
                    kernel.count = count = kernel.count + 1
                    heappush(kernel.heap, (free_s + self.delay_s, count, self._reach, self._epoch))
            else:
                self._wait_in(queue, message)
                line, free_s = self._line, max(self._uplink_free_s, now)

    def _wait_in(self, queue: OutputQueue, message: Message) -> None:
        """There is no consumer, or it has no room: what is ready before goes first."""
        queue.ready.append(message)
        if queue.consumer is not None:
            self._fill(queue)
        if queue.limit is not None:
            self._drop_head(queue)

    def _queues_for(self, topic: str) -> tuple[OutputQueue, ...]:
        if len(self._routed) >= ROUTED_TOPICS_MAX:
            self._routed.clear()
        found = tuple(
            queue
            for _, queue in sorted(self.queues.items())
            if matches(queue.subscription.pattern, topic) or any(matches(marker, topic) for marker in queue.markers)
        )
        self._routed[topic] = found
        return found

    def _drop_head(self, queue: OutputQueue) -> None:
        assert queue.limit is not None
        while len(queue.ready) > queue.limit:
            self.dropped += 1
            self._on_dropped(queue.subscription.subscriber, queue.ready.popleft())
        if not queue.ready:
            self.throttled.pop(queue.name, None)

    # Out

    def _transmit(self, consumer: Consumer, message: Message) -> None:
        kernel, line = self._kernel, self._line
        now = kernel.now
        start_s = self._uplink_free_s if self._uplink_free_s > now else now
        self._uplink_free_s = departure_s = start_s + message.size_bytes * self._seconds_per_byte
        line.append((departure_s, consumer, message))
        if len(line) == 1:
            kernel.count = count = kernel.count + 1
            heappush(kernel.heap, (departure_s + self.delay_s, count, self._reach, self._epoch))

    def _reach(self, epoch: int) -> None:
        """The first message on the line has reached its subscriber."""
        if epoch != self._epoch:
            return
        kernel, line = self._kernel, self._line
        _, consumer, message = line.popleft()
        if line:
            kernel.count = count = kernel.count + 1
            heappush(kernel.heap, (line[0][0] + self.delay_s, count, self._reach, epoch))
        if consumer.alive:
            consumer.receive(message)

    def _fill(self, queue: OutputQueue) -> None:
        """Send what is ready as far as the prefetch allows; look again when acknowledgements make room."""
        consumer = queue.consumer
        if consumer is None or not self.up:
            return
        ready, unacked, prefetch = queue.ready, queue.unacked, consumer.prefetch
        if len(unacked) >= prefetch:
            self.settle()
        while ready and len(unacked) < prefetch:
            message = ready.popleft()
            unacked.append(message)
            self._transmit(consumer, message)
        if ready:
            self.throttled[queue.name] = queue
            self.watch_acks()
        else:
            self.throttled.pop(queue.name, None)

    # Acknowledgements

    def acknowledge(self, consumer: Consumer, count: int = 1) -> None:
        """A subscriber acknowledges its next `count` deliveries; that takes the delay to come in."""
        if not consumer.alive:
            return
        self.acks.append((self._kernel.now + self.delay_s, consumer, count))
        if self.throttled:
            self.watch_acks()

    def settle(self) -> None:
        """Enter the acknowledgements that have come in by now."""
        acks, now = self.acks, self._kernel.now
        while acks and acks[0][0] <= now:
            _, consumer, count = acks.popleft()
            if consumer.alive:
                queue = consumer.queue
                queue.acked += count
                queue.unacked.popleft()
                while count > 1:
                    queue.unacked.popleft()
                    count -= 1

    def on_line(self) -> dict[str, int]:
        """How many messages of each queue are sent and have not left the edge yet."""
        now = self._kernel.now
        counts: dict[str, int] = {}
        for departure_s, consumer, _ in reversed(self._line):
            if departure_s <= now:
                break
            if consumer.alive:
                counts[consumer.queue.name] = counts.get(consumer.queue.name, 0) + 1
        return counts

    def watch_acks(self) -> None:
        if self.acks and self._wake_s is None:
            self._wake_s = self.acks[0][0]
            self._kernel.at(self._wake_s, self._wake)

    def _wake(self, _: None) -> None:
        self._wake_s = None
        self.settle()
        for _name, queue in sorted(self.throttled.items()):
            self._fill(queue)
        if self.throttled:
            self.watch_acks()

    # Consumers

    def consume(
        self, name: str, prefetch: int, receive: Callable[[Message], None], lost: Callable[[bool], None]
    ) -> Consumer | None:
        """Become the one consumer of a queue; None where it is not there or has one already."""
        queue = self.queues.get(name)
        if queue is None or queue.consumer is not None or not self.up:
            return None
        queue.consumer = consumer = Consumer(queue, prefetch, receive, lost)
        self._fill(queue)
        return consumer

    def detach(self, consumer: Consumer) -> None:
        """The consumer is gone: what it did not acknowledge waits for the next one."""
        if not consumer.alive:
            return
        self.settle()
        consumer.alive = False
        queue = consumer.queue
        queue.consumer = None
        queue.unused_since_s = self._kernel.now
        queue.ready.extendleft(reversed(queue.unacked))
        queue.returned.update(message.index for message in queue.unacked if message.content is not None)
        queue.unacked.clear()
        self.throttled.pop(queue.name, None)
        if queue.limit is not None:
            self._drop_head(queue)
        self._clear_line(consumer)

    def _clear_line(self, consumer: Consumer) -> None:
        """Take off the line what has not begun to leave for this consumer; the rest moves up."""
        now, line = self._kernel.now, self._line
        if not self._seconds_per_byte or not any(entry[1] is consumer for entry in line):
            return
        kept: deque[tuple[float, Consumer, Message]] = deque()
        free_s = now
        for departure_s, owner, message in line:
            transmission_s = message.size_bytes * self._seconds_per_byte
            if departure_s - transmission_s <= now:
                kept.append((departure_s, owner, message))
                free_s = max(free_s, departure_s)
            elif owner is not consumer:
                free_s += transmission_s
                kept.append((free_s, owner, message))
        self._line = kept
        self._uplink_free_s = free_s
        self._restart_line()

    def _restart_line(self) -> None:
        self._epoch += 1
        if self._line:
            self._kernel.at(self._line[0][0] + self.delay_s, self._reach, self._epoch)

    # What the agent orders

    def declare(self, subscription: Subscription) -> None:
        name = output_queue(subscription.subscriber, subscription.number)
        if name in self.queues:
            self.queues[name].subscription = subscription
        else:
            self.queues[name] = OutputQueue(subscription, self._kernel.now)
        self._routed.clear()

    def delete(self, name: str) -> None:
        """Remove a queue with all that waits in it; its consumer loses it."""
        queue = self.queues.pop(name, None)
        self._routed.clear()
        if queue is None:
            return
        consumer = queue.consumer
        if consumer is not None:
            self.detach(consumer)
            consumer.lost(True)

    def bind_marker(self, name: str, key: str) -> bool:
        """Bind one more key; whether the queue is there."""
        if name in self.queues:
            self.queues[name].markers[key] = None
            self._routed.clear()
        return name in self.queues

    def unbind_marker(self, name: str, key: str) -> None:
        if name in self.queues:
            self.queues[name].markers.pop(key, None)
            self._routed.clear()

    def limit(self, name: str, messages_max: int | None) -> None:
        queue = self.queues.get(name)
        if queue is not None:
            queue.limit = messages_max
            if messages_max is not None:
                self._drop_head(queue)

    def expire(self) -> None:
        """Delete the queues that nobody has used for as long as their subscriptions allow."""
        now = self._kernel.now
        for name, queue in sorted(self.queues.items()):
            if queue.consumer is None and now - queue.unused_since_s >= queue.subscription.expires_s:
                self.delete(name)

    def listed(self) -> tuple[Subscription, ...]:
        """What is there now, in the order of the queues' names."""
        return tuple(queue.subscription for _, queue in sorted(self.queues.items()))

    # Down and up

    def go_down(self) -> None:
        """RabbitMQ is gone: every connection is lost, queues and what waits in them are durable."""
        self.up = False
        self.settle()
        self.acks.clear()
        for _, queue in sorted(self.queues.items()):
            consumer = queue.consumer
            if consumer is not None:
                self.detach(consumer)
                consumer.lost(False)
        now = self._kernel.now
        self._line.clear()
        self._epoch += 1
        self._uplink_free_s = self._downlink.free_s = self._matching_free_s = now

    def go_up(self) -> None:
        self.up = True
        for queue in self.queues.values():
            queue.unused_since_s = self._kernel.now
