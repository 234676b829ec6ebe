"""Nobody is given more than was predicted to fit, also not by several sessions together.

Seen from outside, in the messages of heads and edges: what a candidate said its load was, what running migrations
will add to it, what the source was offered, what it planned. Every policy keeps a target below the low threshold by
its own estimate, `random` too: a session that says itself that it will overload somebody is nonsense whoever asks. As
a last resort, said so in its request, a target is filled up further, but not into overload.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from tidegate_agents.machine import (
    Action,
    Event,
    HeadSampled,
    Reply,
    Send,
)
from tidegate_protocol.balancing.abroad import AcceptEnd, AcceptRequest, RemoteLoads
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import BalanceCandidates, BalancePlan, LoadReply, PlannedMove
from tidegate_protocol.decisions import AcceptanceEnded, Decision, MigrationEnded
from tidegate_protocol.messages import ControlMessage, OutputPrepare
from tidegate_simulator.observer import HEARD
from tidegate_simulator.scenario import FaultKind

from .base import Checker

if TYPE_CHECKING:
    from tidegate_simulator.world import World

LOW: Final = 0.90
"""The low threshold of every utilization (seed 000 Table III): who is above it can't take load."""
LAST_RESORT: Final = {"uplink": 0.99, "downlink": 0.95, "matching": 0.95}
"""The same as a last resort: what an uplink carries, less a little; the high thresholds of the others."""
ROUNDING: Final = 1e-6
SOMETHING_PER_S: Final = 1.0
"""In bytes: less than one message in any period."""


class PredictionsKept(Checker):
    """No move that its own prediction said would overload the target."""

    name = "predicted-overload"

    def __init__(self) -> None:
        super().__init__()
        self._offers: dict[str, dict[str, BrokerLoad]] = {}
        """Per session what the source was told about each candidate."""
        self._judged: set[str] = set()

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case Reply(message=BalanceCandidates() as offer):
                    self._offers[offer.session] = {one.load.broker: one.load for one in offer.candidates}
                case Send(message=BalancePlan() as plan) if plan.session not in self._judged:
                    self._judged.add(plan.session)
                    self._planned(plan, now)

    def _planned(self, plan: BalancePlan, now: float) -> None:
        offers = self._offers.get(plan.session, {})
        for target in sorted({move.target for move in plan.moves}):
            if target not in offers:
                self.report(now, f"{plan.edge} plans a move to {target}, which was not offered ({plan.session})")
                continue
            moves = [move for move in plan.moves if move.target == target]
            for what in overloads(offers[target], moves, last_resort=plan.reach.fills_up):
                self.report(now, f"{target} would be at {what} by the plan of {plan.session}")


class PromisesCounted(Checker):
    """What running migrations promised to a broker is part of the load that others see of it."""

    name = "promise-ignored"

    def __init__(self) -> None:
        super().__init__()
        self._replies: dict[tuple[str, str], BrokerLoad] = {}
        """What each candidate of each session said about its load."""
        self._planned: set[str] = set()
        """Sessions that have their plan: whoever repeats his question then gets the answer of before."""
        self._plans: dict[tuple[str, str, str], PlannedMove] = {}
        """Per head, subscriber and target the load of the move that was decided last."""
        self._running: dict[tuple[str, str, str], PlannedMove] = {}
        self._coming: dict[str, tuple[str, str, str]] = {}
        """The same for migrations that another head leads, by their ids."""
        self._published: dict[str, frozenset[tuple[str, str]]] = {}
        """Per head its own publishers that sent something in the last period, each with the topic."""
        self._drains: set[str] = set()
        """The markers of all moves that were begun."""

    def started(self, world: World) -> None:
        super().started(world)
        self._stops_s = {spec.name: spec.stops_s for spec in world.scenario.publishers if spec.stops_s is not None}
        self._crashes = sorted((f.at_s, f.target) for f in world.scenario.faults if f.kind is FaultKind.CRASH)

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        if isinstance(event, HEARD):
            self._heard(broker, event.message)
        for action in actions:
            match action:
                case Send(to=target, message=OutputPrepare(subscription=subscription, marker=marker)) if marker:
                    key = (broker, subscription.subscriber, target)
                    if key in self._plans:
                        self._running[key] = self._plans.pop(key)
                    elif marker not in self._drains and self._is_published(broker, subscription.pattern, now):
                        # An edge is drained, which needs no plan. How much the head expects of it is its own
                        # business, but something it is.
                        self._running[key] = PlannedMove(
                            subscriber=subscription.subscriber,
                            number=subscription.number,
                            target=target,
                            bytes_out_per_s=SOMETHING_PER_S,
                        )
                    # When it is asked again, more may be known about the topic than when the promise was made.
                    self._drains.add(marker)
                case Reply(message=BalanceCandidates() | RemoteLoads() as offer):
                    self._offered(broker, offer, now)

    def head_sampled(self, head: str, sample: HeadSampled, now: float) -> None:
        publishing = [one for one in sample.publishers if one.messages_per_s > 0.0]
        self._published[head] = frozenset((one.publisher.partition("~")[0], one.topic) for one in publishing)

    def _is_published(self, head: str, topic: str, now: float) -> bool:
        """Whether somebody publishes on this topic at this head. Of one who has stopped it may expect nothing."""
        known = self._published.get(head, ())
        return any(one == topic and self._stops_s.get(publisher, inf) > now for publisher, one in known)

    def _heard(self, broker: str, message: ControlMessage) -> None:
        match message:
            case LoadReply(session=session, load=load):
                self._replies[session, load.broker] = load
            case BalancePlan(session=session, moves=moves):
                self._planned.add(session)
                self._plans |= {(broker, move.subscriber, move.target): move for move in moves}
            case AcceptRequest(load=move, migration=migration):
                self._plans[broker, move.subscriber, move.target] = move
                self._coming[migration] = (broker, move.subscriber, move.target)
            case AcceptEnd(migration=migration) if migration in self._coming:
                self._running.pop(self._coming.pop(migration), None)

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        match decision:
            case MigrationEnded(subscriber=subscriber, target=edge) | AcceptanceEnded(subscriber=subscriber, edge=edge):
                self._running.pop((broker, subscriber, edge), None)

    def _offered(self, head: str, offer: BalanceCandidates | RemoteLoads, now: float) -> None:
        while self._crashes and self._crashes[0][0] <= now:
            # What a head promised before it crashed it can't know any more: state is soft.
            _, crashed = self._crashes.pop(0)
            self._running = {key: move for key, move in self._running.items() if key[0] != crashed}
        for candidate in offer.candidates if offer.session not in self._planned else ():
            told = self._replies.get((offer.session, candidate.load.broker))
            promised = [
                move
                for (at, _, target), move in sorted(self._running.items())
                if (at, target) == (head, candidate.load.broker)
            ]
            if told is None or not promised:
                continue
            expected = told.bytes_offered_per_s + sum(move.bytes_out_per_s for move in promised)
            if candidate.load.bytes_offered_per_s < expected * (1.0 - ROUNDING):
                text = f"{candidate.load.broker} is offered with {candidate.load.bytes_offered_per_s:.0f} bytes/s"
                self.report(now, f"{text}, although {expected:.0f} are promised or there ({offer.session})")


def overloads(load: BrokerLoad, moves: list[PlannedMove], *, last_resort: bool = False) -> list[str]:
    """The metrics of a broker that these moves would push past the low threshold, or into overload."""
    capacity = load.capacity
    found = []
    for name, present, added, limit in (
        ("uplink", load.bytes_offered_per_s, sum(m.bytes_out_per_s for m in moves), capacity.uplink_bytes_per_s),
        ("downlink", load.bytes_in_per_s, sum(m.bytes_in_per_s for m in moves), capacity.downlink_bytes_per_s),
        ("matching", load.messages_in_per_s, sum(m.messages_in_per_s for m in moves), capacity.matching_per_s),
    ):
        share = LAST_RESORT[name] if last_resort else LOW
        if limit is not None and added > 0.0 and present + added > share * limit * (1.0 + ROUNDING):
            found.append(f"{(present + added) / limit:.2f} of its {name}")
    return found
