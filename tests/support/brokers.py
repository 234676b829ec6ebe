"""Head and edge processes on virtual hosts of one RabbitMQ, and a raw client that speaks to them.

For tests of the processes themselves: no SDK, no embedded cluster in between.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
import httpx
from aio_pika.abc import AbstractIncomingMessage, AbstractQueue
from aiormq.abc import DeliveredMessage

from tests.support.waiting import eventually
from tidegate_embedded.nodes import RabbitNode, amqp_url, create_vhost, management_url, prometheus_url
from tidegate_protocol.messages import ControlMessage, StatusReply, StatusRequest, decode, encode, request_key
from tidegate_protocol.names import CONTROL_EXCHANGE, HOM_KEY, MARKER_EXCHANGE, PUBLISH_EXCHANGE

ANSWER_TIMEOUT_S = 20.0
PERIOD_S = 0.3


@dataclass
class Process:
    """One head or edge process, its configuration and its log."""

    role: str
    file: Path
    log: Path
    child: asyncio.subprocess.Process | None = None
    port: int = 0

    async def start(self, ready: bool = True) -> None:
        with self.log.open("ab") as log:
            log.truncate(0)
            self.child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"tidegate_brokers.{self.role}", "--config", str(self.file)),
                stdout=log,
                stderr=log,
            )
        if ready:
            await eventually(self.is_ready, f"{self.file.stem} is ready:\n{self.words()}")

    async def is_ready(self) -> bool:
        assert self.child is not None
        assert self.child.returncode is None, self.words()
        found = re.search(r'"port": (\d+)', self.words())
        if found is None:
            return False
        self.port = int(found[1])
        return (await self.get("readyz")).status_code == httpx.codes.OK

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://127.0.0.1:{self.port}/{path}")

    async def metric(self, sample: str) -> float:
        """The value of one sample; 0 where it does not exist yet."""
        for line in (await self.get("metrics")).text.splitlines():
            if line.startswith(sample + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    async def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        await self.child.wait()

    async def terminate(self) -> int:
        assert self.child is not None
        self.child.terminate()
        return await self.child.wait()

    async def ended(self) -> int:
        assert self.child is not None
        return await asyncio.wait_for(self.child.wait(), 60)

    def words(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


async def start_all(processes: Iterable[Process]) -> None:
    """Start processes and wait until all are ready. They wait for each other, so it takes as long as the slowest."""
    await asyncio.gather(*(process.start() for process in processes))


async def terminate_all(processes: Iterable[Process]) -> None:
    """Let processes that still run end in good order, all at once."""
    running = [one for one in processes if one.child is not None and one.child.returncode is None]
    await asyncio.gather(*(process.terminate() for process in running))


@dataclass
class Brokers:
    """Brokers by name, each on a virtual host of that name, prefixed so that tests do not meet."""

    node: RabbitNode
    directory: Path
    prefix: str
    processes: dict[str, Process] = field(default_factory=dict)
    made: list[Process] = field(default_factory=list)
    """All that were ever made: a second process of one name must not hide the first from `close`."""

    def vhost(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def url(self, name: str) -> str:
        return amqp_url(self.node, self.vhost(name))

    async def head(self, name: str, neighbours: tuple[str, ...] = (), **options: object) -> Process:
        entries = ", ".join(f'{{name = "{n}", url = "{self.url(n)}"}}' for n in neighbours)
        return await self._new("head", name, f"c-{name}", f"neighbours = [{entries}]", options)

    async def edge(self, name: str, head: str, **options: object) -> Process:
        return await self._new("edge", name, f"c-{head}", f'head_url = "{self.url(head)}"', options)

    async def _new(self, role: str, name: str, cluster: str, extra: str, options: dict[str, object]) -> Process:
        await create_vhost(self.node, self.vhost(name))
        values: dict[str, object] = {
            "name": name,
            "cluster": cluster,
            "url": self.url(name),
            "management_url": management_url(self.node),
            "prometheus_url": prometheus_url(self.node),
            "period_s": PERIOD_S,
            "http_port": 0,
            "startup_timeout_s": 60,
            **options,
        }
        file = self.directory / f"{name}.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()) + extra + "\n")
        process = Process(role, file, self.directory / f"{name}.log")
        self.processes[name] = process
        self.made.append(process)
        return process

    async def wipe(self, name: str) -> None:
        """Delete the virtual host of a broker with all that is in it, and create it again, empty."""
        async with httpx.AsyncClient(base_url=management_url(self.node), timeout=60) as client:
            (await client.delete(f"/api/vhosts/{self.vhost(name)}")).raise_for_status()
        await create_vhost(self.node, self.vhost(name))

    async def add_user(self, user: str, password: str, tags: str, vhosts: tuple[str, ...]) -> None:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        async with httpx.AsyncClient(base_url=management_url(self.node), timeout=60) as client:
            body = {"password": password, "tags": tags}
            (await client.put(f"/api/users/{user}", json=body)).raise_for_status()
            for name in vhosts:
                path = f"/api/permissions/{self.vhost(name)}/{user}"
                (await client.put(path, json=everything)).raise_for_status()

    async def api(self, path: str) -> Any:
        async with httpx.AsyncClient(base_url=management_url(self.node), timeout=60) as client:
            answer = await client.get(f"/api/{path}")
            answer.raise_for_status()
            return answer.json()

    async def routes(self, head: str, target: str) -> set[tuple[str, str]]:
        """The exchange and pattern of every binding of a link, but for the one that brings it markers."""
        found = await self.api(f"bindings/{self.vhost(head)}")
        bound = {(b["source"], b["routing_key"]) for b in found if b["destination"] == f"link.{target}"}
        return {(source, key) for source, key in bound if source not in ("", MARKER_EXCHANGE)}

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[RawClient]:
        connection = await aio_pika.connect(self.url(name))
        try:
            client = RawClient(await connection.channel())
            await client.open()
            yield client
        finally:
            await connection.close()

    async def close(self) -> None:
        for process in self.made:
            if process.child is not None and process.child.returncode is None:
                process.child.kill()
                await process.child.wait()


@dataclass
class RawClient:
    """What any AMQP client could do: ask the HOM, publish, consume."""

    channel: aio_pika.abc.AbstractChannel
    answers: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)
    requests: int = 0

    async def open(self) -> None:
        queue = await self.channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await queue.consume(self._answered, no_ack=True)

    async def _answered(self, message: AbstractIncomingMessage) -> None:
        future = self.answers.pop(message.correlation_id or "", None)
        if future is not None and not future.done():
            future.set_result(message.body)

    async def ask(self, message: ControlMessage) -> ControlMessage:
        return await self.ask_raw(encode(message), request_key(message))

    async def ask_raw(self, body: bytes, key: str = HOM_KEY, user_id: str | None = None) -> ControlMessage:
        self.requests += 1
        request = str(self.requests)
        future = self.answers[request] = asyncio.get_running_loop().create_future()
        exchange = await self.channel.get_exchange(CONTROL_EXCHANGE, ensure=False)
        message = aio_pika.Message(body, reply_to="amq.rabbitmq.reply-to", correlation_id=request, user_id=user_id)
        returned: object = await exchange.publish(message, key)
        if isinstance(returned, DeliveredMessage):
            raise ConnectionError(f"nobody takes what is sent to {key}")
        return decode(await asyncio.wait_for(future, ANSWER_TIMEOUT_S))

    async def status(self) -> StatusReply:
        answer = await self.ask(StatusRequest())
        assert isinstance(answer, StatusReply)
        return answer

    async def publish(self, topic: str, body: str) -> None:
        exchange = await self.channel.get_exchange(PUBLISH_EXCHANGE, ensure=False)
        message = aio_pika.Message(body.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await exchange.publish(message, topic, mandatory=False)

    async def tap(self, exchange: str) -> AbstractQueue:
        """A queue of our own that sees everything an exchange sees."""
        queue = await self.channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "#")
        return queue


async def bodies(queue: AbstractQueue, until: str) -> list[str]:
    """Take from a queue until `until` has come; everything taken, in order."""
    found: list[str] = []

    async def took_last() -> bool:
        message = await queue.get(fail=False, no_ack=True)
        if message is not None:
            found.append(message.body.decode())
        return bool(found) and found[-1] == until

    await eventually(took_last, f"{until!r} comes out of {queue.name}; so far {found}")
    return found
