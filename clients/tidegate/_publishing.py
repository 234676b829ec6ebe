"""The publisher's machine: numbering, the window of unconfirmed publications, and what to send again.

What always holds:

- sequences have no gaps per publisher and topic; a publication that was refused as invalid takes no number;
- a publication is in exactly one place: waiting, in flight, rejected, or settled;
- at most `window` publications (or one larger than `window_bytes`) are unsettled;
- what was in flight when a channel was lost is sent again before anything newer, in the order of publishing;
- while rejected publications wait to be sent again, nothing newer is sent, so that a link which is full for a
  moment disturbs the order as little as a pipeline allows;
- while it is paused nothing is handed out; the window goes on filling.

The machine has no clock and no connection: time is an argument, and whoever runs it writes what `take`
returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.form import AttributeValue, check_attributes, check_body
from tidegate_protocol.messages import TopicCount
from tidegate_protocol.names import PUBLISH_EXCHANGE
from tidegate_protocol.topics import check_topic

from ._config import Backoff, Limits
from ._errors import NotConfirmed
from ._wire import encode_attributes, encode_properties, encode_publish

REJECTED_BACKOFF: Final = Backoff(first_s=0.05, limit_s=2.0)


class Publication:
    """One message on its way. `error` says why it failed once it is settled."""

    __slots__ = ("attempts", "body", "error", "id", "listener", "order", "properties", "settled", "topic")

    def __init__(self, message_id: str, order: int, topic: str, properties: bytes, body: bytes) -> None:
        self.id = message_id
        self.order = order
        self.topic = topic
        self.properties = properties
        self.body = body
        self.attempts = 0
        self.settled = False
        self.error: Exception | None = None
        self.listener: Callable[[], None] | None = None

    def settle(self, error: Exception | None = None) -> None:
        """Mark as confirmed, or as failed with `error`, and tell whoever waits."""
        self.error = error
        self.settled = True
        if self.listener is not None:
            self.listener()


class Draft:
    """A checked publication that has no number yet."""

    __slots__ = ("attributes", "body", "persistent", "topic")

    def __init__(self, topic: str, body: bytes, attributes: bytes, persistent: bool) -> None:
        self.topic = topic
        self.body = body
        self.attributes = attributes
        self.persistent = persistent


class Topic:
    """What a publisher keeps per topic: the next number, two parts of every message that never change, and counts."""

    __slots__ = (
        "body_bytes",
        "gap_s2_sum",
        "gap_s_sum",
        "gaps",
        "last_us",
        "messages",
        "name",
        "next_sequence",
        "prefix",
        "publish",
    )

    def __init__(self, publisher: str, topic: str) -> None:
        self.name = topic
        self.next_sequence = 0
        self.messages = 0
        """Since the last report to the head; `body_bytes` and the gaps between publications too."""
        self.body_bytes = 0
        self.gaps = 0
        self.gap_s_sum = 0.0
        self.gap_s2_sum = 0.0
        self.last_us = 0
        """When the last one was published; 0 before the first."""
        self.prefix = f"{publisher}:{topic}:"
        self.publish = encode_publish(PUBLISH_EXCHANGE, topic)

    def count(self, body_bytes: int, now_us: int) -> None:
        """One more is published."""
        self.messages += 1
        self.body_bytes += body_bytes
        if self.last_us:
            gap_s = max(now_us - self.last_us, 0) / 1e6
            self.gaps += 1
            self.gap_s_sum += gap_s
            self.gap_s2_sum += gap_s * gap_s
        self.last_us = now_us

    def take(self) -> TopicCount:
        """What was counted since this was last asked."""
        count = TopicCount(
            topic=self.name,
            messages=self.messages,
            bytes=self.body_bytes,
            gaps=self.gaps,
            gap_s_sum=self.gap_s_sum,
            gap_s2_sum=self.gap_s2_sum,
        )
        self.messages = self.body_bytes = self.gaps = 0
        self.gap_s_sum = self.gap_s2_sum = 0.0
        return count


class PublishingMachine:
    """Publications of one publisher, from admission to confirmation."""

    def __init__(self, publisher: str, limits: Limits) -> None:
        self.publisher = publisher
        self._limits = limits
        self.topics: dict[str, Topic] = {}
        self.retries = 0
        self.paused = False
        self.probe_tag = 0
        """The delivery tag whose confirmation is being timed; 0 while none is."""
        self._probed_at = 0.0
        self._fastest_s: float | None = None
        self._round_trip_s = 0.0
        self._counted: list[Topic] = []
        """Topics with something to report."""
        self._order = 0
        self._bytes = 0
        self._unsettled = 0
        self._waiting: deque[Publication] = deque()
        self._in_flight: dict[int, Publication] = {}
        self._rejected: list[Publication] = []
        self._rejected_until = 0.0
        self._next_tag = 1
        self._failure: NotConfirmed | None = None

    def draft(
        self, topic: str, body: bytes, attributes: Mapping[str, AttributeValue] | None, persistent: bool
    ) -> Draft:
        """Check a publication before anybody waits for a place; raise `InvalidValue` if it can't be sent."""
        if topic not in self.topics:
            check_topic(topic)
            if len(self.topics) >= self._limits.topics:
                raise InvalidValue("topic", topic, f"is one more than {self._limits.topics}", "raise limits.topics")
        check_body(body, self._limits.body_bytes)
        encoded = encode_attributes(check_attributes(attributes)) if attributes else b""
        return Draft(topic, body, encoded, persistent)

    @property
    def full(self) -> bool:
        """Whether the next publication must wait for a confirmation."""
        return self._unsettled >= self._limits.window or self._bytes >= self._limits.window_bytes

    @property
    def roomy(self) -> bool:
        """Whether enough places are free to be worth waking somebody who waits for one."""
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

    def admit(self, draft: Draft, now_us: int) -> Publication:
        """Give a publication its number and a place in the window."""
        topic = self.topics.get(draft.topic)
        if topic is None:
            topic = self.topics[draft.topic] = Topic(self.publisher, draft.topic)
        message_id = f"{topic.prefix}{topic.next_sequence}"
        topic.next_sequence += 1
        if not topic.messages:
            self._counted.append(topic)
        topic.count(len(draft.body), now_us)
        properties = encode_properties(message_id, now_us, draft.attributes, draft.persistent)
        self._order += 1
        publication = Publication(message_id, self._order, draft.topic, properties, draft.body)
        self._unsettled += 1
        self._bytes += len(draft.body)
        self._waiting.append(publication)
        return publication

    def take(self, now: float) -> list[Publication]:
        """What to write to the channel now, in this order."""
        if self.paused:
            return []
        if self._rejected:
            # Those in flight are settled within a round trip; then the rejected ones can go back where they
            # belong.
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
        """The channel is gone: whatever was in flight or rejected has to be sent again, oldest first."""
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

    def take_counts(self, topics_max: int) -> list[TopicCount]:
        """What was admitted since this was last asked, by topic; what is too much, the next time."""
        counted, self._counted = self._counted[:topics_max], self._counted[topics_max:]
        return [topic.take() for topic in counted]

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

    def abandon(self, problem: str) -> int:
        """Fail everything that is unsettled, at the end of a publisher's life. Returns how many those are."""
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
        assert {topic.name for topic in self._counted} == {name for name, one in self.topics.items() if one.messages}
        assert [p.order for p in self._waiting] == sorted(p.order for p in self._waiting)

    def _pop_up_to(self, tag: int) -> list[Publication]:
        tags = []
        for candidate in self._in_flight:
            if candidate > tag:
                break
            tags.append(candidate)
        return [self._in_flight.pop(candidate) for candidate in tags]

    def _settle(self, publication: Publication, error: NotConfirmed | None = None) -> bool:
        self._failure = self._failure or error
        self._unsettled -= 1
        self._bytes -= len(publication.body)
        publication.settle(error)
        return True


def _order(publication: Publication) -> int:
    return publication.order
