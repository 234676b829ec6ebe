"""The process's own HTTP answers: /healthz, /readyz and /metrics. Nothing else, and nothing that changes
anything.

A few lines on asyncio instead of a web framework, with bounds on time, size and connections. `/healthz`
answers while the event loop turns; `/readyz` answers 503 with the reasons until the broker can do its work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ..errors import PortTaken

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 16 << 10
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 64

_PHRASES: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HttpServer:
    """Serves until closed. `reasons` gives what readiness lacks; none means ready."""

    def __init__(self, registry: CollectorRegistry, reasons: Callable[[], list[str]]) -> None:
        self._registry = registry
        self._reasons = reasons
        self._server: asyncio.Server | None = None
        self._connections = 0
        self.port = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen, or raise `PortTaken`."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX, ssl=tls)
        except OSError as error:
            raise PortTaken(host, port, error.strerror or str(error)) from None
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("answering /healthz, /readyz and /metrics", extra={"host": host, "port": self.port})

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(request))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("an HTTP request ended early: %r", error)
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(405, "text/plain", b"only GET\n")
        if path == "/healthz":
            return _response(200, "application/json", b'{"status": "alive"}\n')
        if path == "/readyz":
            reasons = self._reasons()
            status = "not ready" if reasons else "ready"
            body = json.dumps({"status": status, "reasons": reasons}).encode() + b"\n"
            return _response(503 if reasons else 200, "application/json", body)
        if path == "/metrics":
            return _response(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))
        return _response(404, "text/plain", b"there are /healthz, /readyz and /metrics\n")


def _response(status: int, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
