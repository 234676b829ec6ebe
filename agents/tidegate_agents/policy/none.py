"""The policy `none`: subscriptions are placed as by `peer-wd`, and nothing is ever moved. To compare with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import PlanOutcome

from .interface import LoadView, Selection, Trigger
from .peer_wd import PeerWdPolicy


class NonePolicy(PeerWdPolicy):
    """Watches and does nothing."""

    name = "none"

    def detect(self, view: LoadView) -> Trigger | None:
        return None

    def rank(self, trigger: Trigger, candidates: Iterable[Candidate], *, session: str = "") -> tuple[Candidate, ...]:
        return ()

    def select(
        self,
        view: LoadView,
        trigger: Trigger,
        candidates: Sequence[Candidate],
        *,
        resting: Collection[str] = frozenset(),
        session: str = "",
    ) -> Selection:
        return Selection((), PlanOutcome.POLICY_NONE)
