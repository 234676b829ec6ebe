"""HMA, the management agent of a head: the machine that a head's process runs.

Leads every event to the part it concerns, and after each event does what follows from it: migrations that may begin,
answers whose routes have become live, binding changes, updates to neighbours. The parts hold the rules:

| part | what |
| --- | --- |
| `edges`, `neighbours` | who is there, what each edge holds, routes exchanged with other heads |
| `places/` | subscriptions granted, prepared, in doubt, ended |
| `moving/` | sessions, drains, migrations of clients from edge to edge, and their markers |
| `abroad/` | subscriptions moved to and from other clusters |
| `publishers/`, `load` | who publishes what, floods, publishers moved to other heads, the load of this head |
| `insights` | what analytics has learned, in placements and for edges |
| `rights`, `veil` | which subscriptions accounts may have, and what operators of tenants may see |
| `links` | what links could not carry, and whose it was |
| `inspect` | what operators ask: states, reasons, plans; pausing |
| `drops` | what operators want with messages that edges have dropped |

State is soft: a head that starts adopts the bindings it finds and learns the rest from its edges and
neighbours.
"""

from __future__ import annotations

from tidegate_protocol.decisions import ActionRefused, Decision
from tidegate_protocol.messages import (
    StatusReply,
    StatusRequest,
    SubscribeRequest,
    UnsubscribeRequest,
)
from tidegate_protocol.operations import QuotaUse
from tidegate_protocol.rendering import refusals

from ..config import HeadConfig
from ..kit.dispatch import Dispatch
from ..machine import (
    Action,
    ActionFailed,
    ChangeRoutes,
    Event,
    MessageReceived,
    ReplyAddress,
    RoutesChanged,
    Started,
)
from .abroad.arriving import Acceptances
from .abroad.candidates import RemoteCandidates
from .abroad.endings import Endings
from .abroad.guests import Guests
from .abroad.leaving import RemoteSteps
from .abroad.room import Room
from .context import HeadContext
from .drops import HeadDrops
from .edges import Edges
from .insights import Insights
from .inspect import Operations
from .links import Links
from .load import HeadLoads
from .moving.drains import Drains
from .moving.local_steps import LocalSteps
from .moving.marker_binds import MarkerBinds
from .moving.marker_flood import MarkerFlood
from .moving.migrations import Migrations
from .moving.reports import Reports
from .moving.sessions import Sessions
from .neighbours import Neighbours
from .places.allocation import Allocations
from .places.doubts import Doubts
from .places.knowledge import END, Knowledge
from .places.ledger import Operation
from .places.placing import Placing
from .places.preparations import Preparations
from .places.removals import Removals
from .publishers.accounts import AccountDefence
from .publishers.arriving import PublisherArrivals
from .publishers.defence import Defence
from .publishers.leaving import PublisherMoves
from .publishers.paths import Paths
from .publishers.streams import Publishers
from .rights import Rights


class HeadAgent:
    """The agent of one head: `handle(event, now)` says what is to be done."""

    def __init__(self, config: HeadConfig) -> None:
        self._context = context = HeadContext(config)
        self._dispatch = Dispatch()
        self._neighbours = neighbours = Neighbours(context)
        self._removals = removals = Removals(context)
        self._knowledge = knowledge = Knowledge(context, neighbours)
        self._edges = edges = Edges(context, removals, knowledge)
        preparations = Preparations(context, edges, removals, neighbours)
        # Load and publishers, in the order in which they look at a sample: rates, floods, load
        paths = Paths(context)
        publishers = Publishers(context, paths)
        defence = Defence(context, publishers)
        account_defence = AccountDefence(context)
        publisher_moves = PublisherMoves(context, neighbours, publishers, defence)
        arrivals = PublisherArrivals(context, publisher_moves)
        loads = HeadLoads(context, publisher_moves, arrivals)
        insights = Insights(context, paths)
        self._placing = placing = Placing(context, edges, insights, publishers)
        # Moves
        flood, binds = MarkerFlood(context), MarkerBinds(context)
        remote_steps = RemoteSteps(context, knowledge, neighbours, removals, flood)
        local_steps = LocalSteps(context, preparations)
        self._migrations = migrations = Migrations(context, removals, knowledge, binds, local_steps, remote_steps)
        self._doubts = doubts = Doubts(context, removals, binds)
        reports = Reports(context, removals, knowledge, migrations, doubts, remote_steps)
        self._candidates = candidates = RemoteCandidates(context, loads)
        sessions = Sessions(context, edges, migrations, candidates)
        drains = Drains(context, migrations, placing)
        # Other clusters
        self._guests = guests = Guests(context, knowledge)
        room = Room(context, loads, paths, sessions)
        endings = Endings(context, removals, migrations, guests)
        self._acceptances = Acceptances(context, knowledge, preparations, sessions, guests, endings)
        # Clients and operators
        self._allocations = Allocations(context, edges, neighbours, migrations, knowledge, placing, doubts)
        self._rights = Rights(context, self._allocations, migrations, doubts, removals)
        links = Links(context)
        operations = Operations(context, edges, neighbours, sessions, loads, defence, insights, account_defence, links)
        self._parts = (
            *(context.usage, account_defence),
            *(knowledge, publishers, edges, neighbours, removals, self._allocations, preparations, binds, migrations),
            *(sessions, drains, doubts, reports, guests, paths, defence, loads, publisher_moves, arrivals, flood),
            *(remote_steps, candidates, room, endings, self._acceptances, operations, insights, self._rights),
            *(HeadDrops(context), links),
        )
        self.ignored = 0
        """Messages of kinds that are not for a head."""
        self._register()

    def _register(self) -> None:
        """Say who takes what."""
        dispatch = self._dispatch
        dispatch.checks.append(self._context.validate)
        self._context.accounts.register(dispatch)
        dispatch.on_event(Started, self._start)
        dispatch.on_event(RoutesChanged, self._routes_changed)
        dispatch.stops.append(self._stop)
        dispatch.on_message(SubscribeRequest, self._subscribe)
        dispatch.on_message(UnsubscribeRequest, self._unsubscribe)
        dispatch.on_message(StatusRequest, self._status)
        dispatch.on_timer("tick", self._tick)
        dispatch.on_timer("wait", self._context.waits.expired)
        dispatch.on_timer("rebind", lambda number: self._context.bindings.retry(int(number)))
        dispatch.on_failure(ChangeRoutes, self._binding_failed)
        for part in self._parts:
            part.register(dispatch)

    def has_confirmed(self, neighbour: str) -> bool:
        """Whether a neighbour has bound all that we want from it."""
        return self._neighbours.has_confirmed(neighbour)

    @property
    def paused(self) -> bool:
        """Whether an operator has switched balancing off in this cluster."""
        return self._context.paused

    @property
    def quotas(self) -> tuple[QuotaUse, ...]:
        """What accounts and tenants use of their quotas, the most used first."""
        return self._context.usage.uses()

    @property
    def story(self) -> list[Decision]:
        """The recent decisions, oldest first."""
        return self._context.chronicle.decisions

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        context, dispatch = self._context, self._dispatch
        context.now = now
        context.account = event.account if isinstance(event, MessageReceived) else ""
        if isinstance(event, ActionFailed):
            context.decide(ActionRefused(type(event.action).__name__, event.problem))
        objection = context.veil.objection(event, context.rules) if isinstance(event, MessageReceived) else None
        if isinstance(event, MessageReceived) and objection is not None:
            context.refuse(event.reply_to, objection)
        elif not dispatch.lead(event, context.requests):
            self.ignored += 1
            if isinstance(event, MessageReceived):
                context.refuse(event.reply_to, refusals.misdirected(context.config.head, event.message.kind))
        while found := context.take_found():
            for news in found:
                dispatch.event(news)
        self._follow_up()
        return context.take_actions()

    def _start(self, event: Started) -> None:
        context = self._context
        for target in sorted(event.routes):
            context.routes.adopt(target, event.routes[target])
            if target not in self._neighbours:
                self._edges.adopt(target)
        context.accounts.start(event.accounts_allowed)
        context.set_timer("tick", context.config.period_s)

    def _stop(self) -> None:
        self._context.stopping = True

    def _routes_changed(self, event: RoutesChanged) -> None:
        self._context.bindings.done(event.change_id)

    def _tick(self, _: str) -> None:
        # Should a part fail, what the others have done goes out with the next event, and so does this timer.
        self._context.set_timer("tick", self._context.config.period_s)
        self._dispatch.tick()

    def _follow_up(self) -> None:
        self._migrations.begin_waiting()
        self._deliver_finished_waits()
        self._context.bindings.flush()
        self._neighbours.pump()
        self._deliver_finished_waits()

    def _deliver_finished_waits(self) -> None:
        for wait in self._context.waits.take_finished():
            self._dispatch.wait_live(wait.key, wait.awaiting)

    def _binding_failed(self, action: ChangeRoutes, problem: str) -> None:
        for key in self._context.bindings.failed(action):
            self._dispatch.wait_failed(key, problem)

    # Clients

    def _subscribe(self, message: SubscribeRequest, reply_to: ReplyAddress | None) -> None:
        if not self._refused_while_stopping(reply_to) and not self._rights.refused(message, reply_to):
            self._allocations.subscribe(message, reply_to)

    def _refused_while_stopping(self, reply_to: ReplyAddress | None) -> bool:
        if self._context.stopping:
            refusal = refusals.stopping(self._context.config.head)
            self._context.refuse(reply_to, refusal, self._context.config.period_s)
        return self._context.stopping

    def _unsubscribe(self, message: UnsubscribeRequest, reply_to: ReplyAddress | None) -> None:
        if self._refused_while_stopping(reply_to):
            return
        context, key = self._context, (message.subscriber, message.number)
        unknown = self._knowledge.gap(END, (message.subscriber, message.pattern or "#"))
        if self._allocations.holds(key) or any(
            context.ledger.under_way(Operation.ALLOCATION, (message.subscriber, pattern)) is not None
            for pattern in self._removals.patterns_of(message)
        ):
            # Its client is being given another place, whose number it does not know yet.
            refusal = refusals.being_made()
        elif unknown is not None and not context.registry.holders(key):
            refusal = refusals.rejected(unknown)
        elif self._acceptances.leaves_too_early(key):
            refusal = refusals.moved_unheard()
        else:
            for pattern in self._removals.patterns_of(message):
                self._migrations.unsubscribed(message.subscriber, pattern)
                self._doubts.unsubscribed(message.subscriber, pattern)
            self._removals.unsubscribe(message, reply_to)
            return
        context.refuse(reply_to, refusal, context.config.period_s)

    def _status(self, message: StatusRequest, reply_to: ReplyAddress | None) -> None:
        config = self._context.config
        status = StatusReply(
            cluster=config.cluster,
            head=config.head,
            version=config.version,
            edges=self._edges.status(),
            neighbours=self._neighbours.status(),
            publishers=len(self._context.registry.publishers),
        )
        self._context.reply(reply_to, status)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant. Called after every step in tests."""
        for check in self._dispatch.checks:
            check()
        parts = self._dispatch.request_parts
        for part, subject in self._context.requests.values():
            assert part in parts, (part, subject)
