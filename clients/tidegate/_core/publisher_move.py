"""How a publisher goes from one head to another with its order kept, and how it is slowed down.

    order → connect to the new head → pause → everything confirmed → report paused
          → the heads see to it that all of it has passed → resume, moved → publish at the new head

Invariants:

- nothing is written to the new head before a resume that says `moved`, and the machine heeds that only while it is
  paused with nothing in flight. So everything that the old head got has passed the new head before the first message is
  written there, and each topic keeps its order;
- on every other event (time-out, no connection, a lost connection, a resume that says "not moved") the publisher goes
  on at its old head. The client alone decides which head it is, and says the same whenever it is asked;
- one move at a time; an order that comes meanwhile is declined.

A `Throttle` limits the rate of publications for as long as an order of the head says. The machine knows neither
connections nor publications: the window numbers and fills while the publisher pauses. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tidegate_protocol.balancing.publishers import (
    PublisherMoveAck,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
    ThrottleOrder,
)
from tidegate_protocol.messages import ControlMessage, Refusal
from tidegate_protocol.parts import RefusalReason

from .moves import (
    Answer,
    Answered,
    CancelTimer,
    ChangeHead,
    ClosedByApplication,
    ConnectNewHead,
    DropNewHead,
    HeadLost,
    LeaveHead,
    NewHeadConnected,
    NewHeadLost,
    Ordered,
    PausePublishing,
    PublisherAction,
    PublisherEvent,
    ResumePublishing,
    SetTimer,
    TimerFired,
    WindowEmptied,
)
from .reports import Outcomes, Reports

MOVE: Final = "move"
REPORT: Final = "publisher-report:"
WAIT_MIN_S: Final = 1e-6
"""The shortest wait. Less, added to a time, may be lost in rounding, and the machine would be asked for ever."""
THROTTLE_BURST_S: Final = 0.1
"""A throttled publisher may be ahead of its rate by what it allows in this time, so that batches stay possible."""

Actions = list[PublisherAction]


class Throttle:
    """A rate for some time: a bucket that is known by the moment at which it will be full again."""

    __slots__ = ("_full_at", "_interval_s", "_until")

    def __init__(self) -> None:
        self._interval_s = 0.0
        self._until = float("-inf")
        self._full_at = float("-inf")

    def limit(self, messages_per_s: float, for_s: float, now: float) -> None:
        """Keep to this rate from now on, instead of any other; what was sent already still counts."""
        self._interval_s = 1.0 / messages_per_s
        self._until = now + for_s

    def active(self, now: float) -> bool:
        return now < self._until

    def take(self, now: float) -> float:
        """0 if one message may be sent now (it is counted), otherwise in how many seconds to ask again."""
        if now >= self._until:
            return 0.0
        full_at = max(self._full_at, now)
        # At least one message always fits into an empty bucket, however low the rate.
        wait_s = full_at - now - THROTTLE_BURST_S
        if wait_s > WAIT_MIN_S:
            return min(wait_s, self._until - now)
        self._full_at = full_at + self._interval_s
        return 0.0


class _Step(Enum):
    CONNECTING = "connecting"
    PAUSING = "pausing"
    PAUSED = "paused"


@dataclass(slots=True)
class _PublisherMove:
    order: PublisherMoveOrder
    head_url: str
    """The old head, which hears the reports."""
    step: _Step = _Step.CONNECTING

    @property
    def stage(self) -> PublisherStage:
        return PublisherStage.PAUSED if self.step is _Step.PAUSED else PublisherStage.ORDERED


class PublisherMoveMachine:
    """Where a publisher publishes. `handle` events and carry out the actions; write to the channel only while not
    `paused`, and only as fast as `throttle.take` allows.
    """

    def __init__(self, publisher: str) -> None:
        self.publisher = publisher
        self.head_url = ""
        """The head it publishes at; empty for the one it was given at its start."""
        self.paused = False
        self.closed = False
        self.throttle = Throttle()
        self._move: _PublisherMove | None = None
        self._reports = Reports()
        self._outcomes: Outcomes[PublisherMoveReport] = Outcomes()

    @property
    def moving(self) -> bool:
        return self._move is not None

    def handle(self, event: PublisherEvent, now: float) -> Actions:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        match event:
            case Ordered(message, reply_to):
                return self._ordered(message, reply_to, now)
            case _ if self.closed:
                return []
            case Answered(key, PublisherMoveAck()):
                return self._settled(key)
            case Answered():
                # A refusal, or nonsense: the report is repeated.
                return []
            case TimerFired(name):
                return self._fired(name)
            case NewHeadConnected(move):
                return self._connected(move)
            case NewHeadLost(move, problem):
                if self._move is None or self._move.order.move != move:
                    return []
                return self._stay(f"the new head can't be reached: {problem}"[:200])
            case WindowEmptied():
                return self._emptied()
            case HeadLost():
                # What was in flight is unconfirmed and has to be sent again where it was sent; once everything is
                # confirmed the old connection is of no more use.
                if self._move is None or self._move.step is _Step.PAUSED:
                    return []
                return self._stay("the connection to the old head was lost")
            case ClosedByApplication():
                return self._close()

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        move = self._move
        assert self.paused == (move is not None and move.step is not _Step.CONNECTING)
        assert move is None or not self.closed
        assert move is None or move.order.move not in self._outcomes
        self._reports.validate()

    def _ordered(self, message: ControlMessage, reply_to: Any, now: float) -> Actions:
        match message:
            case ThrottleOrder() if message.publisher == self.publisher and not self.closed:
                self.throttle.limit(message.messages_per_s, message.for_us / 1e6, now)
                return []
            case PublisherMoveOrder() if message.publisher == self.publisher and not self.closed:
                return self._order(message, reply_to)
            case PublisherResume() if message.publisher == self.publisher and not self.closed:
                return self._resume(message, reply_to)
        text = f"no publisher here that {message.kind} could be meant for"
        return self._answer(reply_to, Refusal(reason=RefusalReason.UNKNOWN, message=text))

    def _order(self, order: PublisherMoveOrder, reply_to: Any) -> Actions:
        move, outcome = self._move, self._outcomes.get(order.move)
        if outcome is not None:
            return self._answer(reply_to, outcome)
        if move is not None and move.order.move == order.move:
            return self._answer(reply_to, self._report(order.move, move.stage))
        if move is not None:
            declined = self._report(order.move, PublisherStage.STAYED, f"{move.order.move} is under way")
            self._outcomes.remember(order.move, declined)
            return self._answer(reply_to, declined)
        if order.url == self.head_url:
            return self._answer(reply_to, self._report(order.move, PublisherStage.MOVED, "it publishes there already"))
        self._move = _PublisherMove(order, self.head_url)
        return [
            *self._answer(reply_to, self._report(order.move, PublisherStage.ORDERED)),
            SetTimer(MOVE, order.timeout_us / 1e6),
            ConnectNewHead(order.move, order.head, order.url),
        ]

    def _connected(self, move_id: str) -> Actions:
        move = self._move
        if move is None or move.order.move != move_id or move.step is not _Step.CONNECTING:
            return []
        move.step = _Step.PAUSING
        self.paused = True
        return [PausePublishing()]

    def _emptied(self) -> Actions:
        move = self._move
        if move is None or move.step is not _Step.PAUSING:
            return []
        move.step = _Step.PAUSED
        report = self._report(move.order.move, PublisherStage.PAUSED)
        return [*self._reports.start(_key(report), report, move.head_url)]

    def _resume(self, resume: PublisherResume, reply_to: Any) -> Actions:
        move, outcome = self._move, self._outcomes.get(resume.move)
        if outcome is not None:
            return self._answer(reply_to, outcome)
        if move is None or move.order.move != resume.move:
            # Remembered, so that the order, should it be on its way still, starts nothing.
            unknown = self._report(resume.move, PublisherStage.STAYED, "no such move is under way")
            self._outcomes.remember(resume.move, unknown)
            return self._answer(reply_to, unknown)
        if resume.moved and move.step is _Step.PAUSED:
            actions = self._go(move)
        else:
            actions = self._stay("told to stay" if not resume.moved else "told to go on before it had paused")
        final = self._outcomes.get(resume.move)
        assert final is not None
        return [*actions, *self._answer(reply_to, final)]

    def _go(self, move: _PublisherMove) -> Actions:
        actions = self._end(move, PublisherStage.MOVED, "")
        self.head_url = move.order.url
        return [ResumePublishing(moved=True), ChangeHead(move.order.head, move.order.url), *actions]

    def _stay(self, reason: str) -> Actions:
        move, paused = self._move, self.paused
        assert move is not None
        actions = self._end(move, PublisherStage.STAYED, reason)
        resume: Actions = [ResumePublishing(moved=False)] if paused else []
        return [*resume, DropNewHead(move.order.move), *actions]

    def _end(self, move: _PublisherMove, stage: PublisherStage, reason: str) -> Actions:
        report = self._report(move.order.move, stage, reason)
        self._outcomes.remember(move.order.move, report)
        self._move = None
        self.paused = False
        overtaken = self._reports.drop(_key(self._report(move.order.move, PublisherStage.PAUSED)))
        return [CancelTimer(MOVE), *overtaken, *self._reports.start(_key(report), report, move.head_url)]

    def _fired(self, name: str) -> Actions:
        if name == MOVE and self._move is not None:
            return self._stay("it took too long")
        if name not in self._reports:
            return []
        head_url = self._reports.head_url(name)
        actions: Actions = [*self._reports.fired(name)]
        return actions + self._leave(head_url) if name not in self._reports else actions

    def _settled(self, key: str) -> Actions:
        if key not in self._reports:
            return []
        head_url = self._reports.head_url(key)
        return [*self._reports.drop(key), *self._leave(head_url)]

    def _leave(self, head_url: str) -> Actions:
        """Nothing more to say there; if it is not our head any more, nothing to hear either."""
        running = self._move is not None and self._move.head_url == head_url
        if head_url == self.head_url or running or self._reports.owes(head_url):
            return []
        return [LeaveHead(head_url)]

    def _close(self) -> Actions:
        self.closed = True
        self.paused = False
        move, self._move = self._move, None
        dropped: Actions = [CancelTimer(MOVE), DropNewHead(move.order.move)] if move is not None else []
        return [*dropped, *self._reports.clear()]

    def _report(self, move: str, stage: PublisherStage, reason: str = "") -> PublisherMoveReport:
        return PublisherMoveReport(move=move, publisher=self.publisher, stage=stage, reason=reason)

    def _answer(self, reply_to: Any, message: ControlMessage) -> Actions:
        return [] if reply_to is None else [Answer(reply_to, message)]


def _key(report: PublisherMoveReport) -> str:
    return f"{REPORT}{report.move}:{report.stage}"
