"""Topics and patterns by example; the property tests have the rest."""

from __future__ import annotations

import pytest

from tidegate_protocol.errors import InvalidTopic
from tidegate_protocol.names import marker_key, marker_pattern
from tidegate_protocol.topics import (
    ANY_WORDS_MAX,
    TOPIC_BYTES_MAX,
    WORDS_MAX,
    check_pattern,
    check_topic,
    covers,
    intersects,
    matches,
)


@pytest.mark.parametrize("value", ["a", "alert.wave.north", "höhe.47:11", "a" * TOPIC_BYTES_MAX, "a.b-c_d.7"])
def test_legal_topics_are_legal_patterns(value: str) -> None:
    assert check_topic(value) == value
    assert check_pattern(value) == value


@pytest.mark.parametrize("value", ["*", "#", "*.#", "#.a.#", "a.*.b", "#.#", "#.a.#.b"])
def test_legal_patterns_with_wildcards_are_no_topics(value: str) -> None:
    assert check_pattern(value) == value
    with pytest.raises(InvalidTopic, match="wildcard"):
        check_topic(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "is empty"),
        (".", "empty word"),
        (".a", "empty word"),
        ("a.", "empty word"),
        ("a..b", "empty word"),
        ("a b", "character ' '"),
        ("a.\tb", "character"),
        ("a\n", "character"),
        ("a\u00a0b", "character"),
        ("a\u2028b", "character"),
        ("a\x00b", "character"),
        ("a\x7f", "character"),
        ("a\ud800", "character"),
        ("a" * (TOPIC_BYTES_MAX + 1), "161 bytes"),
        ("é" * (TOPIC_BYTES_MAX // 2 + 1), "162 bytes"),
        (".".join("a" * (WORDS_MAX + 1)), "17 words"),
        ("." * (TOPIC_BYTES_MAX - 1), "160 words"),
        (None, "NoneType"),
        (b"a.b", "bytes"),
    ],
)
def test_illegal_topics_and_patterns_are_named_with_a_remedy(value: str, problem: str) -> None:
    for check, field in ((check_topic, "topic"), (check_pattern, "pattern")):
        with pytest.raises(InvalidTopic) as caught:
            check(value)
        assert caught.value.field == field
        assert problem in caught.value.problem
        assert caught.value.remedy in str(caught.value)


@pytest.mark.parametrize("value", ["a*", "*a", "a.b#.c", "**", "##", "*#", "a.**"])
def test_wildcards_are_whole_words(value: str) -> None:
    with pytest.raises(InvalidTopic, match="whole words"):
        check_pattern(value)
    with pytest.raises(InvalidTopic, match="wildcard"):
        check_topic(value)


@pytest.mark.parametrize("value", ["#.#.#", "a.#.b.#.c.#", "#.*.#.*.#", "#.a.#.a.#.a.#.a.#.a.#.a.#.a"])
def test_a_pattern_that_makes_a_topic_exchange_slow_is_refused_with_a_remedy(value: str) -> None:
    with pytest.raises(InvalidTopic) as caught:
        check_pattern(value)
    assert caught.value.field == "pattern"
    assert caught.value.problem == f"has {value.count('#')} times '#'"
    assert f"at most {ANY_WORDS_MAX} times" in str(caught.value)


def test_as_many_words_as_allowed_are_allowed() -> None:
    words = ["a"] * WORDS_MAX
    assert check_topic(".".join(words))
    assert check_pattern(".".join(["#", *words[2:], "#"]))


def test_names_of_our_own_can_be_published_and_bound() -> None:
    migration, head = "1.2." + "m" * 40, "h" * 64
    assert check_topic(marker_key(migration, head))
    assert check_pattern(marker_pattern(migration))


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a.b", "a.b.c", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("*.b", "a.b", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "ab", False),
        ("#.a", "a", True),
        ("#.a.#", "b.a.c", True),
        ("#.a.#", "b.c", False),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.b.y.b", True),
        ("a.*.#.b", "a.b", False),
        ("#.*", "a", True),
        # Keys that only a foreign client can use, read as RabbitMQ reads them.
        ("#", "", True),
        ("*", "", False),
        ("*.#", "", False),
        ("a.*.b", "a..b", True),
        ("*", "#", True),
        ("a", "#", False),
        ("#.a", "#.#", False),
    ],
)
def test_matches(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


@pytest.mark.parametrize(
    ("general", "special", "expected"),
    [
        ("#", "a.*.#", True),
        ("#", "#", True),
        ("*", "a", True),
        ("a", "*", False),
        ("*.#", "#.*", True),
        ("#.*", "*.#", True),
        ("#.*.#", "*.#", True),
        ("*.#", "#.*.#", True),
        ("*.*.#", "*.#.*", True),
        ("*.#", "#", False),
        ("*.#", "#.a", True),
        ("*.#", "#.a.#", True),
        ("*.*.#", "#.a.#", False),
        ("*.*.#", "a.#.b", True),
        ("*.*", "a.#.b", False),
        ("a.#", "a.#.b", True),
        ("a.#.b", "a.#", False),
        ("#.a.#", "#.b.#.a", True),
        ("#.a.b.#", "a.#.b", False),
        ("#.a.b.*.*.#", "a.#.b.a.b.#", False),
        ("#.a.#.b.#", "a.#.b", True),
        ("#.a.*.b.#", "#.a.b.*.b", False),
    ],
)
def test_covers(general: str, special: str, expected: bool) -> None:
    assert covers(general, special) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.*", "*.b", True),
        ("a.#", "#.b", True),
        ("a", "b", False),
        ("a.*", "a", False),
        ("a.#.b", "a.b", True),
        ("a.*.#.b", "a.b", False),
        ("#.a", "#.b", False),
        ("#.a.#", "b.*", True),
        ("#.a.#", "b.b", False),
        ("#", "*", True),
    ],
)
def test_intersects(one: str, other: str, expected: bool) -> None:
    assert intersects(one, other) is expected
    assert intersects(other, one) is expected


def test_many_wildcards_stay_cheap() -> None:
    """Backtracking, or a deterministic automaton, would take 2**40 steps here and run into the time limit."""
    hashes = ".".join(["#"] * 80)
    comb = ".".join(["#", "a"] * 40)
    tail = "#.a." + ".".join(["*"] * 70)
    topic = ".".join(["a"] * 79) + ".b"
    assert not matches(comb, topic)
    assert matches(hashes, topic)
    assert covers(hashes, comb)
    assert not covers(comb, hashes)
    assert covers(comb, comb)
    assert not covers(tail, comb)
    assert intersects(comb, tail)
    assert not intersects(comb, topic)
