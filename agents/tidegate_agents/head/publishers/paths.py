"""How far away publications are: which topics are published on which side, and what edges and neighbours are told.

A *source* of a topic is a side it is published on: `HERE`, by publishers of this head, or a neighbour, behind which
it is published. Each source has a path, the time its worst publisher's messages take to get here. Invariants:

- a neighbour is told the worst path over all sources but itself. Heads form a tree, so what is told never comes back
  and paths don't grow by being told;
- an edge is told, for each of its patterns, the worst path over all topics that match and on which sides they are
  published. A pattern without publishers has no path and no side;
- only changes are told. Everything is told anew now and then, because messages get lost and receivers start anew:
  what a neighbour said is forgotten when it has not been repeated for `KEPT_REFRESHES` of those times;
- work is done for what changed: a tick without changes looks at every edge and neighbour, not at every pattern;
- a topic in use and a pattern with wildcards in use that matches it are linked, both ways. A new topic is not compared
  with every pattern, nor a new pattern with every topic (`topics/tree`): a head has one thread, and many of both.

At most `TOPICS_PER_REPORT_MAX` topics are told to a neighbour; one path stands for all the others. Whoever is told
such a path takes it for every pattern: longer than necessary rather than too short.

Knows no rates and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing.paths import (
    PATHS_PER_MESSAGE_MAX,
    TOPICS_PER_REPORT_MAX,
    PatternPath,
    PatternPaths,
    PublishedTopics,
    TopicPath,
)
from tidegate_protocol.topics import ANY_WORDS, ONE_WORD, matches

from ...kit.dispatch import Dispatch
from ...load.rates import smooth
from ...machine import ReplyAddress, Send
from ...topics.tree import TopicTree, matching
from ..context import HeadContext
from ..registry import EdgeRecord

HERE: Final = ""
"""The source that stands for this head's own publishers; no head has an empty name."""

TOPICS_REFRESH_PERIODS: Final = 2
"""After so many global periods a neighbour is told everything anew."""

EDGE_REFRESH_PERIODS: Final = 6
"""The same for edges, which have many patterns and rarely start anew without being noticed."""

KEPT_REFRESHES: Final = 3
"""What a neighbour said is kept for so many refreshes: state is soft."""

TOPICS_KEPT_MAX: Final = 2 * TOPICS_PER_REPORT_MAX
"""Topics remembered per neighbour: as many as it may tell, twice, since its choice may change."""

DELAY_CHANGE_SHARE: Final = 0.1
DELAY_CHANGE_US_MIN: Final = 1_000
"""A delay counts as changed when it differs by this share, and by this much: round trips are never quite the same."""

PATH_US_MAX: Final = 3_600 * 1_000_000
"""Nothing is further away than this; bounds what a confused neighbour can make us believe."""


@dataclass(slots=True)
class Delay:
    """A one-way delay, smoothed, and the value held for others until it has changed enough to be worth telling."""

    smoothed_s: float | None = None
    held_us: int = 0

    def follow(self, sample_s: float) -> bool:
        """Take one more measurement; says whether the held value changed."""
        first = self.smoothed_s is None
        self.smoothed_s = smooth(max(sample_s, 0.0), self.smoothed_s)
        now_us = min(round(self.smoothed_s * 1_000_000), PATH_US_MAX)
        difference = abs(now_us - self.held_us)
        if first or (difference > DELAY_CHANGE_US_MIN and difference > DELAY_CHANGE_SHARE * self.held_us):
            self.held_us = now_us
            return difference > 0
        return False


@dataclass(slots=True)
class _NeighbourTopics:
    hop: Delay = field(default_factory=Delay)
    heard: dict[str, tuple[int, float]] = field(default_factory=dict)
    """What it said is published behind it: path to it in microseconds, and until when we believe it."""
    other: tuple[int, float] | None = None
    told: dict[str, TopicPath] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    """Topics it is not told by name, because there are too many."""
    told_other: int | None = None
    refreshed_s: float | None = None


@dataclass(slots=True)
class _Edge:
    digest: tuple[int, str] = (-1, "")
    patterns: set[str] = field(default_factory=set)
    told: dict[str, PatternPath] = field(default_factory=dict)
    due: dict[str, None] = field(default_factory=dict)
    refreshed_s: float = 0.0


class Paths:
    """The paths of all topics, by source, and what has been told of them."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._sources: dict[str, dict[str, int]] = {}
        self._topics = TopicTree()
        """Those that have a source."""
        self._neighbours = {name: _NeighbourTopics() for name in sorted(context.routes.offers)}
        self._edges: dict[str, _Edge] = {}
        self._uses: dict[str, int] = {}
        self._wild: dict[str, dict[str, None]] = {}
        """The patterns with wildcards that are in use, each with the topics it matches."""
        self._wild_of: dict[str, dict[str, None]] = {}
        """The other way round; nothing for a topic that none of them matches."""
        self._wild_tree = TopicTree()
        self._known: dict[str, PatternPath] = {}
        self._dirty: dict[str, None] = {}
        self._other_changed = False
        self._expired_s = 0.0

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(PublishedTopics, self.on_published_topics)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    # Sources

    def set_path(self, topic: str, source: str, path_us: int | None) -> None:
        """`topic` is published on that side, this far away; None: not any more."""
        sources = self._sources.get(topic)
        before = None if sources is None else sources.get(source)
        if before == path_us:
            return
        self._dirty[topic] = None
        if path_us is not None:
            if sources is None:
                sources = self._sources[topic] = {}
                self._topics.add(topic)
                for pattern in self.wild_patterns_of(topic):
                    self._link(topic, pattern)
            sources[source] = path_us
            return
        assert sources is not None
        del sources[source]
        if not sources:
            del self._sources[topic]
            self._topics.discard(topic)
            # Its patterns stay linked until the next tick, which has to know whom the end concerns.

    def hop_measured(self, neighbour: str, round_trip_s: float) -> None:
        """A probe to a neighbouring head and back took this long."""
        entry = self._neighbours.get(neighbour)
        if entry is None or not entry.hop.follow(round_trip_s / 2.0):
            return
        for topic in list(entry.heard):
            self._set_heard(neighbour, entry, topic)
        self._other_changed = self._other_changed or entry.other is not None

    def hop_us(self, neighbour: str) -> int:
        """How long the way to a neighbouring head is; 0 while nobody has measured it."""
        entry = self._neighbours.get(neighbour)
        return 0 if entry is None else entry.hop.held_us

    def on_published_topics(self, message: PublishedTopics, _: ReplyAddress | None) -> None:
        """A neighbour says what is published behind it."""
        entry = self._neighbours.get(message.head)
        if entry is None:
            return
        until_s = self._context.now + KEPT_REFRESHES * self._refresh_s
        for path in message.topics:
            before = entry.heard.get(path.topic)
            if before is None and len(entry.heard) >= TOPICS_KEPT_MAX:
                continue
            entry.heard[path.topic] = (min(path.path_us, PATH_US_MAX), until_s)
            if before is None or before[0] != entry.heard[path.topic][0]:
                self._set_heard(message.head, entry, path.topic)
        if message.other_path_us is not None:
            other = entry.other[0] if entry.other is not None else None
            entry.other = (min(message.other_path_us, PATH_US_MAX), until_s)
            self._other_changed = self._other_changed or other != entry.other[0]

    def _set_heard(self, name: str, entry: _NeighbourTopics, topic: str) -> None:
        path_us, _ = entry.heard[topic]
        self.set_path(topic, name, min(path_us + entry.hop.held_us, PATH_US_MAX))

    @property
    def _refresh_s(self) -> float:
        return TOPICS_REFRESH_PERIODS * self._context.config.balancing.global_period_s

    def _expire(self) -> None:
        now = self._context.now
        if now - self._expired_s < self._context.config.balancing.global_period_s:
            return
        self._expired_s = now
        for name, entry in self._neighbours.items():
            for topic in [topic for topic, (_, until_s) in entry.heard.items() if until_s <= now]:
                del entry.heard[topic]
                self.set_path(topic, name, None)
            if entry.other is not None and entry.other[1] <= now:
                entry.other = None
                self._other_changed = True

    # Patterns

    def path_of(self, pattern: str) -> PatternPath:
        """How publications matching `pattern` reach this head."""
        path_us, local, remote = 0, False, False
        for topic in self._topics_of(pattern):
            for source, source_us in self._sources.get(topic, {}).items():
                path_us = max(path_us, source_us)
                local = local or source == HERE
                remote = remote or source != HERE
        for entry in self._neighbours.values():
            if entry.other is not None:
                path_us = max(path_us, min(entry.other[0] + entry.hop.held_us, PATH_US_MAX))
                remote = True
        return PatternPath(pattern=pattern, path_us=path_us, local=local, remote=remote)

    @property
    def wild_patterns(self) -> tuple[str, ...]:
        """The patterns with wildcards that are in use."""
        return tuple(self._wild)

    def wild_patterns_of(self, topic: str) -> list[str]:
        """Those of them that match a topic, whether or not it is published."""
        return [pattern for _, pattern in matching(TopicTree([topic]), self._wild_tree)]

    def topics_of(self, pattern: str) -> list[str]:
        """The known topics that match, in an order that depends on events only."""
        return [topic for topic in self._topics_of(pattern) if topic in self._sources]

    def _topics_of(self, pattern: str) -> Iterable[str]:
        if pattern in self._wild:
            return self._wild[pattern]
        if not _is_wild(pattern):
            return (pattern,)
        return [topic for topic, _ in matching(self._topics, TopicTree([pattern]))]

    def _use(self, pattern: str, fresh: TopicTree) -> None:
        """An edge more uses it; if it is the first one, its topics are still to be found, with those of all `fresh`."""
        self._uses[pattern] = self._uses.get(pattern, 0) + 1
        if self._uses[pattern] == 1 and _is_wild(pattern):
            self._wild[pattern] = {}
            self._wild_tree.add(pattern)
            fresh.add(pattern)

    def _disuse(self, pattern: str) -> None:
        self._uses[pattern] -= 1
        if not self._uses[pattern]:
            del self._uses[pattern]
            self._known.pop(pattern, None)
            self._wild_tree.discard(pattern)
            for topic in self._wild.pop(pattern, ()):
                del self._wild_of[topic][pattern]
                if not self._wild_of[topic]:
                    del self._wild_of[topic]

    def _link(self, topic: str, pattern: str) -> None:
        self._wild[pattern][topic] = None
        self._wild_of.setdefault(topic, {})[pattern] = None

    def _unlink(self, topic: str) -> None:
        for pattern in self._wild_of.pop(topic, ()):
            del self._wild[pattern][topic]

    def _known_path(self, pattern: str) -> PatternPath:
        # The very object is kept and sent again and again: checking a pattern anew costs more than all the rest.
        if pattern not in self._known:
            self._known[pattern] = self.path_of(pattern)
        return self._known[pattern]

    # Telling

    def _tick(self) -> None:
        """Every period: tell edges and neighbours what has changed for them."""
        self._expire()
        dirty, self._dirty = self._dirty, {}
        other_changed, self._other_changed = self._other_changed, False
        self._follow_edges()
        for pattern in self._concerned(dirty, other_changed):
            self._known.pop(pattern, None)
            for edge in self._edges.values():
                if pattern in edge.patterns:
                    edge.due[pattern] = None
        for topic in dirty:
            if topic not in self._sources:
                self._unlink(topic)
        for name in sorted(self._edges):
            self._tell_edge(name, self._edges[name])
        for name, entry in self._neighbours.items():
            self._tell_neighbour(name, entry, dirty, other_changed)

    def _concerned(self, dirty: dict[str, None], everything: bool) -> list[str]:
        if everything:
            return list(self._uses)
        found = {topic: None for topic in dirty if topic in self._uses}
        for topic in dirty:
            found.update(self._wild_of.get(topic, {}))
        return list(found)

    def _follow_edges(self) -> None:
        records = self._context.registry.edges
        for name in [name for name in self._edges if name not in records or not records[name].alive]:
            self._forget_edge(name)
        fresh = TopicTree()
        for name, record in records.items():
            if record.alive:
                self._follow_edge(name, record, fresh)
        for topic, pattern in matching(self._topics, fresh):
            self._link(topic, pattern)

    def _follow_edge(self, name: str, record: EdgeRecord, fresh: TopicTree) -> None:
        edge = self._edges.get(name)
        if edge is None:
            edge = self._edges[name] = _Edge(refreshed_s=self._context.now)
        digest = (record.digest.count, record.digest.text)
        if edge.digest == digest:
            return
        edge.digest = digest
        for pattern in [pattern for pattern in record.patterns if pattern not in edge.patterns]:
            edge.patterns.add(pattern)
            edge.due[pattern] = None
            self._use(pattern, fresh)
        for pattern in sorted(edge.patterns - record.patterns.keys()):
            edge.patterns.discard(pattern)
            edge.due.pop(pattern, None)
            edge.told.pop(pattern, None)
            self._disuse(pattern)

    def _forget_edge(self, name: str) -> None:
        # An edge that was away may have forgotten everything: it is told all anew when it is back.
        for pattern in sorted(self._edges.pop(name).patterns):
            self._disuse(pattern)

    def _tell_edge(self, name: str, edge: _Edge) -> None:
        now = self._context.now
        refresh_s = EDGE_REFRESH_PERIODS * self._context.config.balancing.global_period_s
        refresh = now - edge.refreshed_s >= refresh_s
        if refresh:
            edge.refreshed_s = now
            edge.due = dict.fromkeys([*edge.told, *edge.due])
        due, edge.due = edge.due, {}
        paths = []
        for pattern in due:
            path = self._known_path(pattern)
            before = edge.told.get(pattern)
            unheard_of = before is None and not (path.local or path.remote)
            if (refresh or path != before) and not unheard_of:
                edge.told[pattern] = path
                paths.append(path)
        for first in range(0, len(paths), PATHS_PER_MESSAGE_MAX):
            part = tuple(paths[first : first + PATHS_PER_MESSAGE_MAX])
            self._context.do(Send(name, PatternPaths(head=self._context.config.head, paths=part)))

    def _tell_neighbour(self, name: str, entry: _NeighbourTopics, dirty: dict[str, None], other_changed: bool) -> None:
        now = self._context.now
        refresh = entry.refreshed_s is None or now - entry.refreshed_s >= self._refresh_s
        if entry.refreshed_s is None:
            dirty = dict.fromkeys(sorted(self._sources))
        elif refresh and entry.beyond and len(entry.told) < TOPICS_PER_REPORT_MAX:
            # Some that were told by name are gone: there is room for others.
            dirty = {**dirty, **dict.fromkeys(sorted(entry.beyond))}
        elif not refresh and not dirty and not other_changed:
            return
        if refresh:
            entry.refreshed_s = now
        changed = self._follow_topics(name, entry, dirty)
        other = self._other_for(name, entry.beyond.values())
        if refresh:
            # What is told already is kept up to date, as the very objects that are sent: nothing is made anew.
            changed = list(entry.told.values())
        if changed or (other is not None and (refresh or other != entry.told_other)):
            entry.told_other = other
            message = PublishedTopics(head=self._context.config.head, topics=tuple(changed), other_path_us=other)
            self._context.do(Send(name, message))

    def _follow_topics(self, name: str, entry: _NeighbourTopics, dirty: dict[str, None]) -> list[TopicPath]:
        """Bring what a neighbour is told up to date; returns what is new in it."""
        changed = []
        for topic in dirty:
            path_us = self._path_for(topic, name)
            entry.beyond.pop(topic, None)
            before = entry.told.get(topic)
            if path_us is None:
                entry.told.pop(topic, None)
            elif before is None and len(entry.told) >= TOPICS_PER_REPORT_MAX:
                entry.beyond[topic] = path_us
            elif before is None or before.path_us != path_us:
                entry.told[topic] = path = TopicPath(topic=topic, path_us=path_us)
                changed.append(path)
        return changed

    def _path_for(self, topic: str, neighbour: str) -> int | None:
        """The worst path over all sources but that neighbour."""
        sources = self._sources.get(topic, {})
        return max((path_us for source, path_us in sources.items() if source != neighbour), default=None)

    def _other_for(self, neighbour: str, beyond: Iterable[int]) -> int | None:
        others = list(beyond)
        for name, entry in self._neighbours.items():
            if name != neighbour and entry.other is not None:
                others.append(min(entry.other[0] + entry.hop.held_us, PATH_US_MAX))
        return max(others, default=None)

    def validate(self) -> None:
        """Raise AssertionError if an index disagrees with what it indexes."""
        uses: dict[str, int] = {}
        for edge in self._edges.values():
            assert edge.told.keys() <= edge.patterns, "told about a pattern that is not there"
            assert edge.due.keys() <= edge.patterns, "about to tell of a pattern that is not there"
            for pattern in edge.patterns:
                uses[pattern] = uses.get(pattern, 0) + 1
        assert uses == self._uses
        assert self._wild.keys() == {pattern for pattern in uses if _is_wild(pattern)}
        for pattern, topics in self._wild.items():
            found = {topic for topic in self._sources if matches(pattern, topic)}
            assert found <= topics.keys() <= found | self._dirty.keys(), f"the topics of {pattern}"
        links = {(topic, pattern) for pattern, topics in self._wild.items() for topic in topics}
        assert links == {(topic, pattern) for topic, patterns in self._wild_of.items() for pattern in patterns}
        assert all(self._wild_of.values()), "a topic without patterns"
        for tree, texts in ((self._topics, self._sources), (self._wild_tree, self._wild)):
            tree.validate()
            assert set(tree) == texts.keys()
        for topic, sources in self._sources.items():
            assert sources, f"{topic} has no source"
            for source in sources:
                assert source == HERE or topic in self._neighbours[source].heard, f"{topic} from {source}"
        for entry in self._neighbours.values():
            assert len(entry.heard) <= TOPICS_KEPT_MAX
            assert len(entry.told) <= TOPICS_PER_REPORT_MAX


def _is_wild(pattern: str) -> bool:
    return ONE_WORD in pattern.split(".") or ANY_WORDS in pattern.split(".")
