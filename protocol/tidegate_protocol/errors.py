"""Errors of the protocol layer.

    ProtocolError
    ├── InvalidValue        the caller's mistake: a value that breaks a rule   (.field, .value, .problem, .remedy)
    │   ├── InvalidTopic        a topic or a topic pattern
    │   ├── InvalidName         the name of a client, a broker or a cluster
    │   └── InvalidMessage      a publication that does not fit the public message form
    └── MalformedMessage    the peer's violation: bytes that are no control message or record (.reason, .detail)

An `InvalidValue` says which field, what is wrong and what to do. A receiver counts a `MalformedMessage`, drops it and
goes on.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Root of this package's errors."""


class InvalidValue(ProtocolError, ValueError):
    """A value that breaks a rule of the protocol."""

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field} {_short(value)}: {problem}; {remedy}")


class InvalidTopic(InvalidValue):
    """A topic or a topic pattern that breaks the rules of `topics.py`."""


class InvalidName(InvalidValue):
    """A name that can't be part of a queue name or a routing key."""


class InvalidMessage(InvalidValue):
    """A publication that does not fit the public message form."""


class MalformedMessage(ProtocolError):
    """Bytes that are not a control message, or not a telemetry record, that this version understands."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
