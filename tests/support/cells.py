"""Who may do what, as a table of cells: account × operation × object, and whether it is allowed.

The table is made from the rules of a layout (`may_publish`, `may_subscribe`) and from the few sentences in
docs/operations.md ("Who may do what"), never from the regular expressions that RabbitMQ is given. `try_cells` then does
what each cell says, with the credentials of its account, and tells which cells are not as they should be.

A refusal closes the channel and not the connection, so that one connection per account serves all of its cells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection

from tests.support.brokers import RawClient
from tests.support.guarded import Guarded
from tidegate_brokers.access.layout import HeadPlace, Layout
from tidegate_brokers.access.roles import broker_user, link_user, warden_user
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputReady,
    Refusal,
    RefusalReason,
    SubscribeReply,
    SubscribeRequest,
    Subscription,
    encode,
)
from tidegate_protocol.names import (
    ANSWER_KEY,
    CONTROL_EXCHANGE,
    DELIVER_EXCHANGE,
    HEAD_KEY,
    HOM_KEY,
    MARKER_EXCHANGE,
    OPERATOR_KEY,
    PUBLISH_EXCHANGE,
    TELEMETRY_EXCHANGE,
    TELEMETRY_STREAM,
    broker_key,
    client_key,
    control_queue,
    ingress_exchange,
    link_queue,
    marker_key,
    output_queue,
    pie_global_key,
    pie_local_key,
)
from tidegate_protocol.rights import Rules, may_publish, may_subscribe
from tidegate_protocol.topics import WORDS_MAX

TOPICS: Final = (
    "t.a",
    "north",
    "north.level.1",
    "north.level.1\n",
    "north.level.1.2",
    "north.a.b.alarm",
    "north.alarm",
    "northern.level.1",
    "south.level.1",
    "odd.{vhost}.x",
    "odd.head.x",
    "odd.(a|b)",
    "odd.a",
    "odd.ä",
    "odd.a\u0308",
    "odd.\\d",
    "odd.1",
    "odd.$.^.[x]",
    "",
    marker_key("m~1", "head"),
    ".".join(["north", *"x" * (WORDS_MAX - 2), "alarm"]),
    ".".join(["north", *"x" * (WORDS_MAX - 1), "alarm"]),
)
PATTERNS: Final = ("t.a", "north.level.*", "north.*.alarm", "north.#", "north.*.#", "*.level.1", "south.#", "#")
REFUSED: Final = "ACCESS_REFUSED"
DEADLINE_US: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One deed of one account, and whether it is its to do."""

    account: str
    operation: str
    subject: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class Tried:
    """How a cell is tried: on which virtual host, and how."""

    cell: Cell
    vhost: str
    deed: Callable[[AbstractChannel], Awaitable[object]]


def kinds(layout: Layout, head: HeadPlace) -> dict[str, str]:
    """Every account but the head's own, and of which kind it is."""
    found = {client.name: "client" for client in layout.client}
    found |= {person.name: "operator" for person in layout.operator}
    found |= {person.name: "analyst" for person in layout.analyst}
    found |= {broker_user(edge.name): "edge" for edge in layout.edge if edge.head == head.name}
    found |= {broker_user(other.name): "neighbour" for other in layout.neighbours(head)}
    found |= {link_user(other.name): "link" for other in layout.neighbours(head)}
    return found | {warden_user(head.name): "warden"}


# The table


def head_cells(layout: Layout) -> Iterator[Tried]:
    """What there is to do on the RabbitMQ of the first head."""
    head, rules = layout.head[0], layout.rules
    for account, kind in kinds(layout, head).items():
        for topic in TOPICS:
            yield _writes(account, PUBLISH_EXCHANGE, topic, kind == "client" and publishes(account, topic, rules))
        for key in control_keys(layout):
            yield _writes(account, CONTROL_EXCHANGE, key, key in KEYS_OF[kind](account, head))
        # An edge answers by direct reply-to, which goes through the default exchange (docs/adr/0008).
        for queue in (control_queue(head.name), control_queue("edge-1"), link_queue("edge-1")):
            yield _writes(account, "", queue, kind == "edge")
        yield _writes(account, MARKER_EXCHANGE, "x", False)
        yield _writes(account, TELEMETRY_EXCHANGE, "x", kind == "edge")
        for other in layout.neighbours(head):
            name = ingress_exchange(other.name)
            yield _writes(account, name, "t.a", account == link_user(other.name))
        for queue in (control_queue(head.name), link_queue("edge-1")):
            yield _head(account, "read", queue, False, _taking(queue))
        yield _head(account, "read", TELEMETRY_STREAM, kind in ("operator", "analyst"), _streaming)
        yield from _binding_cells(account, kind)
        yield from _making_cells(account, kind)


def publishes(account: str, topic: str, rules: Rules) -> bool:
    return topic.count(".") < WORDS_MAX and may_publish(account, topic, rules).allowed


def control_keys(layout: Layout) -> tuple[str, ...]:
    clients = tuple(client_key(client.name) for client in layout.client[:2])
    brokers = tuple(broker_key(place.name) for place in layout.places)
    reports = pie_local_key("main"), pie_global_key("main")
    return HOM_KEY, ANSWER_KEY, OPERATOR_KEY, HEAD_KEY, client_key("buoy~1"), *clients, *brokers, *reports


KEYS_OF: Final[dict[str, Callable[[str, HeadPlace], tuple[str, ...]]]] = {
    "client": lambda account, head: (HOM_KEY, ANSWER_KEY),
    "operator": lambda account, head: (OPERATOR_KEY,),
    "analyst": lambda account, head: (),
    "edge": lambda account, head: (HEAD_KEY, pie_local_key(head.cluster)),
    "neighbour": lambda account, head: (broker_key(head.name), pie_global_key(head.cluster)),
    "link": lambda account, head: (),
    "warden": lambda account, head: (),
}


def _binding_cells(account: str, kind: str) -> Iterator[Tried]:
    """Only clients make queues, and hear nothing by them but orders for their own names."""
    own = (client_key(account), client_key(f"{account}-1"), client_key(f"{account}~k7"))
    others = (client_key(f"{account}x"), client_key("siren-9"), "#", HOM_KEY, OPERATOR_KEY, broker_key("edge-1"))
    for key in (*own, *(other for other in others if other not in own)):
        mine = kind == "client" and (key in own or key.startswith(client_key(f"{account}-")))
        yield _head(account, "bind", f"{CONTROL_EXCHANGE} {key}", mine, _binding(CONTROL_EXCHANGE, key))
    for exchange in (PUBLISH_EXCHANGE, MARKER_EXCHANGE, TELEMETRY_EXCHANGE):
        yield _head(account, "bind", f"{exchange} #", False, _binding(exchange, "#"))


def _making_cells(account: str, kind: str) -> Iterator[Tried]:
    for queue in ("link.mine", "out.mine.0", "mine"):
        yield _head(account, "declare queue", queue, False, _declaring(queue))
    yield _head(account, "declare exchange", "mine", False, lambda channel: channel.declare_exchange("mine", "topic"))
    brokers = kind in ("edge", "neighbour")
    yield _head(account, "declare exchange", CONTROL_EXCHANGE, brokers, _asserting(CONTROL_EXCHANGE))
    yield _head(account, "declare exchange", PUBLISH_EXCHANGE, False, _asserting(PUBLISH_EXCHANGE))
    for name in (control_queue("head"), link_queue("edge-1"), TELEMETRY_STREAM):
        yield _head(account, "delete queue", name, False, _deleting(name))
        if name != TELEMETRY_STREAM:  # who reads may purge, and a stream can't be purged
            yield _head(account, "purge", name, False, _purging(name))
    if not brokers:
        yield _head(account, "delete exchange", CONTROL_EXCHANGE, False, _unmaking(CONTROL_EXCHANGE))


def edge_cells(layout: Layout, edge: str, queues: dict[str, str]) -> Iterator[Tried]:
    """What there is to do on the RabbitMQ of an edge, for who gets in there. `queues`: a queue there, by its owner."""
    rules = layout.rules
    inside = [rights.account for rights in rules if rights.subscribe] + [link_user(layout.head[0].name)]
    for account in inside:
        link = account == link_user(layout.head[0].name)
        for owner, queue in queues.items():
            mine = owner == account or owner.startswith(f"{account}-")
            yield _at(edge, account, "read", queue, mine, _taking(queue))
            yield _at(edge, account, "purge", queue, mine, _purging(queue))
            yield _at(edge, account, "delete queue", queue, False, _deleting(queue))
            yield _at(edge, account, "bind", f"{queue} #", False, _rebinding(queue))
            yield _at(edge, account, "write", f"'' {queue}", False, _publishing("", queue))
        longer = output_queue(f"{account}x", 0)
        yield _at(edge, account, "read", longer, False, _taking(longer))
        for key in ("t.a", "north.level.1", ""):
            yield _at(edge, account, "write", f"{DELIVER_EXCHANGE} {key}", link, _publishing(DELIVER_EXCHANGE, key))
        yield _at(
            edge, account, "declare queue", output_queue(account.replace(".", "-"), 99), False, _declaring("out.x.9")
        )
        yield _at(edge, account, "bind", f"{DELIVER_EXCHANGE} #", False, _binding(DELIVER_EXCHANGE, "#"))


def _writes(account: str, exchange: str, key: str, allowed: bool) -> Tried:
    return _head(account, "write", f"{exchange or repr('')} {key!r}", allowed, _publishing(exchange, key))


def _head(
    account: str, operation: str, subject: str, allowed: bool, deed: Callable[[AbstractChannel], Awaitable[object]]
) -> Tried:
    return _at("head", account, operation, subject, allowed, deed)


def _at(
    vhost: str,
    account: str,
    operation: str,
    subject: str,
    allowed: bool,
    deed: Callable[[AbstractChannel], Awaitable[object]],
) -> Tried:
    return Tried(Cell(account, f"{operation} at {vhost}", subject, allowed), vhost, deed)


# Deeds


def _publishing(exchange_name: str, key: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    async def deed(channel: AbstractChannel) -> None:
        exchange = await channel.get_exchange(exchange_name, ensure=False)
        await exchange.publish(aio_pika.Message(b"x"), key, mandatory=False)

    return deed


def _taking(queue: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    async def deed(channel: AbstractChannel) -> None:
        await (await channel.get_queue(queue, ensure=False)).get(fail=False)

    return deed


async def _streaming(channel: AbstractChannel) -> None:
    await channel.set_qos(1)
    queue = await channel.get_queue(TELEMETRY_STREAM, ensure=False)
    tag = await queue.consume(_ignore, arguments={"x-stream-offset": "next"})
    await queue.cancel(tag)


async def _ignore(message: aio_pika.abc.AbstractIncomingMessage) -> None:
    await message.ack()


def _binding(exchange: str, key: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    async def deed(channel: AbstractChannel) -> None:
        await (await channel.declare_queue(exclusive=True)).bind(exchange, key)

    return deed


def _rebinding(queue: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    async def deed(channel: AbstractChannel) -> None:
        await (await channel.get_queue(queue, ensure=False)).bind(DELIVER_EXCHANGE, "#")

    return deed


def _declaring(queue: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    return lambda channel: channel.declare_queue(queue, durable=True)


def _asserting(exchange: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    return lambda channel: channel.declare_exchange(exchange, "topic", durable=True)


def _deleting(queue: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    return lambda channel: channel.queue_delete(queue)


def _unmaking(exchange: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    return lambda channel: channel.exchange_delete(exchange)


def _purging(queue: str) -> Callable[[AbstractChannel], Awaitable[object]]:
    async def deed(channel: AbstractChannel) -> None:
        await (await channel.get_queue(queue, ensure=False)).purge()

    return deed


# Trying


async def try_cells(guarded: Guarded, tried: Sequence[Tried]) -> list[str]:
    """Do everything, with one connection per account and virtual host; what is not as it should be."""
    groups: dict[tuple[str, str], list[Tried]] = {}
    for one in tried:
        groups.setdefault((one.cell.account, one.vhost), []).append(one)
    wrong = await asyncio.gather(*(_try_group(guarded, *whose, group) for whose, group in groups.items()))
    return [line for lines in wrong for line in lines]


async def _try_group(guarded: Guarded, account: str, vhost: str, group: Sequence[Tried]) -> list[str]:
    connection = await aio_pika.connect(guarded.url(account, vhost))
    async with connection:
        return [line for one in group if (line := await _try(connection, one)) is not None]


async def _try(connection: AbstractConnection, one: Tried) -> str | None:
    channel = await connection.channel(on_return_raises=True)
    try:
        await one.deed(channel)
    except aio_pika.exceptions.ChannelClosed as error:
        # Any other error comes after RabbitMQ has looked at rights.
        refused = REFUSED in str(error)
        return None if refused is not one.cell.allowed else f"{one.cell}: {error}"
    await channel.close()
    return None if one.cell.allowed else f"{one.cell}: it was done"


# What brokers decide


def asked_cells(layout: Layout) -> list[Cell]:
    """Subscriptions that clients ask their head for, in their own names and in those of others."""
    rules = layout.rules
    found = [
        Cell(rights.account, "subscribe", pattern, may_subscribe(rights.account, pattern, rules).allowed)
        for rights in rules
        for pattern in PATTERNS
    ]
    return found + [Cell(rights.account, "subscribe as another", "t.a", False) for rights in rules]


def ordered_cells(layout: Layout) -> list[Cell]:
    """Queues that a head, which may be a forged one, orders an edge to make."""
    rules = layout.rules
    return [
        Cell(name, "order a queue", pattern, may_subscribe(name, pattern, rules).allowed)
        for name in (*(rights.account for rights in rules), "nobody")
        for pattern in PATTERNS
    ]


async def try_asking(guarded: Guarded, cells: Sequence[Cell], made: dict[tuple[str, str], SubscribeReply]) -> list[str]:
    """Ask the head for every subscription; what it grants goes into `made`."""

    async def ask(clients: dict[str, RawClient], cell: Cell) -> str | None:
        as_another = cell.operation != "subscribe"
        name = "siren-7" if as_another and cell.account != "siren" else "desk-7" if as_another else cell.account
        request = SubscribeRequest(subscriber=name, pattern=cell.subject, deadline_us=DEADLINE_US)
        answer = await clients[cell.account].ask_raw(encode(request), user_id=cell.account)
        if isinstance(answer, SubscribeReply):
            made[name, cell.subject] = answer
        expected = RefusalReason.INVALID if as_another else RefusalReason.NOT_ALLOWED
        refused = isinstance(answer, Refusal) and answer.reason is expected and answer.retry_after_s is None
        right = isinstance(answer, SubscribeReply) if cell.allowed else refused
        return None if right else f"{cell}: {answer}"

    async with AsyncExitStack() as stack:
        clients = {account: await _client(guarded, stack, account) for account in {cell.account for cell in cells}}
        wrong = await asyncio.gather(*(ask(clients, cell) for cell in cells))
    return [line for line in wrong if line is not None]


async def try_ordering(guarded: Guarded, edge: str, cells: Sequence[Cell]) -> list[str]:
    """Speak to an edge as its head, with the head's own account."""

    async def order(head: RawClient, number: int, cell: Cell) -> str | None:
        wanted = Subscription(
            subscriber=f"{cell.account}-forged",
            number=number,
            pattern=cell.subject,
            deadline_us=DEADLINE_US,
            expires_s=60,
        )
        request = encode(OutputPrepare(subscription=wanted))
        answer = await head.ask_raw(request, broker_key(edge), user_id=broker_user("head"))
        refused = isinstance(answer, Refusal) and answer.reason is RefusalReason.NOT_ALLOWED
        right = isinstance(answer, OutputReady) if cell.allowed else refused
        return None if right else f"{cell}: {answer}"

    async with AsyncExitStack() as stack:
        head = await _client(guarded, stack, broker_user("head"))
        wrong = await asyncio.gather(*(order(head, number, cell) for number, cell in enumerate(cells)))
    return [line for line in wrong if line is not None]


async def _client(guarded: Guarded, stack: AsyncExitStack, account: str) -> RawClient:
    client = RawClient(await stack.enter_async_context(guarded.channel(account)))
    await client.open()
    return client
