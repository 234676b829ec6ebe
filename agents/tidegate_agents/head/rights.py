"""What the rules allow, at a head: it grants no subscription that its account may not have, and ends those it lost.

The judgement itself is `tidegate_protocol.rights`. Edges judge as well, by rules of their own: neither depends on the
other. Invariants:

- a client that asks for what it may not have is refused, with the pattern, the rules and the remedy, and is not told to
  ask again;
- new rules end at once what they don't allow: whoever waits for such a subscription is refused, its moves are rolled
  back, and its places are discarded, so that they are removed again and again until they are gone;
- no other subscription is touched;
- a client can't fill the record of decisions by asking: a refusal is recorded once for each subscription until the
  rules change, and at most `FORBIDDEN_PER_PERIOD_MAX` times in a period.
"""

from __future__ import annotations

from typing import Final

from tidegate_protocol.decisions import RulesTaken, SubscriptionForbidden, SubscriptionRevoked
from tidegate_protocol.messages import SubscribeRequest
from tidegate_protocol.rendering import refusals
from tidegate_protocol.rights import may_subscribe

from ..kit.dispatch import Dispatch
from ..kit.memory import Recent
from ..machine import ReplyAddress, RulesSeen
from .context import HeadContext
from .moving.migrations import Migrations
from .places.allocation import Allocations
from .places.doubts import Doubts
from .places.removals import Removals
from .registry import Client, client_of

FORBIDDEN_PER_PERIOD_MAX: Final = 10
FORBIDDEN_REMEMBERED_MAX: Final = 1_000


class Rights:
    """Goes by the rules of one head."""

    def __init__(
        self,
        context: HeadContext,
        allocations: Allocations,
        migrations: Migrations,
        doubts: Doubts,
        removals: Removals,
    ) -> None:
        self._context = context
        self._allocations = allocations
        self._migrations = migrations
        self._doubts = doubts
        self._removals = removals
        self._recorded: Recent[Client, bool] = Recent(FORBIDDEN_REMEMBERED_MAX)
        self._recorded_now = 0
        """Refusals recorded in this period."""
        self._revoked: set[Client] = set()
        """Clients that have lost their right, until all their places are gone."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(RulesSeen, self._take)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    def refused(self, request: SubscribeRequest, reply_to: ReplyAddress | None) -> bool:
        """Whether the client may not have what it asks for, and was told so."""
        judgement = may_subscribe(request.subscriber, request.pattern, self._context.rules)
        if judgement.allowed:
            return False
        self._context.refuse(reply_to, refusals.not_allowed(judgement))
        client = (request.subscriber, request.pattern)
        if client not in self._recorded and self._recorded_now < FORBIDDEN_PER_PERIOD_MAX:
            self._recorded[client] = True
            self._recorded_now += 1
            self._context.decide(SubscriptionForbidden(*client, judgement.verdict))
        return True

    def _take(self, event: RulesSeen) -> None:
        context = self._context
        context.rules = event.rules
        self._recorded.clear()
        self._revoked.clear()
        clients = sorted({client_of(subscription) for _, subscription in context.registry})
        ended = sum(self._revoke(client) for client in clients)
        context.decide(RulesTaken(context.config.head, len(event.rules), ended))

    def _revoke(self, client: Client) -> int:
        """End the subscription of this client, if the rules don't allow it; say how many places that are."""
        context = self._context
        judgement = may_subscribe(*client, context.rules)
        if judgement.allowed:
            return 0
        self._allocations.forbid(client, refusals.not_allowed(judgement))
        self._migrations.unsubscribed(*client)
        self._doubts.unsubscribed(*client)
        context.ledger.left(client)
        places = [place for place in context.ledger.places(client) if not context.ledger.is_leaving(place)]
        for place in places:
            self._removals.discard(place)
            context.decide(SubscriptionRevoked(*client, place[0], judgement.verdict))
        self._revoked.add(client)
        return len(places)

    def _tick(self) -> None:
        """Every period: end what came back, such as a place that was being made when its right was revoked."""
        self._recorded_now = 0
        for client in sorted(self._revoked):
            if self._context.ledger.places(client):
                self._revoke(client)
            else:
                self._revoked.discard(client)

    def validate(self) -> None:
        """Raise AssertionError if a client that may have its subscription is kept from it."""
        for client in self._revoked:
            assert not may_subscribe(*client, self._context.rules).allowed, client
