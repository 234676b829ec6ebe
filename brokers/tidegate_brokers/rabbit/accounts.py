"""RabbitMQ's own accounts, over the management API: users, rights, and closing what a user has open.

All of it takes the tag `administrator`, which only the warden has (docs/adr/0012). Every request may be repeated. Knows
what RabbitMQ holds, and nothing of what it should.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

from ..errors import RabbitDenied, RabbitForbidden
from ..settings.urls import ServerUrl
from .management import Json, Management

IMPORT_FIRST: Final = "let it read its definitions once: rabbitmqctl import_definitions, each file in definitions/"


class AccountsApi(Management):
    """Users of one RabbitMQ, and their rights on one virtual host."""

    async def check_vhost(self) -> None:
        """Raise unless the virtual host is there, and the warden gets in."""
        try:
            found = await self._get(f"vhosts/{self._vhost}")
        except RabbitDenied:
            raise RabbitForbidden(self.where, "does not know its warden", IMPORT_FIRST) from None
        if found is None:
            raise RabbitForbidden(self.where, f"has no virtual host {self._vhost}", IMPORT_FIRST)

    async def users(self) -> dict[str, Json]:
        """All users of this RabbitMQ by name: hash of the password, and tags."""
        return {str(item["name"]): item for item in await self._get_list("users")}

    async def put_user(self, user: str, password_hash: str, hashing: str, tags: str) -> None:
        body = {"password_hash": password_hash, "hashing_algorithm": hashing, "tags": tags}
        await self._request("PUT", f"users/{_quoted(user)}", body)

    async def delete_user(self, user: str) -> None:
        await self._request("DELETE", f"users/{_quoted(user)}")

    async def permissions(self) -> dict[str, Json]:
        """Rights on names, by user."""
        return {str(item["user"]): item for item in await self._get_list(f"vhosts/{self._vhost}/permissions")}

    async def put_permission(self, user: str, rights: Mapping[str, str]) -> None:
        await self._request("PUT", f"permissions/{self._vhost}/{_quoted(user)}", rights)

    async def delete_permission(self, user: str) -> None:
        await self._request("DELETE", f"permissions/{self._vhost}/{_quoted(user)}")

    async def topic_permissions(self) -> dict[tuple[str, str], Json]:
        """Rights on keys, by user and exchange."""
        found = await self._get_list(f"vhosts/{self._vhost}/topic-permissions")
        return {(str(item["user"]), str(item["exchange"])): item for item in found}

    async def put_topic_permission(self, user: str, rights: Mapping[str, str]) -> None:
        await self._request("PUT", f"topic-permissions/{self._vhost}/{_quoted(user)}", rights)


def _quoted(name: str) -> str:
    return quote(name, safe="")


@asynccontextmanager
async def accounts_api(url: ServerUrl, vhost: str) -> AsyncIterator[AccountsApi]:
    """A client that is closed at the end."""
    client = AccountsApi(url, vhost)
    try:
        yield client
    finally:
        await client.close()
