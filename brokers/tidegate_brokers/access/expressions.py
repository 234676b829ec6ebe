"""Topic patterns as RabbitMQ's rights on keys: regular expressions, made exactly.

RabbitMQ compares a routing key with one expression per account and topic exchange (PCRE, byte by byte), and fills in
`{username}`, `{vhost}` and `{client_id}` before it does.

Invariants:

- a key is matched if and only if it is a legal number of words, is not reserved, and `topics.matches` some pattern;
- the work for one key is bounded: a look ahead refuses keys of too many words before anything is tried, and a pattern
  has at most two `#`;
- nothing in a pattern is read as part of an expression, or filled in: every sign of ASCII but letters and digits is
  escaped. Signs beyond ASCII stand for themselves, as the bytes of UTF-8.

`$` alone would match before a last line feed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate_protocol.rights import RESERVED_TOPICS
from tidegate_protocol.topics import ANY_WORDS, ONE_WORD, WORDS_MAX, normal_words

NOTHING: Final = "^$(?!)"
"""Matches no key, not even the empty one."""
WORD: Final = "[^.]*"
END: Final = "$(?!\\n)"


def escaped(text: str) -> str:
    """`text` as an expression that matches nothing else."""
    return "".join(sign if not sign.isascii() or sign.isalnum() else f"\\{sign}" for sign in text)


LIMITS: Final = f"(?!{escaped(RESERVED_TOPICS)})(?={WORD}(?:\\.{WORD}){{0,{WORDS_MAX - 1}}}{END})"
"""Bounded in words for clients that do without the SDK as well: a topic exchange takes its time for long topics."""


def publishing_expression(patterns: Sequence[str]) -> str:
    """What matches the keys that an account with these patterns may publish with."""
    if not patterns:
        return NOTHING
    if ANY_WORDS in patterns:
        return f"^{LIMITS}"
    return f"^{LIMITS}(?:{'|'.join(pattern_expression(pattern) for pattern in patterns)}){END}"


def pattern_expression(pattern: str) -> str:
    """What matches the keys that a pattern matches, when nothing precedes or follows it.

    A word that is not the first brings the dot before it along. `#` is any number of such words; where it stands first,
    of words that bring along the dot behind them.
    """
    words = normal_words(pattern)
    if words == [ANY_WORDS]:
        return f"{WORD}(?:\\.{WORD})*"
    parts: list[str] = []
    first = True
    for word in words:
        if word == ANY_WORDS:
            parts.append(f"(?:{WORD}\\.)*" if first else f"(?:\\.{WORD})*")
            continue
        parts += ["" if first else "\\.", WORD if word == ONE_WORD else escaped(word)]
        first = False
    # The empty key has no word at all, so that `*` does not match it.
    return (f"(?!{END})" if words[0] == ONE_WORD else "") + "".join(parts)
