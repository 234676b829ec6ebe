"""Topics and topic patterns: what is legal, and which pattern matches, covers or meets which.

A topic is dot-separated words; in a pattern the word `*` stands for exactly one word and `#` for any number
of words, none included.

Invariant: `matches` agrees with RabbitMQ's topic exchanges, also on keys that `check_topic` would refuse: a foreign
client may publish with an empty routing key, so `#` asks for more than `*.#` does.

`matches`, `covers` and `intersects` each take one pass over the words of one side, with the set of places
where the other pattern may stand kept in the bits of a whole number. No pattern, however many `#` it has,
makes them slow, and none of them is an approximation. They expect words without a wildcard inside: check first.
RabbitMQ is not as quick: `WORDS_MAX` and `ANY_WORDS_MAX` bound the work that a pattern can cause in a topic exchange.
Nothing here knows who subscribes or where a route leads.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .errors import InvalidTopic

TOPIC_BYTES_MAX: Final = 160
"""With a publisher id (64), two colons and 20 digits of sequence it fits the 255 bytes of a `message_id`."""

WORDS_MAX: Final = 16
"""Of a topic and of a pattern. RabbitMQ's topic exchange may take a step for every word behind every place where a `#`
can end. On 3.10, with 100 patterns of two `#`, a publication of 128 words takes 5 to 20 s and one of 16 0.05 s."""
ANY_WORDS_MAX: Final = 2
"""How often `#` may occur in a pattern, `#.#` counted as two, since RabbitMQ is given the pattern as it is written. The
steps of a topic exchange grow with the words of a topic to the power of this; RabbitMQ 4.3.5 and later refuse more."""

ONE_WORD: Final = "*"
ANY_WORDS: Final = "#"
COMPILED_PATTERNS_MAX: Final = 65_536
"""More than a head has to compare with one another in turn, about half a kilobyte each: with fewer than there are, each
would be forgotten right before it is needed again."""

# Control characters, and halves of surrogate pairs, which UTF-8 can't carry.
_FORBIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cs"})


def check_topic(value: str) -> str:
    """Return `value` if messages can be published under it; raise `InvalidTopic` otherwise."""
    _check_words(value, "topic")
    if ONE_WORD in value or ANY_WORDS in value:
        raise InvalidTopic(
            "topic", value, "holds a wildcard", "publish to one topic; '*' and '#' belong into subscriptions"
        )
    return value


def check_pattern(value: str) -> str:
    """Return `value` if it can be subscribed to; raise `InvalidTopic` otherwise."""
    _check_words(value, "pattern")
    for word in value.split("."):
        if len(word) > 1 and (ONE_WORD in word or ANY_WORDS in word):
            raise InvalidTopic(
                "pattern",
                value,
                f"has a wildcard inside the word {word!r}",
                "use '*' and '#' as whole words only",
            )
    count = value.count(ANY_WORDS)
    if count > ANY_WORDS_MAX:
        raise InvalidTopic(
            "pattern",
            value,
            f"has {count} times '#'",
            f"use '#' at most {ANY_WORDS_MAX} times; '*' stands for exactly one word",
        )
    return value


def is_pattern(value: str) -> bool:
    """Whether `value` can be subscribed to."""
    try:
        check_pattern(value)
    except InvalidTopic:
        return False
    return True


def is_topic(value: str) -> bool:
    """Whether messages can be published under `value`."""
    try:
        check_topic(value)
    except InvalidTopic:
        return False
    return True


def matches(pattern: str, topic: str) -> bool:
    """Whether a message published under `topic` is one that `pattern` asks for."""
    compiled = _compile(pattern)
    places = compiled.start
    for word in _words(topic):
        places = compiled.step(places, word)
    return bool(places & compiled.end)


def covers(general: str, special: str) -> bool:
    """Whether `general` matches every topic that `special` matches.

    Read `special` as if it were a topic. Its `*` may turn out to be a word that `general` has never heard of,
    so only a wildcard of `general` can take it. Its `#` may turn out to be nothing or as many such words as
    you like, so `general` must stand where it takes any number of words, but it can't count on getting a
    single one: it stays where it is. If `general` can be read to its end like this, the same reading serves
    every topic of `special`.

    If it can't, some topic of `special` is not matched. Let `general` be read as early as possible until it
    is stuck. Make each `#` of `special`, from left to right, empty; but where a rigid part of `general` (what
    stands between two of its `#`) could then be read across it, make it longer than `general`, so that no
    rigid part spans it. The extra length opens no new place: whatever lies behind that `#` is further away
    than the reading across it, so it was far enough away already. Hence `general` can't be read earlier in
    this topic than it was in `special`, and gets stuck in it too.
    """
    compiled = _compile(general)
    places = compiled.start
    for word in _words(special):
        places = places & compiled.elastic if word == ANY_WORDS else compiled.step(places, word)
    return bool(places & compiled.end)


def intersects(one: str, other: str) -> bool:
    """Whether some topic is matched by both patterns."""
    compiled = _compile(one)
    places = compiled.start
    for word in _words(other):
        if word == ANY_WORDS:
            # Any number of words of our choice leads to every later place.
            places = compiled.all & -(places & -places)
        elif word == ONE_WORD:
            places = compiled.close(places << 1 | places & compiled.any_words)
        else:
            places = compiled.step(places, word)
    return bool(places & compiled.end)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A pattern as an automaton. Bit i of a set of places says: the first i words of it have been read."""

    takes: Mapping[str, int]
    """For each literal word, the places where the next word of the pattern takes it."""
    takes_unknown: int
    any_words: int
    """The places where the next word is `#`."""
    elastic: int
    """The places inside or at the rim of a run of wildcards that holds a `#`."""
    start: int
    end: int
    all: int

    def step(self, places: int, word: str) -> int:
        """The places after one more word."""
        taken = places & self.takes.get(word, self.takes_unknown)
        return self.close(taken << 1 | places & self.any_words)

    def close(self, places: int) -> int:
        """Add the places reached by letting `#` stand for nothing; a normal run holds just one."""
        return (places | (places & self.any_words) << 1) & self.all


@lru_cache(maxsize=COMPILED_PATTERNS_MAX)
def _compile(pattern: str) -> _Compiled:
    words = normal_words(pattern)
    any_words = sum(1 << place for place, word in enumerate(words) if word == ANY_WORDS)
    takes_unknown = sum(1 << place for place, word in enumerate(words) if word == ONE_WORD)
    takes: dict[str, int] = {}
    for place, word in enumerate(words):
        if word not in (ONE_WORD, ANY_WORDS):
            takes[word] = takes.get(word, takes_unknown) | 1 << place
    # In a normal run `#` comes last, so the places before its stars and the one behind it belong to it.
    elastic = 0
    for place, word in enumerate(words):
        if word == ANY_WORDS:
            elastic |= 0b11 << place
            while place and words[place - 1] == ONE_WORD:
                place -= 1
                elastic |= 1 << place
    end = 1 << len(words)
    return _Compiled(
        takes=takes,
        takes_unknown=takes_unknown,
        any_words=any_words,
        elastic=elastic,
        start=0b11 if any_words & 1 else 0b1,
        end=end,
        all=(end << 1) - 1,
    )


def normal_words(pattern: str) -> list[str]:
    """The words of an equivalent pattern: each run of wildcards is some `*` and then at most one `#`."""
    words: list[str] = []
    pending = False
    for word in _words(pattern):
        if word == ANY_WORDS:
            pending = True
            continue
        if pending and word != ONE_WORD:
            words.append(ANY_WORDS)
            pending = False
        words.append(word)
    return [*words, ANY_WORDS] if pending else words


def _words(value: str) -> list[str]:
    # RabbitMQ reads the empty routing key as no words at all, not as one empty word.
    return value.split(".") if value else []


def _check_words(value: str, field: str) -> None:
    if not isinstance(value, str):
        raise InvalidTopic(field, value, f"is of type {type(value).__name__}", "use text, e.g. 'sensor.rain.north'")
    if not value:
        raise InvalidTopic(field, value, "is empty", "use words separated by dots, e.g. 'sensor.rain.north'")
    # Nearly all topics are plain ASCII, and a head reads thousands of patterns at a time.
    if not (value.isascii() and value.isprintable() and " " not in value):
        _check_characters(value, field)
    size = len(value.encode())
    if size > TOPIC_BYTES_MAX:
        raise InvalidTopic(field, value, f"has {size} bytes", f"use at most {TOPIC_BYTES_MAX}")
    words = value.split(".")
    if len(words) > WORDS_MAX:
        raise InvalidTopic(field, value, f"has {len(words)} words", f"use at most {WORDS_MAX} words")
    if "" in words:
        raise InvalidTopic(
            field, value, "has an empty word", "put exactly one dot between words and none at either end"
        )


def _check_characters(value: str, field: str) -> None:
    for character in value:
        if character.isspace() or unicodedata.category(character) in _FORBIDDEN_CATEGORIES:
            raise InvalidTopic(
                field,
                value,
                f"holds the character {character!r}",
                "leave out whitespace and control characters",
            )
