"""The process's own HTTP answers: /healthz, /readyz and /metrics. Nothing else, and nothing that changes
anything.

An ASGI application; uvicorn serves it, behind a `Door` that bounds number, time and size of connections.
`/healthz` answers while the event loop turns; `/readyz` answers 503 with the reasons until the broker can do
its work.

Invariant: one answer per connection. What waits for readers that do not read is bounded: 128 KiB in the process
for each connection, and a few texts of /metrics, which the readers share. Nor can they take more than a tenth
of the event loop's time for making such texts.
"""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ..errors import PortTaken
from .door import Bounds, Door

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 16 << 10
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 256
"""Far below the 1,024 file descriptors that a process usually has, which RabbitMQ's connections need as well."""

CHUNK_BYTES: Final = 64 << 10
METRICS_TIME_SHARE: Final = 0.1
"""A text of /metrics that took 5 ms to make is given to every reader that asks in the 50 ms after that."""


class HttpServer:
    """Serves until closed. `reasons` gives what readiness lacks; none means ready."""

    def __init__(self, registry: CollectorRegistry, reasons: Callable[[], list[str]]) -> None:
        self._registry = registry
        self._reasons = reasons
        self._door = Door(self._application, Bounds(CONNECTIONS_MAX, REQUEST_TIMEOUT_S, REQUEST_BYTES_MAX))
        self._metrics = b""
        self._metrics_until_s = 0.0
        self.port = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen, or raise `PortTaken`."""
        try:
            self.port = await self._door.open(host, port, tls)
        except OSError as error:
            raise PortTaken(host, port, error.strerror or str(error)) from None
        log.info("answering /healthz, /readyz and /metrics", extra={"host": host, "port": self.port})

    async def close(self) -> None:
        """Stop listening, and end what is being answered."""
        await self._door.close()

    async def _application(
        self,
        scope: dict[str, Any],
        _receive: Callable[..., Awaitable[Any]],
        send: Callable[..., Awaitable[Any]],
    ) -> None:
        await _respond(send, *self._answer(scope["method"], scope["path"]))

    def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", b"only GET\n"
        if path == "/healthz":
            return 200, "application/json", b'{"status": "alive"}\n'
        if path == "/readyz":
            reasons = self._reasons()
            status = "not ready" if reasons else "ready"
            body = json.dumps({"status": status, "reasons": reasons}).encode() + b"\n"
            return 503 if reasons else 200, "application/json", body
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, self._rendered()
        return 404, "text/plain", b"there are /healthz, /readyz and /metrics\n"

    def _rendered(self) -> bytes:
        began_s = time.monotonic()
        if began_s >= self._metrics_until_s:
            self._metrics = generate_latest(self._registry)
            ended_s = time.monotonic()
            self._metrics_until_s = ended_s + (ended_s - began_s) / METRICS_TIME_SHARE
        return self._metrics


async def _respond(send: Callable[..., Awaitable[Any]], status: int, content_type: str, body: bytes) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # In pieces: uvicorn waits before each until the one before has mostly been read.
    for at in range(0, len(body), CHUNK_BYTES):
        await send({"type": "http.response.body", "body": body[at : at + CHUNK_BYTES], "more_body": True})
    await send({"type": "http.response.body", "body": b""})
