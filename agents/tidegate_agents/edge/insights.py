"""What an edge was told of the insight in force at its head: forecasts for its patterns, and what its uplink carries.

Soft state: what its head said last, until it expires by the edge's own clock. Invariant: a message that was
overtaken by a later one is passed over; nothing of it outlives a restart. What a forecast or a capacity may do is
bounded where it is used, in `anticipation` and `detector`.
"""

from __future__ import annotations

from tidegate_protocol.decisions import InsightEnd, InsightOver, InsightTold
from tidegate_protocol.insight import EdgeInsight

from ..kit.dispatch import Dispatch
from ..load.detector import Detector
from ..machine import ReplyAddress
from .context import EdgeContext


class EdgeInsights:
    """The part of an insight that concerns one edge."""

    def __init__(self, context: EdgeContext, detector: Detector) -> None:
        self._context = context
        self._detector = detector
        self._told: EdgeInsight | None = None
        self._told_s = 0.0
        self._latest = (-1, -1)

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(EdgeInsight, self.on_insight)
        dispatch.checks.append(self.validate)

    def on_insight(self, message: EdgeInsight, _: ReplyAddress | None) -> None:
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
                self._over(InsightEnd.WITHDRAWN)
        elif before is None or _content(before) != _content(message):
            edge, left_s = self._context.config.edge, message.left_us / 1e6
            told = InsightTold(edge, len(message.forecasts), left_s, message.uplink_bytes_per_s)
            self._context.decide(told)
        self.apply()

    def apply(self) -> None:
        """Before a sample: give the detector what holds now."""
        told, detector = self._told, self._detector
        elapsed_s = self._context.now - self._told_s
        if told is not None and elapsed_s * 1e6 >= told.left_us:
            self._told = told = None
            self._over(InsightEnd.EXPIRED)
        if told is None:
            detector.forecasts, detector.uplink.hint = {}, None
            return
        detector.uplink.hint = told.uplink_bytes_per_s
        detector.forecasts = {
            forecast.pattern: forecast.level_per_s + forecast.trend_per_s * elapsed_s
            for forecast in told.forecasts
            if elapsed_s * 1e6 < forecast.left_us
        }

    def _over(self, reason: InsightEnd) -> None:
        self._context.decide(InsightOver(self._context.config.edge, reason))

    def validate(self) -> None:
        """Raise AssertionError if the detector uses what nobody told."""
        known = set() if self._told is None else {forecast.pattern for forecast in self._told.forecasts}
        assert self._detector.forecasts.keys() <= known, "a forecast that nobody told"


def _content(message: EdgeInsight) -> tuple[int, tuple[str, ...], float | None]:
    return message.made_at_us, tuple(one.pattern for one in message.forecasts), message.uplink_bytes_per_s
