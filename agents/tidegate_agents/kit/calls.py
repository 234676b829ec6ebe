"""Ask, ask again, give up: questions to one addressee each, repeated until it answers or has been asked often enough.

A part has one `Calls`; a call has a subject, and its request and its timer are named `<part> <subject>`. The part hears
of each call through one function: the answer, or the kind of silence.

    ask ──→ asked ── answer ──→ heard(subject, message)         the call stays open: the part closes it or asks on;
             │  └── nobody there → heard(subject, ABSENT)       until then the timer runs, and the question is repeated
             └── time-out → asked again, at most `attempts_max` times in all → heard(subject, LATE)
    wait ────→ time-out → heard(subject, LATE)                  nothing is asked; something else is awaited

Invariant: a subject has one call, and asking anew replaces it; only the answer to the latest repetition counts; every
call ends, because its timer is set with each repetition and the repetitions are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.messages import ControlMessage

from ..config import ATTEMPTS_MAX
from .dispatch import Answer as Answer, Dispatch, Silence as Silence
from .outbox import Outbox

Question = ControlMessage | Callable[[], ControlMessage]
"""What is asked; made anew for each repetition where it says how much time is left."""
PAUSE_MAX_S: Final = 60.0
_Send = Callable[[str, ControlMessage, str, str], str]


@dataclass(slots=True)
class _Call:
    send: _Send
    to: str
    question: Question | None
    within_s: float
    attempts_max: int
    soon: int | None = None
    """After so many attempts the time for each is twice that for the one before."""
    attempts: int = 0
    request_id: str | None = None


class Calls:
    """The calls of one part, by subject."""

    def __init__(self, outbox: Outbox, part: str, within_s: float, heard: Callable[[str, Answer], None]) -> None:
        """`within_s` is how long an answer may take, where a question does not say so itself."""
        self._outbox = outbox
        self._part = part
        self._within_s = within_s
        self._heard = heard
        self._calls: dict[str, _Call] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_request(self._part, self._hear)
        dispatch.on_timer(self._part, self._timed_out)
        dispatch.checks.append(self.validate)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._calls)

    def __contains__(self, subject: str) -> bool:
        return subject in self._calls

    def attempts(self, subject: str) -> int:
        """How often the present question was asked."""
        return self._calls[subject].attempts

    def ask(
        self,
        subject: str,
        broker: str,
        question: Question,
        *,
        within_s: float | None = None,
        attempts_max: int = ATTEMPTS_MAX,
        soon: int | None = None,
    ) -> None:
        """Ask a broker, in place of whatever was asked about this subject before.

        After `soon` attempts the pauses double each time, because somebody is away, up to `PAUSE_MAX_S`.
        """
        within_s = self._within_s if within_s is None else within_s
        self._open(subject, _Call(self._outbox.request, broker, question, within_s, attempts_max, soon))

    def ask_client(self, subject: str, client: str, question: Question, *, attempts_max: int = ATTEMPTS_MAX) -> None:
        """Ask a client of this head, likewise."""
        self._open(subject, _Call(self._outbox.send_client, client, question, self._within_s, attempts_max))

    def wait(self, subject: str, within_s: float) -> None:
        """Ask nothing any more; the time for something else begins."""
        self._open(subject, _Call(self._outbox.request, "", None, within_s, 0))

    def again(self, subject: str) -> bool:
        """Ask again now, and not when the time is over. False if it was asked as often as it may be."""
        call = self._calls[subject]
        if call.attempts >= call.attempts_max:
            return False
        self._send(subject, call)
        return True

    def close(self, subject: str) -> None:
        """Nothing is awaited any more."""
        call = self._calls.pop(subject, None)
        if call is not None:
            self._outbox.drop_request(call.request_id)
            self._outbox.cancel_timer(f"{self._part} {subject}")

    def _open(self, subject: str, call: _Call) -> None:
        before, self._calls[subject] = self._calls.get(subject), call
        if before is not None:
            self._outbox.drop_request(before.request_id)
        self._send(subject, call)

    def _send(self, subject: str, call: _Call) -> None:
        self._outbox.drop_request(call.request_id)
        if call.question is not None:
            call.attempts += 1
            message = call.question() if callable(call.question) else call.question
            call.request_id = call.send(call.to, message, self._part, subject)
        doublings = 0 if call.soon is None else max(call.attempts - call.soon, 0)
        within_s = min(call.within_s * 2**doublings, max(call.within_s, PAUSE_MAX_S))
        self._outbox.set_timer(f"{self._part} {subject}", within_s)

    def _hear(self, subject: str, answer: Answer) -> None:
        if subject in self._calls:
            self._calls[subject].request_id = None
            self._heard(subject, answer)

    def _timed_out(self, subject: str) -> None:
        if subject in self._calls and not self.again(subject):
            self._outbox.drop_request(self._calls[subject].request_id)
            self._hear(subject, Silence.LATE)

    def validate(self) -> None:
        """Raise AssertionError if a question was asked too often, or is awaited and was never asked."""
        for subject, call in self._calls.items():
            assert call.attempts <= call.attempts_max, f"{self._part} {subject} was asked too often"
            assert call.attempts or call.question is None, f"{self._part} {subject} was never asked"
