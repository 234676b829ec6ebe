"""Tables that lead what comes in to the part of an agent it concerns.

A part says once, when the agent is made, what it takes: kinds of messages, answers to its requests, its timers,
routes that it waits for, other events. What always holds: a name or a kind has one taker, and a second one is a bug;
what nobody takes is told to the caller, so that it can be counted and refused. Holds no state of its own.

Requests, timers and waits are named `<part> <subject>`; the part gets the subject.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate_protocol.messages import ControlMessage

from .machine import Action, Event, ReplyAddress

M = TypeVar("M", bound=ControlMessage)
E = TypeVar("E", bound=Event)
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RequestTaker:
    """What happens with the answer to a request of a part, or if it reached nobody."""

    answered: Callable[[str, ControlMessage], None]
    undeliverable: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WaitTaker:
    """What happens when routes are live (the heads that have not confirmed are given), or can't be bound."""

    live: Callable[[str, set[str]], None]
    failed: Callable[[str, str], None]


class Dispatch:
    """Who takes what."""

    def __init__(self) -> None:
        self._messages: dict[type, Callable[[Any, ReplyAddress | None], None]] = {}
        self._events: dict[type, Callable[[Any], None]] = {}
        self._requests: dict[str, RequestTaker] = {}
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
        """For events that are no messages, answers, timers or routes: samples, markers, fences."""
        _enter(self._events, kind, taker)

    def on_request(
        self,
        part: str,
        answered: Callable[[str, ControlMessage], None],
        undeliverable: Callable[[str], None],
    ) -> None:
        _enter(self._requests, part, RequestTaker(answered, undeliverable))

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

    def event(self, event: Event) -> bool:
        taker = self._events.get(type(event))
        if taker is not None:
            taker(event)
        return taker is not None

    def answer(self, part: str, subject: str, message: ControlMessage) -> None:
        if part in self._requests:
            self._requests[part].answered(subject, message)

    def undeliverable(self, part: str, subject: str) -> None:
        if part in self._requests:
            self._requests[part].undeliverable(subject)

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
