"""What a head keeps in its RabbitMQ: exchanges, link queues, shovels, routes, and the limit on what may wait.

The plane holds the *desired* state: links and, per link, patterns. `adopt` fills it with what a predecessor
left, `perform` changes it by one action, and `assert_all` makes RabbitMQ agree with it, whether nothing or
everything is missing. Each of them may be repeated after a failure at any point. It decides nothing: which
links and routes there are is the agent's business.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from aiormq.abc import AbstractChannel, AbstractConnection
from pamqp.commands import Basic
from pamqp.common import FieldValue

from tidegate_agents.machine import (
    Action,
    ActionFailed,
    AllowAccounts,
    ChangeRoutes,
    DisconnectPublisher,
    DropLink,
    EnsureLink,
    Event,
    KeepOut,
    LinkKind,
    MarkerPublished,
    PublishMarker,
    RoutesChanged,
    Started,
    UnwatchFence,
    WatchFence,
)
from tidegate_protocol.names import (
    ACCOUNTS_EXCHANGE,
    CONTROL_EXCHANGE,
    DELIVER_EXCHANGE,
    INGRESS_PREFIX,
    LINK_CHECK_EXCHANGE,
    LINK_PREFIX,
    MARKER_EXCHANGE,
    PUBLISH_EXCHANGE,
    ingress_exchange,
    link_queue,
    marker_header,
)
from tidegate_protocol.rendering import why
from tidegate_protocol.topics import is_pattern

from ..errors import RabbitError, RabbitUnreachable
from ..links import quarantine
from ..rabbit.management import Json, Management
from ..rabbit.warden import Warden
from ..settings.tls import SYSTEM_AUTHORITIES, shovel_options
from ..settings.urls import ServerUrl
from .fences import FenceWatch
from .sealing import Seal

log = logging.getLogger(__name__)

POLICY: Final = "tidegate-link"
SHOVEL_RECONNECT_DELAY_S: Final = 1
SHOVEL_OPTIONS: Final = "?heartbeat=10&connection_timeout=10000"
QUEUE_ARGUMENTS: Final = {"x-queue-type": "classic"}
"""Said aloud, because a virtual host may have another default."""
PUBLISHER_CONNECTION: Final = "tidegate publisher "
"""What publishers call their connections, before their id."""
ACCOUNT_OPTION: Final = "dest-publish-properties"
"""How a shovel writes its own account over that of the publisher, on a link that can't pass it on. A shovel can't take
the property away."""
PERSISTENT: Final = 2
"""The delivery mode of a message that outlives a restart of RabbitMQ."""
EMPTY_CHECKS: Final = 2
"""How often in a row a dropped link must be seen empty: queue statistics are a few seconds old."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One route as RabbitMQ holds it."""

    target: str
    exchange: str
    pattern: str


@dataclass(frozen=True, slots=True)
class LinkState:
    """One link as RabbitMQ reports it, a few seconds old."""

    shovel: str
    waiting: int
    forwarded: int


@dataclass(slots=True)
class HeadPlane:
    """Desired state of a head's RabbitMQ."""

    name: str
    url: ServerUrl
    neighbours: frozenset[str]
    link_limit_bytes: int
    link_prefetch: int
    fences: FenceWatch
    links: dict[str, EnsureLink] = field(default_factory=dict)
    routes: dict[str, set[str]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Links on their way out, with how often in a row each was seen empty."""
    link_authorities: str = SYSTEM_AUTHORITIES
    """Where this head's RabbitMQ finds the authorities whose certificates it accepts."""
    link_certificate: tuple[str | None, str | None] = (None, None)
    """Which certificate and key it presents there; paths on its machine."""
    relayed: set[str] = field(default_factory=set)
    """Links whose messages are carried by hand (`links.rescue`): they have no shovel."""
    quarantine: Json = field(default_factory=lambda: quarantine.policy(10_000, 64 << 20, 30 * 24 * 3600))
    """The policy that bounds what is set aside."""
    marked: set[str] = field(default_factory=set)
    """Links that are bound to the exchange of the markers."""
    accounts_allowed: bool | None = None
    """Whether publishers are to find that they may name their accounts; None: as a predecessor left it."""
    seal: Seal = field(default_factory=Seal)
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    warden: Warden | None = None
    """Who may keep accounts out; None where there is nobody."""
    confirming: AbstractChannel | None = None
    """Where markers are published; opened when the first one is, and again on a new connection."""

    # The three things a runtime does with a plane

    async def adopt(self, channel: AbstractChannel, management: Management) -> Started:
        """Take over the routes that are bound already; links without any are known by their queue.

        A predecessor may have bound patterns that are refused today. They are not taken over, so `assert_all` unbinds
        them.
        """
        for target in [item["name"] async for item in management.queues(LINK_PREFIX)]:
            self.routes.setdefault(str(target).removeprefix(LINK_PREFIX), set())
        for binding in await self._bindings(management):
            patterns = self.routes.setdefault(binding.target, set())
            if is_pattern(binding.pattern):
                patterns.add(binding.pattern)
            else:
                log.warning(
                    "the pattern %r of a route to %s is no longer legal; it will be unbound",
                    binding.pattern,
                    binding.target,
                )
        return Started(
            routes={target: frozenset(patterns) for target, patterns in sorted(self.routes.items())},
            accounts_allowed=ACCOUNTS_EXCHANGE in await management.exchanges(ACCOUNTS_EXCHANGE),
        )

    async def assert_all(self, channel: AbstractChannel, management: Management) -> None:
        """Make RabbitMQ hold exactly what is desired."""
        for exchange in (CONTROL_EXCHANGE, *self._exchanges()):
            await channel.exchange_declare(exchange, exchange_type="topic", durable=True)
        await channel.exchange_declare(MARKER_EXCHANGE, exchange_type="headers", durable=True)
        await channel.exchange_declare(LINK_CHECK_EXCHANGE, exchange_type="fanout", durable=True)
        await self._assert_accounts(channel)
        for exchange in await management.exchanges(INGRESS_PREFIX):
            if exchange.removeprefix(INGRESS_PREFIX) not in self.neighbours:
                log.info("removing %s, whose head is no longer a neighbour", exchange)
                await channel.exchange_delete(exchange)
        await put_policy_if_different(
            management, POLICY, limit_policy(LINK_PREFIX, self.link_limit_bytes, "reject-publish")
        )
        await quarantine.declare(channel)
        await put_policy_if_different(management, quarantine.POLICY, self.quarantine)
        for target in sorted(self.routes.keys() | self.links.keys()):
            await declare_link(channel, target)
            await self._bind_markers(channel, target)
        await self._assert_bindings(channel, management)
        present = await management.shovels()
        for link in self.links.values():
            await self._assert_shovel(management, link, present.get(link_queue(link.target)))
        await self.fences.assert_all(channel)

    def object_of(self, action: Action) -> str | None:
        """Routes and links of a head depend on each other, and markers on both; but no marker depends on another."""
        return action.key if isinstance(action, PublishMarker) else None

    async def perform(self, channel: AbstractChannel, management: Management, action: Action) -> Event | None:
        """Carry out one action of the agent."""
        match action:
            case EnsureLink(target=target):
                self.links[target] = action
                self.dropped.pop(target, None)
                self.routes.setdefault(target, set())
                await declare_link(channel, target)
                await self._bind_markers(channel, target)
                present = await management.shovels()
                await self._assert_shovel(management, action, present.get(link_queue(target)))
                return None
            case AllowAccounts(allowed=allowed):
                self.accounts_allowed = allowed
                await self._assert_accounts(channel)
                return None
            case ChangeRoutes():
                await self._change_routes(channel, action)
                return RoutesChanged(action.change_id)
            case DropLink(target=target):
                self.links.pop(target, None)
                patterns = self.routes.pop(target, set())
                self.dropped[target] = 0
                await declare_link(channel, target)
                await unbind_all(channel, [Binding(target, e, p) for p in sorted(patterns) for e in self._exchanges()])
                return None
            case PublishMarker(key=key, targets=targets):
                await self._publish_marker(channel, key, targets)
                return MarkerPublished(key)
            case WatchFence(neighbour=neighbour, key=key):
                await self.fences.watch(channel, neighbour, key)
                return None
            case UnwatchFence(neighbour=neighbour, key=key):
                await self.fences.unwatch(channel, neighbour, key)
                return None
            case DisconnectPublisher():
                return await disconnect_publisher(management, action)
            case KeepOut():
                return await keep_out(self.warden, action)
            case _:
                raise AssertionError(f"a head has no use for {type(action).__name__}")

    async def watch(self, channel: AbstractChannel, management: Management) -> dict[str, LinkState]:
        """Look at the links: how they do, and whether a dropped one is empty and can go."""
        states = await management.shovel_states()
        found: dict[str, LinkState] = {}
        async for queue in management.queues(LINK_PREFIX):
            target = str(queue["name"]).removeprefix(LINK_PREFIX)
            statistics = queue.get("message_stats")
            forwarded = statistics.get("ack", 0) if isinstance(statistics, dict) else 0
            waiting = int(queue.get("messages", 0) or 0)
            # A link without a shovel runs all the same while its messages are carried by hand.
            state = "running" if target in self.relayed else states.get(link_queue(target), "missing")
            found[target] = LinkState(state, waiting, int(forwarded))
        for target in sorted(self.dropped):
            await self._remove_if_empty(channel, management, target, found.get(target))
        return found

    async def _assert_accounts(self, channel: AbstractChannel) -> None:
        """Publishers look for an exchange: it is there as long as they may name their accounts."""
        if self.accounts_allowed:
            await channel.exchange_declare(ACCOUNTS_EXCHANGE, exchange_type="fanout", durable=True, internal=True)
        elif self.accounts_allowed is False:
            await channel.exchange_delete(ACCOUNTS_EXCHANGE)

    # Routes

    def _exchanges(self, target: str | None = None) -> list[str]:
        """Where publications come in that may go to `target`: not from the target itself: no echo."""
        return [PUBLISH_EXCHANGE, *(ingress_exchange(n) for n in sorted(self.neighbours) if n != target)]

    async def _change_routes(self, channel: AbstractChannel, change: ChangeRoutes) -> None:
        patterns = self.routes.setdefault(change.target, set())
        patterns.update(change.add)
        patterns.difference_update(change.remove)
        exchanges = self._exchanges(change.target)
        await declare_link(channel, change.target)
        await bind_all(channel, [Binding(change.target, e, p) for p in change.add for e in exchanges])
        if change.add:
            await self.seal.press(channel)
        await unbind_all(channel, [Binding(change.target, e, p) for p in change.remove for e in exchanges])

    # Markers

    async def _bind_markers(self, channel: AbstractChannel, target: str) -> None:
        """Once for each link: binding every marker's key for the moment costs RabbitMQ four changes to its routes."""
        arguments: dict[str, FieldValue] = {"x-match": "any", marker_header(target): True}
        await channel.queue_bind(link_queue(target), MARKER_EXCHANGE, arguments=arguments)
        self.marked.add(target)

    async def _publish_marker(self, channel: AbstractChannel, key: str, targets: tuple[str, ...]) -> None:
        """Put a marker into the links, or, without targets, where the routes lead it; published twice, should the
        connection go in between, it does no harm.
        """
        for target in targets:
            if target not in self.marked:
                # A link that is gone is refused here, and one that is new gets its binding.
                await self._bind_markers(channel, target)
        confirming = await self._confirming(channel.connection)
        headers: dict[str, FieldValue] = {marker_header(target): True for target in targets}
        properties = Basic.Properties(delivery_mode=PERSISTENT, headers=headers)
        exchange = MARKER_EXCHANGE if targets else PUBLISH_EXCHANGE
        await confirming.basic_publish(b"", exchange=exchange, routing_key=key, properties=properties)

    async def _confirming(self, connection: AbstractConnection) -> AbstractChannel:
        # Markers are published side by side.
        async with self.opening:
            if self.confirming is None or self.confirming.is_closed or self.confirming.connection is not connection:
                self.confirming = await connection.channel(publisher_confirms=True)
            return self.confirming

    async def _bindings(self, management: Management) -> set[Binding]:
        found = set()
        for exchange in (PUBLISH_EXCHANGE, *await management.exchanges(INGRESS_PREFIX)):
            for item in await management.bindings_from(exchange):
                destination = str(item["destination"])
                if item["destination_type"] == "queue" and destination.startswith(LINK_PREFIX):
                    target = destination.removeprefix(LINK_PREFIX)
                    found.add(Binding(target, exchange, str(item["routing_key"])))
        return found

    async def _assert_bindings(self, channel: AbstractChannel, management: Management) -> None:
        wanted = {
            Binding(target, exchange, pattern)
            for target, patterns in self.routes.items()
            for pattern in patterns
            for exchange in self._exchanges(target)
        }
        present = await self._bindings(management)
        surplus = {binding for binding in present - wanted if binding.target in self.routes}
        if wanted - present or surplus:
            log.info(
                "routes in RabbitMQ differ from those wanted; repairing them",
                extra={"missing": len(wanted - present), "surplus": len(surplus)},
            )
        await bind_all(channel, sorted(wanted - present, key=_order))
        if wanted - present:
            await self.seal.press(channel)
        await unbind_all(channel, sorted(surplus, key=_order))

    # Shovels

    def _shovel(self, link: EnsureLink) -> Json:
        user, _ = self.url.credentials
        return {
            "ack-mode": "on-confirm",
            "reconnect-delay": SHOVEL_RECONNECT_DELAY_S,
            "src-protocol": "amqp091",
            # No host: a connection inside the node, which needs no password and passes no network.
            "src-uri": f"amqp://{quote(user, safe='')}@/{quote(self.url.vhost, safe='')}",
            "src-queue": link_queue(link.target),
            "src-prefetch-count": self.link_prefetch,
            "dest-protocol": "amqp091",
            "dest-uri": self._destination(link.url),
            "dest-exchange": self.exchange_of(link),
            "dest-add-forward-headers": False,
            **({ACCOUNT_OPTION: {"user_id": account_in(link.url)}} if link.passes_accounts is False else {}),
        }

    def _destination(self, url: str) -> str:
        """An edge tells its address; how this head's RabbitMQ checks a certificate is for this head to say."""
        if "?" in url:
            return url
        parts = urlsplit(url)
        secure = parts.scheme == "amqps"
        if not secure:
            return url + SHOVEL_OPTIONS
        return (
            url + SHOVEL_OPTIONS + shovel_options(parts.hostname or "", self.link_authorities, *self.link_certificate)
        )

    def exchange_of(self, link: EnsureLink) -> str:
        """Where a link writes to at its far end."""
        return DELIVER_EXCHANGE if link.kind is LinkKind.EDGE else ingress_exchange(self.name)

    async def relay_begins(self, management: Management, target: str) -> None:
        """Take the shovel of a link away; what it had in hand goes back into the link queue, where it was."""
        self.relayed.add(target)
        await management.delete_shovel(link_queue(target))

    async def relay_ends(self, management: Management, target: str) -> None:
        """Give a link its shovel back, if there still is that link."""
        self.relayed.discard(target)
        link = self.links.get(target)
        if link is not None:
            await self._assert_shovel(management, link, None)

    async def _assert_shovel(self, management: Management, link: EnsureLink, present: Json | None) -> None:
        if link.target in self.relayed:
            return
        wanted = self._shovel(link)
        if link.passes_accounts is None and present is not None and ACCOUNT_OPTION in present:
            wanted[ACCOUNT_OPTION] = present[ACCOUNT_OPTION]
        if present is None or any(present.get(key) != wanted.get(key) for key in (*wanted, ACCOUNT_OPTION)):
            # Putting an equal definition would restart the shovel and send again what is in flight.
            await management.put_shovel(link_queue(link.target), wanted)

    async def _remove_if_empty(
        self, channel: AbstractChannel, management: Management, target: str, state: LinkState | None
    ) -> None:
        if state is not None and state.waiting > 0:
            self.dropped[target] = 0
            return
        self.dropped[target] += 1
        if state is None or self.dropped[target] > EMPTY_CHECKS:
            await management.delete_shovel(link_queue(target))
            await channel.queue_delete(link_queue(target))
            self.marked.discard(target)
            del self.dropped[target]
            log.info("removed the link to %s", target)


async def disconnect_publisher(management: Management, action: DisconnectPublisher) -> Event | None:
    """Close the connections of a publisher. It may come back; what it did is known to the agent, not here."""
    reason = why(action.found)
    try:
        closed = await management.close_connections(PUBLISHER_CONNECTION + action.publisher, reason)
    except RabbitUnreachable:
        raise
    except RabbitError as error:
        return ActionFailed(action, str(error))
    if not closed:
        return ActionFailed(action, f"no connection is named {PUBLISHER_CONNECTION}{action.publisher}")
    log.warning("disconnected %s: %s", action.publisher, reason, extra={"connections": closed})
    return None


async def keep_out(warden: Warden | None, action: KeepOut) -> Event | None:
    """Close an account's connections and refuse new ones for a while. It may be repeated."""
    if warden is None:
        return ActionFailed(action, "warden_url is not configured")
    try:
        await warden.keep_out(action.account, action.lease_s)
    except RabbitUnreachable:
        raise
    except RabbitError as error:
        return ActionFailed(action, str(error))
    return None


async def declare_link(channel: AbstractChannel, target: str) -> None:
    """Have the queue of a link; one that is there is left alone."""
    await channel.queue_declare(link_queue(target), durable=True, arguments=dict(QUEUE_ARGUMENTS))


def account_in(url: str) -> str:
    """The account by which a link writes."""
    return unquote(urlsplit(url).username or "guest")


def _order(binding: Binding) -> tuple[str, str, str]:
    return binding.target, binding.exchange, binding.pattern


async def bind_all(channel: AbstractChannel, bindings: list[Binding]) -> None:
    """Bind, and return once all of them are live.

    A channel's methods are carried out in order, so only the last one has to be waited for.
    """
    for position, b in enumerate(bindings):
        if position < len(bindings) - 1:
            await channel.queue_bind(link_queue(b.target), b.exchange, b.pattern, nowait=True)
        else:
            await channel.queue_bind(link_queue(b.target), b.exchange, b.pattern)


async def unbind_all(channel: AbstractChannel, bindings: list[Binding]) -> None:
    """Unbind; what is not bound is fine."""
    for b in bindings:
        await channel.queue_unbind(link_queue(b.target), b.exchange, b.pattern)


def limit_policy(prefix: str, limit_bytes: int, overflow: str) -> Json:
    """A policy that limits what may wait in queues whose names start with `prefix`."""
    return {
        "pattern": "^" + prefix.replace(".", "\\."),
        "apply-to": "queues",
        "priority": 0,
        "definition": {"max-length-bytes": limit_bytes, "overflow": overflow},
    }


async def put_policy_if_different(management: Management, name: str, wanted: Json) -> None:
    """Leave an equal policy alone: setting one makes RabbitMQ look at every queue."""
    present = await management.policy(name)
    if present is None or any(present.get(key) != value for key, value in wanted.items()):
        await management.put_policy(name, wanted)
