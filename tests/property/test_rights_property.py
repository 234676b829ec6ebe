"""Rights on keys against the matcher: an expression allows exactly what a pattern matches."""

from __future__ import annotations

import re

from hypothesis import example, given, strategies as st

from tidegate_brokers.access.expressions import pattern_expression, publishing_expression
from tidegate_protocol.rights import RESERVED_TOPICS, AccountRights, Deed, Rules, may_publish, may_subscribe
from tidegate_protocol.topics import ANY_WORDS_MAX, WORDS_MAX, covers, matches

SIGNS = (
    "a",
    "b",
    "tidegate",
    "ä",
    "A-1",
    "{vhost}",
    "{username}",
    "^",
    "$",
    "\\",
    "(a|b)",
    "[b]",
    "a?",
    "+",
    "\\z",
    "/",
)
WORDS = st.sampled_from(SIGNS)
PATTERN_WORDS = st.one_of(WORDS, st.sampled_from(["*", "#"]))
PATTERNS = st.lists(PATTERN_WORDS, min_size=1, max_size=6).filter(lambda w: w.count("#") <= ANY_WORDS_MAX).map(".".join)
ODD = ("", "\n", "#", "*", "a\n")
KEYS = st.lists(st.one_of(WORDS, st.sampled_from(ODD)), max_size=WORDS_MAX + 2).map(".".join)


def as_rabbitmq_compares(expression: str, key: str) -> bool:
    """Byte by byte; Python reads these expressions as PCRE does."""
    return re.search(expression.encode(), key.encode()) is not None


@example("*", "")
@example("*", "\n")
@example("*.#", "")
@example("#", "")
@example("a", "a\n")
@example("#.a", "a")
@example("a.#.b.#", "a.b")
@given(PATTERNS, KEYS)
def test_an_expression_matches_what_its_pattern_matches(pattern: str, key: str) -> None:
    whole = f"^(?:{pattern_expression(pattern)})$(?!\\n)"
    assert as_rabbitmq_compares(whole, key) is matches(pattern, key), (pattern, key, whole)


@given(st.lists(PATTERNS, max_size=4), KEYS)
def test_an_account_may_publish_what_is_legal_and_one_of_its_patterns_matches(patterns: list[str], key: str) -> None:
    words = key.count(".") + 1
    allowed = words <= WORDS_MAX and may_publish("x", key, rules(publish=patterns)).allowed
    assert as_rabbitmq_compares(publishing_expression(patterns), key) is allowed, (patterns, key)
    if key.startswith(RESERVED_TOPICS):
        assert not allowed


@given(st.lists(PATTERNS, max_size=4), PATTERNS)
def test_an_account_may_subscribe_what_one_of_its_patterns_covers(patterns: list[str], wanted: str) -> None:
    judged = may_subscribe("x-7", wanted, rules(subscribe=patterns))
    assert judged.allowed is any(covers(pattern, wanted) for pattern in patterns)
    assert judged.deed is Deed.SUBSCRIBE
    if judged.allowed:
        assert covers(judged.rule, wanted)


def rules(publish: list[str] | None = None, subscribe: list[str] | None = None) -> Rules:
    return Rules.of(AccountRights(account="x", publish=tuple(publish or ()), subscribe=tuple(subscribe or ())))
