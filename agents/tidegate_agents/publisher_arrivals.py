"""Publishers on their way to this head from an overloaded neighbour: the new head's side of a publisher's move.

We are told whom to expect and watch for the fence that follows its last message at the old head. When the fence has
come in, everything published before it has been routed here, and the old head may let the publisher go on with us.
What always holds:

- publishers are expected from one neighbour at a time, and only while this head is LOW and in no session of its own;
- an expectation is forgotten when the fence was seen and acknowledged, or after twice the time a move may take;
- every question may be repeated and gets the same answer.

Whether the publisher then comes is its own affair: its hello tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing import FenceSeen, PublisherExpect, PublisherExpected, PublisherMoveAck
from tidegate_protocol.messages import ControlMessage, RefusalReason
from tidegate_protocol.names import marker_key

from .config import ATTEMPTS_MAX
from .context import HeadContext
from .machine import Decision, FenceArrived, ReplyAddress, UnwatchFence, WatchFence

ARRIVALS_MAX: Final = 64
"""Publishers expected at once."""


@dataclass(slots=True)
class _Arrival:
    move: str
    head: str
    publisher: str
    fence: str
    seen: bool = False
    attempts: int = 0
    request_id: str | None = None


class PublisherArrivals:
    """The publishers expected here."""

    def __init__(self, context: HeadContext, takes: Callable[[], str | None], arrived: Callable[[str], None]) -> None:
        """`takes` says why this head can't take publishers now, or None; `arrived` is told of each that may come."""
        self._context = context
        self._takes = takes
        self._arrived = arrived
        self._arrivals: dict[str, _Arrival] = {}
        self._settling_until_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether publishers are expected, or have come so recently that their load does not show yet."""
        return bool(self._arrivals) or self._context.now < self._settling_until_s

    def expect(self, message: PublisherExpect, reply_to: ReplyAddress | None) -> None:
        context = self._context
        arrival = self._arrivals.get(message.move)
        if arrival is None:
            why_not = self._refusal(message)
            if why_not is not None:
                context.refuse(reply_to, *why_not)
                return
            arrival = _Arrival(message.move, message.head, message.publisher, message.fence)
            self._arrivals[message.move] = arrival
            context.do(WatchFence(message.head, message.fence))
            context.set_timer(f"arrival {message.move}", 2.0 * context.config.balancing.migration_timeout_s)
            reason = f"{message.head} is overloaded and sends it"
            context.decide(Decision("publisher-expected", message.publisher, reason, session=message.move))
        context.reply(reply_to, PublisherExpected(move=message.move))

    def _refusal(self, message: PublisherExpect) -> tuple[RefusalReason, str] | None:
        context = self._context
        if message.head not in context.routes.offers:
            return RefusalReason.UNKNOWN, f"{message.head} is not a neighbour of {context.config.head}"
        if message.fence != marker_key(message.move, message.head):
            return RefusalReason.INVALID, f"{message.fence} is not the fence of {message.move}"
        if context.stopping:
            return RefusalReason.NOT_READY, "this head is being stopped"
        others = sorted({arrival.head for arrival in self._arrivals.values()} - {message.head})
        if others:
            return RefusalReason.CONFLICT, f"publishers are expected from {others[0]} already"
        if len(self._arrivals) >= ARRIVALS_MAX:
            return RefusalReason.LIMIT, f"ARRIVALS_MAX = {ARRIVALS_MAX} publishers are expected"
        limit = context.config.publishers_max
        if len(context.registry.publishers) + len(self._arrivals) >= limit:
            return RefusalReason.LIMIT, f"this head knows publishers_max = {limit} publishers"
        why_not = self._takes()
        return None if why_not is None else (RefusalReason.CONFLICT, why_not)

    def fence_arrived(self, event: FenceArrived) -> None:
        """What the publisher sent to the old head has passed here."""
        for move in sorted(self._arrivals):
            arrival = self._arrivals[move]
            if arrival.fence == event.key and not arrival.seen:
                arrival.seen = True
                self._settling_until_s = self._context.now + self._context.config.balancing.stabilizing_min_s
                self._arrived(arrival.publisher)
                self._tell(arrival)

    def _tell(self, arrival: _Arrival) -> None:
        context = self._context
        context.drop_request(arrival.request_id)
        message = FenceSeen(move=arrival.move, head=context.config.head)
        arrival.request_id = context.request(arrival.head, message, "fence-seen", arrival.move)
        arrival.attempts += 1
        context.set_timer(f"arrival {arrival.move}", context.config.reply_timeout_s)

    def answered(self, move: str, message: ControlMessage) -> None:
        arrival = self._arrivals.get(move)
        if arrival is None:
            return
        arrival.request_id = None
        if isinstance(message, PublisherMoveAck):
            self._forget(arrival, "the fence was seen")
        # Anything else is no acknowledgement: it is told again by the timer.

    def undeliverable(self, move: str) -> None:
        """The old head is not there: nobody lets the publisher go on here, it goes on there by itself."""
        arrival = self._arrivals.get(move)
        if arrival is not None:
            self._forget(arrival, f"{arrival.head} is not there")

    def timed_out(self, move: str) -> None:
        arrival = self._arrivals.get(move)
        if arrival is None:
            return
        if arrival.seen and arrival.attempts < ATTEMPTS_MAX:
            self._tell(arrival)
        elif arrival.seen:
            self._forget(arrival, f"{arrival.head} does not answer")
        else:
            self._context.do(UnwatchFence(arrival.head, arrival.fence))
            self._forget(arrival, "its fence did not come in time")

    def _forget(self, arrival: _Arrival, why: str) -> None:
        del self._arrivals[arrival.move]
        self._context.drop_request(arrival.request_id)
        self._context.cancel_timer(f"arrival {arrival.move}")
        self._context.decide(Decision("publisher-expectation-ended", arrival.publisher, why, session=arrival.move))

    def validate(self) -> None:
        """Raise AssertionError if publishers are expected from more than one side."""
        assert len(self._arrivals) <= ARRIVALS_MAX
        assert len({arrival.head for arrival in self._arrivals.values()}) <= 1, "publishers from two heads"
        for arrival in self._arrivals.values():
            assert arrival.seen or not arrival.attempts, f"{arrival.move} was told before it was seen"
