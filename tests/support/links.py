"""What crossed each link, as RabbitMQ itself counted it."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from tidegate_embedded.cluster import BrokerInfo
from tidegate_protocol.names import LINK_PREFIX


async def link_counts(head: BrokerInfo) -> dict[str, int]:
    """Messages that entered the link queues of `head`, by target."""
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{head.management_url}/api/queues/{quote(head.vhost, safe='')}")
        answer.raise_for_status()
    return {
        queue["name"].removeprefix(LINK_PREFIX): queue.get("message_stats", {}).get("publish", 0)
        for queue in answer.json()
        if queue["name"].startswith(LINK_PREFIX)
    }
