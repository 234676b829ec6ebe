"""Errors of the source.

    InvalidOption (a ValueError)    the caller's mistake              .option .problem .remedy

    SourceError
    ├── ConnectionFailed            no connection, or it went away    .address .problem   tried again
    ├── Unavailable                 RabbitMQ is there, the stream is not ready yet        tried again
    ├── AccessRefused               wrong user, password or virtual host
    ├── StreamMissing               no queue of that name
    ├── NotAStream                  a queue, but of another type
    ├── ListingFailed               the management API did not list the queues            tried again
    ├── Silent                      nothing came in time, though it must be there
    ├── DataLoss                    offsets that were to be read are gone
    ├── Unreadable                  a message whose properties can't be decoded
    └── BadCheckpoint               an offset in the checkpoint that is none of ours

Spark hands an error on as text, so the text alone says which stream of which broker, what happened and what to do. A
password is never part of it.
"""

from __future__ import annotations


class InvalidOption(ValueError):
    """An option that is unknown, missing, or has a value that makes no sense."""

    def __init__(self, option: str, problem: str, remedy: str) -> None:
        self.option = option
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"option {option}: {problem}; {remedy}")


class SourceError(Exception):
    """Root of what can go wrong while reading."""


class Transient(SourceError):
    """Root of what is worth another try: RabbitMQ may be restarting."""


class ConnectionFailed(Transient):
    """RabbitMQ can't be reached, or the connection went away."""

    def __init__(self, address: str, problem: str) -> None:
        self.address = address
        self.problem = problem
        super().__init__(f"{address}: {problem}; check host and port, and that RabbitMQ runs there")


class Unavailable(Transient):
    """RabbitMQ answers, but can't serve the stream right now, as after a restart."""

    def __init__(self, address: str, stream: str, problem: str) -> None:
        super().__init__(f"{address}: stream {stream!r} is not ready: {problem}; check that its replicas run")


class ListingFailed(Transient):
    """The management API did not tell which queues there are."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"{address}: the queues could not be listed: {problem}; check managementUrl and its user")


class AccessRefused(SourceError):
    """RabbitMQ does not let us in, or not there."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"{address}: access refused: {problem}; check user, password, permissions and virtual host")


class StreamMissing(SourceError):
    """No such queue."""

    def __init__(self, address: str, stream: str) -> None:
        super().__init__(f"{address}: there is no stream {stream!r}; declare it first, or correct the option streams")


class NotAStream(SourceError):
    """The queue exists and is of another type: reading it would take its messages away."""

    def __init__(self, address: str, stream: str, problem: str) -> None:
        super().__init__(
            f"{address}: the queue {stream!r} is not a stream ({problem}); only queues declared with "
            f"x-queue-type=stream can be read"
        )


class Silent(SourceError):
    """What must be there did not come in time."""

    def __init__(self, address: str, stream: str, what: str, timeout_s: float) -> None:
        super().__init__(
            f"{address}: stream {stream!r} delivered nothing for {timeout_s:g} s while {what}; check that RabbitMQ is "
            f"well and that the stream was not cut short, or raise readTimeoutS"
        )


class DataLoss(SourceError):
    """Messages were to be read that RabbitMQ no longer has."""

    def __init__(self, address: str, stream: str, problem: str) -> None:
        super().__init__(
            f"{address}: stream {stream!r}: {problem}; set onDataLoss=skip to go on without them, and let the stream "
            f"keep more (x-max-age, x-max-length-bytes)"
        )


class Unreadable(SourceError):
    """A message that the client library can't decode."""

    def __init__(self, address: str, where: str, problem: str) -> None:
        self.address = address
        self.problem = problem
        super().__init__(
            f"{address}: {where} can't be decoded ({problem}); begin after it with startingOffsets and a new checkpoint"
        )


class BadCheckpoint(SourceError):
    """The checkpoint belongs to another source, or to a newer version of this one."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the offset in the checkpoint can't be used: {problem}; use another checkpointLocation")
