"""Ask many and gather: one question to several brokers, complete when each has answered, is known not to be there, or
the time is over.

A part has one `Gatherings`; a gathering has a subject, its timer is named `<part> <subject>` and the request to each
broker `<part> <subject> <broker>`. The part hears each broker once (an answer, or the kind of silence) and is then told
that all have been heard.

Invariant: every broker that is awaited is heard once, or the part stops the gathering; a gathering nobody is awaited in
is none. A broker that is silent is asked again as long as `attempts_max` allows; one that is not there is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegate_protocol.messages import ControlMessage

from .calls import Answer, Silence
from .dispatch import Dispatch
from .outbox import Outbox


@dataclass(slots=True)
class _Awaited:
    message: ControlMessage | None
    request_id: str | None = None


@dataclass(slots=True)
class _Gathering:
    within_s: float | None
    attempts_max: int
    attempts: int = 1
    awaited: dict[str, _Awaited] = field(default_factory=dict)


class Gatherings:
    """The gatherings of one part, by subject."""

    def __init__(
        self, outbox: Outbox, part: str, heard: Callable[[str, str, Answer], None], complete: Callable[[str], None]
    ) -> None:
        """`heard` gets the subject, the broker and its answer; `complete` the subject, once all were heard."""
        self._outbox = outbox
        self._part = part
        self._heard = heard
        self._complete = complete
        self._gatherings: dict[str, _Gathering] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_request(self._part, self._hear)
        dispatch.on_timer(self._part, self._timed_out)
        dispatch.checks.append(self.validate)

    def __contains__(self, subject: str) -> bool:
        return subject in self._gatherings

    def missing(self, subject: str) -> list[str]:
        """The brokers that are still awaited, in the order of their names."""
        return sorted(self._gatherings[subject].awaited) if subject in self._gatherings else []

    def ask(
        self,
        subject: str,
        questions: Mapping[str, ControlMessage | None],
        *,
        within_s: float | None = None,
        attempts_max: int = 1,
    ) -> None:
        """Ask these brokers, besides those awaited already. With nobody to ask it is complete at once.

        A broker without a question is awaited without being asked, until it is `done`. Without `within_s` the part has
        a timer of its own, and calls `stop`.
        """
        gathering = self._gatherings.setdefault(subject, _Gathering(within_s, attempts_max))
        gathering.awaited |= {name: _Awaited(questions[name]) for name in sorted(questions)}
        self._send(subject, gathering, sorted(questions))
        self._complete_if_heard(subject)

    def done(self, subject: str, broker: str) -> None:
        """This broker need not be awaited any more."""
        if subject in self._gatherings and self._gatherings[subject].awaited.pop(broker, None) is not None:
            self._complete_if_heard(subject)

    def stop(self, subject: str) -> list[str]:
        """The answers are of no interest any more. Returns the brokers that have not answered."""
        missing = self.missing(subject)
        gathering = self._gatherings.pop(subject, None)
        if gathering is not None:
            for awaited in gathering.awaited.values():
                self._outbox.drop_request(awaited.request_id)
            if gathering.within_s is not None:
                self._outbox.cancel_timer(f"{self._part} {subject}")
        return missing

    def _send(self, subject: str, gathering: _Gathering, brokers: list[str]) -> None:
        for name in brokers:
            awaited = gathering.awaited[name]
            self._outbox.drop_request(awaited.request_id)
            if awaited.message is not None:
                awaited.request_id = self._outbox.request(name, awaited.message, self._part, f"{subject} {name}")
        if gathering.within_s is not None:
            self._outbox.set_timer(f"{self._part} {subject}", gathering.within_s)

    def _hear(self, key: str, answer: Answer) -> None:
        subject, _, broker = key.rpartition(" ")
        gathering = self._gatherings.get(subject)
        awaited = None if gathering is None else gathering.awaited.pop(broker, None)
        if awaited is not None:
            self._outbox.drop_request(awaited.request_id)
            self._heard(subject, broker, answer)
            self._complete_if_heard(subject)

    def _timed_out(self, subject: str) -> None:
        gathering = self._gatherings.get(subject)
        if gathering is None:
            return
        if gathering.attempts < gathering.attempts_max:
            gathering.attempts += 1
            self._send(subject, gathering, sorted(gathering.awaited))
            return
        for broker in self.missing(subject):
            self._hear(f"{subject} {broker}", Silence.LATE)

    def _complete_if_heard(self, subject: str) -> None:
        if subject in self._gatherings and not self._gatherings[subject].awaited:
            self.stop(subject)
            self._complete(subject)

    def validate(self) -> None:
        """Raise AssertionError if a gathering awaits nobody."""
        for subject, gathering in self._gatherings.items():
            assert gathering.awaited, f"{self._part} {subject} awaits nobody"
            assert gathering.attempts <= gathering.attempts_max, f"{self._part} {subject} was asked too often"
