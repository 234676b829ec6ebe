"""Keeps accounts out for a while, with rights that no broker has: the account `warden`, tagged `administrator`.

RabbitMQ can't slow one account down. It can close all connections of a user and take no new ones, by the user's limit
`max-connections`. Invariants:

- a lease has an end, and is written into RabbitMQ (a global parameter) before the limit is: a head that is killed, and
  even one that never comes back but on another machine, leaves nobody locked out for longer than until the next head
  looks;
- the limit that was there before comes back with the end of a lease;
- an account of a broker or of a link (their names have a dot) and the warden itself are never kept out;
- at most `LEASES_MAX` leases run at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from ..errors import RabbitBadAnswer, RabbitError
from .management import Json, Management

log = logging.getLogger(__name__)

LEASE_PREFIX: Final = "tidegate-lease."
LEASES_MAX: Final = 1_000
LEASE_S_MAX: Final = 24 * 3600.0
LOOK_EVERY_S: Final = 1.0
FAILED_AGAIN_S: Final = 10.0
REASON: Final = "this account floods and is kept out for a while; see tidegate status"


class Warden:
    """Leases of one RabbitMQ."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._until: dict[str, float] = {}
        """When each lease ends, by the wall clock, by account."""

    @property
    def kept_out(self) -> frozenset[str]:
        return frozenset(self._until)

    async def keep_out(self, account: str, lease_s: float) -> None:
        """Close an account's connections and refuse new ones until the lease ends."""
        where = self._management.where
        if not account or "." in account or account == self._management.user:
            raise RabbitBadAnswer(where, f"{account} is not to be kept out", "give clients accounts of their own")
        if account not in self._until and len(self._until) >= LEASES_MAX:
            raise RabbitBadAnswer(where, f"{LEASES_MAX} accounts are kept out already", "look at what goes on there")
        until_s = time.time() + min(lease_s, LEASE_S_MAX)
        before = await self._limit_before(account)
        await self._management.put_global(LEASE_PREFIX + account, {"until": until_s, "limit": before})
        self._until[account] = until_s
        await self._management.limit_user(account, 0)
        await self._management.close_user(account, REASON)
        log.warning("%s is kept out for %g s", account, lease_s, extra={"account": account})

    async def run(self) -> None:
        """End leases when their time has come, those of predecessors as well; until cancelled."""
        adopted = False
        try:
            while True:
                try:
                    if not adopted:
                        await self._adopt()
                        adopted = True
                    await self._end_due()
                except RabbitError as error:
                    log.warning("cannot let accounts in again; it is tried again: %s", error)
                    await asyncio.sleep(FAILED_AGAIN_S)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await self._management.close()

    async def _adopt(self) -> None:
        latest_s = time.time() + LEASE_S_MAX
        for name, value in (await self._management.globals(LEASE_PREFIX)).items():
            until = value.get("until") if isinstance(value, dict) else None
            until_s = min(float(until), latest_s) if isinstance(until, int | float) else 0.0
            self._until.setdefault(name.removeprefix(LEASE_PREFIX), until_s)

    async def _end_due(self) -> None:
        now = time.time()
        for account in sorted(account for account, until_s in self._until.items() if until_s <= now):
            await self._release(account)

    async def _release(self, account: str) -> None:
        """Give back the limit there was. Only then the lease is forgotten: what fails in between is tried again."""
        lease = (await self._management.globals(LEASE_PREFIX)).get(LEASE_PREFIX + account)
        before = lease.get("limit") if isinstance(lease, dict) else None
        await self._management.limit_user(account, before if isinstance(before, int) else None)
        await self._management.delete_global(LEASE_PREFIX + account)
        self._until.pop(account, None)
        log.info("%s is let in again", account, extra={"account": account})

    async def _limit_before(self, account: str) -> int | None:
        """The account's own limit: that of a lease that runs already, not the one which the lease has set."""
        lease: Json | None = (await self._management.globals(LEASE_PREFIX)).get(LEASE_PREFIX + account)
        if lease is not None:
            before = lease.get("limit")
            return before if isinstance(before, int) else None
        return (await self._management.user_limits(account)).get("max-connections")
