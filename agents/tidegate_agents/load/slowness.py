"""Subscribers that are too slow for what they are sent: found, limited, and found to keep up again.

A FIFO uplink gives all flows the same share of what they offer. A queue that is past its threshold, or grows, while it
is drained clearly slower than that share is held back by its own subscriber, and no move of others would help it. At a
busy uplink the shares are less equal, so there "clearly" means much more.

Invariants:

- nobody is called slow for a single sample, nor while it is open whether the uplink has become narrower; if it has, a
  slow subscriber that is drained of its share is slow no longer;
- a slow subscriber's queue is limited as long as it is slow, and no longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidegate_protocol.decisions import Decision, SlownessOutcome, SlowSubscriber

from ..config import BalancingConfig
from ..machine import Action, LimitOutput
from ..policy.interface import QueueLoad
from .following import Followed
from .metrics import BrokerSample, Metric, carried_share, utilizations
from .uplink import Uplink

FIRST_SLOW_SAMPLE: Final = 15
"""From this sample on a queue behind a busy uplink may be called that of a slow subscriber."""
SLOW_SHARE: Final = 0.95
"""Drained at less than this share of what it should get, a queue is held back by its subscriber."""
SLOW_SHARE_BUSY: Final = 0.5
"""The same where the uplink is busy."""


class SlowSubscribers:
    """The slow subscribers of one edge, by the names of their queues."""

    def __init__(self, config: BalancingConfig) -> None:
        self.names: set[str] = set()
        self._needed = config.slow_subscriber_samples_needed
        self._messages_max = config.slow_subscriber_messages_max

    def judge(
        self, waiting: Iterable[Followed], broker: BrokerSample, uplink: Uplink
    ) -> tuple[list[Decision], list[Action]]:
        """Who has become slow, and who keeps up again; in the order of names."""
        changed: dict[str, tuple[Decision, Action]] = {}
        fair = carried_share(broker)
        lagging = (SLOW_SHARE_BUSY if uplink.limits else SLOW_SHARE) * fair
        for queue in waiting:
            lags = queue.drain_per_s < lagging * queue.enqueue_per_s
            if not lags and not queue.slow:
                queue.slow_samples = 0
                continue
            past = queue.threshold is not None and queue.depth > queue.threshold
            # What comes first to a line that is long already waits for its turn, however fast its subscriber is.
            new = uplink.limits and queue.samples < FIRST_SLOW_SAMPLE
            if queue.migrating or new or not lags or not (past or queue.grows):
                queue.slow_samples = 0
            elif not uplink.may_narrow:
                queue.slow_samples = min(queue.slow_samples + 1, self._needed)
            if queue.slow:
                keeps_up = queue.drain_per_s >= SLOW_SHARE * fair * queue.enqueue_per_s and not past
                queue.healthy_samples = min(queue.healthy_samples + 1, self._needed) if keeps_up else 0
                if queue.healthy_samples >= self._needed or (uplink.narrowed and not lags):
                    changed[queue.name] = self._change(queue, SlownessOutcome.KEEPS_UP, broker, fair)
            elif queue.slow_samples >= self._needed:
                changed[queue.name] = self._change(queue, SlownessOutcome.SLOW, broker, fair)
        ordered = [changed[name] for name in sorted(changed)]
        return [decision for decision, _ in ordered], [action for _, action in ordered]

    def _change(
        self, queue: Followed, outcome: SlownessOutcome, broker: BrokerSample, fair: float
    ) -> tuple[Decision, Action]:
        queue.slow, queue.healthy_samples = outcome is SlownessOutcome.SLOW, 0
        if queue.slow:
            self.names.add(queue.name)
        else:
            self.names.discard(queue.name)
        limit = LimitOutput(queue.subscriber, queue.number, self._messages_max if queue.slow else None)
        return self.about(queue, outcome, broker, fair), limit

    def about(
        self, queue: QueueLoad, outcome: SlownessOutcome, broker: BrokerSample, fair: float | None = None
    ) -> SlowSubscriber:
        """How a subscriber that is too slow, or was, is doing now."""
        return SlowSubscriber(
            queue.name,
            queue.subscriber,
            queue.pattern,
            outcome,
            queue.enqueue_per_s,
            queue.drain_per_s,
            queue.depth,
            fair,
            queue.threshold,
            utilizations(broker)[Metric.UPLINK],
            self._messages_max if outcome is SlownessOutcome.SLOW else None,
        )
