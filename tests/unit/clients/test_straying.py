"""Deliveries that a subscription did not ask for are dropped, counted and acknowledged; nothing else is."""

from __future__ import annotations

from tidegate._core import straying
from tidegate._core.straying import TopicFilter
from tidegate_protocol.names import marker_key


def test_only_what_the_pattern_matches_passes() -> None:
    topics = TopicFilter("quake.*")
    assert [topics.is_stray(topic) for topic in ("quake.a", "quake.a", "quake", "flood.a", "", "quake.a.b")] == [
        *(False, False, True, True, True, True)
    ]
    assert topics.stray == 4
    assert topics.known == {"quake.a"}


def test_markers_are_for_the_client_itself() -> None:
    topics = TopicFilter("quake.*")
    assert not topics.is_stray(marker_key("m~1", "head"))
    assert not topics.known


def test_what_is_remembered_is_bounded() -> None:
    topics = TopicFilter("#")
    for number in range(3 * straying.TOPICS_KNOWN_MAX):
        assert not topics.is_stray(f"t.{number}")
        assert len(topics.known) <= straying.TOPICS_KNOWN_MAX
