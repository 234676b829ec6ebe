"""Subscriptions and what waits for them, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate_protocol.operations import QueueState
from tidegate_protocol.rendering import words
from tidegate_protocol.rendering.words import messages, percent, seconds

NO_TRAFFIC_PER_S: Final = 0.05
"""A subscription that gets less is at rest: nothing can be said about what may wait."""


def subscription(queue: str, known: Sequence[QueueState] = ()) -> str:
    """The subscription behind a queue: by its subscriber and, if that is known, its topic pattern."""
    return words.subscription(queue, next((one.pattern for one in known if one.queue == queue), None))


def queue_words(queue: QueueState) -> str:
    """One subscription against its threshold."""
    who = f"{queue.subscriber} (subscribed to {queue.pattern}, deadline {seconds(queue.deadline_s)})"
    if queue.threshold is None or (queue.enqueue_per_s < NO_TRAFFIC_PER_S and queue.depth < 0.5):
        return f"{who} with nothing waiting"
    share = f", {percent(queue.depth / queue.threshold)} of it" if queue.threshold > 0.0 else ""
    return f"{who} with {messages(queue.depth)} waiting where {messages(queue.threshold)} may{share}"
