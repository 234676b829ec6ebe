"""/healthz, /readyz and /metrics on real sockets; what the management client makes of strange servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from tidegate_brokers.errors import PortTaken, RabbitBadAnswer, RabbitTooOld, RabbitUnreachable
from tidegate_brokers.observe.counters import BrokerMetrics
from tidegate_brokers.observe.http import HttpServer
from tidegate_brokers.rabbit.management import Management
from tidegate_brokers.settings.urls import ServerUrl

HEALTH = Path(__file__).parents[3] / "deploy/images/health.py"


@asynccontextmanager
async def serving(reasons: list[str]) -> AsyncIterator[httpx.AsyncClient]:
    registry = CollectorRegistry()
    BrokerMetrics(registry, "head", "north", "coast").malformed.labels("not-json").inc()
    server = HttpServer(registry, lambda: reasons)
    await server.start("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            yield client
    finally:
        await server.close()


async def test_readiness_names_what_it_lacks() -> None:
    reasons = ["no connection"]
    async with serving(reasons) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not ready", "reasons": ["no connection"]}
        assert (await client.get("/healthz")).status_code == 200, "not ready is not dead"
        reasons.clear()
        assert (await client.get("/readyz")).status_code == 200


async def test_metrics_and_nothing_else() -> None:
    async with serving([]) as client:
        text = (await client.get("/metrics")).text
        assert 'tidegate_control_malformed_messages_total{reason="not-json"} 1.0' in text
        assert 'role="head"' in text
        assert (await client.get("/secrets")).status_code == 404
        assert (await client.post("/readyz")).status_code == 405


async def test_a_request_that_is_too_long_is_cut_off() -> None:
    async with serving([]) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/healthz", headers={"x": "y" * 100_000})
        assert (await client.get("/healthz")).status_code == 200


async def test_the_health_check_of_the_image_understands_the_answers() -> None:
    reasons = ["no connection"]
    async with serving(reasons) as client:
        environ = {**os.environ, "TIDEGATE_HEALTH_PORT": str(client.base_url.port)}
        for code in (1, 0):
            check = await asyncio.create_subprocess_exec(
                sys.executable, HEALTH, env=environ, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await check.communicate()
            assert (check.returncode, json.loads(out)["reasons"]) == (code, reasons)
            reasons.clear()


async def test_a_taken_port_is_named() -> None:
    first = HttpServer(CollectorRegistry(), list)
    await first.start("127.0.0.1", 0)
    with pytest.raises(PortTaken, match=str(first.port)):
        await HttpServer(CollectorRegistry(), list).start("127.0.0.1", first.port)
    await first.close()


def test_a_link_counter_survives_the_restart_of_rabbitmq() -> None:
    registry = CollectorRegistry()
    metrics = BrokerMetrics(registry, "head", "north", "coast")
    for forwarded in (5, 9, 2):  # RabbitMQ counts from 0 again after 9
        metrics.observe_link("edge", "running", 0, forwarded)
    assert registry.get_sample_value("tidegate_link_forwarded_messages_total", {"target": "edge"}) == 11
    metrics.forget_link("edge")
    assert registry.get_sample_value("tidegate_link_forwarded_messages_total", {"target": "edge"}) is None


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[Management]:
    """A server, not RabbitMQ, that gives one answer to everything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    management = Management(ServerUrl.parse(f"http://127.0.0.1:{port}"), "/")
    try:
        yield management
    finally:
        await management.close()
        server.close()


async def test_a_rabbitmq_that_is_too_old_is_refused() -> None:
    async with answering(json.dumps({"rabbitmq_version": "3.8.19", "listeners": []}).encode()) as management:
        with pytest.raises(RabbitTooOld, match=r"version 3\.8\.19 is too old; use RabbitMQ 3\.10 or newer"):
            await management.check(shovels=True)


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b"{}", b'{"rabbitmq_version": 4}'])
async def test_another_kind_of_server_is_recognised(body: bytes) -> None:
    async with answering(body) as management:
        with pytest.raises(RabbitBadAnswer):
            await management.check(shovels=True)


async def test_nobody_there_is_named() -> None:
    async with answering(b"") as management:
        pass
    gone = Management(ServerUrl.parse(management.where), "/", attempts=1)
    with pytest.raises(RabbitUnreachable, match="check management_url"):
        await gone.check(shovels=False)
    await gone.close()
