"""Accounts whose control messages were not taken: the last ones, by account and reason.

Invariants: at most `REFUSED_MAX` pairs are kept, the latest. A pair becomes a decision when it is new and then at most
every `REPEAT_S`, however many messages there are; it is a culprit for `CULPRIT_S` after its last message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.decisions import AccountRefused, ControlRefusal
from tidegate_protocol.operations import Culprit

from ..machine import ControlRefused
from .dispatch import Dispatch
from .memory import Recent
from .outbox import Outbox

REFUSED_MAX: Final = 50
REPEAT_S: Final = 60.0
CULPRIT_S: Final = 600.0
DETAIL_MAX: Final = 200
ACCOUNT_MAX: Final = 100
REASONS: Final = frozenset(ControlRefusal)


@dataclass(slots=True)
class _Refused:
    record: AccountRefused
    last_s: float
    told_s: float


class RefusedAccounts:
    """Who tried what is not his to do, at one broker."""

    def __init__(self, broker: str, outbox: Outbox) -> None:
        self._broker = broker
        self._outbox = outbox
        self._refused: Recent[tuple[str, ControlRefusal], _Refused] = Recent(REFUSED_MAX)

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(ControlRefused, self._note)
        dispatch.checks.append(self._refused.validate)

    def _note(self, event: ControlRefused) -> None:
        now = self._outbox.now
        reason = ControlRefusal(event.reason) if event.reason in REASONS else ControlRefusal.OTHER
        key = (event.account[:ACCOUNT_MAX], reason)
        before = self._refused.get(key)
        messages = 1 if before is None else before.record.messages + 1
        record = AccountRefused(key[0], reason, messages, event.detail[:DETAIL_MAX])
        due = before is None or now - before.told_s >= REPEAT_S
        self._refused[key] = _Refused(record, now, now if due or before is None else before.told_s)
        if due:
            self._outbox.decide(record)

    def culprits(self) -> list[Culprit]:
        """The latest first."""
        now = self._outbox.now
        return [
            Culprit(
                what=AccountRefused.kind,
                client=account,
                broker=self._broker,
                ago_us=round(max(now - one.last_s, 0.0) * 1e6),
                record=one.record,
            )
            for (account, _), one in reversed(list(self._refused.items()))
            if now - one.last_s <= CULPRIT_S
        ]
