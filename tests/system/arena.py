"""A cluster of one head and some edges, under load, in which things are moved and broken; and what must hold there.

Edges have narrow uplinks and every broker sits behind a conditioner, so that any link can be cut. The load is of two
kinds: sirens with a short deadline whose feed bursts, and a desk with a long one. Together they fit on one edge; in a
burst they don't, and a session has to move the desk away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aio_pika
import httpx

from tests.support.brokers import RawClient
from tests.support.control_spy import ControlSpy
from tests.support.waiting import eventually
from tidegate_embedded.cluster import BrokerInfo, EmbeddedCluster
from tidegate_embedded.topology import BrokerSpec, ClusterSpec, Topology
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.messages import ControlMessage, Refusal, StatusReply, StatusRequest
from tidegate_protocol.names import LINK_PREFIX, MARKER_PREFIX, OUTPUT_PREFIX
from tidegate_protocol.operations import PauseRequest

from .load import Feed, Listener, Load

CLUSTER: Final = "coast"
HEAD: Final = "harbour"
UPLINK_BYTES_PER_S: Final = 40_000.0
LINK_DELAY_S: Final = 0.02
CLIENT_DELAY_S: Final = 0.03
MOVER: Final = "mover"
"""The subscriber that has a process of its own and may be killed."""
FEEDS: Final = (
    Feed("seismometers", "quake.alert", 10.0, 250, factor=2.2),
    Feed("citizens", "social.report", 10.0, 450),
)
AUDIENCES: Final = {
    "crowd": (
        *(Listener(f"siren-{number}", "quake.alert", 1.0) for number in range(1, 5)),
        *(Listener(f"desk-{number}", "social.report", 10.0) for number in range(1, 3)),
    ),
    MOVER: (Listener(MOVER, "social.report", 10.0),),
}
ANSWER_TIMEOUT_S: Final = 5.0
SETTLE_TIMEOUT_S: Final = 90.0
ASK_PAUSE_S: Final = 0.3

Launch = Callable[..., AbstractAsyncContextManager[EmbeddedCluster]]


def topology(edges: tuple[str, ...], uplink_bytes_per_s: float) -> Topology:
    specs = tuple(
        BrokerSpec(
            name=name,
            uplink_bytes_per_s=uplink_bytes_per_s,
            link_delay_s=LINK_DELAY_S,
            client_delay_s=CLIENT_DELAY_S,
        )
        for name in edges
    )
    return Topology(cluster=(ClusterSpec(name=CLUSTER, head=BrokerSpec(name=HEAD), edge=specs),))


@dataclass(frozen=True, slots=True)
class Queue:
    """An output queue as RabbitMQ sees it."""

    edge: str
    name: str
    consumers: int

    @property
    def subscriber(self) -> str:
        return self.name.removeprefix(OUTPUT_PREFIX).rpartition(".")[0]


class Arena:
    """The cluster, its load, and the spy on its control messages."""

    def __init__(self, cluster: EmbeddedCluster, load: Load, spy: ControlSpy) -> None:
        self.cluster = cluster
        self.load = load
        self.spy = spy
        self.edges = [name for name, broker in cluster.brokers.items() if broker.kind == "edge"]

    # Asking.

    async def ask(self, message: ControlMessage) -> ControlMessage:
        """Ask the head over a connection of its own, until it grants what is asked for."""
        answers: list[ControlMessage] = []

        async def granted() -> bool:
            with contextlib.suppress(OSError, TimeoutError, aio_pika.exceptions.AMQPError):
                answers.append(await self._ask_once(message))
                if not isinstance(answers[-1], Refusal):
                    return True
            await asyncio.sleep(ASK_PAUSE_S)
            return False

        await eventually(granted, f"the head answers {message.kind}; so far {answers[-3:]}")
        return answers[-1]

    async def _ask_once(self, message: ControlMessage) -> ControlMessage:
        connection = await aio_pika.connect(self.cluster.brokers[HEAD].url, timeout=ANSWER_TIMEOUT_S)
        async with connection:
            client = RawClient(await connection.channel())
            await client.open()
            return await asyncio.wait_for(client.ask(message), ANSWER_TIMEOUT_S)

    async def drain(self, edge: str, draining: bool = True) -> int:
        """Have an edge emptied, or used again; how many subscriptions are left on it."""
        answer = await self.ask(DrainRequest(edge=edge, draining=draining))
        assert isinstance(answer, DrainReply)
        return answer.left

    async def pause(self, paused: bool) -> None:
        """Have the brokers balance nothing, or balance again. Drains go on."""
        await self.ask(PauseRequest(paused=paused))

    async def drained(self, edge: str, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
        """Wait until an edge that is being drained is empty."""

        async def empty() -> bool:
            return await self.drain(edge) == 0 and not [queue for queue in await self.queues() if queue.edge == edge]

        try:
            await eventually(empty, f"{edge} is drained", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; queues: {await self.queues()}") from None

    async def gather(self, edge: str) -> None:
        """Have everybody on one edge, and all edges in use."""
        others = [name for name in self.edges if name != edge]
        await self.drain(edge, False)
        for name in others:
            await self.drain(name)
        for name in others:
            await self.drained(name)
        for name in others:
            await self.drain(name, False)

    # Looking.

    async def queues(self) -> list[Queue]:
        """Every output queue of every edge, with the consumers it has at this moment."""
        found: list[Queue] = []
        for edge in self.edges:
            broker = self.cluster.brokers[edge]
            listed = [str(item["name"]) for item in await api(broker, f"queues/{quote(edge)}?columns=name")]
            names = sorted(name for name in listed if name.startswith(OUTPUT_PREFIX))
            connection = await aio_pika.connect(broker.url, timeout=ANSWER_TIMEOUT_S)
            async with connection:
                found += [Queue(edge, name, await consumers(connection, name)) for name in names]
        return found

    async def place_of(self, subscriber: str) -> str:
        """The edge that serves it."""
        return next(queue.edge for queue in await self.queues() if queue.subscriber == subscriber and queue.consumers)

    async def misplaced(self) -> list[str]:
        """What is wrong with the places of the subscribers."""
        try:
            queues = await self.queues()
        except (OSError, TimeoutError, httpx.HTTPError, aio_pika.exceptions.AMQPError) as error:
            return [f"an edge can't be looked at: {error!r}"]
        per_subscriber = Counter(queue.subscriber for queue in queues)
        expected = {listener.name for listener in self.load.listeners}
        wrong = [f"{name} has {per_subscriber[name]} queues" for name in sorted(expected) if per_subscriber[name] != 1]
        wrong += [f"{queue} belongs to nobody" for queue in queues if queue.subscriber not in expected]
        wrong += [f"{queue} has {queue.consumers} consumers" for queue in queues if queue.consumers != 1]
        return wrong

    async def leftovers(self) -> list[str]:
        """Bindings that a marker left at the head, subscriptions that only the head knows, edges not in use.

        On an edge the bindings of a migration stay for a minute, on purpose.
        """
        bindings = await api(self.cluster.brokers[HEAD], f"bindings/{quote(HEAD)}?columns=destination,routing_key")
        found = [
            f"{HEAD} has the binding {item['routing_key']} to {item['destination']}"
            for item in bindings
            if str(item["routing_key"]).startswith(MARKER_PREFIX) and str(item["destination"]).startswith(LINK_PREFIX)
        ]
        status = await self.ask(StatusRequest())
        assert isinstance(status, StatusReply)
        known = sum(edge.subscriptions for edge in status.edges)
        if known != len(self.load.listeners):
            found.append(f"the head knows {known} subscriptions")
        found += [f"{edge.edge} is draining" for edge in status.edges if edge.draining]
        found += [f"{edge.edge} is away" for edge in status.edges if not edge.alive]
        return found

    def left_sessions(self, edge: str) -> set[str]:
        """The sessions that an edge says in its log it has left."""
        found = set()
        for line in self.cluster.process(edge).log.read_text().splitlines():
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("decision") in ("session-ended", "session-failed"):
                found.add(str(said["session"]))
        return found

    # What must hold once all is healed.

    async def settled(self, *, in_order: bool = True) -> None:
        """Everybody attached exactly once, nothing left over, nothing confirmed lost, nothing doubled, order kept."""
        await self._until_empty(self.misplaced, "every subscriber is attached exactly once")
        await self._until_empty(self.leftovers, "nothing is left over")
        until = self.load.confirmed_count()
        flowing = {topic: count + 1 for topic, count in until.items()}
        await eventually(
            lambda: all(self.load.confirmed_count()[topic] >= count for topic, count in flowing.items()),
            "publishers go on",
        )
        await self._handed_over(flowing, in_order)

    async def settled_for_good(self, *, in_order: bool = True) -> None:
        """The same of everything, once the feeds have ended."""
        await self._until_empty(self.misplaced, "every subscriber is attached exactly once")
        await self._handed_over(None, in_order)
        assert not self.load.surplus(), f"handed over too often: {self.load.surplus()}"

    async def _handed_over(self, until: dict[str, int] | None, in_order: bool) -> None:
        try:
            await eventually(lambda: not self.load.missing(until), "everything confirmed is handed over")
        except AssertionError as error:
            lacks = {name: (len(ids), ids[:5]) for name, ids in self.load.missing(until).items()}
            raise AssertionError(f"{error}; missing: {lacks}") from None
        assert not self.load.doubled(), f"handed over twice: {self.load.doubled()}"
        if in_order:
            assert not self.load.disordered(), f"out of order: {self.load.disordered()}"
        assert not self.load.dead(), f"these ended: {self.load.dead()}"

    async def _until_empty(self, look: Callable[[], object], what: str) -> None:
        wrong: list[str] = []

        async def nothing() -> bool:
            wrong[:] = await look()  # type: ignore[misc]
            if wrong:
                await asyncio.sleep(ASK_PAUSE_S)
            return not wrong

        try:
            await eventually(nothing, what, SETTLE_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {wrong}") from None

    async def restart_processes(self) -> None:
        """New processes remember no cool-downs and no pauses."""
        for name in (HEAD, *self.edges):
            await self.cluster.process(name).kill()
        await asyncio.gather(*(self.cluster.process(name).start() for name in (HEAD, *self.edges)))

    def keep_logs(self, directory: Path) -> Path:
        """Copy all logs and books to where they outlive the cluster."""
        shutil.copytree(self.cluster.logs, directory / "logs", dirs_exist_ok=True)
        shutil.copytree(self.load.directory, directory / "load", dirs_exist_ok=True)
        lines = [f"{seen.at_s:.3f} {seen}\n" for seen in self.spy.seen if seen.kind != "pie-local"]
        (directory / "control.txt").write_text("".join(lines))
        return directory


@asynccontextmanager
async def arena(
    launch: Launch,
    directory: Path,
    edges: tuple[str, ...],
    *,
    compact: bool,
    uplink_bytes_per_s: float = UPLINK_BYTES_PER_S,
    feeds: tuple[Feed, ...] = FEEDS,
    audiences: dict[str, tuple[Listener, ...]] = AUDIENCES,
) -> AsyncIterator[Arena]:
    """A cluster with everybody attached and messages flowing."""
    async with launch(topology(edges, uplink_bytes_per_s), compact=compact, conditioned="all") as cluster:
        spy = ControlSpy(cluster.brokers[HEAD])
        load = Load(cluster.url(CLUSTER), directory, feeds, audiences)
        made = Arena(cluster, load, spy)
        try:
            await spy.start()
            for name in audiences:
                load.start_audience(name)
            await made._until_empty(made.misplaced, "every subscriber attaches")
            load.start_feeds()
            await made.settled()
            yield made
        finally:
            load.end()
            await spy.stop()


async def api(broker: BrokerInfo, path: str) -> list[dict[str, object]]:
    async with httpx.AsyncClient(base_url=broker.management_url, timeout=30, trust_env=False) as http:
        answer = await http.get(f"/api/{path}")
        answer.raise_for_status()
        found: list[dict[str, object]] = answer.json()
        return found


async def consumers(connection: aio_pika.abc.AbstractConnection, queue: str) -> int:
    """Counted by the queue itself: the management API's numbers are seconds old."""
    channel = await connection.channel()
    try:
        declared = await channel.declare_queue(queue, passive=True)
    except aio_pika.exceptions.ChannelNotFoundEntity:
        return 0
    return declared.declaration_result.consumer_count or 0
