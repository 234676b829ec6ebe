"""An edge's part of the answers to operators: its load, its queues, its decisions, and whom it would move now.

What always holds: nothing is changed by being asked. A rehearsal goes the way of a session, with the same policy on the
same figures, and stops where a session would send its plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegate_protocol.balancing import Candidate
from tidegate_protocol.messages import LoadState
from tidegate_protocol.operations import (
    CULPRITS_TOLD_MAX,
    SUBSCRIPTIONS_TOLD_MAX,
    Culprit,
    InspectReply,
    InspectRequest,
    QueueState,
    Rehearsal,
    RehearseReply,
    RehearseRequest,
)

from .balancing import EdgeBalancing, planned_moves
from .detector import Detector
from .edge_context import EdgeContext
from .machine import Decision, ReplyAddress
from .metrics import Metric
from .operations_parts import (
    alarm_decision,
    closest_queue,
    concerns_broker,
    concerns_subscriber,
    edge_state,
    queue_state,
)
from .operations_story import REJECTED_TOLD_MAX, Dated, bounded, told
from .pie import PieTable
from .policy import LoadView, Policy, Selection, Trigger

REHEARSAL: Final = "rehearsal"
"""What stands for a session where a policy asks for one."""
MOVES_TOLD_MAX: Final = 200


class EdgeOperations:
    """Answers about one edge."""

    def __init__(
        self, context: EdgeContext, detector: Detector, balancing: EdgeBalancing, policy: Policy, peers: PieTable
    ) -> None:
        self._context = context
        self._detector = detector
        self._balancing = balancing
        self._policy = policy
        self._peers = peers

    def alarms_seen(self, raised: tuple[str, ...]) -> None:
        """While an alarm is raised nothing gets through the link to this edge: it takes no load."""
        context = self._context
        decision = alarm_decision(context.config.edge, context.alarms, raised)
        context.alarms = raised
        if decision is not None:
            context.decide(decision)

    # Inspecting

    def inspect(self, message: InspectRequest, reply_to: ReplyAddress | None) -> None:
        context, detector = self._context, self._detector
        edge, now = context.config.edge, context.now
        state = self._balancing.reported_state
        found = self._wanted(message)
        decisions, cut = bounded([told(edge, dated, now) for dated in found])
        reply = InspectReply(
            state=edge_state(detector, self._policy.limits, state, self._doing, message.queues, context.alarms),
            load=detector.load(state, busy=self._balancing.busy),
            decisions=decisions,
            cut=cut + context.chronicle.dropped(message.session),
            queues=self._queues(message, found),
            culprits=self._culprits(),
        )
        context.reply([reply_to], reply)

    @property
    def _doing(self) -> str:
        context = self._context
        if context.draining:
            return "being drained: takes nothing new"
        return self._balancing.doing

    def _wanted(self, message: InspectRequest) -> list[Dated]:
        chronicle = self._context.chronicle
        if message.session:
            return chronicle.around_session(message.session)
        if message.subscriber:
            wanted = message.subscriber
            return chronicle.matching(lambda decision: concerns_subscriber(decision, wanted), message.latest)
        if message.broker and message.broker != self._context.config.edge:
            other = message.broker
            return chronicle.matching(lambda decision: concerns_broker(decision, other), message.latest)
        return chronicle.matching(lambda decision: True, message.latest)

    def _queues(self, message: InspectRequest, found: list[Dated]) -> tuple[QueueState, ...]:
        """The subscriptions of the subscriber asked about, or those that a session was about."""
        queues = self._detector.view({}).queues
        if message.subscriber:
            names = {queue.name for queue in queues if queue.subscriber == message.subscriber}
        else:
            names = {name for dated in found if dated.decision.session for name in _queues_named(dated.decision)}
        infeasible = self._detector.infeasible
        told_queues = [
            queue_state(self._context.config.edge, queue, infeasible=queue.name in infeasible)
            for queue in queues
            if queue.name in names
        ]
        return tuple(told_queues[:SUBSCRIPTIONS_TOLD_MAX])

    def _culprits(self) -> tuple[Culprit, ...]:
        """The subscribers that are too slow, with what was found about them and how they are doing now."""
        context, found = self._context, []
        for name in sorted(self._detector.slow)[:CULPRITS_TOLD_MAX]:
            queue = self._detector.queue(name)
            named = context.chronicle.last(lambda d, name=name: d.kind == "slow-subscriber" and d.subject == name)  # type: ignore[misc]
            if queue is None:
                continue
            numbers = {
                "enqueue_per_s": queue.enqueue_per_s,
                "drain_per_s": queue.drain_per_s,
                "depth": queue.depth,
                "messages_max": float(context.config.balancing.slow_subscriber_messages_max),
            }
            found.append(
                Culprit(
                    what="slow-subscriber",
                    client=queue.subscriber,
                    broker=context.config.edge,
                    ago_us=0 if named is None else round(max(context.now - named.at_s, 0.0) * 1e6),
                    text=f"{queue.pattern}: {named.decision.reason if named is not None else 'too slow'}",
                    numbers=numbers,
                )
            )
        return tuple(found)

    # Rehearsing

    def rehearse(self, message: RehearseRequest, reply_to: ReplyAddress | None) -> None:
        peers = self._peers.fresh(self._context.now)
        peers.pop(self._context.config.head, None)
        view = self._detector.view(peers)
        trigger = self._policy.detect(view) if self._detector.samples else None
        if trigger is None:
            rehearsal = self._rehearsal(view, reason=self._why_nothing(view))
        else:
            rehearsal = self._rehearse(view, trigger, message)
        self._context.reply([reply_to], RehearseReply(rehearsal=rehearsal))

    def _rehearsal(self, view: LoadView, **values: object) -> Rehearsal:
        edge = self._context.config.edge
        closest = closest_queue(view.queues)
        return Rehearsal.model_validate(
            {
                "edge": edge,
                "state": self._balancing.reported_state,
                "blocked": self._blocked,
                "closest": None if closest is None else queue_state(edge, closest, infeasible=False),
                **values,
            }
        )

    @property
    def _blocked(self) -> str:
        """Why no session would be started now, whatever the load is."""
        if self._context.stopping:
            return "its process is being stopped"
        if self._context.draining:
            return "it is being drained"
        if self._context.paused:
            return "an operator has paused balancing"
        return self._balancing.doing

    def _why_nothing(self, view: LoadView) -> str:
        if self._detector.samples == 0:
            return "its load has not been sampled yet"
        if self._policy.name == "none":
            return "the policy is none: nobody is ever moved"
        if view.assessment.state is not LoadState.OVERLOAD:
            return "no subscription is predicted to miss its deadline, and no static threshold is passed"
        worst = view.assessment.overloads[0].text
        if not view.uplink_limits:
            return f"{worst}, but its uplink has room: nobody who leaves would make that queue drain faster"
        return f"{worst}, but the backlog is being worked off in time"

    def _rehearse(self, view: LoadView, trigger: Trigger, message: RehearseRequest) -> Rehearsal:
        resting = frozenset(message.resting)
        selection = self._select(view, trigger, message.candidates, resting)
        plan = selection.reason
        if trigger.lacks(selection):
            plan = f"{plan} in this cluster: its neighbours would be asked"
            if trigger.fallbacks:
                trigger = replace(trigger, last_resort=True)
                last = self._select(view, trigger, message.candidates, resting)
                if last.moves:
                    selection, plan = last, f"{plan}; if they had no room either, as a last resort {last.reason}"
        moves = planned_moves(selection, self._detector)
        rejected = {**trigger.rejected, **message.unfit, **selection.rejected}
        return self._rehearsal(
            view,
            due=True,
            metric=str(trigger.metric),
            reason=trigger.reason[:1_000],
            plan=plan[:1_000],
            relieved=selection.relieved,
            moves=moves[:MOVES_TOLD_MAX],
            numbers={**trigger.numbers, **selection.numbers},
            rejected=dict(list(rejected.items())[:REJECTED_TOLD_MAX]),
        )

    def _select(
        self, view: LoadView, trigger: Trigger, candidates: tuple[Candidate, ...], resting: frozenset[str]
    ) -> Selection:
        asked = trigger.fallbacks if trigger.last_resort else trigger.candidates
        able = (LoadState.LOW, LoadState.HIGH) if trigger.last_resort else (LoadState.LOW,)
        offered = [c for c in candidates if c.load.broker in asked and c.load.state in able and not c.load.busy]
        ranked = self._policy.rank(trigger, offered, session=REHEARSAL)
        return self._policy.select(view, trigger, ranked, resting=resting, session=REHEARSAL)


def _queues_named(decision: Decision) -> list[str]:
    """The queues whose depths are among a decision's numbers."""
    start, end = f"{Metric.QUEUE_DEPTH}.", ".value"
    return [
        name.removeprefix(start).removesuffix(end)
        for name in decision.numbers
        if name.startswith(start) and name.endswith(end)
    ]
