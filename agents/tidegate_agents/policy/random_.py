"""The policy `random`: detection as by `peer-wd`, but place, target and clients are drawn by lot. To compare with.

The lot is a hash of the seed and of what is drawn for, so that a run can be repeated: a policy has no randomness of
its own. No target is overrun, because a session that says so itself would be refused by any head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Unpack

from tidegate_protocol.balancing.sessions import MOVES_PER_SESSION_MAX, Candidate
from tidegate_protocol.decisions import Placed, PlacementReason

from .bundles import subscriber_bundle
from .interface import LoadView, Selection, Trigger
from .peer_wd import NOTHING_HELPS, PeerWdPolicy
from .placement import EdgeView, Known, Placement
from .selecting import Selecting


class RandomPolicy(PeerWdPolicy):
    """`peer-wd` without its reasons."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    name = "random"

    def rank(self, trigger: Trigger, candidates: Iterable[Candidate], *, session: str = "") -> tuple[Candidate, ...]:
        return tuple(sorted(candidates, key=lambda c: (self._lot(session, c.load.broker), c.load.broker)))

    def select(
        self,
        view: LoadView,
        trigger: Trigger,
        candidates: Sequence[Candidate],
        *,
        resting: Collection[str] = frozenset(),
        session: str = "",
    ) -> Selection:
        """One subscription after another, bundles or not, until the source is predicted out of OVERLOAD."""
        chosen = Selecting(view, trigger.metric, candidates, self.limits, moves_max=MOVES_PER_SESSION_MAX)
        chosen.note_left_out(resting)
        movable = [queue for queue in view.judged if queue.name not in resting]
        for queue in sorted(movable, key=lambda q: (self._lot(session, q.name), q.name)):
            if chosen.done:
                break
            chosen.try_whole(subscriber_bundle([queue], chosen.overloaded))
        return chosen.selection(NOTHING_HELPS)

    def place(self, pattern: str, edges: Iterable[EdgeView], **known: Unpack[Known]) -> Placement | None:
        names = sorted(view.name for view in edges)
        if not names:
            return None
        chosen = names[self._lot(pattern, known.get("subject", "")) % len(names)]
        rejected = tuple(known.get("excluded", ()))
        return Placement(chosen, Placed(pattern, PlacementReason.BY_LOT, chosen, rejected=rejected))

    def _lot(self, *drawn_for: str) -> int:
        text = "\x00".join((str(self._seed), *drawn_for))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
