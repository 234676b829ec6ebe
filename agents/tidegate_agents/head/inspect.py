"""Answers to operators, as a head gives them: what is going on, why, what would be done now; and pausing.

Invariants:

- nothing is changed by being asked; only pausing and draining (`drains`) change anything;
- a question is passed to the edges it concerns and answered when all of them have answered, or after `EDGE_WAIT_S`; an
  edge that is not there is named as missing from the answer, and delays it no further;
- a pause has a version, the higher one holds. Edges learn it from the answer to their hello, and a head that restarts
  from the hello of its edges: it is lost only if all of them restart at once;
- while balancing is paused no session begins here, neither between edges nor of publishers, and none of another cluster
  is helped; sessions under way end as they would, and edges can be drained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import (
    BalancingSwitch,
    BalancingSwitched,
    Decision,
    FloodingPublisher,
    Placed,
    RegistryRead,
    Rejected,
    Removed,
)
from tidegate_protocol.messages import ControlMessage, LoadState, Refusal
from tidegate_protocol.operations import (
    CULPRITS_TOLD_MAX,
    NAMES_TOLD_MAX,
    SUBSCRIPTIONS_TOLD_MAX,
    Activity,
    BrokerState,
    Culprit,
    Doing,
    Explained,
    ExplainReply,
    ExplainRequest,
    HeadPlan,
    InspectReply,
    InspectRequest,
    OverviewReply,
    OverviewRequest,
    PauseReply,
    PauseRequest,
    PlanReply,
    PlanRequest,
    RehearseReply,
    RehearseRequest,
    SessionState,
    Told,
)
from tidegate_protocol.rendering import refusals

from ..kit.calls import Answer
from ..kit.chronicle import Dated, bounded, told
from ..kit.dispatch import Dispatch
from ..kit.gather import Gatherings
from ..kit.refused import RefusedAccounts
from ..load.metrics import Role
from ..load.overview import (
    concerns_broker,
    concerns_publisher,
    concerns_subscriber,
    session_states,
    subscriber_named,
    unknown_metrics,
)
from ..load.pie import metrics_of
from ..load.states import THRESHOLDS
from ..machine import AlarmsSeen, ReplyAddress
from .context import HeadContext
from .edges import Edges
from .insights import Insights
from .links import Links
from .load import HeadLoads
from .moving.offers import candidate, fitting_candidates
from .moving.sessions import Sessions
from .neighbours import Neighbours
from .publishers.accounts import AccountDefence
from .publishers.defence import Defence

PART: Final = "operations"
EDGE_WAIT_S: Final = 1.0
"""How long edges may take to answer, each time they are asked; a client asks a head again after three times this."""
QUESTIONS_MAX: Final = 64
"""Questions under way at once."""
LATEST_TOLD: Final = 60
"""Decisions told about a broker, a subscriber or a publisher, of each agent."""
QUEUES_EXPLAINED: Final = 5
NAMES_SUGGESTED_MAX: Final = 5
SESSIONS_NAMED_MAX: Final = 3
"""Sessions that a head leads, named in its state."""
_ROUTINE: Final = (Placed, Removed, RegistryRead)
"""Decisions that say nothing about how a cluster is doing."""


@dataclass(slots=True)
class _Question:
    """What was asked, and what the edges have answered so far."""

    finish: Callable[[_Question], None]
    asked_s: float
    answers: dict[str, ControlMessage] = field(default_factory=dict)
    on_way_s: dict[str, float] = field(default_factory=dict)
    """How long an answer was on its way, about: half the time between the question and it."""
    missing: list[str] = field(default_factory=list)

    def inspected(self) -> dict[str, InspectReply]:
        return {name: m for name, m in sorted(self.answers.items()) if isinstance(m, InspectReply)}


class Operations:
    """What operators ask of one head."""

    def __init__(
        self,
        context: HeadContext,
        edges: Edges,
        neighbours: Neighbours,
        sessions: Sessions,
        loads: HeadLoads,
        defence: Defence,
        insights: Insights,
        account_defence: AccountDefence,
        links: Links,
    ) -> None:
        self._context = context
        self._edges = edges
        self._neighbours = neighbours
        self._sessions = sessions
        self._loads = loads
        self._defence = defence
        self._insights = insights
        self._account_defence = account_defence
        self._links = links
        self._questions: dict[str, _Question] = {}
        self._refused = RefusedAccounts(context.config.head, context)
        self._gatherings = Gatherings(context, PART, self._heard, self._finish)
        self._last = 0

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(OverviewRequest, self._overview)
        dispatch.on_message(ExplainRequest, self._explain)
        dispatch.on_message(PlanRequest, self._plan)
        dispatch.on_message(PauseRequest, self._pause)
        dispatch.on_event(AlarmsSeen, lambda event: self._context.see_alarms(event.raised))
        self._refused.register(dispatch)
        self._gatherings.register(dispatch)
        dispatch.checks.append(self.validate)

    # Asking the edges

    def _gather(
        self,
        reply_to: ReplyAddress | None,
        messages: Mapping[str, ControlMessage],
        finish: Callable[[_Question], None],
        missing: tuple[str, ...] = (),
    ) -> None:
        """Send each edge its message, and go on with `finish` when all have answered or time is up."""
        context = self._context
        if len(self._questions) >= QUESTIONS_MAX:
            context.refuse(reply_to, refusals.limit("QUESTIONS_MAX", QUESTIONS_MAX), EDGE_WAIT_S)
            return
        self._last += 1
        name = str(self._last)
        there = {edge: message for edge, message in messages.items() if context.registry.edges[edge].alive}
        away = [*missing, *(edge for edge in messages if edge not in there)]
        self._questions[name] = _Question(finish, context.now, missing=away)
        self._gatherings.ask(name, there, within_s=EDGE_WAIT_S)

    def _heard(self, name: str, edge: str, answer: Answer) -> None:
        question = self._questions[name]
        if isinstance(answer, InspectReply | RehearseReply):
            question.answers[edge] = answer
            question.on_way_s[edge] = (self._context.now - question.asked_s) / 2.0
        else:
            question.missing.append(edge)

    def _finish(self, name: str) -> None:
        question = self._questions.pop(name)
        question.missing.sort()
        question.finish(question)

    # Overview

    def _overview(self, message: OverviewRequest, reply_to: ReplyAddress | None) -> None:
        context, config = self._context, self._context.config
        asked = InspectRequest(queues=message.queues)

        def finish(question: _Question) -> None:
            answers = question.inspected()
            reply = OverviewReply(
                cluster=config.cluster,
                head=config.head,
                version=config.version,
                policy=config.balancing.policy,
                paused=context.paused,
                edges=self._edges.status(),
                neighbours=self._neighbours.status(),
                clusters=dict(self._loads.cluster_states()),
                publishers=len(context.registry.publishers),
                brokers=(self._head_state(), *(answer.state for answer in answers.values())),
                sessions=self._session_states(),
                culprits=self._culprits(answers),
                missing=tuple(question.missing),
                insight=self._insights.state(),
                quotas=context.usage.uses(),
                links=tuple(self._links.troubled()[:NAMES_TOLD_MAX]),
            )
            context.reply(reply_to, reply)

        self._gather(reply_to, dict.fromkeys(context.registry.edges, asked), finish)

    def _head_state(self) -> BrokerState:
        config, loads = self._context.config, self._loads
        sample = loads.sample
        running = [s.session for s in self._session_states() if s.ended_ago_us is None]
        doing = Doing(activity=Activity.LEADING, sessions=tuple(running[:SESSIONS_NAMED_MAX])) if running else None
        if loads.busy:
            doing = Doing(activity=Activity.MOVING_PUBLISHERS)
        return BrokerState(
            broker=config.head,
            role=Role.HEAD,
            state=loads.state,
            doing=doing,
            samples=0 if sample is None else 1,
            metrics={} if sample is None else metrics_of(sample, THRESHOLDS),
            unknown=() if sample is None else unknown_metrics(sample),
            capacity=config.capacity if sample is None else sample.capacity,
            alarms=self._context.alarms,
        )

    def _session_states(self) -> tuple[SessionState, ...]:
        draining = [n for n, r in self._context.registry.edges.items() if r.draining and r.subscriptions]
        return session_states(self._context.chronicle, self._context.now, draining)

    def _culprits(self, answers: Mapping[str, InspectReply]) -> tuple[Culprit, ...]:
        context, found = self._context, []
        for name in self._defence.watched:
            named = context.chronicle.last_of(FloodingPublisher, lambda one, name=name: one.publisher == name)  # type: ignore[misc]
            if named is None:
                continue
            found.append(
                Culprit(
                    what=named.decision.kind,
                    client=name,
                    broker=context.config.head,
                    ago_us=round(max(context.now - named.at_s, 0.0) * 1e6),
                    record=named.decision,
                )
            )
        found += self._refused.culprits()
        found += [
            Culprit(
                what=named.decision.kind,
                client=named.client,
                broker=context.config.head,
                ago_us=round(max(context.now - named.at_s, 0.0) * 1e6),
                record=named.decision,
            )
            for named in self._account_defence.culprits
        ]
        found += self._links.culprits()
        found += [culprit for answer in answers.values() for culprit in answer.culprits]
        return tuple(found[:CULPRITS_TOLD_MAX])

    # Explaining

    def _explain(self, message: ExplainRequest, reply_to: ReplyAddress | None) -> None:
        about, what = self._resolve(message.about)
        request = InspectRequest(queues=QUEUES_EXPLAINED, latest=LATEST_TOLD)
        asked = sorted(self._context.registry.edges)
        if what is Explained.SUBSCRIBER:
            request = InspectRequest(latest=LATEST_TOLD, subscriber=about)
        elif what is Explained.BROKER:
            request = InspectRequest(queues=QUEUES_EXPLAINED, latest=LATEST_TOLD, broker=about)
        elif what is Explained.PUBLISHER:
            asked = []
        elif what is not Explained.CLUSTER:
            # What nobody here knows may be a session of which only its source knows, as it was refused or unheard.
            request = InspectRequest(queues=QUEUES_EXPLAINED, session=about[:120])

        def finish(question: _Question) -> None:
            self._explained(about, what or Explained.SESSION, question, reply_to)

        self._gather(reply_to, dict.fromkeys(asked, request), finish)

    def _resolve(self, about: str) -> tuple[str, Explained | None]:
        """Who is meant by a name; None if it is nobody we know."""
        context = self._context
        subscriber = subscriber_named(about)
        named = [*(culprit.client for culprit in self._account_defence.culprits), *self._links.named]
        publishers = [*context.registry.publishers, *self._defence.watched, *named]
        publisher = next((name for name in sorted(publishers) if about in (name, name.partition("~")[0])), None)
        if not about:
            return about, Explained.CLUSTER
        if publisher is not None and about != context.config.head and about not in context.registry.edges:
            return publisher, Explained.PUBLISHER
        if about in context.chronicle:
            return about, Explained.SESSION
        if about == context.config.head or about in context.registry.edges:
            return about, Explained.BROKER
        known = context.chronicle.last(lambda decision: concerns_subscriber(decision, subscriber))
        if context.registry.count_of(subscriber) or known is not None:
            return subscriber, Explained.SUBSCRIBER
        return about, None

    def _own(self, about: str, what: Explained) -> list[Dated]:
        chronicle = self._context.chronicle
        match what:
            case Explained.SESSION:
                return chronicle.around_session(about)
            case Explained.BROKER if about != self._context.config.head:
                return chronicle.matching(lambda decision: concerns_broker(decision, about), LATEST_TOLD)
            case Explained.SUBSCRIBER:
                patterns = {s.pattern for _, s in self._context.registry if s.subscriber == about}
                return chronicle.matching(lambda d: _about_subscriber(d, about, patterns), LATEST_TOLD)
            case Explained.PUBLISHER:
                return chronicle.matching(lambda decision: concerns_publisher(decision, about), LATEST_TOLD)
            case _:
                return chronicle.matching(lambda decision: not isinstance(decision, _ROUTINE), LATEST_TOLD)

    def _explained(self, about: str, what: Explained, question: _Question, reply_to: ReplyAddress | None) -> None:
        context, config, now = self._context, self._context.config, self._context.now
        answers = question.inspected()
        decisions = [told(config.head, dated, now) for dated in self._own(about, what)]
        for name, answer in answers.items():
            later_us = round(question.on_way_s[name] * 1e6)
            decisions += [d.model_copy(update={"ago_us": d.ago_us + later_us}) for d in answer.decisions]
        culprits = self._culprits(answers)
        if what is Explained.SESSION and not any(decision.session == about for decision in decisions):
            if not any(culprit.client == about for culprit in culprits):
                context.refuse(reply_to, self._nothing_of_that_name(about))
                return
            what = Explained.ACCOUNT
        decisions.sort(key=lambda decision: -decision.ago_us)
        kept, cut = bounded(decisions)
        queues = tuple(queue for answer in answers.values() for queue in answer.queues)
        sessions = self._session_states()
        if what is Explained.SESSION:
            sessions = tuple(session for session in sessions if session.session == about)
        reply = ExplainReply(
            about=about,
            what=what,
            cluster=config.cluster,
            head=config.head,
            policy=config.balancing.policy,
            paused=context.paused,
            decisions=kept,
            cut=cut + sum(answer.cut for answer in answers.values()) + context.chronicle.dropped(about),
            brokers=self._brokers_of(about, what, kept, answers),
            queues=queues[:SUBSCRIPTIONS_TOLD_MAX],
            sessions=sessions,
            culprits=culprits,
            missing=tuple(question.missing),
            insight=self._insights.state(),
        )
        context.reply(reply_to, reply)

    def _brokers_of(
        self, about: str, what: Explained, decisions: tuple[Told, ...], answers: Mapping[str, InspectReply]
    ) -> tuple[BrokerState, ...]:
        """The brokers that an explanation is about."""
        head = self._context.config.head
        match what:
            case Explained.SESSION:
                took_part = {decision.broker for decision in decisions if decision.session == about}
                return tuple(answer.state for name, answer in answers.items() if name in took_part)
            case Explained.BROKER if about == head:
                return (self._head_state(),)
            case Explained.BROKER:
                return (answers[about].state,) if about in answers else ()
            case Explained.SUBSCRIBER:
                return tuple(answer.state for answer in answers.values() if answer.queues)
            case Explained.PUBLISHER:
                return (self._head_state(),)
            case Explained.CLUSTER:
                return (self._head_state(), *(answer.state for answer in answers.values()))
            case Explained.ACCOUNT:
                return ()

    def _nothing_of_that_name(self, about: str) -> Refusal:
        context = self._context
        sessions = [session.session for session in self._session_states()[:NAMES_SUGGESTED_MAX]]
        brokers = [context.config.head, *sorted(context.registry.edges)][:NAMES_SUGGESTED_MAX]
        return refusals.nothing_of_that_name(about, sessions, brokers)

    # Planning

    def _plan(self, message: PlanRequest, reply_to: ReplyAddress | None) -> None:
        edges = self._context.registry.edges

        def rehearse(question: _Question) -> None:
            answers = question.inspected()
            messages = {name: self._rehearse_request(name, answers) for name in answers}
            self._gather(reply_to, messages, lambda last: self._planned(last, reply_to), tuple(question.missing))

        self._gather(reply_to, dict.fromkeys(edges, InspectRequest()), rehearse)

    def _rehearse_request(self, source: str, answers: Mapping[str, InspectReply]) -> RehearseRequest:
        """What a session of `source` would be offered, as `sessions` would do it."""
        context = self._context
        held = sorted(context.registry.edges[source].patterns)
        candidates: list[Candidate] = []
        rejected: list[Rejected] = []
        for name, answer in answers.items():
            why_not = self._edges.unfit(name, "") or self._sessions.busy(name)
            if name != source and why_not is not None:
                rejected.append(why_not)
            elif name != source:
                candidates.append(candidate(context, answer.load, held))
        resting = self._sessions.resting(source)
        return RehearseRequest(candidates=fitting_candidates(candidates), rejected=tuple(rejected), resting=resting)

    def _planned(self, question: _Question, reply_to: ReplyAddress | None) -> None:
        context, config = self._context, self._context.config
        rehearsals = [m.rehearsal for _, m in sorted(question.answers.items()) if isinstance(m, RehearseReply)]
        reply = PlanReply(
            cluster=config.cluster,
            head=config.head,
            policy=config.balancing.policy,
            paused=context.paused,
            head_state=self._loads.state,
            head_plan=self._head_plan(),
            neighbours=tuple(sorted(context.routes.offers)),
            edges=tuple(rehearsals),
            missing=tuple(question.missing),
        )
        context.reply(reply_to, reply)

    def _head_plan(self) -> HeadPlan:
        if self._loads.state is not LoadState.OVERLOAD:
            return HeadPlan.NOTHING
        if self._loads.busy:
            return HeadPlan.UNDER_WAY
        return HeadPlan.ASK_NEIGHBOURS if self._context.routes.offers else HeadPlan.NO_NEIGHBOUR

    # Pausing

    def _pause(self, message: PauseRequest, reply_to: ReplyAddress | None) -> None:
        context, config = self._context, self._context.config
        changed = context.paused != message.paused
        if changed:
            context.paused = message.paused
            context.pause_version = max(context.pause_version + 1, config.incarnation)
            switch = BalancingSwitch.PAUSED if message.paused else BalancingSwitch.RESUMED
            context.decide(BalancingSwitched(config.cluster, switch))
        under_way = sum(session.ended_ago_us is None for session in self._session_states())
        reply = PauseReply(cluster=config.cluster, paused=message.paused, changed=changed, under_way=under_way)
        context.reply(reply_to, reply)

    def validate(self) -> None:
        """Raise AssertionError if a question waits for nobody."""
        assert len(self._questions) <= QUESTIONS_MAX
        assert all(name in self._gatherings for name in self._questions), "a question nobody is asked"


def _about_subscriber(decision: Decision, subscriber: str, patterns: set[str]) -> bool:
    """Also where subscriptions to its patterns were placed: they go together, unless nobody can take them all."""
    if isinstance(decision, Placed) and decision.pattern in patterns:
        return True
    return concerns_subscriber(decision, subscriber)
