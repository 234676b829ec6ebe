"""The publishers of a head: who publishes what, how much, and how far away.

Learned from what publishers say of themselves (hellos) and from what is measured (samples); a *stream* is one
publisher's topic. Invariants:

- rates are smoothed and fall to nothing when a publisher stops; a stream that is neither heard of in a hello nor
  carries anything is forgotten, and so is a publisher without streams;
- a topic's path is that of its worst publisher: half the time from publishing until the confirm. Of those who have
  been seen to publish on it: anybody can say that he is about to, from the end of the world, and never do it. While
  none has been seen, as after a restart of the head, the nearest of those who say so stands for them: it is better
  than nothing, and nobody's word makes the way longer for the others;
- what is expected of topics and patterns is reckoned at most once per sample, from measured rates only. Of what nobody
  here publishes nothing is said, which is not the same as nothing being expected;
- a sample that repeats the one before, once the rates have come to rest, costs one comparison.

Foreign clients may publish with keys that are no topics; those have a rate, for the defence, and no path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tidegate_protocol.decisions import PublishersFull
from tidegate_protocol.errors import InvalidTopic
from tidegate_protocol.messages import PublisherGoodbye, PublisherHello, PublisherWelcome
from tidegate_protocol.names import MARKER_PREFIX
from tidegate_protocol.rendering import refusals
from tidegate_protocol.topics import ANY_WORDS, check_topic

from ...config import SILENT_PERIODS_MAX
from ...kit.dispatch import Dispatch
from ...load.metrics import PublisherSample
from ...load.rates import SMOOTHING, smooth
from ...machine import HeadSampled, ReplyAddress
from ...policy.bundles import PublisherLoad
from ...policy.placement import ExpectedLoad
from ..context import HeadContext
from .credibility import ROUND_TRIP_S_FLOOR
from .paths import HERE, Delay, Paths

STREAMS_MAX: Final = 100_000
"""Streams followed at once; of more, those heard of first."""

ROUND_TRIP_S_MAX: Final = 60.0
"""A publisher that says it is further away is taken to be this far: no deadline has room for more."""

RATE_SETTLED_SHARE: Final = 1e-3
"""A smoothed rate this close to its sample is taken to be the sample, so that a steady rate comes to rest."""

STEADY_SMOOTHING: Final = 0.25
"""α of what is expected of a stream in the long run: counts of a second are whole numbers, and where a few messages per
second go to many subscribers, one more or less would decide about a placement."""

STEADY_CHANGE_MAX: Final = 0.25
"""A sample further away from that, as a share of it, is no chance but a change, and believed at once."""

RATE_GONE_PER_S: Final = 1e-3
"""Below this a rate that is no longer sampled counts as nothing."""


@dataclass(slots=True)
class _Stream:
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    steady_messages_per_s: float = 0.0
    steady_bytes_per_s: float = 0.0
    """The same in the long run."""
    measured: bool = False
    seen: bool = False
    """Whether it was ever measured."""
    declared: bool = False
    sampled: int = -1
    """The number of the last sample it was in."""


@dataclass(slots=True)
class _Publisher:
    delay: Delay = field(default_factory=Delay)
    streams: dict[str, _Stream] = field(default_factory=dict)
    said_hello: bool = False


class Publishers:
    """All known publishers of a head."""

    def __init__(self, context: HeadContext, paths: Paths) -> None:
        self._context = context
        self._paths = paths
        self._publishers: dict[str, _Publisher] = {}
        self._by_topic: dict[str, dict[str, None]] = {}
        self._count = 0
        self._samples = 0
        self._last: tuple[PublisherSample, ...] = ()
        self._at_rest = False
        self._expected: Mapping[str, ExpectedLoad] | None = None
        self._expected_for: tuple[str, ...] = ()
        self._full = False

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(PublisherHello, self.on_hello)
        dispatch.on_message(PublisherGoodbye, self.on_goodbye)
        dispatch.on_event(HeadSampled, self.sampled)
        dispatch.ticks.append(self._expire)
        dispatch.checks.append(self.validate)

    # What publishers say

    def on_hello(self, message: PublisherHello, reply_to: ReplyAddress | None) -> None:
        """A publisher says that it is there and what it publishes."""
        context, config = self._context, self._context.config
        publishers = context.registry.publishers
        if message.publisher not in publishers and len(publishers) >= config.publishers_max:
            context.refuse(reply_to, refusals.limit("publishers_max", config.publishers_max, "publisher"))
            return
        over = context.usage.refuses_publisher(message.publisher) if message.publisher not in publishers else None
        if over is not None:
            context.refuse(reply_to, refusals.over_quota(over, "publisher"))
            return
        context.registry.publisher_heard(
            message.publisher, context.now + SILENT_PERIODS_MAX * config.publisher_period_s
        )
        self._declared(message)
        welcome = PublisherWelcome(
            publisher=message.publisher,
            head=config.head,
            period_s=config.publisher_period_s,
            publish=self._allowed(message.publisher),
            checked_accounts=context.accounts.allowed,
        )
        context.reply(reply_to, welcome)

    def _allowed(self, publisher: str) -> tuple[str, ...] | None:
        """What the rules let it publish; None where that is everything."""
        rules = self._context.rules
        if rules is None:
            return None
        account = rules.of_client(publisher)
        granted = account.publish if account is not None else ()
        return None if ANY_WORDS in granted else granted

    def on_goodbye(self, message: PublisherGoodbye, _: ReplyAddress | None) -> None:
        self.gone(message.publisher)

    def _expire(self) -> None:
        for publisher in self._context.registry.expire_publishers(self._context.now):
            self.gone(publisher)

    def _declared(self, message: PublisherHello) -> None:
        known = self._publishers.setdefault(message.publisher, _Publisher())
        known.said_hello = True
        named = set(message.topics)
        for topic in message.topics:
            stream = self._stream(message.publisher, known, topic)
            if stream is not None:
                stream.declared = True
        for topic in [topic for topic, stream in known.streams.items() if topic not in named]:
            known.streams[topic].declared = False
            if not known.streams[topic].measured:
                self._end(message.publisher, topic)
        if known.delay.smoothed_s is None:
            # A guess until it has reported, which is judged (`credibility`): so a hello is not believed to be far away.
            self._follow(known, min(message.round_trip_us / 1e6, ROUND_TRIP_S_FLOOR))

    def gone(self, publisher: str) -> None:
        """It said goodbye, moved to another head, or has not been heard of for long enough."""
        self._context.registry.publisher_gone(publisher)
        known = self._publishers.get(publisher)
        if known is None:
            return
        known.said_hello = False
        for topic in list(known.streams):
            self._end(publisher, topic)
        self._publishers.pop(publisher, None)
        self._at_rest = False

    def is_client(self, publisher: str) -> bool:
        """Whether it speaks our protocol: what it is told it will understand."""
        known = self._publishers.get(publisher)
        return known is not None and known.said_hello

    # What is measured

    def sampled(self, event: HeadSampled) -> None:
        """One more sample of all publishers; those that are missing, or not finite, published nothing."""
        for name in sorted(event.neighbour_round_trip_s):
            self._paths.hop_measured(name, event.neighbour_round_trip_s[name])
        if self._at_rest and event.publishers == self._last:
            return
        self._samples += 1
        self._last = event.publishers
        self._expected = None
        settled = True
        for sample in event.publishers:
            settled = self._measure(sample) and settled
        self._at_rest = self._fade() and settled

    def _measure(self, sample: PublisherSample) -> bool:
        if not sample.finite:
            return True
        known = self._publishers.setdefault(sample.publisher, _Publisher())
        self._follow(known, sample.round_trip_s)
        stream = self._stream(sample.publisher, known, sample.topic)
        if stream is None:
            return True
        if not stream.seen:
            stream.seen = True
            self._tell_path(sample.topic)
        bytes_per_s = sample.messages_per_s * sample.message_bytes
        before = (stream.messages_per_s, stream.bytes_per_s) if stream.measured else (None, None)
        stream.messages_per_s = _settled(sample.messages_per_s, before[0])
        stream.bytes_per_s = _settled(bytes_per_s, before[1])
        steady = (stream.steady_messages_per_s, stream.steady_bytes_per_s) if stream.measured else (None, None)
        stream.steady_messages_per_s = _steady(sample.messages_per_s, steady[0])
        stream.steady_bytes_per_s = _steady(bytes_per_s, steady[1])
        stream.measured, stream.sampled = True, self._samples
        at_rest = stream.messages_per_s == stream.steady_messages_per_s == sample.messages_per_s
        return at_rest and stream.bytes_per_s == stream.steady_bytes_per_s == bytes_per_s

    def _fade(self) -> bool:
        """Let the rates of those that were not in the sample fall. Says whether all are at rest."""
        settled = True
        for name in list(self._publishers):
            known = self._publishers[name]
            for topic in list(known.streams):
                stream = known.streams[topic]
                if not stream.measured or stream.sampled == self._samples:
                    continue
                settled = False
                stream.messages_per_s = smooth(0.0, stream.messages_per_s)
                stream.bytes_per_s = smooth(0.0, stream.bytes_per_s)
                if stream.messages_per_s < RATE_GONE_PER_S:
                    stream.messages_per_s = stream.bytes_per_s = 0.0
                    stream.measured = False
                    if not stream.declared:
                        self._end(name, topic)
                stream.steady_messages_per_s, stream.steady_bytes_per_s = stream.messages_per_s, stream.bytes_per_s
            if not known.streams and not known.said_hello:
                del self._publishers[name]
        return settled

    # Streams and their topics

    def _stream(self, publisher: str, known: _Publisher, topic: str) -> _Stream | None:
        stream = known.streams.get(topic)
        if stream is not None or topic.startswith(MARKER_PREFIX):
            return stream
        if self._count >= STREAMS_MAX:
            if not self._full:
                self._full = True
                self._context.decide(PublishersFull(publisher, STREAMS_MAX))
            return None
        stream = known.streams[topic] = _Stream()
        self._count += 1
        self._by_topic.setdefault(topic, {})[publisher] = None
        self._tell_path(topic)
        return stream

    def _end(self, publisher: str, topic: str) -> None:
        del self._publishers[publisher].streams[topic]
        self._count -= 1
        self._full = False
        self._expected = None
        names = self._by_topic[topic]
        del names[publisher]
        if not names:
            del self._by_topic[topic]
        self._tell_path(topic)

    def _follow(self, known: _Publisher, round_trip_s: float) -> None:
        """How far away it is now; 0 where it does not know."""
        if round_trip_s > 0.0 and known.delay.follow(min(round_trip_s, ROUND_TRIP_S_MAX) / 2.0):
            for topic in known.streams:
                self._tell_path(topic)

    def _tell_path(self, topic: str) -> None:
        if not _is_topic(topic):
            return
        everybody = [self._publishers[name] for name in self._by_topic.get(topic, ())]
        known = [one for one in everybody if one.delay.smoothed_s is not None]
        seen = [one.delay.held_us for one in known if one.streams[topic].seen]
        path_us = max(seen) if seen else min((one.delay.held_us for one in known), default=0)
        self._paths.set_path(topic, HERE, path_us if everybody else None)

    # What others want to know

    def expected(self) -> Mapping[str, ExpectedLoad]:
        """What the publications of this head amount to, per topic, and per pattern with wildcards that is in use.

        Put together when it is asked for, once per sample. What was never measured is left out.
        """
        patterns = self._paths.wild_patterns
        if self._expected is None or self._expected_for != patterns:
            self._expected_for = patterns
            self._expected = self._reckon(patterns)
        return self._expected

    def _reckon(self, patterns: tuple[str, ...]) -> Mapping[str, ExpectedLoad]:
        found: dict[str, ExpectedLoad] = {}
        for topic, names in self._by_topic.items():
            streams = [self._publishers[name].streams[topic] for name in names]
            if any(stream.measured for stream in streams):
                bytes_per_s = sum(stream.steady_bytes_per_s for stream in streams)
                found[topic] = ExpectedLoad(bytes_per_s, sum(stream.steady_messages_per_s for stream in streams))
        for pattern in patterns:
            parts = [found[topic] for topic in self._paths.topics_of(pattern) if topic in found]
            if parts:
                bytes_per_s = sum(part.bytes_per_s for part in parts)
                found[pattern] = ExpectedLoad(bytes_per_s, sum(part.messages_per_s for part in parts))
        return MappingProxyType(found)

    def loads(self) -> tuple[PublisherLoad, ...]:
        """Every stream that carries something, with the links that carry it on. For an analysis, not every sample."""
        routes, registry = self._context.routes, self._context.registry
        links: dict[str, tuple[int, frozenset[str]]] = {}
        found = []
        for name in sorted(self._publishers):
            for topic, stream in sorted(self._publishers[name].streams.items()):
                if stream.messages_per_s <= 0.0:
                    continue
                if topic not in links:
                    edges = sum(1 for edge in registry.edges if routes.is_carried(edge, topic))
                    links[topic] = edges, frozenset(n for n in routes.offers if routes.is_carried(n, topic))
                size = stream.bytes_per_s / stream.messages_per_s
                found.append(PublisherLoad(name, topic, stream.messages_per_s, size, *links[topic]))
        return tuple(found)

    def wanted(self, topic: str) -> bool:
        """Whether any link carries this topic on: whether anybody subscribes to it."""
        routes = self._context.routes
        return any(routes.is_carried(target, topic) for target in routes.targets)

    def validate(self) -> None:
        """Raise AssertionError if an index disagrees with the publishers."""
        pairs = {(topic, name) for name, known in self._publishers.items() for topic in known.streams}
        assert pairs == {(topic, name) for topic, names in self._by_topic.items() for name in names}
        assert self._count == len(pairs) <= STREAMS_MAX
        for known in self._publishers.values():
            for stream in known.streams.values():
                assert stream.messages_per_s >= 0.0 <= stream.bytes_per_s
                assert stream.measured or stream.messages_per_s == 0.0
        for topic in self._by_topic:
            if _is_topic(topic):
                assert topic in self._paths.topics_of(topic), f"{topic} has no path"


def _settled(sample: float, before: float | None, alpha: float = SMOOTHING) -> float:
    level = smooth(sample, before, alpha)
    return sample if abs(level - sample) <= RATE_SETTLED_SHARE * sample else level


def _steady(sample: float, before: float | None) -> float:
    if before is None or abs(sample - before) > STEADY_CHANGE_MAX * before:
        return sample
    return _settled(sample, before, STEADY_SMOOTHING)


def _is_topic(text: str) -> bool:
    try:
        check_topic(text)
    except InvalidTopic:
        return False
    return True
