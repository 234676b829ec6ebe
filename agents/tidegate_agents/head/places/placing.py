"""Where a subscription that needs a place goes: which edges can take it, and which of them the policy chooses.

Invariant: an edge whose RabbitMQ has raised an alarm is passed over as long as another one can take the subscription.
The reason is named for every edge that is passed over. The part that asks makes the place; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate_protocol.decisions import Rejected, Rejection

from ...policy import policy_named
from ...policy.placement import ExpectedLoad, Placement
from ..context import HeadContext
from ..edges import Edges
from ..insights import Insights
from ..publishers.streams import Publishers


class Placing:
    """Chooses edges by the policy of this cluster."""

    def __init__(self, context: HeadContext, edges: Edges, insights: Insights, publishers: Publishers) -> None:
        self._context = context
        self._edges = edges
        self._insights = insights
        self._publishers = publishers
        self._policy = policy_named(context.config.balancing.policy, context.config.balancing.seed)

    def expected(self, pattern: str) -> ExpectedLoad | None:
        """What the publications matching `pattern` amount to; None where nobody knows."""
        return self._publishers.expected().get(pattern)

    def place(
        self, pattern: str, subscriber: str, *, tried: Mapping[str, Rejected] | None = None, leaving: str = ""
    ) -> tuple[Placement | None, tuple[Rejected, ...]]:
        """An edge for this subscription, or none; and the edges that can't take it, with those `tried` before.

        `leaving` is the edge that it is to leave, which is not considered.
        """
        edges, excluded, fit = self._context.registry.edges, dict(tried or {}), []
        for name in sorted(edges.keys() - excluded.keys() - {leaving}):
            why_not = self._edges.unfit(name, pattern)
            if why_not is None:
                fit.append(edges[name])
            else:
                excluded[name] = why_not
        healthy = [record for record in fit if not record.alarms]
        for record in [record for record in fit if healthy and record.alarms]:
            excluded[record.name] = Rejected(record.name, Rejection.ALARM, detail=", ".join(record.alarms))
        rejected = tuple(excluded.values())
        placement = self._insights.place(
            self._policy,
            pattern,
            [record.view() for record in healthy or fit],
            expected=self._publishers.expected(),
            excluded=rejected,
            subject=subscriber,
        )
        return placement, rejected
