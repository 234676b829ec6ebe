"""How much waits in the output queues of an embedded cluster, from RabbitMQ's own figures."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from tidegate_brokers.embedded.cluster import EmbeddedCluster
from tidegate_protocol.names import OUTPUT_PREFIX


async def output_depths(cluster: EmbeddedCluster) -> dict[str, int]:
    """Messages per output queue, ready or not yet acknowledged."""
    depths: dict[str, int] = {}
    async with httpx.AsyncClient() as http:
        for broker in cluster.brokers.values():
            if broker.kind != "edge":
                continue
            url = f"{broker.management_url}/api/queues/{quote(broker.vhost, safe='')}?columns=name,messages"
            answer = await http.get(url)
            answer.raise_for_status()
            depths |= {
                queue["name"]: int(queue.get("messages", 0))
                for queue in answer.json()
                if queue["name"].startswith(OUTPUT_PREFIX)
            }
    return depths
