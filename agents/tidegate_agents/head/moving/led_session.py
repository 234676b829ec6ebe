"""One load-balancing session as the head that leads it keeps it: how far it is, and how far it looks for help."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import BalanceCandidates, BalanceRequest, Candidate
from tidegate_protocol.decisions import Reach, Rejected

from ...machine import ReplyAddress


class LedPhase(StrEnum):
    """Where a session is, as the head sees it."""

    ASKING = "asking"
    PLANNING = "planning"
    MOVING = "moving"


@dataclass(slots=True)
class LedSession:
    """What its source asked for, who has answered, who takes part, and what came of it."""

    request: BalanceRequest
    started_s: float
    phase: LedPhase = LedPhase.ASKING
    replies: list[ReplyAddress] = field(default_factory=list)
    remote_due: bool = False
    loads: dict[str, BrokerLoad] = field(default_factory=dict)
    rejected: dict[str, Rejected] = field(default_factory=dict)
    occupied: set[str] = field(default_factory=set)
    """The edges that the source asked for as a last resort and that are busy; a patient session waits for them."""
    remote: tuple[Candidate, ...] = ()
    offered: BalanceCandidates | None = None
    brokers: set[str] = field(default_factory=set)
    """Our own edges that are part of it: the source, and every edge that may become or is a target."""
    accepted: int = 0
    left: set[str] = field(default_factory=set)
    """Migrations that have not ended."""
    moved: int = 0
    failed: int = 0
    moved_s: float | None = None
    """When the last client that moved had moved."""

    @property
    def id(self) -> str:
        return self.request.session

    @property
    def source(self) -> str:
        return self.request.edge

    @property
    def patient(self) -> bool:
        return self.request.reach is Reach.OCCUPIED
