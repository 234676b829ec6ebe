"""Which topics get series of their own: up to a configured number; all others share the label `other`.

A class is the subscriptions to one topic pattern. Clients choose their patterns, so patterns must not decide how many
series there are.

Invariants:

- there are at most `count_max` labels besides `other`, whatever clients subscribe to;
- a topic that has a label keeps it for as long as it is used, because series that come and go are useless;
- a new topic gets a label while there is room. Without room it is part of `other`, until there is room and it is seen
  again. A topic that is really called `other` is part of `other`, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

OTHER: Final = "other"
SILENT_S: Final = 3600.0
"""A topic not seen for so long gives its label to one that is."""


class TopicLabels:
    """Hands out labels."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._seen_s: dict[str, float] = {}
        """When each topic was seen last; the topic not seen for longest stands first."""

    def __len__(self) -> int:
        return len(self._seen_s)

    def __contains__(self, topic: str) -> bool:
        return topic in self._seen_s

    def keep(self, topics: Collection[str]) -> None:
        """Take back the labels of all other topics: these are all that are there."""
        for topic in self._seen_s.keys() - set(topics):
            del self._seen_s[topic]

    def label(self, topic: str, now_s: float = 0.0) -> tuple[str, str | None]:
        """The label of a topic, and the topic that had it until now, if any."""
        if self._seen_s.pop(topic, None) is not None:
            self._seen_s[topic] = now_s
            return topic, None
        if topic == OTHER or not self._count_max:
            return OTHER, None
        gone = None
        if len(self._seen_s) >= self._count_max:
            oldest = next(iter(self._seen_s))
            if now_s - self._seen_s[oldest] < SILENT_S:
                return OTHER, None
            del self._seen_s[oldest]
            gone = oldest
        self._seen_s[topic] = now_s
        return topic, gone
