"""A small client of RabbitMQ's management API: what AMQP 0-9-1 can't do (policies, shovels, listings).

Bound to one RabbitMQ and one virtual host. Every failure is a class of `errors.py`; a refused or timed-out
connection and a 5xx answer are tried again a bounded number of times, because each request here may be
repeated safely. It knows nothing of links, routes or subscriptions.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import httpx

from ..errors import (
    PluginMissing,
    RabbitBadAnswer,
    RabbitDenied,
    RabbitForbidden,
    RabbitTooOld,
    RabbitUnreachable,
    RabbitUntrusted,
)
from ..settings.tls import refusal
from ..settings.urls import ServerUrl

VERSION_MIN: Final = (3, 10)
USER_TAGS_REMEDY: Final = "run: rabbitmqctl set_user_tags USER monitoring policymaker"
REQUEST_TIMEOUT_S: Final = 10.0
ATTEMPTS_MAX: Final = 3
ATTEMPT_DELAY_S: Final = 0.3
REASON_LENGTH_MAX: Final = 200
PAGE_SIZE: Final = 500
PAGES_MAX: Final = 400
"""With the page size, the most queues that are ever listed: 200,000."""

ALARMED: Final = httpx.codes.SERVICE_UNAVAILABLE
"""What a health check answers while something is wrong."""

Json = dict[str, Any]

SENDER_ORDER: Final = {"connections": "recv_oct_details.rate", "channels": "message_stats.publish_details.rate"}
SENDER_COLUMNS: Final = {
    "connections": "name,user,vhost,connected_at,recv_oct,recv_oct_details.rate",
    "channels": "name,user,vhost,consumer_count,message_stats.publish_details.rate,"
    "message_stats.drop_unroutable_details.rate,message_stats.return_unroutable_details.rate",
}


@dataclass(frozen=True, slots=True)
class Senders:
    """Rows of RabbitMQ's statistics."""

    connections: list[Json]
    channels: list[Json]
    complete: bool = True
    """Whether there are no others."""


class Management:
    """The management API of one RabbitMQ, for one virtual host."""

    def __init__(self, url: ServerUrl, vhost: str, *, attempts: int = ATTEMPTS_MAX) -> None:
        self.where = str(url)
        self.user = url.credentials[0]
        self._vhost = quote(vhost, safe="")
        self._attempts = attempts
        self._http = httpx.AsyncClient(
            base_url=url.without_credentials() + "/api/",
            auth=url.credentials,
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
            verify=url.tls_context() or False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # What the server is

    async def check(self, *, shovels: bool) -> str:
        """Raise unless version, virtual host and plugins are as needed; return the version.

        Plugins are known by what they offer: RabbitMQ's own list of them is empty just after its start.
        """
        overview = self._object(await self._get("overview?columns=rabbitmq_version,listeners"))
        version = overview.get("rabbitmq_version") if overview is not None else None
        match = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
        if overview is None or match is None:
            raise RabbitBadAnswer(self.where, "says no version", "check that management_url leads to RabbitMQ")
        if (int(match[1]), int(match[2])) < VERSION_MIN:
            raise RabbitTooOld(self.where, match.string, ".".join(map(str, VERSION_MIN)))
        if "listeners" not in overview:
            raise RabbitForbidden(self.where, "the user may not see its listeners", USER_TAGS_REMEDY)
        protocols = [str(listener.get("protocol")) for listener in overview["listeners"]]
        if not any(protocol.endswith("/prometheus") for protocol in protocols):
            raise PluginMissing(self.where, "rabbitmq_prometheus")
        name = unquote(self._vhost)
        if name not in [vhost["name"] for vhost in await self._get_list("vhosts?columns=name")]:
            remedy = f"run: rabbitmqctl add_vhost {name}"
            raise RabbitForbidden(self.where, f"has no virtual host {name}", remedy)
        if shovels and await self._get(f"shovels/{self._vhost}") is None:
            raise PluginMissing(self.where, "rabbitmq_shovel_management")
        return match.string

    async def alarms(self) -> frozenset[str]:
        """What the node blocks publishers for: `memory`, `disk`, `file-descriptors`; usually nothing."""
        try:
            response = await self._http.get("health/checks/local-alarms")
            found = response.json().get("alarms", []) if response.status_code == ALARMED else []
            return frozenset(str(alarm["resource"]).replace("_limit", "").replace("_", "-") for alarm in found)
        except httpx.TransportError as error:
            raise RabbitUnreachable(
                self.where, f"its alarms can't be read ({_reason(error)})", "it is tried again"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RabbitBadAnswer(self.where, "tells its alarms in an unknown form", "check its version") from None

    # Policies and shovels

    async def policy(self, name: str) -> Json | None:
        """One policy, or None."""
        return self._object(await self._get(f"policies/{self._vhost}/{quote(name, safe='')}"))

    async def put_policy(self, name: str, policy: Mapping[str, object]) -> None:
        """Create or replace a policy."""
        await self._request("PUT", f"policies/{self._vhost}/{quote(name, safe='')}", policy)

    async def delete_policy(self, name: str) -> None:
        """Remove a policy; none there is fine."""
        await self._request("DELETE", f"policies/{self._vhost}/{quote(name, safe='')}")

    async def policies(self, prefix: str) -> list[str]:
        """Names of policies that start with `prefix`."""
        found = await self._get_list(f"policies/{self._vhost}")
        return sorted(str(item["name"]) for item in found if str(item["name"]).startswith(prefix))

    # Connections

    async def close_connections(self, named: str, reason: str) -> int:
        """Close every connection to this virtual host whose client gave it this name, or a name that begins so.

        How many there were. Names are a few seconds old: a connection that was just opened may be missed.
        """
        path = f"vhosts/{self._vhost}/connections?columns=name,client_properties.connection_name"
        closed = 0
        for item in await self._get_list(path):
            properties = item.get("client_properties")
            name = properties.get("connection_name") if isinstance(properties, dict) else None
            if isinstance(name, str) and (name == named or name.startswith(named + " ")):
                header = {"X-Reason": reason[:REASON_LENGTH_MAX].encode("ascii", "replace").decode()}
                await self._request("DELETE", f"connections/{quote(str(item['name']), safe='')}", headers=header)
                closed += 1
        return closed

    async def senders(self, rows: int) -> Senders:
        """The connections to this virtual host and their channels that send most, at most so many of each.

        The lists of one virtual host know no pages, so that those of all are asked for. Statistics are seconds old.
        """
        mine, total = unquote(self._vhost), 0
        found: dict[str, list[Json]] = {}
        for what, columns in SENDER_COLUMNS.items():
            query = f"page=1&page_size={rows}&sort={SENDER_ORDER[what]}&sort_reverse=true"
            answer = self._object(await self._get(f"{what}?{query}&columns={columns}"))
            items = self._list(answer.get("items", [])) if answer is not None else []
            found[what] = [item for item in items if item.get("vhost") == mine]
            count = answer.get("total_count", 0) if answer is not None else 0
            total = max(total, count if isinstance(count, int) else 0)
        return Senders(found["connections"], found["channels"], complete=total <= rows)

    # Users, for the warden: these need the tag `administrator`

    async def close_user(self, user: str, reason: str) -> int:
        """Close all connections of a user, to any virtual host; how many there were. Channels remember rights that they
        have used, so that nothing less ends what a right allowed.
        """
        path = f"connections/username/{quote(user, safe='')}"
        there = len(await self._get_list(path))
        if there:
            await self._request("DELETE", path, headers={"X-Reason": reason})
        return there

    async def user_limits(self, user: str) -> dict[str, int]:
        """The limits of a user, by name."""
        for item in await self._get_list(f"user-limits/{quote(user, safe='')}"):
            values = item.get("value")
            return {str(name): int(value) for name, value in values.items()} if isinstance(values, dict) else {}
        return {}

    async def limit_user(self, user: str, connections: int | None) -> None:
        """Have a user open at most so many connections; None: as many as it likes."""
        path = f"user-limits/{quote(user, safe='')}/max-connections"
        if connections is None:
            await self._request("DELETE", path)
        else:
            await self._request("PUT", path, {"value": connections})

    async def globals(self, prefix: str) -> dict[str, Any]:
        """Global parameters whose names start with `prefix`."""
        found = await self._get_list("global-parameters")
        return {name: item.get("value") for item in found if (name := str(item.get("name"))).startswith(prefix)}

    async def put_global(self, name: str, value: Mapping[str, object]) -> None:
        await self._request("PUT", f"global-parameters/{quote(name, safe='')}", {"name": name, "value": dict(value)})

    async def delete_global(self, name: str) -> None:
        await self._request("DELETE", f"global-parameters/{quote(name, safe='')}")

    # Shovels

    async def shovels(self) -> dict[str, Json]:
        """The parameters of all dynamic shovels, by name."""
        found = await self._get_list(f"parameters/shovel/{self._vhost}")
        return {str(item["name"]): item["value"] for item in found}

    async def put_shovel(self, name: str, value: Mapping[str, object]) -> None:
        """Create or replace a dynamic shovel."""
        path = f"parameters/shovel/{self._vhost}/{quote(name, safe='')}"
        await self._request("PUT", path, {"value": value})

    async def delete_shovel(self, name: str) -> None:
        """Remove a dynamic shovel; none there is fine."""
        await self._request("DELETE", f"parameters/shovel/{self._vhost}/{quote(name, safe='')}")

    async def shovel_states(self) -> dict[str, str]:
        """`running`, `starting` or `terminated`, by name of the shovel."""
        return {name: state for name, (state, _) in (await self.shovel_reasons()).items()}

    async def shovel_reasons(self) -> dict[str, tuple[str, str]]:
        """The same, each with the reason why it ended last; empty where it did not, or where it begins again."""
        found = await self._get_list(f"shovels/{self._vhost}")
        return {str(item["name"]): (str(item.get("state", "unknown")), str(item.get("reason") or "")) for item in found}

    # Listings

    async def exchanges(self, prefix: str) -> list[str]:
        """Names of exchanges that start with `prefix`."""
        found = await self._get_list(f"exchanges/{self._vhost}?columns=name")
        return sorted(str(item["name"]) for item in found if str(item["name"]).startswith(prefix))

    async def bindings_from(self, exchange: str) -> list[Json]:
        """All bindings with this source, with arguments. Read from the database, so never out of date."""
        path = f"exchanges/{self._vhost}/{quote(exchange, safe='')}/bindings/source"
        found = await self._get(path)
        return [] if found is None else self._list(found)

    async def queues(self, prefix: str) -> AsyncIterator[Json]:
        """Name, depth and acknowledged messages of queues that start with `prefix`; seconds old."""
        query = f"page_size={PAGE_SIZE}&use_regex=true&name={quote('^' + re.escape(prefix), safe='')}"
        columns = "columns=name,messages,message_stats.ack"
        for page in range(1, PAGES_MAX + 1):
            answer = await self._get(f"queues/{self._vhost}?page={page}&{query}&{columns}")
            if answer is None:
                return
            if not isinstance(answer, dict) or "items" not in answer:
                raise RabbitBadAnswer(self.where, "lists queues in an unknown form", "check its version")
            for item in answer["items"]:
                yield item
            if page >= answer.get("page_count", 0):
                return

    async def queue_names(self, prefix: str) -> set[str]:
        """Names of queues that start with `prefix`. Without statistics RabbitMQ lists thousands at once."""
        found = await self._get_list(f"queues/{self._vhost}?columns=name&disable_stats=true")
        return {name for item in found if (name := str(item["name"])).startswith(prefix)}

    async def queue(self, name: str) -> Json | None:
        """Type and arguments of one queue, or None."""
        path = f"queues/{self._vhost}/{quote(name, safe='')}?columns=type,arguments"
        return self._object(await self._get(path))

    # Requests

    async def _get_list(self, path: str) -> list[Json]:
        found = await self._get(path)
        return [] if found is None else self._list(found)

    def _object(self, answer: object) -> Json | None:
        if answer is not None and not isinstance(answer, dict):
            raise RabbitBadAnswer(self.where, "answers in an unknown form", "check that it is RabbitMQ")
        return answer

    def _list(self, answer: object) -> list[Json]:
        if not isinstance(answer, list):
            raise RabbitBadAnswer(self.where, "answers in an unknown form", "check that it is RabbitMQ")
        return answer

    async def _get(self, path: str) -> object:
        return await self._request("GET", path)

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> object:
        """One request, repeated where that may help; None for 404, the parsed answer otherwise."""
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._once(method, path, body, headers)
            except RabbitUnreachable:
                if attempt == self._attempts:
                    raise
                await asyncio.sleep(ATTEMPT_DELAY_S * attempt)
        raise AssertionError("at least one attempt is made")

    async def _once(
        self, method: str, path: str, body: Mapping[str, object] | None, headers: Mapping[str, str] | None
    ) -> object:
        what = f"{method} {path.partition('?')[0]}"
        try:
            response = await self._http.request(method, path, json=body, headers=headers)
        except httpx.RemoteProtocolError:
            raise RabbitBadAnswer(self.where, "does not speak HTTP", "check management_url") from None
        except httpx.TransportError as error:
            untrusted = refusal(error)
            if untrusted is not None:
                raise RabbitUntrusted(self.where, untrusted) from None
            problem = f"the management API can't be reached ({_reason(error)})"
            raise RabbitUnreachable(self.where, problem, "check management_url and that RabbitMQ runs") from None
        status = response.status_code
        if status == httpx.codes.UNAUTHORIZED:
            # A wrong password is "not authorized" to RabbitMQ, a missing right "not authorised".
            if "not_authorised" in response.text:
                raise RabbitForbidden(self.where, f"{what} is not allowed", USER_TAGS_REMEDY)
            raise RabbitDenied(self.where)
        if status == httpx.codes.FORBIDDEN:
            raise RabbitForbidden(self.where, f"{what} is not allowed", USER_TAGS_REMEDY)
        if status == httpx.codes.NOT_FOUND:
            return None
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise RabbitUnreachable(self.where, f"{what} failed with {status}", "look into RabbitMQ's log")
        if status >= httpx.codes.BAD_REQUEST:
            raise RabbitBadAnswer(self.where, f"{what} was refused with {status}", "check its version and rights")
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise RabbitBadAnswer(self.where, f"{what} gave no JSON", "check management_url") from None


def _reason(error: httpx.TransportError) -> str:
    return str(error).strip() or type(error).__name__


@asynccontextmanager
async def management(url: ServerUrl, vhost: str) -> AsyncIterator[Management]:
    """A client that is closed at the end."""
    client = Management(url, vhost)
    try:
        yield client
    finally:
        await client.close()
