"""HOM, the overlay manager of a head: the machine that a head's process runs.

Leads every event to the part it concerns, and after each event does what follows from it: answers whose
routes have become live, binding changes, updates to neighbours. The parts hold the rules:

| part | what |
| --- | --- |
| `edges` | who is there, what each edge holds |
| `allocation` | subscriptions granted |
| `removals` | subscriptions ended |
| `neighbours` | routes exchanged with other heads |

State is soft: a head that starts adopts the bindings it finds and learns the rest from its edges and
neighbours.
"""

from __future__ import annotations

from collections import deque

from tidegate_protocol.messages import (
    EdgeGoodbye,
    EdgeHello,
    PublisherGoodbye,
    PublisherHello,
    PublisherWelcome,
    RefusalReason,
    RoutesUpdate,
    StatusReply,
    StatusRequest,
    SubscribeRequest,
    UnsubscribeRequest,
)

from .allocation import Allocations
from .config import SILENT_PERIODS_MAX, HeadConfig
from .context import HeadContext
from .edges import Edges
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
from .neighbours import Neighbours
from .removals import Removals


class HeadAgent:
    """The agent of one head: `handle(event, now)` says what is to be done."""

    def __init__(self, config: HeadConfig) -> None:
        self._context = context = HeadContext(config)
        self._neighbours = Neighbours(context)
        self._removals = Removals(context)
        self._edges = Edges(context, self._removals.remove)
        self._allocations = Allocations(context, self._edges, self._removals, self._neighbours)
        self.ignored = 0
        """Messages of kinds that are not for a head."""

    @property
    def story(self) -> deque[Decision]:
        """The recent decisions, oldest first."""
        return self._context.story

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        self._context.now = now
        match event:
            case Started():
                self._start(event)
            case MessageReceived():
                self._receive(event)
            case ReplyReceived():
                self._answered(event)
            case Undeliverable(request_id):
                self._undeliverable(request_id)
            case TimerFired(name):
                self._timer(name)
            case RoutesChanged(change_id):
                self._context.change_done(change_id)
            case ActionFailed(action, problem):
                self._failed(action, problem)
            case StopRequested():
                self._context.stopping = True
                self._allocations.stop()
            case _:
                self.ignored += 1
        self._follow_up()
        return self._context.take_actions()

    def _start(self, event: Started) -> None:
        context = self._context
        context.started_s = context.now
        for target in sorted(event.routes):
            context.routes.adopt(target, event.routes[target])
            if target not in self._neighbours:
                self._edges.adopt(target)
        self._neighbours.start()
        context.set_timer("tick", context.config.period_s)

    def _follow_up(self) -> None:
        self._deliver_finished_waits()
        self._context.flush_routes()
        self._neighbours.pump()
        self._deliver_finished_waits()

    def _deliver_finished_waits(self) -> None:
        for wait in self._context.waits.take_finished():
            owner, _, subject = wait.key.partition(" ")
            if owner == "grant":
                self._allocations.routes_live(subject, wait.awaiting)
            else:
                self._neighbours.routes_live(subject, wait.awaiting)

    # Messages

    def _receive(self, event: MessageReceived) -> None:
        reply_to = event.reply_to
        match event.message:
            case SubscribeRequest() as message:
                if not self._refused_while_stopping(reply_to):
                    self._allocations.subscribe(message, reply_to)
            case UnsubscribeRequest() as message:
                if not self._refused_while_stopping(reply_to):
                    self._unsubscribe(message, reply_to)
            case PublisherHello() as message:
                self._publisher_hello(message, reply_to)
            case PublisherGoodbye() as message:
                self._context.registry.publisher_gone(message.publisher)
            case StatusRequest():
                self._context.reply(reply_to, self._status())
            case EdgeHello() as message:
                self._edges.hello(message, reply_to)
            case EdgeGoodbye() as message:
                self._edges.goodbye(message)
            case RoutesUpdate() as message:
                self._neighbours.update_received(message, reply_to)
            case other:
                self.ignored += 1
                self._context.refuse(reply_to, RefusalReason.INVALID, f"a head takes no {other.kind}", "kind")

    def _refused_while_stopping(self, reply_to: ReplyAddress | None) -> bool:
        if self._context.stopping:
            text = "this head is being stopped; ask again"
            self._context.refuse(reply_to, RefusalReason.NOT_READY, text, retry_after_s=self._context.config.period_s)
        return self._context.stopping

    def _unsubscribe(self, message: UnsubscribeRequest, reply_to: ReplyAddress | None) -> None:
        context, key = self._context, (message.subscriber, message.number)
        unread = self._edges.may_hold("#") or next(
            (name for name, record in sorted(context.registry.edges.items()) if not record.settled), None
        )
        if self._allocations.holds(key):
            text, reason = "this subscription is just being made", RefusalReason.CONFLICT
        elif not context.registry.holders(key) and unread is not None:
            text, reason = (
                f"{unread} may hold this subscription and has not told yet",
                RefusalReason.NOT_READY,
            )
        else:
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
        welcome = PublisherWelcome(publisher=message.publisher, head=config.head, period_s=config.publisher_period_s)
        context.reply(reply_to, welcome)

    def _status(self) -> StatusReply:
        config = self._context.config
        return StatusReply(
            cluster=config.cluster,
            head=config.head,
            version=config.version,
            edges=self._edges.status(),
            neighbours=self._neighbours.status(),
            publishers=len(self._context.registry.publishers),
        )

    # Answers, timers, failures

    def _answered(self, event: ReplyReceived) -> None:
        part, subject = self._context.requests.pop(event.request_id, ("", ""))
        match part:
            case "prepare":
                self._allocations.answered(subject, event.message)
            case "remove":
                self._removals.answered(subject, event.message)
            case "registry":
                self._edges.page(subject, event.message)
            case "update":
                self._neighbours.answered(subject, event.message)

    def _undeliverable(self, request_id: str) -> None:
        part, subject = self._context.requests.pop(request_id, ("", ""))
        match part:
            case "prepare":
                self._allocations.undeliverable(subject)
            case "remove":
                edge = self._removals.undeliverable(subject)
                if edge is not None:
                    self._edges.lost(edge)
            case "registry":
                self._edges.undeliverable(subject)
            case "update":
                self._neighbours.undeliverable(subject)

    def _timer(self, name: str) -> None:
        kind, _, subject = name.partition(" ")
        match kind:
            case "tick":
                self._context.set_timer("tick", self._context.config.period_s)
                self._context.registry.expire_publishers(self._context.now)
                self._edges.tick()
                self._neighbours.tick()
            case "prepare":
                self._allocations.timed_out(subject)
            case "remove":
                self._removals.timed_out(subject)
            case "registry":
                self._edges.timed_out(subject)
            case "update":
                self._neighbours.timed_out(subject)
            case "wait":
                self._context.waits.expired(subject)
            case "rebind":
                self._context.retry_change(int(subject))

    def _failed(self, action: Action, problem: str) -> None:
        self._context.decide(Decision("action-failed", type(action).__name__, problem))
        if not isinstance(action, ChangeRoutes):
            return
        for key in self._context.change_failed(action):
            owner, _, subject = key.partition(" ")
            if owner == "grant":
                self._allocations.routes_failed(subject, problem)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant. Called after every step in tests."""
        self._context.validate()
        self._edges.validate()
        self._removals.validate()
        self._allocations.validate()
        self._neighbours.validate()
        for part, subject in self._context.requests.values():
            assert part in {"prepare", "remove", "registry", "update"}, (part, subject)
