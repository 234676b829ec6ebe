"""Paths of publications: which topics are published behind a head, and how long they are under way."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from ..parts import Message, Micros, Name, Part, Pattern, Topic

PATHS_PER_MESSAGE_MAX: Final = 500
TOPICS_PER_REPORT_MAX: Final = 1_000


class TopicPath(Part):
    topic: Topic
    path_us: Micros
    """From the worst publisher of the topic to the head that says this."""


class PublishedTopics(Message):
    """What is published behind the sender. Topics beyond the limit are covered by `other_path_us`."""

    kind: Literal["published-topics"] = "published-topics"
    head: Name
    topics: Annotated[tuple[TopicPath, ...], Field(max_length=TOPICS_PER_REPORT_MAX)] = ()
    other_path_us: Micros | None = None


class PatternPath(Part):
    """How the publications of one pattern reach the head: the worst way, and from which side."""

    pattern: Pattern
    path_us: Micros
    local: bool = False
    remote: bool = False


class PatternPaths(Message):
    """A head tells an edge about the publishers of its patterns: only what changed."""

    kind: Literal["pattern-paths"] = "pattern-paths"
    head: Name
    paths: Annotated[tuple[PatternPath, ...], Field(max_length=PATHS_PER_MESSAGE_MAX)] = ()


PathMessage = PublishedTopics | PatternPaths
"""The part of the union `messages.ControlMessage` that this module defines."""
