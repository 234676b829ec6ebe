"""What a client owes its head: reports, repeated until the head acknowledges them, and outcomes, remembered.

A report without an acknowledgement is repeated with growing pauses and given up after `ATTEMPTS_MAX`. By then the head
has asked by itself, or never will; an order that is repeated later is answered from the remembered outcomes. Both
memories are bounded. Nothing here knows what a report says.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tidegate_protocol.messages import ControlMessage

from .config import Backoff
from .moves import CancelTimer, Request, SetTimer

ATTEMPTS_MAX: Final = 20
"""With the pauses below about a minute and a half: longer than a head's process takes to restart."""
OUTCOMES_MAX: Final = 64
"""Finished moves whose outcome is remembered. One client is moved once per cool-down, so these reach back hours."""
REPORT_BACKOFF: Final = Backoff(first_s=0.5, limit_s=5.0)
WITHOUT_CHANCE: Final = 0.0

Ending = TypeVar("Ending")


def pause_s(backoff: Backoff, attempt: int) -> float:
    """A machine has no randomness: the driver that runs the timer may add some."""
    return backoff.delay_s(attempt, WITHOUT_CHANCE)


@dataclass(slots=True)
class _PendingReport:
    message: ControlMessage
    head_url: str
    attempts: int = 0


class Reports:
    """Reports not yet acknowledged, by key. A key names a move and a stage, because an acknowledgement does not."""

    def __init__(self) -> None:
        self._pending: dict[str, _PendingReport] = {}

    def start(self, key: str, message: ControlMessage, head_url: str) -> list[Request | SetTimer | CancelTimer]:
        """Send a report, and again until it is acknowledged."""
        actions: list[Request | SetTimer | CancelTimer] = []
        if len(self._pending) >= OUTCOMES_MAX:
            actions += self.drop(next(iter(self._pending)))
        self._pending[key] = _PendingReport(message, head_url)
        return actions + self._send(key)

    def fired(self, key: str) -> list[Request | SetTimer | CancelTimer]:
        """The timer of this key fired: repeat, or give up."""
        pending = self._pending.get(key)
        if pending is None:
            return []
        if pending.attempts >= ATTEMPTS_MAX:
            del self._pending[key]
            return []
        return self._send(key)

    def drop(self, key: str) -> list[Request | SetTimer | CancelTimer]:
        """Acknowledged, or overtaken by a newer stage."""
        return [CancelTimer(key)] if self._pending.pop(key, None) else []

    def clear(self) -> list[Request | SetTimer | CancelTimer]:
        return [action for key in list(self._pending) for action in self.drop(key)]

    def messages(self) -> list[tuple[str, ControlMessage]]:
        """What is being said, by key."""
        return [(key, pending.message) for key, pending in self._pending.items()]

    def head_url(self, key: str) -> str:
        """Whom the report goes to."""
        return self._pending[key].head_url

    def owes(self, head_url: str) -> bool:
        """Whether something is still to be said to that head."""
        return any(pending.head_url == head_url for pending in self._pending.values())

    def __contains__(self, key: str) -> bool:
        return key in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert len(self._pending) <= OUTCOMES_MAX
        assert all(0 < pending.attempts <= ATTEMPTS_MAX for pending in self._pending.values())

    def _send(self, key: str) -> list[Request | SetTimer | CancelTimer]:
        pending = self._pending[key]
        pending.attempts += 1
        after_s = pause_s(REPORT_BACKOFF, pending.attempts - 1)
        return [Request(key, pending.message, pending.head_url), SetTimer(key, after_s)]


class Outcomes(Generic[Ending]):
    """How the last moves ended, so that an order that comes again gets the same answer; the oldest go first."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[str, Ending] = OrderedDict()

    def remember(self, move: str, outcome: Ending) -> None:
        self._outcomes[move] = outcome
        if len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)

    def get(self, move: str) -> Ending | None:
        return self._outcomes.get(move)

    def __contains__(self, move: str) -> bool:
        return move in self._outcomes
