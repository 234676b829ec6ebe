"""One request to RabbitMQ's Prometheus endpoint: text, and the moment it belongs to.

Nothing is tried twice: the next period asks again. Every failure is a class of `errors.py` with a remedy.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx

from ..errors import PluginMissing, RabbitBadAnswer, RabbitDenied, RabbitUnreachable, RabbitUntrusted
from ..settings.tls import refusal
from ..settings.urls import ServerUrl
from .exposition import Exposition, ExpositionReader

REQUEST_TIMEOUT_S: Final = 5.0
REMEDY: Final = "check prometheus_url, and run: rabbitmq-plugins enable rabbitmq_prometheus"
SIZES: Final = "queue_metrics"
EDGE_FAMILIES: Final = (
    "queue_coarse_metrics",
    "queue_consumer_count",
    "channel_queue_metrics",
    "channel_queue_exchange_metrics",
    "channel_exchange_metrics",
)
HEAD_FAMILIES: Final = ("queue_coarse_metrics", "channel_queue_exchange_metrics", "channel_exchange_metrics")
IMPLIED: Final = {SIZES: "queue_consumer_count"}
"""What need not be asked for along with a larger family."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """What RabbitMQ said, and when, by the event loop's clock."""

    exposition: Exposition
    moment_s: float
    length_bytes: int


class MetricsSource:
    """The Prometheus endpoint of one RabbitMQ, for one virtual host."""

    def __init__(self, url: ServerUrl, vhost: str) -> None:
        self.where = str(url)
        self._vhost = vhost
        self._reader = ExpositionReader(vhost)
        # Uncompressed: packing would cost RabbitMQ more than the bytes cost on the way.
        self._http = httpx.AsyncClient(
            base_url=url.without_credentials(),
            auth=url.credentials,
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
            verify=url.tls_context() or False,
            headers={"Accept-Encoding": "identity", "Accept": "text/plain"},
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def ask(self, families: tuple[str, ...], *, sizes: bool) -> Scrape:
        """Counters of these families; with `sizes`, what the messages of each queue amount to as well."""
        wanted = [family for family in families if not (sizes and family == IMPLIED[SIZES])] + [SIZES] * sizes
        query = "&".join(f"family={family}" for family in wanted)
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        try:
            response = await self._http.get(f"/metrics/detailed?vhost={quote(self._vhost, safe='')}&{query}")
        except httpx.RemoteProtocolError:
            raise RabbitBadAnswer(self.where, "does not speak HTTP", REMEDY) from None
        except httpx.TransportError as error:
            untrusted = refusal(error)
            if untrusted is not None:
                raise RabbitUntrusted(self.where, untrusted) from None
            problem = f"the Prometheus endpoint can't be reached ({str(error).strip() or type(error).__name__})"
            raise RabbitUnreachable(self.where, problem, REMEDY) from None
        moment_s = (sent_s + loop.time()) / 2.0
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise RabbitDenied(self.where)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise PluginMissing(self.where, "rabbitmq_prometheus")
        if response.status_code != httpx.codes.OK:
            raise RabbitUnreachable(self.where, f"metrics failed with {response.status_code}", REMEDY)
        content = response.content
        return Scrape(self._reader.read(content.decode(errors="replace")), moment_s, len(content))
