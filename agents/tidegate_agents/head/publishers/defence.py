"""Defence against publishers that flood: recognised, named, asked to slow down, and cut off if they don't.

Seed 000 §I names what publishers do to others: too many messages, too large ones, topics nobody wants. Each has a
limit in the configuration, and none by default. Invariants:

- nobody is blamed for a single sample: `flood_samples_needed` in a row have to be above a limit, and one that only
  repeats what was heard before is none;
- a flooder is first told the rate it may keep for `containment_s` (again with every sample above the limit, because
  orders get lost), and disconnected only if as many samples later it still does not listen;
- whoever has kept to the limits for `containment_s` is forgotten, and starts with a clean record;
- at most `FLOODERS_MAX` publishers are watched at once.

A publisher that is disconnected and comes back has not behaved yet: it gets the same course once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.publishers import ThrottleOrder
from tidegate_protocol.decisions import Flood, FloodingPublisher, PublisherBehaves

from ...kit.dispatch import Dispatch
from ...load.metrics import PublisherSample
from ...machine import DisconnectPublisher, HeadSampled, SendClient
from ..context import HeadContext
from .streams import Publishers

FLOODERS_MAX: Final = 1_000

MESSAGES_PER_S_MIN: Final = 0.1
"""The least a publisher is throttled to: something has to get through, or its recovery would not show."""

TOPICS_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class _Excess:
    """A publisher above a limit: what it sends, what it may, and the rate at which it would keep to all limits."""

    flood: Flood
    value: float
    limit: float
    allowed_per_s: float
    topics: tuple[str, ...]


@dataclass(slots=True)
class _Flooder:
    above: int = 0
    """Samples above a limit in a row, since the last step taken against it."""
    throttled: bool = False
    last_above_s: float = 0.0


class Defence:
    """Watches what every publisher sends."""

    def __init__(self, context: HeadContext, publishers: Publishers) -> None:
        self._context = context
        self._publishers = publishers
        self._flooders: dict[str, _Flooder] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(HeadSampled, self.sampled)
        dispatch.checks.append(self.validate)

    def __contains__(self, publisher: str) -> bool:
        """Whether a publisher is being contained; such a one is not to be moved to anybody else."""
        return publisher in self._flooders

    @property
    def watched(self) -> tuple[str, ...]:
        """The publishers that have passed a limit lately, in the order of names."""
        return tuple(sorted(self._flooders))

    def sampled(self, event: HeadSampled) -> None:
        """Judge the publishers of one sample; publishers of whom nothing new was heard stay as judged before. The
        measured rates count, not smoothed ones: floods begin at once.
        """
        config = self._context.config.balancing
        limits = (config.publisher_messages_per_s_max, config.publisher_bytes_per_s_max)
        if limits == (None, None) and config.useless_messages_per_s_max is None:
            return
        streams: dict[str, list[PublisherSample]] = {}
        for sample in event.publishers:
            if sample.finite:
                streams.setdefault(sample.publisher, []).append(sample)
        for name in sorted(streams.keys() - event.unheard):
            excess = self._excess(streams[name])
            if excess is not None:
                self._above(name, excess)
            elif name in self._flooders:
                self._flooders[name].above = 0
        for name in sorted(self._flooders.keys() - streams.keys()):
            self._flooders[name].above = 0
        self._forget()

    def _excess(self, streams: list[PublisherSample]) -> _Excess | None:
        config = self._context.config.balancing
        messages = sum(stream.messages_per_s for stream in streams)
        if messages <= 0.0:
            return None
        sizes = {id(stream): stream.messages_per_s * stream.message_bytes for stream in streams}
        bytes_per_s = sum(sizes.values())
        by_rate = sorted(streams, key=lambda s: (-s.messages_per_s, s.topic))
        by_bytes = sorted(streams, key=lambda s: (-sizes[id(s)], s.topic))
        found: list[_Excess] = []
        allowed = messages

        def judge(flood: Flood, value: float, limit: float | None, scale: float, worst: list[PublisherSample]) -> None:
            nonlocal allowed
            if limit is None or value <= limit:
                return
            allowed = min(allowed, scale)
            found.append(_Excess(flood, value, limit, 0.0, tuple(s.topic for s in worst[:TOPICS_NAMED_MAX])))

        limit = config.publisher_messages_per_s_max
        judge(Flood.MESSAGES, messages, limit, limit or 0.0, by_rate)
        limit = config.publisher_bytes_per_s_max
        judge(Flood.BYTES, bytes_per_s, limit, messages * (limit or 0.0) / max(bytes_per_s, 1e-9), by_bytes)
        limit = config.useless_messages_per_s_max
        if limit is not None:
            useless = [stream for stream in by_rate if not self._publishers.wanted(stream.topic)]
            value = sum(stream.messages_per_s for stream in useless)
            # Throttled as a whole, since it is one publisher: its share of useless messages stays the same.
            judge(Flood.USELESS, value, limit, messages * limit / max(value, 1e-9), useless)
        if not found:
            return None
        worst = max(found, key=lambda excess: excess.value / max(excess.limit, 1e-9))
        return _Excess(worst.flood, worst.value, worst.limit, max(allowed, MESSAGES_PER_S_MIN), worst.topics)

    def _above(self, name: str, excess: _Excess) -> None:
        needed = self._context.config.balancing.flood_samples_needed
        flooder = self._flooders.get(name)
        if flooder is None:
            if len(self._flooders) >= FLOODERS_MAX:
                return  # those that are watched have to be dealt with first
            flooder = self._flooders[name] = _Flooder()
        flooder.above += 1
        flooder.last_above_s = self._context.now
        if not flooder.throttled and flooder.above >= needed:
            flooder.throttled, flooder.above = True, 0
            self._context.decide(self._found(name, excess, disconnected=False))
            self._throttle(name, excess)
        elif flooder.throttled and flooder.above >= needed:
            flooder.throttled, flooder.above = False, 0
            found = self._found(name, excess, disconnected=True)
            self._context.decide(found)
            self._context.do(DisconnectPublisher(name, found))
        elif flooder.throttled:
            self._throttle(name, excess)

    def _throttle(self, name: str, excess: _Excess) -> None:
        if not self._publishers.is_client(name):
            return  # a foreign client, which takes no orders
        for_us = round(self._context.config.balancing.containment_s * 1_000_000)
        found = self._found(name, excess, disconnected=False)
        order = ThrottleOrder(publisher=name, messages_per_s=excess.allowed_per_s, for_us=for_us, found=found)
        self._context.do(SendClient(name, order))

    def _found(self, name: str, excess: _Excess, *, disconnected: bool) -> FloodingPublisher:
        config = self._context.config.balancing
        return FloodingPublisher(
            name,
            excess.flood,
            disconnected,
            excess.value,
            excess.limit,
            excess.allowed_per_s,
            config.containment_s,
            config.flood_samples_needed,
            excess.topics,
            session=name,
        )

    def _forget(self) -> None:
        now, containment_s = self._context.now, self._context.config.balancing.containment_s
        for name, flooder in sorted(self._flooders.items()):
            if now - flooder.last_above_s >= containment_s:
                del self._flooders[name]
                if flooder.throttled:
                    self._context.decide(PublisherBehaves(name, containment_s, session=name))

    def validate(self) -> None:
        """Raise AssertionError if somebody is watched without reason."""
        needed = self._context.config.balancing.flood_samples_needed
        assert len(self._flooders) <= FLOODERS_MAX
        for name, flooder in self._flooders.items():
            assert flooder.above < max(needed, 1), f"{name} was above its limits often enough and nothing was done"
