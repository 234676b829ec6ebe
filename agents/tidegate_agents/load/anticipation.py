"""Forecasts in the prediction of an edge: what a rise that is expected takes off the thresholds, and no more.

A forecast is advice from outside (`insights`), so that it is believed only as far as that is safe:

- towards caution only: it raises a predicted λ, never lowers one, and so lowers thresholds;
- of a queue whose rate it says will rise, λ counts for at most `RISE_MAX` times what is measured;
- by growth only: a rise that the uplink would carry makes no queue grow. So what counts is the share of the load to be
  expected that the uplink could not carry; where its capacity is not known there is none;
- a threshold keeps at least `THRESHOLD_SHARE_MIN` of what it would be by measurement alone, and one that is not above 0
  is left alone. A forecast therefore never makes a queue count as late in which little waits, and with a policy that
  looks at deadlines moves nobody as long as the uplink carries what it is offered: it makes a session begin up to half
  a threshold sooner.

Pure arithmetic over the queues of one edge. Knows neither time nor where forecasts come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..policy.interface import QueueLoad, ThresholdRule

RISE_MAX: Final = 2.0
"""How many times its measured rate a forecast may take a rate to be."""
THRESHOLD_SHARE_MIN: Final = 0.5
"""What a threshold keeps of itself, whatever is forecast."""


def anticipate(
    queues: Iterable[QueueLoad],
    forecasts: Mapping[str, float],
    offered_bytes_per_s: float,
    uplink_bytes_per_s: float | None,
    rule: ThresholdRule,
) -> list[QueueLoad]:
    """Lower the thresholds of queues whose patterns are forecast to rise beyond what the uplink carries.

    Returns those whose prediction was changed. `offered_bytes_per_s` is what the edge is offered now.
    """
    rising = [(queue, expected) for queue in queues if (expected := _rises_to(queue, forecasts)) is not None]
    if uplink_bytes_per_s is None or not rising:
        return []
    added = sum((expected - queue.enqueue_per_s) * queue.message_bytes for queue, expected in rising)
    then = offered_bytes_per_s + added
    if then <= uplink_bytes_per_s:
        return []
    overrun = 1.0 - uplink_bytes_per_s / then
    changed = []
    for queue, expected in rising:
        measured = queue.threshold
        predicted = min(queue.drain_predicted_per_s + overrun * expected, expected)
        if measured is None or measured <= 0.0 or predicted <= queue.enqueue_predicted_per_s:
            continue
        queue.enqueue_predicted_per_s = predicted
        lowered = rule.of(queue)
        assert lowered is not None, "a queue with a threshold has time to wait"
        queue.threshold = max(min(lowered, measured), THRESHOLD_SHARE_MIN * measured)
        queue.threshold_measured = measured
        queue.forecast_per_s = forecasts[queue.pattern]
        changed.append(queue)
    return changed


def _rises_to(queue: QueueLoad, forecasts: Mapping[str, float]) -> float | None:
    """The rate to expect, within bounds; None where that is no more than what is measured."""
    forecast = forecasts.get(queue.pattern)
    if forecast is None or forecast <= queue.enqueue_per_s or queue.away or queue.slow:
        return None
    return min(forecast, RISE_MAX * queue.enqueue_per_s)
