"""What the parts of a head's agent share: the outbox, the moment, and references to what they read and write.

Holds no rule. Who is there is in `registry`, what every place is to its client in `ledger`, and what is forwarded to
whom in `routes`.

Parts know each other one way only: `neighbours` and `removals` no other, `edges` the removals, `knowledge` the
neighbours, `preparations` all of these; `migrations` the preparations; `doubts`, `sessions`, `drains` and
`abroad/arriving` the migrations; `allocation` and `moving/reports` the doubts. What the others find they are told by
the dispatch (`events`).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate_protocol.messages import ControlMessage

from ..config import HeadConfig
from ..kit.broker import BrokerContext
from ..machine import ReplyAddress
from ..topics.routes import RouteTable
from ..topics.waits import Waits
from .accounts import Accounts
from .bindings import Bindings
from .moving.cooldowns import Cooldowns
from .moving.promises import Promises
from .places.ledger import Ledger
from .registry import Registry
from .usage import Usage
from .veil import Veil


class HeadContext(BrokerContext):
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
        self.rules = config.rules
        """What accounts may publish and subscribe; None: everything."""
        self.veil = Veil()
        self.accounts = Accounts(self)
        self.account = ""
        """The account of the message that is being handled, as RabbitMQ has checked it; empty where it names none."""
        self.usage = Usage(self)

    def reply(self, to: ReplyAddress | Iterable[ReplyAddress | None] | None, message: ControlMessage) -> None:
        """Answer, each asker with what it may see."""
        for address in (to,) if to is None or isinstance(to, ReplyAddress) else to:
            if address is not None:
                super().reply(address, self.veil.veiled(address, message, self.rules))

    def close_wait(self, key: str) -> None:
        """Nobody waits for these routes any more."""
        self.waits.close(key)
        self.cancel_timer(f"wait {key}")

    def validate(self) -> None:
        """Raise AssertionError if the parts of the state disagree."""
        super().validate()
        for part in (self.registry, self.routes, self.ledger, self.waits, self.bindings, self.promises, self.cooldowns):
            part.validate()
        self.accounts.validate()
