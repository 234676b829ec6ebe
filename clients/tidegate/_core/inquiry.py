"""Asking the head where a subscription's queue is, until the head answers.

All questions of one inquiry share a key, so that a slow answer to an early question counts. An answer with the key of
an inquiry that has ended is ignored. The questions never end, because a client without a place has nothing else to do;
the pauses between them grow to a bound.
"""

from __future__ import annotations

from typing import Final

from tidegate_protocol.messages import Refusal

from .attachment import Actions, Slot, Standing
from .moves import CancelTimer, Request, SetTimer, TellRefusal
from .reports import pause_s

ASK: Final = "ask"
SUBSCRIBE: Final = "subscribe:"


class Inquiry:
    """Whether the head is being asked, and what was said to it."""

    def __init__(self, standing: Standing) -> None:
        self.asking = False
        self.in_doubt = False
        """Whether the head's idea of the place differs from ours, to be asked about when the migration has ended."""
        self.count = 0
        self._standing = standing
        self._attempts = 0

    def ask(self, primary: Slot | None, now: float) -> Actions:
        """Ask, unless an inquiry runs already."""
        return [] if self.asking else self.again(primary, now)

    def again(self, primary: Slot | None, now: float) -> Actions:
        standing = self._standing
        if not self.asking:
            self.asking = True
            self.in_doubt = False
            self.count += 1
            self._attempts = 0
        request = standing.request
        failing_s = primary.failing_s(now) if primary is not None and not primary.in_use else 0.0
        if primary is not None and failing_s >= standing.times.unreachable_s:
            request = request.model_copy(update={"unreachable": primary.place.edge})
        self._attempts += 1
        after_s = pause_s(standing.times.ask, self._attempts - 1)
        return [Request(self._key, request, standing.head_url), SetTimer(ASK, after_s)]

    def is_about(self, key: str) -> bool:
        """Whether an answer with this key is still waited for."""
        return self.asking and key == self._key

    def refused(self, refusal: Refusal) -> Actions:
        if refusal.retry_after_s is None:
            return [TellRefusal(refusal)]
        return [SetTimer(ASK, max(refusal.retry_after_s, self._standing.times.ask.first_s))]

    def stop(self) -> Actions:
        was_asking, self.asking, self.in_doubt = self.asking, False, False
        return [CancelTimer(ASK)] if was_asking else []

    @property
    def _key(self) -> str:
        return f"{SUBSCRIBE}{self.count}"
