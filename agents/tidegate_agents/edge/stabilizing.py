"""After a session: whether the load that was moved shows in the samples, so that an edge may be part of the next one.

A source waits until it is offered as much as was predicted, a target until its load is steady. Invariant: it takes no
less than `stabilizing_min_s` and no more than `stabilizing_max_s`, whatever the samples show. The decision at the end
says what was predicted and what came of it.
"""

from __future__ import annotations

from typing import Final

from tidegate_protocol.decisions import ClosestQueue, Stabilized, StabilizedReason

from ..load.detector import Detector
from ..load.metrics import BrokerSample
from ..load.overview import closest_queue, measured, queues_past
from .context import EdgeContext

NEAR_SHARE: Final = 0.05
"""The load has moved as predicted if what is offered is off by no more than this share of the uplink."""
STEADY_SAMPLES: Final = 2
"""After so many samples without a change nothing more is going to move, whatever was predicted."""


class Stabilizing:
    """The session whose load has still to show, if there is one."""

    def __init__(self, context: EdgeContext, detector: Detector) -> None:
        self._context = context
        self._detector = detector
        self.session: str | None = None
        self._since_s = 0.0
        self._predicted: BrokerSample | None = None
        """As source: what is expected once the moved load is gone. None as a target."""

    def __bool__(self) -> bool:
        return self.session is not None

    def begin(self, session: str, predicted: BrokerSample | None = None) -> None:
        """A session has moved load."""
        self.session, self._since_s, self._predicted = session, self._context.now, predicted

    def judged(self) -> None:
        """One more sample: see whether the load shows."""
        if self.session is None or self._context.now - self._since_s < self._context.config.balancing.stabilizing_min_s:
            return
        broker, steady = self._detector.broker, self._detector.steady_samples
        offered = broker.bytes_offered_per_s
        if self._predicted is None:
            moved = steady > 0
        else:
            near = NEAR_SHARE * (broker.capacity.uplink_bytes_per_s or offered)
            moved = abs(offered - self._predicted.bytes_offered_per_s) <= near
        if moved:
            self._end(StabilizedReason.LOAD_MOVED)
        elif steady >= STEADY_SAMPLES:
            self._end(StabilizedReason.NOT_AS_PREDICTED)

    def expire(self) -> None:
        """However it is: do not wait longer than it may take."""
        longest_s = self._context.config.balancing.stabilizing_max_s
        if self.session is not None and self._context.now - self._since_s >= longest_s:
            self._end(StabilizedReason.TIME_OUT)

    def _end(self, why: StabilizedReason) -> None:
        assert self.session is not None
        session, self.session = self.session, None
        detector, predicted = self._detector, self._predicted
        queues = detector.view({}).queues
        closest = closest_queue(queues)
        nearest = None
        if closest is not None and closest.threshold is not None:
            nearest = ClosestQueue(closest.name, closest.depth, closest.threshold)
        self._context.decide(
            Stabilized(
                self._context.config.edge,
                why,
                self._context.now - self._since_s,
                detector.broker.bytes_offered_per_s,
                None if predicted is None else predicted.bytes_offered_per_s,
                measured(detector, predicted),
                queues_past(queues),
                nearest,
                session=session,
            )
        )
