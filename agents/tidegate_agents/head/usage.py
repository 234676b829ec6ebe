"""What each account of RabbitMQ, and each tenant, may use of a head: whose a client is, what is used, what is refused.

A client belongs to the account that RabbitMQ has checked when it asked, or to the configured account whose name it has:
a name is `account` or begins with `account-`. So a head that restarts counts the subscriptions that its edges hold
under the same accounts as before.

Invariants:

- an account that has used up a quota gets nothing more under any name; what it has, it keeps;
- a tenant's quota holds for all of its accounts together;
- brokers and this head's own account have no quota. Where an account is not known, none can be counted, and the limits
  of a head hold alone;
- a quota is told once when `NEAR_SHARE` of it are used and once when it is used up, not with every refusal.

Holds no clock and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate_protocol.decisions import Quota, QuotaStage, QuotaWatched
from tidegate_protocol.operations import QUOTAS_TOLD_MAX, QuotaUse

from ..kit.dispatch import Dispatch
from ..kit.memory import Recent
from ..load.metrics import AccountSample
from ..machine import HeadSampled
from ..quotas import AccountQuota, account_named

if TYPE_CHECKING:
    from .context import HeadContext

NEAR_SHARE: Final = 0.8
"""From this share on a quota is told to be near."""
ROOM_SHARE: Final = 0.7
"""Below this share it is told to have room again: not with every subscription that comes and goes."""
SAID_MAX: Final = 100_000
"""Names of clients whose account was learned from what they asked."""
WATCHED_MAX: Final = 10_000
"""Quotas that are near or used up."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """Whose quota it is."""

    account: str
    tenant: str
    quota: AccountQuota


class Usage:
    """The quotas of a head and what is used of them."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._quotas: Mapping[str, AccountQuota] = context.config.quotas
        self._tenants: Mapping[str, AccountQuota] = context.config.tenant_quotas
        self._said: Recent[str, str] = Recent(SAID_MAX)
        self._measured: dict[str, AccountSample] = {}
        self._stages: Recent[tuple[str, str, Quota], QuotaStage] = Recent(WATCHED_MAX)
        context.registry.owner = self.account_of

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(HeadSampled, self.sampled)
        dispatch.checks.append(self._stages.validate)

    # Whose a client is

    def account_of(self, client: str) -> str:
        """The account of a client by its name or id; empty where it is not known."""
        name = client.partition("~")[0]
        return account_named(name, self._quotas) or self._said.get(name, "")

    def spoke(self, client: str) -> None:
        """A client has asked for something: RabbitMQ has checked the account it named, if it named one."""
        account = self._context.account
        name = client.partition("~")[0]
        if account and account_named(name, self._quotas) is None and self._said.get(name) != account:
            self._said[name] = account

    def quota_of(self, account: str) -> AccountQuota | None:
        """What an account may use; None for one that has no quota."""
        config = self._context.config
        if not account or account in config.exempt_accounts or "." in account:
            return None  # names of brokers' and links' accounts have a dot
        return self._quotas.get(account, config.quota_default)

    # What is granted

    def refuses_subscription(self, subscriber: str) -> QuotaUse | None:
        """The quota that leaves no room for one more subscription; None if there is room."""
        return self._admit(subscriber, Quota.SUBSCRIPTIONS)

    def refuses_publisher(self, publisher: str) -> QuotaUse | None:
        """The same for one more publisher."""
        return self._admit(publisher, Quota.PUBLISHERS)

    def _admit(self, client: str, quota: Quota) -> QuotaUse | None:
        self.spoke(client)
        account = self.account_of(client)
        for scope in self._scopes(account):
            use = self._use(scope, quota, 0)
            if use.used >= use.limit:
                self._note(use)
                return use
        for scope in self._scopes(account):
            self._note(self._use(scope, quota, 1))
        return None

    def _scopes(self, account: str) -> Iterator[_Scope]:
        quota = self.quota_of(account)
        if quota is None:
            return
        yield _Scope(account, quota.tenant, quota)
        if quota.tenant in self._tenants:
            yield _Scope("", quota.tenant, self._tenants[quota.tenant])

    # What is used

    def sampled(self, event: HeadSampled) -> None:
        """RabbitMQ has told what accounts send and how many connections they have."""
        if event.accounts is None:
            return
        self._measured = {sample.account: sample for sample in event.accounts}
        for use in self._uses():
            self._note(use)

    def uses(self) -> tuple[QuotaUse, ...]:
        """What is used of each quota of which something is used, the most used first; as many as are told."""
        found = [use for use in self._uses() if use.used > 0.0]
        found.sort(key=lambda use: (-use.share, use.tenant, use.account, use.quota))
        return tuple(found[:QUOTAS_TOLD_MAX])

    def _uses(self) -> Iterator[QuotaUse]:
        registry = self._context.registry
        tenants: set[str] = set()
        known = {*registry.held, *registry.publishing, *self._measured, *self._quotas}
        for account in sorted(known):
            for scope in self._scopes(account):
                if scope.account or scope.tenant not in tenants:
                    yield from (self._use(scope, quota, 0) for quota in Quota)
                if not scope.account:
                    tenants.add(scope.tenant)

    def _use(self, scope: _Scope, quota: Quota, more: int) -> QuotaUse:
        used = sum(self._used(account, quota) for account in self._accounts_in(scope))
        limit = scope.quota.limit(quota)
        return QuotaUse(account=scope.account, tenant=scope.tenant, quota=quota, used=used + more, limit=limit)

    def _accounts_in(self, scope: _Scope) -> Iterable[str]:
        if scope.account:
            return (scope.account,)
        return [name for name, quota in self._quotas.items() if quota.tenant == scope.tenant]

    def _used(self, account: str, quota: Quota) -> float:
        registry, measured = self._context.registry, self._measured.get(account)
        match quota:
            case Quota.SUBSCRIPTIONS:
                return registry.held.get(account, 0)
            case Quota.PUBLISHERS:
                return registry.publishing.get(account, 0)
            case Quota.CONNECTIONS:
                return measured.connections if measured is not None else 0
            case Quota.MESSAGES:
                return measured.messages_per_s if measured is not None else 0.0
            case Quota.BYTES:
                return measured.bytes_per_s if measured is not None else 0.0

    # What is told

    def _note(self, use: QuotaUse) -> None:
        subject = (use.account, use.tenant, use.quota)
        before = self._stages.get(subject)
        stage = _stage(use, before)
        if stage is before:
            return
        if stage is None or stage is QuotaStage.ROOM:
            self._stages.pop(subject, None)
        else:
            self._stages[subject] = stage
        if stage is not None:
            self._context.decide(QuotaWatched(use.account, use.tenant, use.quota, stage, use.used, use.limit))


def _stage(use: QuotaUse, before: QuotaStage | None) -> QuotaStage | None:
    if use.share >= 1.0:
        return QuotaStage.REACHED
    if use.share >= NEAR_SHARE:
        return before or QuotaStage.NEAR
    if before is not None and use.share < ROOM_SHARE:
        return QuotaStage.ROOM
    return before
