"""The truth to compare with, computed as naively as possible: nothing here comes from the code under test."""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS = ("quake", "tide", "buoy", "north", "south")
DEPTH_MAX = 3


def brute_force_matches(pattern: Sequence[str], topic: Sequence[str]) -> bool:
    """AMQP's rules, word by word: `*` is one word, `#` any number of words."""
    if not pattern:
        return not topic
    if pattern[0] == "#":
        return any(brute_force_matches(pattern[1:], topic[skip:]) for skip in range(len(topic) + 1))
    return bool(topic) and pattern[0] in ("*", topic[0]) and brute_force_matches(pattern[1:], topic[1:])


def wants(pattern: str, topic: str) -> bool:
    """Whether a subscription to `pattern` wants what is published on `topic`."""
    return brute_force_matches(pattern.split("."), topic.split("."))


def random_topic(chance: random.Random) -> str:
    """One to three words."""
    return ".".join(chance.choice(WORDS) for _ in range(chance.randint(1, DEPTH_MAX)))


def random_pattern(chance: random.Random) -> str:
    """One to three words, wildcards among them."""
    return ".".join(chance.choice((*WORDS, "*", "*", "#", "#")) for _ in range(chance.randint(1, DEPTH_MAX)))
