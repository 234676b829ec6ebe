"""Quotas of accounts and tenants as options: in the accounts layout, and in the files of heads and edges.

Each field that is left out has the default of `tidegate_agents.quotas.AccountQuota`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tidegate_agents.quotas import AccountQuota
from tidegate_protocol.ids import check_name
from tidegate_protocol.topics import check_pattern

QUOTAS_MAX: Final = 10_000
CHANNELS_PER_CONNECTION: Final = 8
"""An SDK client opens a few channels on a connection."""

_DEFAULT: Final = AccountQuota()
_Name = Annotated[str, AfterValidator(check_name)]


class QuotaOptions(BaseModel):
    """What one account may use, or all accounts of a tenant together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subscriptions: int = Field(_DEFAULT.subscriptions, ge=0, le=200_000, description="Subscriptions at a head.")
    publishers: int = Field(_DEFAULT.publishers, ge=0, le=50_000, description="Publishers of the SDK at a head.")
    connections: int = Field(_DEFAULT.connections, ge=1, le=1_000_000, description="Connections to each RabbitMQ.")
    messages_per_s: float = Field(_DEFAULT.messages_per_s, gt=0, description="Published messages, and delivered ones.")
    bytes_per_s: float = Field(_DEFAULT.bytes_per_s, gt=0, description="The same in bytes.")
    useless_messages_per_s: float = Field(
        _DEFAULT.useless_messages_per_s, gt=0, description="Messages on topics without any subscription."
    )
    queue_bytes: int = Field(
        _DEFAULT.queue_bytes, ge=1 << 20,
        description="What may wait for all of its subscriptions; each may hold an equal share.",
    )  # fmt: skip

    @property
    def user_limits(self) -> dict[str, int]:
        """As RabbitMQ enforces it for the user."""
        return {
            "max-connections": self.connections,
            "max-channels": CHANNELS_PER_CONNECTION * self.connections,
        }


class QuotaEntry(QuotaOptions):
    """The quota of an account, or of a tenant, in the file of a broker."""

    account: _Name | None = Field(None, description="The account that it is for.")
    tenant: _Name | None = Field(None, description="The account's tenant; without an account, whom it is for.")
    publish: tuple[Annotated[str, AfterValidator(check_pattern)], ...] = Field(
        _DEFAULT.publish, description="Topics that the account may publish on."
    )

    @model_validator(mode="after")
    def _somebody(self) -> QuotaEntry:
        if self.account is None and self.tenant is None:
            raise ValueError("a quota names neither an account nor a tenant; name one of them")
        return self

    @property
    def for_agents(self) -> AccountQuota:
        """As agents want it."""
        values: dict[str, Any] = self.model_dump(exclude={"account", "tenant"})
        return AccountQuota(**values, tenant=self.tenant or "")


def account_quotas(entries: tuple[QuotaEntry, ...]) -> dict[str, AccountQuota]:
    """Those of accounts, by name."""
    return {entry.account: entry.for_agents for entry in entries if entry.account is not None}


def tenant_quotas(entries: tuple[QuotaEntry, ...]) -> dict[str, AccountQuota]:
    """Those of tenants, by name."""
    return {entry.tenant: entry.for_agents for entry in entries if entry.account is None and entry.tenant is not None}
