"""The publisher's machine: numbering and encoding, on top of the window of unconfirmed publications.

Invariants:

- sequences have no gaps per publisher and topic; a publication that was refused as invalid takes no number;
- what the head says that the account may not publish is refused before it takes a number; what waits when the head
  says so fails. RabbitMQ would close the channel, and what else is in flight would have to be sent again;
- a publication that is sent again is the same, byte for byte: it carries the account (or none) that it was admitted
  with, because subscribers know it by account and id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate_protocol.amqp.methods import encode_publish
from tidegate_protocol.amqp.publications import encode_account, encode_attributes, encode_properties
from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.form import AttributeValue, check_attributes, check_body
from tidegate_protocol.messages import TopicCount
from tidegate_protocol.names import PUBLISH_EXCHANGE
from tidegate_protocol.parts import RefusalReason
from tidegate_protocol.topics import check_topic, matches

from .config import Limits
from .errors import Refused
from .window import Publication, Window

FORBIDDEN: Final = "the account may not publish its topic any more"


JUDGED_MAX: Final = 10_000
"""Topics whose right is remembered; others are looked up each time."""


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

    def next_id(self) -> str:
        """The id of the next message."""
        message_id = f"{self.prefix}{self.next_sequence}"
        self.next_sequence += 1
        return message_id

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


class Allowance:
    """What an account may publish, and which topics were looked up."""

    __slots__ = ("_judged", "patterns")

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self._judged: dict[str, bool] = {}

    def permits(self, topic: str) -> bool:
        allowed = self._judged.get(topic)
        if allowed is None:
            allowed = any(matches(pattern, topic) for pattern in self.patterns)
            if len(self._judged) < JUDGED_MAX:
                self._judged[topic] = allowed
        return allowed


class PublishingMachine(Window[Publication]):
    """Publications of one publisher, from admission to confirmation."""

    def __init__(self, publisher: str, limits: Limits) -> None:
        super().__init__(limits)
        self.publisher = publisher
        self.topics: dict[str, Topic] = {}
        self._account = b""
        self._counted: list[Topic] = []
        """Topics with something to report."""
        self._allowance: Allowance | None = None
        """Replaced as a whole: `draft` may be called from another thread, without a lock."""

    @property
    def signs(self) -> bool:
        """Whether publications name the account."""
        return bool(self._account)

    def sign(self, account: str) -> None:
        """Name the account of the connection in publications from now on. This is not taken back: subscribers would
        take what follows for another publisher's.
        """
        self._account = encode_account(account)

    def restrict(self, allowed: tuple[str, ...] | None) -> None:
        """The account may publish what one of these patterns matches, and nothing else; None: anything."""
        if allowed != (None if self._allowance is None else self._allowance.patterns):
            self._allowance = None if allowed is None else Allowance(allowed)
            self._drop_forbidden()

    def opened(self) -> None:
        super().opened()
        self._drop_forbidden()

    def _drop_forbidden(self) -> None:
        allowance = self._allowance
        if allowance is not None:
            self.fail(lambda publication: allowance.permits(publication.topic), FORBIDDEN)

    def draft(
        self, topic: str, body: bytes, attributes: Mapping[str, AttributeValue] | None, persistent: bool
    ) -> Draft:
        """Check a publication before anybody waits for a place; raise `InvalidValue` if it can't be sent, `Refused` if
        the account may not.
        """
        if topic not in self.topics:
            check_topic(topic)
            if len(self.topics) >= self._limits.topics:
                raise InvalidValue("topic", topic, f"is one more than {self._limits.topics}", "raise limits.topics")
        allowance = self._allowance
        if allowance is not None and not allowance.permits(topic):
            raise Refused(RefusalReason.NOT_ALLOWED, self._forbidden(topic, allowance), "topic")
        check_body(body, self._limits.body_bytes)
        encoded = encode_attributes(check_attributes(attributes)) if attributes else b""
        return Draft(topic, body, encoded, persistent)

    def _forbidden(self, topic: str, allowance: Allowance) -> str:
        name = self.publisher.partition("~")[0]
        may = f"only {', '.join(allowance.patterns)}" if allowance.patterns else "nothing"
        return (
            f"the account of {name} may not publish {topic}: the rules of the cluster let it publish {may}. Have an "
            f"operator add a rule; `tidegate access explain {name} {topic}` says why"
        )

    def admit(self, draft: Draft, now_us: int) -> Publication:
        """Give a publication its number and a place in the window."""
        topic = self.topics.get(draft.topic)
        if topic is None:
            topic = self.topics[draft.topic] = Topic(self.publisher, draft.topic)
        message_id = topic.next_id()
        if not topic.messages:
            self._counted.append(topic)
        topic.count(len(draft.body), now_us)
        properties = encode_properties(message_id, now_us, draft.attributes, draft.persistent, self._account)
        publication = Publication(message_id, draft.topic, properties, draft.body)
        self.enter(publication)
        return publication

    def take_counts(self, topics_max: int) -> list[TopicCount]:
        """What was admitted since this was last asked, by topic; what is too much, the next time."""
        counted, self._counted = self._counted[:topics_max], self._counted[topics_max:]
        return [topic.take() for topic in counted]

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        super().validate()
        assert {topic.name for topic in self._counted} == {name for name, one in self.topics.items() if one.messages}
