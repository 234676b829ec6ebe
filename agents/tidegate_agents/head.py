"""HMA, the management agent of a head: the machine that a head's process runs.

Leads every event to the part it concerns, and after each event does what follows from it: migrations that may begin,
answers whose routes have become live, binding changes, updates to neighbours. The parts hold the rules:

| part | what |
| --- | --- |
| `edges` | who is there, what each edge holds |
| `allocation` | subscriptions granted |
| `removals` | subscriptions ended |
| `neighbours` | routes exchanged with other heads |
| `preparations` | places made ready for clients that are to move there |
| `migrations` | clients moved from edge to edge |
| `sessions` | load balancing between edges |
| `drains` | edges emptied for maintenance |
| `places` | subscriptions on two edges, and what waits on an edge that was away |
| `load_parts` | load, publishers, other clusters |
| `insights` | what analytics has learned, in placements and for edges |
| `operations` | what operators ask: states, reasons, plans; pausing |

State is soft: a head that starts adopts the bindings it finds and learns the rest from its edges and
neighbours.
"""

from __future__ import annotations

from collections import deque

from tidegate_protocol.messages import (
    PublisherGoodbye,
    PublisherHello,
    PublisherWelcome,
    RefusalReason,
    StatusReply,
    StatusRequest,
    SubscribeRequest,
    UnsubscribeRequest,
)

from .allocation import Allocations
from .config import SILENT_PERIODS_MAX, HeadConfig
from .context import HeadContext
from .dispatch import Dispatch
from .drains import Drains
from .edges import Edges
from .guests import Guests
from .insights import Insights
from .load_parts import LoadParts
from .machine import (
    Action,
    ActionFailed,
    ChangeRoutes,
    Decision,
    Event,
    MessageReceived,
    ReplyAddress,
    ReplyReceived,
    RoutesChanged,
    Started,
    StopRequested,
    TimerFired,
    Undeliverable,
)
from .migrations import Migrations
from .neighbours import Neighbours
from .operations import Operations
from .places import Places
from .preparations import Preparations
from .removals import Removals
from .sessions import Sessions


class HeadAgent:
    """The agent of one head: `handle(event, now)` says what is to be done."""

    def __init__(self, config: HeadConfig) -> None:
        self._context = context = HeadContext(config)
        self._dispatch = Dispatch()
        self._neighbours = Neighbours(context)
        self._removals = Removals(context)
        self._edges = Edges(context, self._removals.remove_orphan)
        self._preparations = Preparations(context, self._edges, self._removals, self._neighbours)
        self._migrations = Migrations(context, self._preparations, self._removals)
        self._guests = Guests(context, self._edges, self._removals, self._neighbours)
        self._insights = Insights(context)
        self._allocations = Allocations(
            context, self._edges, self._removals, self._neighbours, self._migrations, self._guests, self._insights
        )
        self._sessions = Sessions(context, self._edges, self._migrations)
        self._drains = Drains(context, self._edges, self._migrations, self._allocations, self._insights)
        self._places = Places(context, self._removals, self._migrations, self._allocations)
        self._load = LoadParts(
            context, self._neighbours, self._preparations, self._removals, self._migrations, self._sessions
        )
        self._migrations.use_remote(self._load.steps)
        self._sessions.use_remote(self._load.candidates)
        self._insights.wild_patterns = lambda: self._load.paths.wild_patterns
        self._insights.wild_patterns_of = lambda topic: self._load.paths.wild_patterns_of(topic)
        self._operations = Operations(
            context, self._edges, self._neighbours, self._sessions, self._load, self._insights
        )
        self.ignored = 0
        """Messages of kinds that are not for a head."""
        self._register()

    def _register(self) -> None:
        """Say who takes what."""
        dispatch, allocations = self._dispatch, self._allocations
        dispatch.checks.append(self._context.validate)
        dispatch.on_message(SubscribeRequest, self._subscribe)
        dispatch.on_message(UnsubscribeRequest, self._unsubscribe)
        dispatch.on_message(PublisherHello, self._publisher_hello)
        dispatch.on_message(PublisherGoodbye, self._publisher_goodbye)
        dispatch.on_message(StatusRequest, self._status)
        dispatch.on_timer("tick", self._tick)
        dispatch.on_timer("wait", self._context.waits.expired)
        dispatch.on_timer("rebind", lambda number: self._context.retry_change(int(number)))
        dispatch.on_request("remove", self._removals.answered, self._removal_undeliverable)
        dispatch.on_failure(ChangeRoutes, self._binding_failed)
        dispatch.ticks.append(self._expire_publishers)
        self._edges.register(dispatch)
        self._neighbours.register(dispatch)
        self._removals.register(dispatch)
        allocations.register(dispatch)
        for part in (self._preparations, self._migrations, self._sessions, self._drains, self._places, self._guests):
            part.register(dispatch)
        self._load.register(dispatch)
        self._operations.register(dispatch)
        self._insights.register(dispatch)

    def has_confirmed(self, neighbour: str) -> bool:
        """Whether a neighbour has bound all that we want from it."""
        return self._neighbours.has_confirmed(neighbour)

    @property
    def paused(self) -> bool:
        """Whether an operator has switched balancing off in this cluster."""
        return self._context.paused

    @property
    def story(self) -> deque[Decision]:
        """The recent decisions, oldest first."""
        return self._context.story

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        context, dispatch = self._context, self._dispatch
        context.now = now
        match event:
            case Started():
                self._start(event)
            case MessageReceived(message, reply_to):
                if not dispatch.message(message, reply_to):
                    self.ignored += 1
                    context.refuse(reply_to, RefusalReason.INVALID, f"a head takes no {message.kind}", "kind")
            case ReplyReceived(request_id, message):
                dispatch.answer(*context.requests.pop(request_id, ("", "")), message)
            case Undeliverable(request_id):
                dispatch.undeliverable(*context.requests.pop(request_id, ("", "")))
            case TimerFired(name):
                dispatch.timer(name)
            case RoutesChanged(change_id):
                context.change_done(change_id)
            case ActionFailed(action, problem):
                context.decide(Decision("action-failed", type(action).__name__, problem))
                dispatch.failure(action, problem)
            case StopRequested():
                context.stopping = True
                for stop in dispatch.stops:
                    stop()
            case _:
                self.ignored += not dispatch.event(event)
        self._follow_up()
        return context.take_actions()

    def _start(self, event: Started) -> None:
        context = self._context
        context.started_s = context.now
        for target in sorted(event.routes):
            context.routes.adopt(target, event.routes[target])
            if target not in self._neighbours:
                self._edges.adopt(target)
        self._neighbours.start()
        context.set_timer("tick", context.config.period_s)

    def _tick(self, _: str) -> None:
        # Should a part fail, what the others have done goes out with the next event, and so does this timer.
        self._context.set_timer("tick", self._context.config.period_s)
        self._dispatch.tick()

    def _follow_up(self) -> None:
        self._migrations.begin_waiting()
        self._deliver_finished_waits()
        self._context.flush_routes()
        self._neighbours.pump()
        self._deliver_finished_waits()

    def _deliver_finished_waits(self) -> None:
        for wait in self._context.waits.take_finished():
            self._dispatch.wait_live(wait.key, wait.awaiting)

    def _binding_failed(self, action: ChangeRoutes, problem: str) -> None:
        for key in self._context.change_failed(action):
            self._dispatch.wait_failed(key, problem)

    def _removal_undeliverable(self, subject: str) -> None:
        edge = self._removals.undeliverable(subject)
        if edge is not None:
            self._edges.lost(edge)

    # Clients

    def _subscribe(self, message: SubscribeRequest, reply_to: ReplyAddress | None) -> None:
        if not self._refused_while_stopping(reply_to):
            self._allocations.subscribe(message, reply_to)

    def _refused_while_stopping(self, reply_to: ReplyAddress | None) -> bool:
        if self._context.stopping:
            text = "this head is being stopped; ask again"
            self._context.refuse(reply_to, RefusalReason.NOT_READY, text, retry_after_s=self._context.config.period_s)
        return self._context.stopping

    def _unsubscribe(self, message: UnsubscribeRequest, reply_to: ReplyAddress | None) -> None:
        if self._refused_while_stopping(reply_to):
            return
        context, key = self._context, (message.subscriber, message.number)
        unread = self._edges.may_hold("#") or next(
            (name for name, record in sorted(context.registry.edges.items()) if not record.settled), None
        )
        holders = context.registry.holders(key)
        if self._allocations.holds(key) or any(
            self._allocations.allocates(message.subscriber, pattern) for pattern in self._removals.patterns_of(message)
        ):
            # Its client is being given another place, whose number it does not know yet.
            text, reason = "this subscription is just being made", RefusalReason.CONFLICT
        elif not holders and unread is not None:
            text, reason = (
                f"{unread} may hold this subscription and has not told yet",
                RefusalReason.NOT_READY,
            )
        elif self._load.acceptances.leaves_too_early(key):
            text, reason = "its old head has not heard yet that it has moved here", RefusalReason.NOT_READY
        else:
            for pattern in self._removals.patterns_of(message):
                self._migrations.unsubscribed(message.subscriber, pattern)
                self._places.unsubscribed(message.subscriber, pattern)
            self._removals.unsubscribe(message, reply_to)
            return
        context.refuse(reply_to, reason, text, retry_after_s=context.config.period_s)

    def _publisher_hello(self, message: PublisherHello, reply_to: ReplyAddress | None) -> None:
        context, config = self._context, self._context.config
        publishers = context.registry.publishers
        if message.publisher not in publishers and len(publishers) >= config.publishers_max:
            text = f"this head knows publishers_max = {config.publishers_max} publishers"
            context.refuse(reply_to, RefusalReason.LIMIT, text, "publisher")
            return
        until_s = context.now + SILENT_PERIODS_MAX * config.publisher_period_s
        context.registry.publisher_heard(message.publisher, until_s)
        self._load.publisher_heard(message)
        welcome = PublisherWelcome(publisher=message.publisher, head=config.head, period_s=config.publisher_period_s)
        context.reply(reply_to, welcome)

    def _expire_publishers(self) -> None:
        for publisher in self._context.registry.expire_publishers(self._context.now):
            self._load.publisher_gone(publisher)

    def _publisher_goodbye(self, message: PublisherGoodbye, reply_to: ReplyAddress | None) -> None:
        self._context.registry.publisher_gone(message.publisher)
        self._load.publisher_gone(message.publisher)

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
        for part, subject in self._context.requests.values():
            assert part in self._dispatch.request_parts, (part, subject)
