"""What an edge was told of the insight in force at its head: forecasts for its patterns, and what its uplink carries.

Soft state: what its head said last, until it expires by the edge's own clock. What always holds: a message that was
overtaken by a later one is passed over; nothing of it outlives a restart. What a forecast or a capacity may do is
bounded where it is used, in `anticipation` and `detector`.
"""

from __future__ import annotations

from tidegate_protocol.insight import EdgeInsight

from .detector import Detector
from .edge_context import EdgeContext
from .machine import Decision


class EdgeInsights:
    """The part of an insight that concerns one edge."""

    def __init__(self, context: EdgeContext, detector: Detector) -> None:
        self._context = context
        self._detector = detector
        self._told: EdgeInsight | None = None
        self._told_s = 0.0
        self._latest = (-1, -1)

    def told(self, message: EdgeInsight) -> None:
        """The head says what holds from now on."""
        number = (message.incarnation, message.number)
        if number <= self._latest:
            return
        self._latest = number
        before = self._told
        holds = message.left_us > 0 and (message.forecasts or message.uplink_bytes_per_s is not None)
        self._told, self._told_s = (message if holds else None), self._context.now
        if self._told is None:
            if before is not None:
                self._decide("insight-over", "the head has none any more")
        elif before is None or _content(before) != _content(message):
            text = f"forecasts of {len(message.forecasts)} patterns"
            numbers = {"left_s": message.left_us / 1e6}
            if message.uplink_bytes_per_s is not None:
                text += ", and what its uplink carries"
                numbers["uplink_bytes_per_s"] = message.uplink_bytes_per_s
            self._decide("insight-told", text, numbers)
        self.apply()

    def apply(self) -> None:
        """Before a sample: give the detector what holds now."""
        told, detector = self._told, self._detector
        elapsed_s = self._context.now - self._told_s
        if told is not None and elapsed_s * 1e6 >= told.left_us:
            self._told = told = None
            self._decide("insight-over", "it has expired")
        if told is None:
            detector.forecasts, detector.uplink_hint = {}, None
            return
        detector.uplink_hint = told.uplink_bytes_per_s
        detector.forecasts = {
            forecast.pattern: forecast.level_per_s + forecast.trend_per_s * elapsed_s
            for forecast in told.forecasts
            if elapsed_s * 1e6 < forecast.left_us
        }

    def _decide(self, kind: str, reason: str, numbers: dict[str, float] | None = None) -> None:
        self._context.decide(Decision(kind, self._context.config.edge, reason, numbers or {}))

    def validate(self) -> None:
        """Raise AssertionError if the detector uses what nobody told."""
        known = set() if self._told is None else {forecast.pattern for forecast in self._told.forecasts}
        assert self._detector.forecasts.keys() <= known, "a forecast that nobody told"


def _content(message: EdgeInsight) -> tuple[int, tuple[str, ...], float | None]:
    return message.made_at_us, tuple(one.pattern for one in message.forecasts), message.uplink_bytes_per_s
