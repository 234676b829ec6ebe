"""The edges of a cluster as their head sees them: who is there, and what each of them holds.

Edges announce themselves every period with a digest of their subscriptions. Where it differs from what the
head knows, the head reads the edge's registry page by page and takes it over: the edge's RabbitMQ is what
counts, the head's view is soft. Invariants:

- an edge takes new subscriptions only when it is alive, not draining, and *settled*: its registry has been
  compared with ours since we started;
- nothing a predecessor bound for an edge is unbound before that edge is settled;
- what changed while a registry was being read is left as it is; the next hello shows whether the two agree;
- a queue here that we know nobody uses is an orphan, and is removed. One whose client was told to take its
  subscription from elsewhere may hold what that client never got: it is abandoned, not removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.decisions import (
    EdgeForgotten,
    EdgePresence,
    Presence,
    RegistryOutcome,
    RegistryRead,
    Rejected,
    Rejection,
)
from tidegate_protocol.messages import (
    EdgeGoodbye,
    EdgeHello,
    EdgeStatus,
    EdgeWelcome,
    RegistryPage,
    RegistryRequest,
    Subscription,
)
from tidegate_protocol.rendering import refusals

from ..config import MISMATCHES_WHILE_BUSY_MAX, SILENT_PERIODS_MAX
from ..kit.calls import Answer, Calls, Silence
from ..kit.dispatch import Dispatch
from ..kit.subscriptions import Key, key_of
from ..machine import DropLink, EnsureLink, LinkKind, ReplyAddress
from .context import HeadContext
from .events import EdgeAbsent, EdgeRead
from .places.knowledge import Knowledge
from .places.removals import Removals
from .registry import NUMBER_MAX, EdgeRecord

NUMBERS_PER_INCARNATION: Final = 1_009
"""How far apart the first numbers of two runs of a head are, as long as it has not read all its edges."""


@dataclass(slots=True)
class _Reading:
    """A registry being read."""

    since: int
    """The last change that we knew of when the reading began."""
    found: dict[Key, Subscription] = field(default_factory=dict)
    after: str | None = None


class Edges:
    """Hellos, liveness and registries of all edges."""

    def __init__(self, context: HeadContext, removals: Removals, knowledge: Knowledge) -> None:
        self._context = context
        self._removals = removals
        self._knowledge = knowledge
        self._reading: dict[str, _Reading] = {}
        self._pages = Calls(context, "registry", context.config.reply_timeout_s, self._page_heard)
        self._mismatches: dict[str, int] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(EdgeHello, self.on_hello)
        dispatch.on_message(EdgeGoodbye, self.on_goodbye)
        dispatch.on_event(EdgeAbsent, lambda event: self.lost(event.edge))
        self._pages.register(dispatch)
        dispatch.ticks.append(self._tick)
        dispatch.checks.append(self.validate)

    def adopt(self, name: str) -> None:
        """A link to `name` exists from before: an edge, as it is no neighbour, that we expect to hear of."""
        self._context.registry.edge(name).heard_s = self._context.now

    # Hello and goodbye

    def on_hello(self, message: EdgeHello, reply_to: ReplyAddress | None) -> None:
        if self._refused(message, reply_to):
            return
        context, config = self._context, self._context.config
        record = context.registry.edge(message.edge)
        if not record.alive:
            context.decide(EdgePresence(message.edge, Presence.HEARD))
        said = message.accounts_passed.known
        passes_accounts = record.passes_accounts if said is None else said
        if (record.link_url, record.passes_accounts) != (message.link_url, passes_accounts):
            keeps = passes_accounts if config.checked_accounts else None
            context.do(EnsureLink(message.edge, LinkKind.EDGE, message.link_url, keeps))
        record.client_url, record.link_url = message.client_url, message.link_url
        if passes_accounts is not record.passes_accounts:
            record.passes_accounts = passes_accounts
            context.accounts.judge()
        record.capacity, record.says_draining = message.capacity, message.draining
        record.draining = message.draining if record.drain_ordered is None else record.drain_ordered
        record.alarms = message.alarms
        record.alive, record.heard_s = True, context.now
        record.listed = message.registry_count
        context.hear_pause(message.paused, message.pause_version)
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
            refusal = refusals.other_cluster(message.edge, message.cluster, config.cluster)
        elif message.edge == config.head or message.edge in context.routes.offers:
            refusal = refusals.name_of_a_head(message.edge)
        elif message.edge not in context.registry.edges and len(context.registry.edges) >= config.edges_max:
            refusal = refusals.limit("edges_max", config.edges_max, "edge")
        else:
            return False
        context.refuse(reply_to, refusal)
        return True

    def on_goodbye(self, message: EdgeGoodbye, reply_to: ReplyAddress | None) -> None:
        self.lost(message.edge, Presence.GOODBYE)

    def lost(self, name: str, why: Presence = Presence.PROCESS_ABSENT) -> None:
        """An edge is not there at this moment."""
        record = self._context.registry.edges.get(name)
        if record is not None and record.alive:
            record.alive = False
            self._context.decide(EdgePresence(name, why))

    def _tick(self) -> None:
        """Every period: notice silent edges, forget those silent for very long."""
        context, config = self._context, self._context.config
        for record in [context.registry.edges[name] for name in sorted(context.registry.edges)]:
            silent_s = context.now - record.heard_s
            if silent_s > SILENT_PERIODS_MAX * config.period_s:
                self.lost(record.name, Presence.SILENT)
            if silent_s > config.edge_forget_s and not context.ledger.busy_on(record.name):
                self._forget(record)

    def _forget(self, record: EdgeRecord) -> None:
        context, name = self._context, record.name
        for key in sorted(record.subscriptions):
            context.ledger.withdraw((name, key))
        self._stop_reading(name)
        context.registry.forget_edge(name)
        if name in context.routes.targets:
            context.routes.drop_target(name)
        self._mismatches.pop(name, None)
        context.do(DropLink(name))
        context.decide(EdgeForgotten(name, context.config.edge_forget_s))

    # Fitness

    def unfit(self, name: str, pattern: str) -> Rejected | None:
        """Why `name` can't take a new subscription to `pattern`; None if it can."""
        record = self._context.registry.edges.get(name)
        if record is None or not record.alive:
            return Rejected(name, Rejection.NOT_ALIVE)
        if record.draining:
            return Rejected(name, Rejection.DRAINING)
        if not record.settled:
            return Rejected(name, Rejection.REGISTRY_UNKNOWN)
        limit = self._context.config.patterns_per_link_max
        if pattern not in record.patterns and self._context.routes.distinct(name) >= limit:
            return Rejected(name, Rejection.LINK_FULL, limit=float(limit))
        return None

    def away(self, name: str) -> bool:
        """Whether an edge has been silent for so long that a client which can't reach it goes elsewhere."""
        record = self._context.registry.edges.get(name)
        if record is None:
            return True
        return not record.alive and self._context.now - record.heard_s >= self._context.config.balancing.edge_away_s

    def number_for(self, subscriber: str) -> int:
        """The number of a new queue. While we don't know all edges, one that a predecessor has hardly given."""
        config, registry = self._context.config, self._context.registry
        fresh = config.incarnation * NUMBERS_PER_INCARNATION % NUMBER_MAX
        return registry.next_number(subscriber, 0 if self._knowledge.all_read else fresh)

    # Registries

    def _compare(self, record: EdgeRecord, message: EdgeHello) -> None:
        context, name = self._context, record.name
        same = (message.registry_count, message.registry_digest) == (record.digest.count, record.digest.text)
        if same:
            self._mismatches[name] = 0
            if not record.settled:
                self._settle(record)
            return
        self._mismatches[name] = self._mismatches.get(name, 0) + 1
        quiet = context.now - record.changed_s > context.config.period_s
        overdue = self._mismatches[name] >= MISMATCHES_WHILE_BUSY_MAX
        if name not in self._reading and (quiet or overdue or not record.settled):
            self._reading[name] = _Reading(context.ledger.changes)
            self._ask(name)

    def _ask(self, name: str) -> None:
        self._pages.ask(name, name, RegistryRequest(after=self._reading[name].after))

    def _page_heard(self, name: str, answer: Answer) -> None:
        """An edge's answer to our question for a page."""
        reading = self._reading[name]
        if answer is Silence.ABSENT:
            self.lost(name)
            self._abandon(name, RegistryOutcome.PROCESS_ABSENT)
        elif answer is Silence.LATE:
            self._abandon(name, RegistryOutcome.NO_ANSWER)
        elif isinstance(answer, RegistryPage) and (answer.after is None or answer.after > (reading.after or "")):
            self._read(name, reading, answer)
        else:
            self._abandon(name, RegistryOutcome.WRONG_ANSWER)

    def _read(self, name: str, reading: _Reading, page: RegistryPage) -> None:
        reading.found |= {key_of(subscription): subscription for subscription in page.subscriptions}
        if len(reading.found) > self._context.config.subscriptions_max:
            self._abandon(name, RegistryOutcome.TOO_MANY)
        elif page.after is not None:
            reading.after = page.after
            self._ask(name)
        else:
            self._take_over(self._context.registry.edges[name], reading)

    def _abandon(self, name: str, why: RegistryOutcome) -> None:
        """Stop reading; a later hello begins anew."""
        if self._stop_reading(name):
            self._context.decide(RegistryRead(name, why))

    def _stop_reading(self, name: str) -> bool:
        reading = self._reading.pop(name, None)
        self._pages.close(name)
        return reading is not None

    def _take_over(self, record: EdgeRecord, reading: _Reading) -> None:
        """Make our view of the edge that of its registry, but for what has changed meanwhile."""
        context, name, found = self._context, record.name, reading.found
        self._stop_reading(name)
        added = removed = orphans = 0
        for key in sorted(found):
            changed = context.ledger.has_changed((name, key), reading.since)
            if changed or context.registry.get(name, key) == found[key]:
                continue
            if self._removals.remove_orphan(name, found[key]):
                orphans += 1
                continue
            added += 1
            context.ledger.found(name, found[key])
        for key in sorted(record.subscriptions.keys() - found.keys()):
            if not context.ledger.has_changed((name, key), reading.since):
                removed += 1
                context.ledger.withdraw((name, key))
        context.decide(RegistryRead(name, RegistryOutcome.READ, len(found), added, removed, orphans))
        self._mismatches[name] = 0
        self._settle(record)

    def _settle(self, record: EdgeRecord) -> None:
        news, record.settled = not record.settled, True
        self._context.routes.settle(record.name)
        if news:
            self._context.tell_parts(EdgeRead(record.name))

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
