"""Publishers on their way to this head from an overloaded neighbour: the new head's side of a publisher's move.

We are told which publisher to expect, and watch for the fence that follows its last message at the old head. When the
fence has come in, everything published before it has been routed here, and the old head may let the publisher go on
with us.
Invariants:

- publishers are expected from one neighbour at a time, and only while this head is LOW and in no session of its own;
- an expectation is forgotten when the fence was seen and acknowledged, or after twice the time a move may take;
- every question may be repeated and gets the same answer.

Whether the publisher then comes is its own affair: its hello tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate_protocol.balancing.publishers import FenceSeen, PublisherExpect, PublisherExpectReply, PublisherMoveAck
from tidegate_protocol.decisions import ExpectationEnded, ExpectationOutcome, PublisherExpected, Rejected
from tidegate_protocol.messages import Refusal
from tidegate_protocol.names import marker_key
from tidegate_protocol.rendering import refusals

from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...machine import FenceArrived, ReplyAddress, UnwatchFence, WatchFence
from ..context import HeadContext
from ..neighbours import stranger
from .leaving import PublisherMoves

ARRIVALS_MAX: Final = 64
"""Publishers expected at once."""


@dataclass(slots=True)
class _Arrival:
    move: str
    head: str
    publisher: str
    fence: str
    seen: bool = False


class PublisherArrivals:
    """The publishers expected here."""

    def __init__(self, context: HeadContext, moves: PublisherMoves) -> None:
        self._context = context
        self._moves = moves
        self._arrivals: dict[str, _Arrival] = {}
        self._settling_until_s = 0.0
        self._calls = Calls(context, "arrival", context.config.reply_timeout_s, self._heard)

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)
        dispatch.on_event(FenceArrived, self.on_fence)
        dispatch.checks.append(self.validate)

    @property
    def busy(self) -> bool:
        """Whether publishers are expected, or have come so recently that their load does not show yet."""
        return bool(self._arrivals) or self._context.now < self._settling_until_s

    def on_expect(self, message: PublisherExpect, reply_to: ReplyAddress | None, full: Rejected | None) -> None:
        """A neighbour wants to send a publisher. `full` says why this head can't take any now; None if it can."""
        context = self._context
        arrival = self._arrivals.get(message.move)
        if arrival is None:
            why_not = self._refusal(message, full)
            if why_not is not None:
                context.refuse(reply_to, why_not)
                return
            arrival = _Arrival(message.move, message.head, message.publisher, message.fence)
            self._arrivals[message.move] = arrival
            context.do(WatchFence(message.head, message.fence))
            self._calls.wait(message.move, 2.0 * context.config.balancing.migration_timeout_s)
            expected = PublisherExpected(message.publisher, message.head, session=message.move)
            context.decide(expected)
        context.reply(reply_to, PublisherExpectReply(move=message.move))

    def _refusal(self, message: PublisherExpect, full: Rejected | None) -> Refusal | None:
        context = self._context
        if (unknown := stranger(context, message.head)) is not None:
            return unknown
        if message.fence != marker_key(message.move, message.head):
            return refusals.wrong_key(message.fence, message.move, "fence")
        if context.stopping:
            return refusals.stopping(context.config.head)
        others = sorted({arrival.head for arrival in self._arrivals.values()} - {message.head})
        if others:
            return refusals.expected_from(others[0])
        if len(self._arrivals) >= ARRIVALS_MAX:
            return refusals.limit("ARRIVALS_MAX", ARRIVALS_MAX)
        limit = context.config.publishers_max
        if len(context.registry.publishers) + len(self._arrivals) >= limit:
            return refusals.limit("publishers_max", limit)
        return None if full is None else refusals.rejected(full)

    def on_fence(self, event: FenceArrived) -> None:
        """What the publisher sent to the old head has passed here."""
        for move in sorted(self._arrivals):
            arrival = self._arrivals[move]
            if arrival.fence == event.key and not arrival.seen:
                arrival.seen = True
                self._settling_until_s = self._context.now + self._context.config.balancing.stabilizing_min_s
                self._moves.rest(arrival.publisher)
                message = FenceSeen(move=move, head=self._context.config.head)
                self._calls.ask(move, arrival.head, message)

    def _heard(self, move: str, answer: Answer) -> None:
        arrival = self._arrivals[move]
        if isinstance(answer, PublisherMoveAck):
            self._forget(arrival, ExpectationOutcome.FENCE_SEEN)
        elif answer is Silence.ABSENT:
            # Nobody lets the publisher go on here: it goes on there by itself.
            self._forget(arrival, ExpectationOutcome.HEAD_ABSENT)
        elif answer is Silence.LATE and arrival.seen:
            self._forget(arrival, ExpectationOutcome.NO_ANSWER)
        elif answer is Silence.LATE:
            self._context.do(UnwatchFence(arrival.head, arrival.fence))
            self._forget(arrival, ExpectationOutcome.NO_FENCE)
        # Anything else is no acknowledgement: the old head is told again by the timer.

    def _forget(self, arrival: _Arrival, outcome: ExpectationOutcome) -> None:
        del self._arrivals[arrival.move]
        self._calls.close(arrival.move)
        ended = ExpectationEnded(arrival.publisher, arrival.head, outcome, session=arrival.move)
        self._context.decide(ended)

    def validate(self) -> None:
        """Raise AssertionError if publishers are expected from more than one side."""
        assert len(self._arrivals) <= ARRIVALS_MAX
        assert len({arrival.head for arrival in self._arrivals.values()}) <= 1, "publishers from two heads"
        assert all(move in self._calls for move in self._arrivals), "a publisher is expected without end"
