"""An edge's part of the answers to operators: its load, its queues, its decisions, and which clients it would move now.

Invariant: nothing is changed by being asked. A rehearsal goes the way of a session, with the same policy on the
same figures, and stops where a session would send its plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import (
    ITEMS_MAX,
    Decision,
    Reach,
    SessionRequested,
    SlowSubscriber,
    Stabilized,
)
from tidegate_protocol.messages import LoadState
from tidegate_protocol.operations import (
    CULPRITS_TOLD_MAX,
    SUBSCRIPTIONS_TOLD_MAX,
    Activity,
    Culprit,
    Doing,
    InspectReply,
    InspectRequest,
    NothingDue,
    QueueState,
    Rehearsal,
    RehearseReply,
    RehearseRequest,
)

from ..kit.chronicle import Dated, bounded, told
from ..kit.dispatch import Dispatch
from ..kit.refused import RefusedAccounts
from ..load.detector import Detector
from ..load.overview import (
    closest_queue,
    concerns_broker,
    concerns_subscriber,
    edge_state,
    queue_state,
)
from ..machine import ReplyAddress
from ..policy.interface import LoadView, Policy, Selection, Trigger
from .context import EdgeContext
from .drops import EdgeDrops
from .greed import Greed
from .session import EdgeBalancing, planned_moves

REHEARSAL: Final = "rehearsal"
"""What stands for a session where a policy asks for one."""
MOVES_TOLD_MAX: Final = 200


class EdgeOperations:
    """Answers about one edge."""

    def __init__(
        self,
        context: EdgeContext,
        detector: Detector,
        balancing: EdgeBalancing,
        policy: Policy,
        drops: EdgeDrops,
        greed: Greed,
    ) -> None:
        self._greed = greed
        self._context = context
        self._detector = detector
        self._balancing = balancing
        self._policy = policy
        self._refused = RefusedAccounts(context.config.edge, context)
        self._drops = drops

    def register(self, dispatch: Dispatch) -> None:
        self._refused.register(dispatch)
        dispatch.on_message(InspectRequest, self.on_inspect)
        dispatch.on_message(RehearseRequest, self.on_rehearse)

    # Inspecting

    def on_inspect(self, message: InspectRequest, reply_to: ReplyAddress | None) -> None:
        context, detector = self._context, self._detector
        edge, now = context.config.edge, context.now
        state = self._balancing.reported_state
        found = self._wanted(message)
        decisions, cut = bounded([told(edge, dated, now) for dated in found])
        told_state = edge_state(detector, self._policy.limits, state, self._doing, message.queues, context.alarms)
        reply = InspectReply(
            state=told_state.model_copy(update=self._drops.told()),
            load=detector.load(state, busy=self._balancing.busy),
            decisions=decisions,
            cut=cut + context.chronicle.dropped(message.session),
            queues=self._queues(message, found),
            culprits=self._culprits(),
        )
        context.reply(reply_to, reply)

    @property
    def _doing(self) -> Doing | None:
        return Doing(activity=Activity.DRAINING) if self._context.draining else self._balancing.doing

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
        """The subscribers that are too slow, with what was found about them and how they are doing now; and accounts
        whose messages were not taken."""
        context, found = self._context, []
        for name in sorted(self._detector.slow)[:CULPRITS_TOLD_MAX]:
            queue = self._detector.queue(name)
            named = context.chronicle.last_of(SlowSubscriber, lambda one, name=name: one.queue == name)  # type: ignore[misc]
            if queue is None:
                continue
            found.append(
                Culprit(
                    what=SlowSubscriber.kind,
                    client=queue.subscriber,
                    broker=context.config.edge,
                    ago_us=0 if named is None else round(max(context.now - named.at_s, 0.0) * 1e6),
                    record=self._detector.about_slowness(queue),
                )
            )
        for greedy, found_s in self._greed.culprits:
            found.append(
                Culprit(
                    what=greedy.kind,
                    client=greedy.subscriber,
                    broker=context.config.edge,
                    ago_us=round(max(context.now - found_s, 0.0) * 1e6),
                    record=greedy,
                )
            )
        return tuple([*found, *self._refused.culprits()][:CULPRITS_TOLD_MAX])

    # Rehearsing

    def on_rehearse(self, message: RehearseRequest, reply_to: ReplyAddress | None) -> None:
        view = self._balancing.view()
        trigger = self._policy.detect(view) if self._detector.samples else None
        if trigger is None:
            overloads = view.assessment.overloads
            rehearsal = self._rehearsal(
                view, nothing=self._why_nothing(view), worst=overloads[0] if overloads else None
            )
        else:
            rehearsal = self._rehearse(view, trigger, message)
        self._context.reply(reply_to, RehearseReply(rehearsal=rehearsal))

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
    def _blocked(self) -> Doing | None:
        """Why no session would be started now, whatever the load is."""
        if self._context.stopping:
            return Doing(activity=Activity.STOPPING)
        if self._context.paused and not self._context.draining:
            return Doing(activity=Activity.PAUSED)
        return self._doing

    def _why_nothing(self, view: LoadView) -> NothingDue:
        if self._detector.samples == 0:
            return NothingDue.NOT_SAMPLED
        if self._policy.name == "none":
            return NothingDue.POLICY_NONE
        if view.assessment.state is not LoadState.OVERLOAD:
            return NothingDue.NO_DANGER
        return NothingDue.WORKED_OFF if view.uplink_limits else NothingDue.UPLINK_HAS_ROOM

    def _rehearse(self, view: LoadView, trigger: Trigger, message: RehearseRequest) -> Rehearsal:
        resting = frozenset(message.resting)
        selection = self._select(view, trigger, message.candidates, resting)
        neighbours_first = trigger.lacks(selection)
        if neighbours_first and trigger.fallbacks:
            trigger = replace(trigger, reach=Reach.LAST_RESORT)
            last = self._select(view, trigger, message.candidates, resting)
            selection = last if last.moves else selection
        rejected = {(one.name, one.target): one for one in (*trigger.rejected, *message.rejected, *selection.rejected)}
        return self._rehearsal(
            view,
            due=True,
            cause=trigger.cause,
            outcome=selection.outcome,
            neighbours_first=neighbours_first,
            relieved=selection.relieved,
            moves=planned_moves(selection, self._detector)[:MOVES_TOLD_MAX],
            bundles=selection.bundles[:ITEMS_MAX],
            effects=selection.effects[:ITEMS_MAX],
            rejected=tuple(rejected.values())[:ITEMS_MAX],
        )

    def _select(
        self, view: LoadView, trigger: Trigger, candidates: tuple[Candidate, ...], resting: frozenset[str]
    ) -> Selection:
        able = (LoadState.LOW, LoadState.HIGH) if trigger.last_resort else (LoadState.LOW,)
        offered = [c for c in candidates if c.load.broker in trigger.asked and c.load.state in able and not c.load.busy]
        ranked = self._policy.rank(trigger, offered, session=REHEARSAL)
        return self._policy.select(view, trigger, ranked, resting=resting, session=REHEARSAL)


def _queues_named(decision: Decision) -> list[str]:
    """The queues that a decision of a session is about."""
    if isinstance(decision, SessionRequested) and decision.danger is not None:
        return [decision.danger.queue]
    if isinstance(decision, Stabilized) and decision.closest is not None:
        return [decision.closest.queue]
    return []
