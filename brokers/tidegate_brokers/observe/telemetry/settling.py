"""What came of a session in which a head gave publishers away: its agent does not tell, so it is measured here.

The head's metrics some time after the session are compared with what its plan predicted. One session is followed at a
time, as a head has one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_agents.load.metrics import utilizations
from tidegate_agents.machine import HeadSampled
from tidegate_protocol.decisions import Decision, PublisherPlan, PublisherSessionEnded
from tidegate_protocol.telemetry import Measured, Outcome, TelemetryRecord

from .origin import Origin

SETTLED_S: Final = 5.0
"""By then what was moved shows in the samples: reports of publishers reach back three seconds at most."""


@dataclass(frozen=True, slots=True)
class _Settling:
    session: str
    ended_s: float


class HeadOutcomes:
    """Follows the sessions of one head."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._session = ""
        self._predicted: dict[str, float] = {}
        self._settling: _Settling | None = None

    def decided(self, decision: Decision, now: float) -> None:
        """Take note of what a session is predicted to do, and of its end."""
        if isinstance(decision, PublisherPlan):
            self._session = decision.session
            own = [one for one in decision.effects if one.broker == self._origin.broker]
            self._predicted = {one.metric: max(one.after, 0.0) for one in own}
        elif isinstance(decision, PublisherSessionEnded):
            moved = decision.moved > 0 and decision.session == self._session
            self._settling = _Settling(decision.session, now) if moved else None

    def sampled(self, event: HeadSampled, time_us: int, now: float) -> list[TelemetryRecord]:
        """The outcome, once it is time for it."""
        settling = self._settling
        if settling is None or now - settling.ended_s < SETTLED_S:
            return []
        self._settling = None
        return [
            Outcome(
                **self._origin.header(time_us),
                session=settling.session,
                after_us=round((now - settling.ended_s) * 1e6),
                metrics=tuple(
                    Measured(metric=metric, measured=value, predicted=self._predicted.get(metric))
                    for metric, value in utilizations(event.broker).items()
                    if value is not None
                ),
                bytes_offered_per_s=event.broker.bytes_offered_per_s,
            )
        ]
