"""What an operator is told of the insight in force."""

from __future__ import annotations

from tidegate_protocol.decisions import Hints
from tidegate_protocol.insight import InsightState
from tidegate_protocol.rendering import why
from tidegate_protocol.rendering.words import amount, counted, listed, messages, seconds


def insight_words(state: InsightState | None) -> list[str]:
    """Which one is in force, how old it is, when it expires and what came of it; nothing where there is none."""
    if state is None:
        return []
    parts = [
        counted(count, what)
        for count, what in (
            (state.pairs, "correlated pair"),
            (state.forecasts, "forecast"),
            (state.capacities, "uplink"),
        )
        if count
    ]
    text = (
        f"an insight that was made {duration(state.age_us)} ago is in force for another {duration(state.left_us)}: "
        f"{listed(parts) or 'nothing'}; {counted(state.placements, 'placement')} would have been "
        f"{'another' if state.placements == 1 else 'others'} without it"
    )
    if not state.refused:
        return [text]
    refused = f"{counted(state.refused, 'insight')} {'was' if state.refused == 1 else 'were'} refused"
    return [text, f"{refused}, the last one because {why(state.last_refusal)}"]


def duration(micros: int) -> str:
    for unit, length in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if micros / 1e6 >= 2 * length:
            return f"{micros / 1e6 / length:.0f} {unit}"
    return seconds(round(micros / 1e6))


def forecast_words(hints: Hints | None, queue: str) -> list[str]:
    """Whether a forecast had a bearing on the threshold of this queue when a session was asked for."""
    found = [one for one in (hints.forecasts if hints is not None else ()) if one.queue == queue]
    return [
        f"an insight expected {amount(one.forecast_per_s)} messages per second for it soon, more than the uplink would "
        f"carry; without that {messages(one.threshold_measured)} might have waited"
        for one in found
    ]
