"""Quotas as agents are told them, and whose a client is by its name.

Invariant: every field has a limit by default that no ordinary account reaches, and that keeps one account from filling
a broker alone.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from tidegate_protocol.decisions import Quota

MIB: Final = 1 << 20
QUEUE_BYTES_MIN: Final = MIB
"""What may wait for a subscription at least, however many its account may have."""


@dataclass(frozen=True, slots=True)
class AccountQuota:
    """What one account may use, or all accounts of a tenant together."""

    subscriptions: int = 1_000
    publishers: int = 200
    connections: int = 2_000
    """On each RabbitMQ."""
    messages_per_s: float = 5_000.0
    bytes_per_s: float = 32.0 * MIB
    """Published, and, for each subscription, delivered."""
    useless_messages_per_s: float = 500.0
    """Published on topics without any subscription."""
    queue_bytes: int = 8_192 * MIB
    """What may wait for all of its subscriptions; each may hold an equal share of it."""
    tenant: str = ""
    publish: tuple[str, ...] = ("#",)
    """Patterns of the topics that it may publish on; reports about other topics are not believed."""

    def limit(self, quota: Quota) -> float:
        match quota:
            case Quota.SUBSCRIPTIONS:
                return self.subscriptions
            case Quota.PUBLISHERS:
                return self.publishers
            case Quota.CONNECTIONS:
                return self.connections
            case Quota.MESSAGES:
                return self.messages_per_s
            case Quota.BYTES:
                return self.bytes_per_s

    @property
    def bytes_per_queue(self) -> int:
        """What may wait for each of its subscriptions, so that all together keep to `queue_bytes`."""
        return max(self.queue_bytes // max(self.subscriptions, 1), QUEUE_BYTES_MIN)


def account_named(client: str, accounts: Container[str]) -> str | None:
    """The account that a client's name belongs to: `siren` owns `siren` and all that begins with `siren-`.

    No account owns another's name, so that there is one at most.
    """
    words = client.split("-")
    for count in range(len(words), 0, -1):
        name = "-".join(words[:count])
        if name in accounts:
            return name
    return None
