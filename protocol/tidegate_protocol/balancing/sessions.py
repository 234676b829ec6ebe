"""Sessions: an overloaded edge asks for candidates, says what it decided, and hears how it ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from ..decisions import Cause, PlanOutcome, Reach
from ..parts import Id, Message, Metric, Micros, Name, Number, Part, Pattern, Rate
from .loads import BrokerLoad

CANDIDATES_MAX: Final = 64
"""Candidates asked for, and offered, in one session."""
MOVES_PER_SESSION_MAX: Final = 1_000
SHARED_PATTERNS_MAX: Final = 5_000


class BalanceRequest(Message):
    """An overloaded edge asks for help. `metric` is what is overloaded, `candidates` whom it knows to be LOW."""

    kind: Literal["balance-request"] = "balance-request"
    session: Id
    edge: Name
    metric: Metric
    cause: Cause | None = None
    patterns: Annotated[tuple[Pattern, ...], Field(max_length=SHARED_PATTERNS_MAX)] = ()
    """The patterns it might give away; if there are too many, the ones it would give away first."""
    candidates: Annotated[tuple[Name, ...], Field(max_length=CANDIDATES_MAX)] = ()
    fallbacks: Annotated[tuple[Name, ...], Field(max_length=CANDIDATES_MAX)] = ()
    """If it is urgent: whom it would ask as a last resort. Where there is no other cluster to be asked before, they are
    asked along, to save a round of questions."""
    reach: Reach = Reach.HERE
    """How far it looks for help by now."""


class LoadRequest(Message):
    kind: Literal["load-request"] = "load-request"
    session: Id


class LoadReply(Message):
    kind: Literal["load-reply"] = "load-reply"
    session: Id
    load: BrokerLoad


class Candidate(Part):
    """A broker that may take load. The promises of running migrations are part of its load already."""

    cluster: Name
    head: Name
    load: BrokerLoad
    patterns: tuple[Pattern, ...] = ()
    """The patterns of the source that this broker carries already."""
    extra_path_us: Micros = 0
    """How much longer the way to it is than to the source, for a candidate in another cluster."""


class BalanceCandidates(Message):
    kind: Literal["balance-candidates"] = "balance-candidates"
    session: Id
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=CANDIDATES_MAX)] = ()
    resting: tuple[Id, ...] = ()
    """Queues on the source whose subscription was moved too recently to be moved again."""
    occupied: Annotated[tuple[Name, ...], Field(max_length=CANDIDATES_MAX)] = ()
    """As a last resort: brokers asked for that are in another session, or stabilize after one."""
    fallbacks_asked: bool = False
    """Whether the fallbacks of the request were asked, too."""


class PlannedMove(Part):
    """One subscription to be moved, and the load that goes with it."""

    subscriber: Name
    number: Number
    target: Name
    bytes_in_per_s: Rate = 0.0
    bytes_out_per_s: Rate = 0.0
    messages_in_per_s: Rate = 0.0


class BalancePlan(Message):
    """What the source decided. No moves: it found none that would help, and `outcome` says why."""

    kind: Literal["balance-plan"] = "balance-plan"
    session: Id
    edge: Name
    moves: Annotated[tuple[PlannedMove, ...], Field(max_length=MOVES_PER_SESSION_MAX)] = ()
    outcome: PlanOutcome
    reach: Reach = Reach.HERE
    """How far the source has looked: as a last resort, candidates are filled up beyond LOW."""


class BalanceAccepted(Message):
    kind: Literal["balance-accepted"] = "balance-accepted"
    session: Id
    moves: int


class SessionPhase(StrEnum):
    STARTED = "started"
    ENDED = "ended"


class SessionNotice(Message):
    """Tells the brokers of a session that it begins and ends. `moved` and `failed` count migrations; its source learns
    from `duration_us` how long it took until the load had moved: until the last client that moved.
    """

    kind: Literal["session-notice"] = "session-notice"
    session: Id
    phase: SessionPhase
    source: Name
    moved: int = 0
    failed: int = 0
    duration_us: Micros = 0


SessionMessage = (
    BalanceRequest | LoadRequest | LoadReply | BalanceCandidates | BalancePlan | BalanceAccepted | SessionNotice
)
"""The part of the union `messages.ControlMessage` that this module defines."""
