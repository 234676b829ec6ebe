"""Tells deliveries that a subscription asked for from those that somebody had sent to it.

RabbitMQ routes a message by its own key and by the keys in its headers `CC` and `BCC`. An edge can't tell them apart,
and a plain publisher can so put a message of any topic before a subscriber that never asked for that topic. The key of
a delivery is always the message's own, so that it says the truth here.

Invariant: what is remembered is bounded. Pure.
"""

from __future__ import annotations

from typing import Final

from tidegate_protocol.topics import matches

from .moves import MARKER_START

TOPICS_KNOWN_MAX: Final = 10_000
"""Topics remembered as wanted: a look into a set takes a twentieth of the time of matching. Of more, all are forgotten
and learned anew."""


class TopicFilter:
    """The topics that a pattern matches."""

    __slots__ = ("_pattern", "known", "stray")

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.known: set[str] = set()
        """Topics that are known to be wanted."""
        self.stray = 0
        """Deliveries that were not."""

    def is_stray(self, topic: str) -> bool:
        """Whether a delivery is one that nobody asked for; counts it. Markers are for the client itself."""
        if topic.startswith(MARKER_START):
            return False
        if not matches(self._pattern, topic):
            self.stray += 1
            return True
        if len(self.known) >= TOPICS_KNOWN_MAX:
            self.known.clear()
        self.known.add(topic)
        return False
