"""Subscriptions that are sent more than their account may be sent: a subscriber to everything multiplies everything.

RabbitMQ can't slow one consumer down. So such a subscription is named, and what waits for it is bounded by what it may
be sent in a second. Invariants:

- one sample proves nothing: `SAMPLES_NEEDED` in a row have to be above the quota of the account;
- only accounts that are configured here have a quota. A client belongs to the account whose name it has;
- a subscription that has kept to the quota for `containment_s` is forgotten; its bound is lifted, unless it is slow;
- at most `GREEDY_MAX` subscriptions are watched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.decisions import Flood, GreedySubscriber

from ..kit.dispatch import Dispatch
from ..load.detector import Detector
from ..load.metrics import SubscriptionSample, offered_bytes_per_s
from ..machine import EdgeSampled, LimitOutput
from ..quotas import account_named
from .context import EdgeContext

SAMPLES_NEEDED: Final = 3
GREEDY_MAX: Final = 1_000
WAITING_S: Final = 1.0
"""So much of what it may be sent may wait."""


@dataclass(slots=True)
class _Watched:
    above: int = 0
    last_above_s: float = 0.0
    found: GreedySubscriber | None = None
    found_s: float = 0.0


class Greed:
    """Watches what every subscription of an account with a quota is sent."""

    def __init__(self, context: EdgeContext, detector: Detector) -> None:
        self._context = context
        self._detector = detector
        self._watched: dict[str, _Watched] = {}

    def register(self, dispatch: Dispatch) -> None:
        if self._context.config.quotas:
            dispatch.on_event(EdgeSampled, self.sampled)
        dispatch.checks.append(self.validate)

    @property
    def culprits(self) -> tuple[tuple[GreedySubscriber, float], ...]:
        """What was found, and when, in the order of queues."""
        found = [(one.found, one.found_s) for _, one in sorted(self._watched.items()) if one.found is not None]
        return tuple(found)

    def sampled(self, event: EdgeSampled) -> None:
        everything = offered_bytes_per_s(event.subscriptions)
        for sample in event.subscriptions:
            self._judge(sample, everything)
        self._forget()

    def _judge(self, sample: SubscriptionSample, everything: float) -> None:
        queue = self._detector.queue(sample.name)
        account = account_named(queue.subscriber, self._context.config.quotas) if queue is not None else None
        if queue is None or account is None:
            return
        quota = self._context.config.quotas[account]
        judged = (
            (sample.enqueue_per_s / quota.messages_per_s, Flood.MESSAGES, sample.enqueue_per_s, quota.messages_per_s),
            (
                sample.offered_bytes_per_s / quota.bytes_per_s,
                Flood.BYTES,
                sample.offered_bytes_per_s,
                quota.bytes_per_s,
            ),
        )
        times, reason, value, limit = max(judged, key=lambda one: one[0])
        watched = self._watched.get(sample.name)
        if times <= 1.0:
            if watched is not None:
                watched.above = 0
            return
        if watched is None:
            if len(self._watched) >= GREEDY_MAX:
                return
            watched = self._watched[sample.name] = _Watched()
        watched.above += 1
        watched.last_above_s = self._context.now
        if watched.above < SAMPLES_NEEDED or watched.found is not None:
            return
        messages_max = max(math.ceil(WAITING_S * quota.messages_per_s), 1)
        share = sample.offered_bytes_per_s / everything if everything > 0.0 else 0.0
        watched.found_s = self._context.now
        watched.found = GreedySubscriber(
            sample.name, queue.subscriber, queue.pattern, account, reason, value, limit, share, messages_max
        )
        self._context.decide(watched.found)
        self._context.do(LimitOutput(queue.subscriber, queue.number, messages_max))

    def _forget(self) -> None:
        now, containment_s = self._context.now, self._context.config.balancing.containment_s
        for name, watched in sorted(self._watched.items()):
            queue = self._detector.queue(name)
            if queue is None:
                del self._watched[name]
            elif now - watched.last_above_s >= containment_s:
                del self._watched[name]
                if watched.found is not None and not queue.slow:
                    self._context.do(LimitOutput(queue.subscriber, queue.number, None))

    def validate(self) -> None:
        """Raise AssertionError if more is watched than may be."""
        assert len(self._watched) <= GREEDY_MAX
