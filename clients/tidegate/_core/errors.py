"""Errors of the SDK.

    InvalidValue (a ValueError)     the caller's mistake          .field .value .problem .remedy
    ├── InvalidTopic                    a topic or a topic pattern
    ├── InvalidName                     the name of a publisher or a subscriber
    ├── InvalidMessage                  a body or an attribute that can't be sent
    └── InvalidUrl                      an address that is none

    TidegateError
    ├── Closed                      used after close()            .what
    ├── ConnectionFailed            no connection                 .address .problem
    │   ├── AccessRefused               wrong user, password or virtual host, or a right that is missing
    │   ├── CertificateRefused          TLS: one side does not trust the other
    │   └── ConnectionLost              it was there, and went away
    ├── PeerError                   the other side's doing
    │   ├── Refused                     a request was not granted .reason .message .field .retry_after_s
    │   └── UnexpectedReply             an answer that is none    .problem
    └── TimedOut                    no answer in time             .what .timeout_s
        ├── HeadSilent                  RabbitMQ is there, the head's process is not    .address
        └── NotConfirmed                a publication was not confirmed    .id .attempts .problem

The branch of `InvalidValue` comes from `tidegate_protocol`, because both sides apply the same rules. A URL
inside an error never shows its password."""

from __future__ import annotations

from tidegate_protocol.errors import InvalidMessage, InvalidName, InvalidTopic, InvalidValue

__all__ = [
    "AccessRefused",
    "CertificateRefused",
    "Closed",
    "ConnectionFailed",
    "ConnectionLost",
    "HeadSilent",
    "InvalidMessage",
    "InvalidName",
    "InvalidTopic",
    "InvalidUrl",
    "InvalidValue",
    "NotConfirmed",
    "PeerError",
    "Refused",
    "TidegateError",
    "TimedOut",
    "UnexpectedReply",
]


class InvalidUrl(InvalidValue):
    """An address that is not `amqp://…` or `amqps://…`, or that has a part which makes no sense."""


class TidegateError(Exception):
    """Root of what can go wrong at run time."""


class Closed(TidegateError):
    """The publisher, the subscriber or the subscription is closed."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} is closed; open a new one")


class ConnectionFailed(TidegateError):
    """No connection to RabbitMQ."""

    remedy = "check host and port, and that RabbitMQ runs there"

    def __init__(self, address: str, problem: str) -> None:
        self.address = address
        self.problem = problem
        super().__init__(f"{address}: {problem}; {self.remedy}")


class AccessRefused(ConnectionFailed):
    """RabbitMQ is there and does not let us in."""

    remedy = "check user, password and virtual host in the URL, and the rights of that user"


class CertificateRefused(ConnectionFailed):
    """RabbitMQ is there, and one side does not trust the other's certificate."""

    remedy = "check cafile in the URL, and that the certificate is for that host and still valid"


class ConnectionLost(ConnectionFailed):
    """A connection that was there went away.

    The client reconnects by itself; this ends only what was under way.
    """

    remedy = "the client reconnects by itself"


class PeerError(TidegateError):
    """The other side refused, or broke the protocol."""


class Refused(PeerError):
    """The head did not grant a request."""

    def __init__(self, reason: str, message: str, field: str | None = None, retry_after_s: float | None = None) -> None:
        self.reason = reason
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s
        later = "" if retry_after_s is None else f"; ask again in {retry_after_s:g} s"
        super().__init__(f"refused ({reason}): {message}{later}")


class UnexpectedReply(PeerError):
    """An answer that does not fit the request. Client and cluster are probably of different versions."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}; check that client and cluster run the same version")


class TimedOut(TidegateError, TimeoutError):
    """Something did not happen in time."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self.what = what
        self.timeout_s = timeout_s
        super().__init__(f"{what} took longer than {timeout_s:g} s")


class HeadSilent(TimedOut):
    """The head's RabbitMQ can be reached, but no head process answers there."""

    def __init__(self, address: str, timeout_s: float, problem: str) -> None:
        super().__init__(f"an answer from the head at {address} ({problem}; is `tidegate head` running?)", timeout_s)
        self.address = address
        self.problem = problem


class NotConfirmed(TimedOut):
    """RabbitMQ did not take responsibility for a publication. It may or may not have been delivered."""

    def __init__(self, message_id: str, attempts: int, problem: str, timeout_s: float = 0.0) -> None:
        super().__init__(f"confirming {message_id}", timeout_s)
        self.id = message_id
        self.attempts = attempts
        self.problem = problem
        self.args = (f"{message_id} is not confirmed after {attempts} attempts: {problem}",)
