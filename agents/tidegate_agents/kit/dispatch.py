"""Tables that lead what comes in to the part of an agent it concerns.

A part says once, when the agent is made, what it takes: kinds of messages, answers to its requests, its timers, routes
that it waits for, other events. Invariant: a name, or a kind of message, has one taker, and a second one is a bug; any
other event is led to all who take it, in the order in which they said so. An event without a taker is told to the
caller, so that it can be counted and refused. Holds no state of its own.

Requests, timers and waits are named `<part> <subject>`; the part gets the subject.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from tidegate_protocol.messages import ControlMessage

from ..machine import (
    Action,
    ActionFailed,
    Event,
    MessageReceived,
    ReplyAddress,
    ReplyReceived,
    StopRequested,
    TimerFired,
    Undeliverable,
)

M = TypeVar("M", bound=ControlMessage)
E = TypeVar("E")
K = TypeVar("K")
V = TypeVar("V")


class Silence(StrEnum):
    """Why there is no answer."""

    ABSENT = "absent"
    """Its process is not there."""
    LATE = "late"
    """It did not answer in time."""


Answer = ControlMessage | Silence


@dataclass(frozen=True, slots=True)
class WaitTaker:
    """What happens when routes are live (the heads that have not confirmed are given), or can't be bound."""

    live: Callable[[str, set[str]], None]
    failed: Callable[[str, str], None]


class Dispatch:
    """Who takes what."""

    def __init__(self) -> None:
        self._messages: dict[type, Callable[[Any, ReplyAddress | None], None]] = {}
        self._events: dict[type, list[Callable[[Any], None]]] = {}
        self._requests: dict[str, Callable[[str, Answer], None]] = {}
        self._timers: dict[str, Callable[[str], None]] = {}
        self._waits: dict[str, WaitTaker] = {}
        self._failures: dict[type, list[Callable[[Any, str], None]]] = {}
        self.ticks: list[Callable[[], None]] = []
        """Called every period, in this order."""
        self.stops: list[Callable[[], None]] = []
        """Called when the process is about to end."""
        self.checks: list[Callable[[], None]] = []
        """Raise AssertionError if a part's state breaks an invariant."""

    # Who takes what: said once

    def on_message(self, kind: type[M], taker: Callable[[M, ReplyAddress | None], None]) -> None:
        _enter(self._messages, kind, taker)

    def on_event(self, kind: type[E], taker: Callable[[E], None]) -> None:
        """For events that are no messages, answers, timers or routes: samples, markers, what another part found."""
        self._events.setdefault(kind, []).append(taker)

    def on_request(self, part: str, heard: Callable[[str, Answer], None]) -> None:
        """For answers to the requests of a part, and for requests that reached nobody."""
        _enter(self._requests, part, heard)

    def on_timer(self, part: str, taker: Callable[[str], None]) -> None:
        _enter(self._timers, part, taker)

    def on_wait(
        self, part: str, live: Callable[[str, set[str]], None], failed: Callable[[str, str], None] | None = None
    ) -> None:
        _enter(self._waits, part, WaitTaker(live, failed or (lambda subject, problem: None)))

    def on_failure(self, action: type[Action], taker: Callable[[Any, str], None]) -> None:
        """For actions that RabbitMQ refused for good. Several parts may order the same kind; each knows its own."""
        self._failures.setdefault(action, []).append(taker)

    # Leading

    def lead(self, event: Event, requests: dict[str, tuple[str, str]]) -> bool:
        """Lead an event to its takers; False if there is none. `requests` says which part asked what."""
        match event:
            case MessageReceived(message, reply_to):
                return self.message(message, reply_to)
            case ReplyReceived(request_id, message):
                self.answer(*requests.pop(request_id, ("", "")), message)
            case Undeliverable(request_id):
                self.answer(*requests.pop(request_id, ("", "")), Silence.ABSENT)
            case TimerFired(name):
                return self.timer(name)
            case ActionFailed(action, problem):
                self.failure(action, problem)
            case StopRequested():
                for stop in self.stops:
                    stop()
            case _:
                return self.event(event)
        return True

    def tick(self) -> None:
        """A period has passed: call all `ticks`, whichever of them fail, and raise what the first of those raised."""
        errors: list[Exception] = []
        for tick in self.ticks:
            try:
                tick()
            except Exception as error:  # a bug of one part, which must not keep all others from what is due
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and later in the same tick: {other!r}")
            raise errors[0]

    def message(self, message: ControlMessage, reply_to: ReplyAddress | None) -> bool:
        """Lead a message to its taker; False if there is none."""
        taker = self._messages.get(type(message))
        if taker is not None:
            taker(message, reply_to)
        return taker is not None

    def event(self, event: object) -> bool:
        takers = self._events.get(type(event), ())
        for taker in takers:
            taker(event)
        return bool(takers)

    def answer(self, part: str, subject: str, answer: Answer) -> None:
        if part in self._requests:
            self._requests[part](subject, answer)

    def timer(self, name: str) -> bool:
        part, _, subject = name.partition(" ")
        taker = self._timers.get(part)
        if taker is not None:
            taker(subject)
        return taker is not None

    def wait_live(self, key: str, awaiting: set[str]) -> None:
        part, _, subject = key.partition(" ")
        self._waits[part].live(subject, awaiting)

    def wait_failed(self, key: str, problem: str) -> None:
        part, _, subject = key.partition(" ")
        self._waits[part].failed(subject, problem)

    def failure(self, action: Action, problem: str) -> None:
        for taker in self._failures.get(type(action), ()):
            taker(action, problem)

    @property
    def request_parts(self) -> frozenset[str]:
        return frozenset(self._requests)


def _enter(table: dict[K, V], key: K, taker: V) -> None:
    assert key not in table, f"{key} has two takers"
    table[key] = taker
