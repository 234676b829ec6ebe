"""What the parts of a head's agent share: the outbox, the moment, and references to what they read and write.

Holds no rule. Who is there is in `registry`, what every place is to its client in `ledger`, and what is forwarded to
whom in `routes`.

Parts know each other one way only: `neighbours` and `removals` no other, `edges` the removals, `knowledge` the
neighbours, `preparations` all of these; `migrations` the preparations; `doubts`, `sessions`, `drains` and
`abroad/arriving` the migrations; `allocation` and `moving/reports` the doubts. What the others find they are told by
the dispatch (`events`).
"""

from __future__ import annotations

from ..config import HeadConfig
from ..kit.outbox import Outbox
from ..topics.routes import RouteTable
from ..topics.waits import Waits
from .accounts import Accounts
from .bindings import Bindings
from .moving.cooldowns import Cooldowns
from .moving.promises import Promises
from .places.ledger import Ledger
from .registry import Registry


class HeadContext(Outbox):
    """Shared state of one head's agent."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config.head, config.incarnation)
        self.config = config
        self.registry = Registry()
        self.routes = RouteTable(neighbour.name for neighbour in config.neighbours)
        self.ledger = Ledger(self, self.registry, self.routes, config.period_s)
        self.waits = Waits()
        self.bindings = Bindings(self, self.routes, self.waits, config.reply_timeout_s)
        self.promises = Promises()
        self.cooldowns = Cooldowns()
        self.account = ""
        """The account of the message that is being handled, as RabbitMQ has checked it; empty where it names none."""
        self.accounts = Accounts(self)
        self.started_s = 0.0
        self.stopping = False
        self.paused = False
        self.pause_version = 0
        """Whether an operator has switched balancing off in this cluster; what has the higher version holds."""
        self.alarms: tuple[str, ...] = ()
        """Those of this broker's RabbitMQ that are raised."""

    def close_wait(self, key: str) -> None:
        """Nobody waits for these routes any more."""
        self.waits.close(key)
        self.cancel_timer(f"wait {key}")

    @property
    def checked_accounts(self) -> bool:
        """Whether publishers may name their accounts: a single link that does not pass them on would stop."""
        return self.config.checked_accounts and all(edge.passes_accounts for edge in self.registry.edges.values())

    def validate(self) -> None:
        """Raise AssertionError if the parts of the state disagree."""
        super().validate()
        for part in (self.registry, self.routes, self.ledger, self.waits, self.bindings, self.promises, self.cooldowns):
            part.validate()
