"""The edges of a cluster as their head sees them: who is there, and what each of them holds.

Edges announce themselves every period with a digest of their subscriptions. Where it differs from what the
head knows, the head reads the edge's registry page by page and takes it over: the edge's RabbitMQ is what
counts, the head's view is soft. What always holds:

- an edge takes new subscriptions only when it is alive, not draining, and *settled*: its registry has been
  compared with ours since we started;
- nothing a predecessor bound for an edge is unbound before that edge is settled;
- what changed while a registry was being read is left as it is; the next hello shows whether the two agree;
- a queue here that we know nobody uses is an orphan, and is removed. One whose client was told to take its
  subscription from elsewhere may hold what that client never got: it is abandoned, not removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.messages import (
    ControlMessage,
    EdgeGoodbye,
    EdgeHello,
    EdgeStatus,
    EdgeWelcome,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    Subscription,
)

from .config import ATTEMPTS_MAX, MISMATCHES_WHILE_BUSY_MAX, SILENT_PERIODS_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .machine import Decision, DropLink, EnsureLink, LinkKind, ReplyAddress
from .registry import NUMBER_MAX, EdgeRecord, Key, key_of

NUMBERS_PER_INCARNATION: Final = 1_009
"""How far apart the first numbers of two runs of a head are, as long as it has not read all its edges."""


@dataclass(slots=True)
class _Reading:
    """A registry being read."""

    found: dict[Key, Subscription] = field(default_factory=dict)
    after: str | None = None
    attempts: int = 1
    request_id: str = ""


class Edges:
    """Hellos, liveness and registries of all edges."""

    def __init__(self, context: HeadContext, remove_orphan: Callable[[str, Subscription], bool]) -> None:
        """`remove_orphan` removes a queue that is known to be of no use, or says that it is not known to be so."""
        self._context = context
        self._remove_orphan = remove_orphan
        self._reading: dict[str, _Reading] = {}
        self._mismatches: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self.when_read: Callable[[str], None] = lambda _: None
        """Told of each edge whose subscriptions are known for the first time."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(EdgeHello, self.hello)
        dispatch.on_message(EdgeGoodbye, self.goodbye)
        dispatch.on_request("registry", self.page, self.undeliverable)
        dispatch.on_timer("registry", self.timed_out)
        dispatch.ticks.append(self.tick)
        dispatch.checks.append(self.validate)

    def adopt(self, name: str) -> None:
        """A link to `name` exists from before: an edge, as it is no neighbour, that we expect to hear of."""
        self._context.registry.edge(name).heard_s = self._context.now

    # Hello and goodbye

    def hello(self, message: EdgeHello, reply_to: ReplyAddress | None) -> None:
        if self._refused(message, reply_to):
            return
        context, config = self._context, self._context.config
        record = context.registry.edge(message.edge)
        if not record.alive:
            context.decide(Decision("edge-alive", message.edge, "heard of it"))
        if record.link_url != message.link_url:
            context.do(EnsureLink(message.edge, LinkKind.EDGE, message.link_url))
        record.client_url, record.link_url = message.client_url, message.link_url
        record.capacity, record.says_draining = message.capacity, message.draining
        record.draining = context.drains.get(message.edge, message.draining)
        record.alarms = message.alarms
        record.alive, record.heard_s = True, context.now
        self._counts[message.edge] = message.registry_count
        if message.pause_version > context.pause_version:
            context.paused, context.pause_version = message.paused, message.pause_version
        welcome = EdgeWelcome(
            head=config.head,
            cluster=config.cluster,
            period_s=config.period_s,
            incarnation=config.incarnation,
            paused=context.paused,
            pause_version=context.pause_version,
        )
        context.reply(reply_to, welcome)
        self._compare(record, message)

    def _refused(self, message: EdgeHello, reply_to: ReplyAddress | None) -> bool:
        context, config = self._context, self._context.config
        if message.cluster != config.cluster:
            text = f"{message.edge} belongs to cluster {message.cluster}, this head to {config.cluster}"
            context.refuse(reply_to, RefusalReason.INVALID, text, "cluster")
            return True
        if message.edge == config.head or message.edge in context.routes.offers:
            text = f"{message.edge} is the name of a head; give the edge another one"
            context.refuse(reply_to, RefusalReason.CONFLICT, text, "edge")
            return True
        if message.edge not in context.registry.edges and len(context.registry.edges) >= config.edges_max:
            text = f"there are edges_max = {config.edges_max} edges already"
            context.refuse(reply_to, RefusalReason.LIMIT, text, "edge")
            return True
        return False

    def goodbye(self, message: EdgeGoodbye, reply_to: ReplyAddress | None) -> None:
        record = self._context.registry.edges.get(message.edge)
        if record is not None:
            self._lose(record, "said goodbye")

    def lost(self, name: str) -> None:
        """Its process is not there."""
        record = self._context.registry.edges.get(name)
        if record is not None:
            self._lose(record, "its process is not there")

    def _lose(self, record: EdgeRecord, why: str) -> None:
        if record.alive:
            record.alive = False
            self._context.decide(Decision("edge-not-alive", record.name, why))

    def tick(self) -> None:
        """Every period: notice silent edges, forget those silent for very long."""
        context, config = self._context, self._context.config
        for record in [context.registry.edges[name] for name in sorted(context.registry.edges)]:
            silent_s = context.now - record.heard_s
            if silent_s > SILENT_PERIODS_MAX * config.period_s:
                self._lose(record, f"silent for {SILENT_PERIODS_MAX} periods")
            if silent_s > config.edge_forget_s and record.name not in context.busy:
                self._forget(record)

    def _forget(self, record: EdgeRecord) -> None:
        context, name = self._context, record.name
        for key in sorted(record.subscriptions):
            context.withdraw(name, key)
        self._stop_reading(name)
        context.registry.forget_edge(name)
        if name in context.routes.targets:
            context.routes.drop_target(name)
        for memory in (context.touched_s, self._mismatches, self._counts):
            memory.pop(name, None)
        context.do(DropLink(name))
        context.decide(Decision("edge-forgotten", name, f"silent for {context.config.edge_forget_s:g} s"))

    # Fitness

    def unfit(self, name: str, pattern: str) -> str | None:
        """Why `name` can't take a new subscription to `pattern`; None if it can."""
        record = self._context.registry.edges.get(name)
        if record is None or not record.alive:
            return "not alive"
        if record.draining:
            return "draining"
        if not record.settled:
            return "its registry is not known yet"
        limit = self._context.config.patterns_per_link_max
        if pattern not in record.patterns and self._context.routes.distinct(name) >= limit:
            return f"its link carries patterns_per_link_max = {limit} patterns"
        return None

    def away(self, name: str) -> bool:
        """Whether an edge has been silent for so long that a client which can't reach it goes elsewhere."""
        record = self._context.registry.edges.get(name)
        if record is None:
            return True
        return not record.alive and self._context.now - record.heard_s >= self._context.config.balancing.edge_away_s

    def number_for(self, subscriber: str) -> int:
        """The number of a new queue. While we don't know all edges, one that a predecessor has hardly given."""
        context = self._context
        all_known = all(record.settled for record in context.registry.edges.values())
        return context.registry.next_number(
            subscriber, 0 if all_known else context.config.incarnation * NUMBERS_PER_INCARNATION % NUMBER_MAX
        )

    # Registries

    def may_hold(self, pattern: str) -> str | None:
        """In the first seconds: an edge we have not read yet and that may hold subscriptions to `pattern`.

        One that we do hear of is waited for longer: what it holds is there to be had, and only its answers are late.
        """
        context = self._context
        for name in sorted(context.registry.edges):
            record = context.registry.edges[name]
            unread = not record.settled and context.is_new(patient=record.alive)
            if unread and (self._counts.get(name) or context.routes.is_carried(name, pattern)):
                return name
        return None

    def _compare(self, record: EdgeRecord, message: EdgeHello) -> None:
        context, name = self._context, record.name
        same = (message.registry_count, message.registry_digest) == (record.digest.count, record.digest.text)
        if same:
            self._mismatches[name] = 0
            if not record.settled:
                self._settle(record)
            return
        self._mismatches[name] = self._mismatches.get(name, 0) + 1
        quiet = context.now - context.touched_s.get(name, -1e9) > context.config.period_s
        overdue = self._mismatches[name] >= MISMATCHES_WHILE_BUSY_MAX
        if name not in self._reading and (quiet or overdue or not record.settled):
            self._reading[name] = _Reading()
            context.touched[name] = set(context.busy.get(name, ()))
            self._ask(name)

    def _ask(self, name: str) -> None:
        context, reading = self._context, self._reading[name]
        reading.request_id = context.request(name, RegistryRequest(after=reading.after), "registry", name)
        context.set_timer(f"registry {name}", context.config.reply_timeout_s)

    def page(self, name: str, message: ControlMessage) -> None:
        """An edge's answer to our question for a page."""
        reading = self._reading.get(name)
        if reading is None:
            return
        progress = isinstance(message, RegistryPage) and (
            message.after is None or message.after > (reading.after or "")
        )
        if not isinstance(message, RegistryPage) or not progress:
            self._abandon(name, f"answered with {message.kind}, which does not go on from {reading.after}")
            return
        for subscription in message.subscriptions:
            reading.found[key_of(subscription)] = subscription
        if len(reading.found) > self._context.config.subscriptions_max:
            self._abandon(name, f"holds more than subscriptions_max = {self._context.config.subscriptions_max}")
        elif message.after is not None:
            reading.after, reading.attempts = message.after, 1
            self._ask(name)
        else:
            self._take_over(self._context.registry.edges[name], reading.found)

    def timed_out(self, name: str) -> None:
        """A page did not come."""
        reading = self._reading.get(name)
        if reading is None:
            return
        self._context.drop_request(reading.request_id)
        if reading.attempts >= ATTEMPTS_MAX:
            self._abandon(name, f"no page after {ATTEMPTS_MAX} requests")
        else:
            reading.attempts += 1
            self._ask(name)

    def undeliverable(self, name: str) -> None:
        self.lost(name)
        self._abandon(name, "its process is not there")

    def _abandon(self, name: str, why: str) -> None:
        """Stop reading; a later hello begins anew."""
        if self._stop_reading(name):
            self._context.decide(Decision("registry-abandoned", name, why))

    def _stop_reading(self, name: str) -> bool:
        reading = self._reading.pop(name, None)
        self._context.touched.pop(name, None)
        if reading is None:
            return False
        self._context.drop_request(reading.request_id)
        self._context.cancel_timer(f"registry {name}")
        return True

    def _take_over(self, record: EdgeRecord, found: dict[Key, Subscription]) -> None:
        """Make our view of the edge that of its registry, but for what has changed meanwhile."""
        context, name = self._context, record.name
        trusted = context.touched.get(name, set())
        self._stop_reading(name)
        added = removed = orphans = 0
        for key in sorted(found.keys() - trusted):
            if context.registry.get(name, key) == found[key]:
                continue
            if self._remove_orphan(name, found[key]):
                orphans += 1
                continue
            added += 1
            elsewhere = self._granted_elsewhere(name, found[key])
            context.enter(name, found[key])
            if elsewhere:
                context.abandoned.add((name, key))
        for key in sorted(record.subscriptions.keys() - found.keys() - trusted):
            removed += 1
            context.withdraw(name, key)
        numbers = {"listed": float(len(found)), "added": added, "removed": removed, "orphans": orphans}
        context.decide(Decision("registry-read", name, "its digest differed from ours", numbers))
        self._mismatches[name] = 0
        self._settle(record)

    def _granted_elsewhere(self, name: str, subscription: Subscription) -> bool:
        """Whether a client was told to take this subscription from somewhere else."""
        context, key = self._context, key_of(subscription)
        places = [(edge, key_of(other)) for edge, other in context.registry.find(key[0], subscription.pattern)]
        return any(place in context.granted for place in places if place != (name, key))

    def _settle(self, record: EdgeRecord) -> None:
        news, record.settled = not record.settled, True
        self._context.routes.settle(record.name)
        if news:
            self.when_read(record.name)

    def status(self) -> tuple[EdgeStatus, ...]:
        now, edges = self._context.now, self._context.registry.edges
        return tuple(
            EdgeStatus(
                edge=name,
                alive=record.alive,
                draining=record.draining,
                subscriptions=len(record.subscriptions),
                patterns=len(record.patterns),
                capacity=record.capacity,
                seen_ago_s=max(now - record.heard_s, 0.0),
            )
            for name, record in sorted(edges.items())
        )

    def validate(self) -> None:
        for name, record in self._context.registry.edges.items():
            assert not (record.settled and self._context.routes.leftovers(name)), f"{name} is settled but has leftovers"
            assert record.alive <= bool(record.client_url), f"{name} is alive but has no address"
        assert self._reading.keys() == self._context.touched.keys()
