"""`matches`, `covers` and `intersects` against definitions too plain to be wrong, and their algebra.

Why the brute force is a sound and complete check, though topics are endless in number and length:

- *words*: `z` stands for all words that no pattern here names. If a topic of `special` is not matched by
  `general`, put `z` for each word that a wildcard of `special` took: `special` still matches it, and
  `general` still does not, because whatever takes `z` is a wildcard and would have taken the original word.
- *lengths for covering*: so only the number of `z` for each `#` of `special` is open. After n + 1 times `z`,
  where n is the number of words in `general`, every reading of `general` has come by one of its `#` or is
  over, and more `z` change nothing. Trying 0 … n + 1 for each `#` tries everything.
- *lengths for intersection*: in a shortest common topic no word is taken by a `#` on both sides, else it
  could be left out. Each word uses up a word of one pattern, so it is no longer than both together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

from hypothesis import example, given, strategies as st

from tidegate_protocol.errors import InvalidTopic
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

Words = tuple[str, ...]

ALPHABET = ("a", "b", "*", "#")
UNKNOWN = "z"


def matches_by_definition(pattern: Words, topic: Words) -> bool:
    """The sentence in the AMQP specification, word by word."""
    if not pattern:
        return not topic
    if pattern[0] == "#":
        return any(matches_by_definition(pattern[1:], topic[taken:]) for taken in range(len(topic) + 1))
    return bool(topic) and pattern[0] in ("*", topic[0]) and matches_by_definition(pattern[1:], topic[1:])


def instances(special: Words, hashes_up_to: int) -> Iterator[Words]:
    """All topics of `special` that matter, see above."""
    choices = [
        [(UNKNOWN,) * count for count in range(hashes_up_to + 1)]
        if word == "#"
        else [(UNKNOWN,)]
        if word == "*"
        else [(word,)]
        for word in special
    ]
    for parts in itertools.product(*choices):
        yield tuple(itertools.chain.from_iterable(parts))


def covers_by_brute_force(general: Words, special: Words) -> bool:
    return all(matches_by_definition(general, topic) for topic in instances(special, len(general) + 1))


@cache
def topics_of(pattern: Words, length_max: int) -> frozenset[Words]:
    every = (
        topic for length in range(length_max + 1) for topic in itertools.product(("a", "b", UNKNOWN), repeat=length)
    )
    return frozenset(topic for topic in every if matches_by_definition(pattern, topic))


def dotted(words: Words) -> str:
    return ".".join(words)


def few_hashes(words: Words) -> bool:
    # Each `#` of the special side multiplies the topics to try.
    return words.count("#") <= 3


every_short_pattern = [pattern for length in (1, 2, 3) for pattern in itertools.product(ALPHABET, repeat=length)]
patterns = st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=6).map(tuple).filter(few_hashes)
topics = st.lists(st.sampled_from(("a", "b", UNKNOWN)), min_size=1, max_size=8).map(tuple)


def test_covers_on_every_pair_of_short_patterns() -> None:
    wrong = [
        (general, special)
        for general, special in itertools.product(every_short_pattern, repeat=2)
        if covers(dotted(general), dotted(special)) != covers_by_brute_force(general, special)
    ]
    assert wrong == []


def test_intersects_on_every_pair_of_short_patterns() -> None:
    wrong = [
        (one, other)
        for one, other in itertools.product(every_short_pattern, repeat=2)
        if intersects(dotted(one), dotted(other)) != bool(topics_of(one, 6) & topics_of(other, 6))
    ]
    assert wrong == []


@given(patterns, topics)
def test_matches_is_the_definition(pattern: Words, topic: Words) -> None:
    assert matches(dotted(pattern), dotted(topic)) == matches_by_definition(pattern, topic)


@given(patterns, patterns)
@example(("#", "a", "b", "*", "*", "#"), ("a", "#", "b", "a", "b", "#"))
@example(("#", "*", "#", "a", "*"), ("*", "#", "a", "a"))
def test_covers_is_inclusion(general: Words, special: Words) -> None:
    assert covers(dotted(general), dotted(special)) == covers_by_brute_force(general, special)


@st.composite
def pattern_and_a_special_case(draw: st.DrawFn) -> tuple[Words, Words]:
    """Random pairs rarely cover each other; here the second is the first with wildcards filled in."""
    general = draw(patterns)
    filler = st.lists(st.sampled_from(ALPHABET), max_size=3)
    special: list[str] = []
    for word in general:
        if word == "#":
            special += draw(filler)
        elif word == "*":
            special.append(draw(st.sampled_from(("a", "b", "*"))))
        else:
            special.append(word)
    return general, tuple(special) or ("a",)


@given(pattern_and_a_special_case())
def test_covers_is_inclusion_where_it_is_likely(pair: tuple[Words, Words]) -> None:
    general, special = pair
    special = special[:7]
    if few_hashes(special):
        assert covers(dotted(general), dotted(special)) == covers_by_brute_force(general, special)


@given(pattern_and_a_special_case())
def test_filling_in_wildcards_gives_something_covered(pair: tuple[Words, Words]) -> None:
    general, special = pair
    if special != ("a",):
        assert covers(dotted(general), dotted(special))


@given(patterns)
def test_covers_is_reflexive_and_hash_covers_everything(pattern: Words) -> None:
    assert covers(dotted(pattern), dotted(pattern))
    assert covers("#", dotted(pattern))


@given(pattern_and_a_special_case(), st.data())
def test_covers_is_transitive(pair: tuple[Words, Words], data: st.DataObject) -> None:
    first, second = pair
    third = data.draw(patterns)
    for one, two, three in itertools.permutations((first, second, third)):
        if covers(dotted(one), dotted(two)) and covers(dotted(two), dotted(three)):
            assert covers(dotted(one), dotted(three))


@given(patterns, patterns, topics)
def test_covers_and_intersects_agree_with_matches(one: Words, other: Words, topic: Words) -> None:
    first, second, key = dotted(one), dotted(other), dotted(topic)
    if matches(second, key):
        assert matches(first, key) or not covers(first, second)
        assert intersects(first, second) or not matches(first, key)


@given(patterns, topics)
def test_a_topic_is_a_pattern_that_matches_only_itself(pattern: Words, topic: Words) -> None:
    expected = matches(dotted(pattern), dotted(topic))
    assert covers(dotted(pattern), dotted(topic)) == expected
    assert intersects(dotted(pattern), dotted(topic)) == expected


@given(patterns, patterns)
def test_intersects_is_symmetric_and_follows_from_covers(one: Words, other: Words) -> None:
    assert intersects(dotted(one), dotted(other)) == intersects(dotted(other), dotted(one))
    if covers(dotted(one), dotted(other)):
        assert intersects(dotted(one), dotted(other))


@given(st.text(max_size=30) | st.lists(st.sampled_from(ALPHABET), max_size=2 * WORDS_MAX).map(".".join))
def test_whatever_check_lets_through_holds_the_rules(text: str) -> None:
    """Either an InvalidTopic and no other error, or a value that AMQP can carry, in clean words."""
    for check in (check_topic, check_pattern):
        try:
            value = check(text)
        except InvalidTopic:
            continue
        assert value == text
        assert all(word and not any(character.isspace() for character in word) for word in text.split("."))
        assert len(text.encode()) <= TOPIC_BYTES_MAX
        assert len(text.split(".")) <= WORDS_MAX
        assert text.split(".").count("#") <= ANY_WORDS_MAX
