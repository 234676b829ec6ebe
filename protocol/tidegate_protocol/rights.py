"""Who may publish and subscribe what: the rules of a cluster, and the one judgement about them.

An account has patterns that it may publish and patterns that it may subscribe. A client belongs to the account whose
name it has, or whose name and a hyphen it begins with. `tidegate access prepare` writes the rules, heads and edges read
them, and `tidegate access explain` asks the same functions as they do.

Invariants:

- no rules (None) means that everything is allowed, as in a cluster of one account; with rules, whatever no rule covers
  is refused, and so is a client that belongs to no account;
- one rule has to cover a pattern by itself (`topics.covers`, which is exact). Several rules that do so only together
  are not enough: that is safe, and an operator sees at once which rule allows what;
- the same rules give the same judgement everywhere.

Pure. It knows neither RabbitMQ's own rights (`tidegate_brokers.access`) nor the words of a refusal (`rendering`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from .parts import Name, Part, Pattern, read_json
from .topics import covers, matches

PATTERNS_PER_ACCOUNT_MAX: Final = 64
"""Of one account, for publishing and for subscribing each. RabbitMQ looks through them at a publication."""
ACCOUNTS_MAX: Final = 10_000
RULES_BYTES_MAX: Final = 64 << 20
"""More than so many accounts with so many patterns take."""
RESERVED_TOPICS: Final = "tidegate."
"""Markers and fences have such keys; publishers must not."""

Patterns = Annotated[tuple[Pattern, ...], Field(max_length=PATTERNS_PER_ACCOUNT_MAX)]


class AccountRights(Part):
    """What one account may do. No pattern: nothing."""

    account: Name
    tenant: Name | None = None
    publish: Patterns = ()
    subscribe: Patterns = ()


class OperatorRights(Part):
    """An account of an operator. One of a tenant looks and never acts."""

    account: Name
    tenant: Name | None = None
    sees_others: bool = False
    """Whether one of a tenant is told the names of clients that are not its tenant's."""


class _RulesFile(Part):
    """The form of the file: `{"v": 1, "accounts": […], "operators": […]}`."""

    v: Literal[1] = 1
    accounts: Annotated[tuple[AccountRights, ...], Field(max_length=ACCOUNTS_MAX)] = ()
    operators: Annotated[tuple[OperatorRights, ...], Field(max_length=ACCOUNTS_MAX)] = ()


class Deed(StrEnum):
    """What is judged."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Verdict(StrEnum):
    """Why something is allowed or refused. Bounded, because it labels a metric."""

    UNRULED = "unruled"
    """Allowed: there are no rules."""
    COVERED = "covered"
    """Allowed: a rule of the account covers it."""
    UNKNOWN_ACCOUNT = "unknown-account"
    """Refused: the client belongs to no account of the rules."""
    NO_RIGHT = "no-right"
    """Refused: the account may do nothing of the kind."""
    NOT_COVERED = "not-covered"
    """Refused: no rule of the account covers all of it."""
    RESERVED = "reserved"
    """Refused: brokers publish such topics, and nobody else."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a client may do something, and why."""

    deed: Deed
    client: str
    pattern: str
    """The pattern to be subscribed, or the topic to be published."""
    verdict: Verdict
    account: str = ""
    """Whose rules were asked; empty where there are none, or none for this client."""
    rule: str = ""
    """The pattern that covers it."""
    rules: tuple[str, ...] = ()
    """What the account may instead, where it may not do this."""

    @property
    def allowed(self) -> bool:
        return self.verdict in (Verdict.UNRULED, Verdict.COVERED)


class Rules:
    """The rights of all accounts of a cluster."""

    __slots__ = ("_accounts", "_operators", "has_veiled")

    def __init__(self, accounts: Iterable[AccountRights], operators: Iterable[OperatorRights] = ()) -> None:
        self._accounts: Final = {one.account: one for one in accounts}
        self._operators: Final = {one.account: one for one in operators}
        self.has_veiled: Final = any(one.tenant is not None for one in self._operators.values())
        """Whether some operator may not see or do everything."""

    @classmethod
    def of(cls, *accounts: AccountRights) -> Rules:
        return cls(accounts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rules):
            return NotImplemented
        return (self._accounts, self._operators) == (other._accounts, other._operators)

    def __hash__(self) -> int:
        return hash((tuple(self), self.operators))

    def __len__(self) -> int:
        return len(self._accounts)

    def __iter__(self) -> Iterator[AccountRights]:
        """All accounts, in the order of their names."""
        return (self._accounts[name] for name in sorted(self._accounts))

    @property
    def operators(self) -> tuple[OperatorRights, ...]:
        """All operators, in the order of their names."""
        return tuple(self._operators[name] for name in sorted(self._operators))

    def operator(self, account: str) -> OperatorRights | None:
        return self._operators.get(account)

    def of_client(self, client: str) -> AccountRights | None:
        """The account that a client belongs to; None if there is none. `client` may be the id of a publisher.

        The longest name wins; a layout has no account whose name another one owns.
        """
        name = client.partition("~")[0]
        while name:
            if name in self._accounts:
                return self._accounts[name]
            name = name.rpartition("-")[0]
        return None


def may_subscribe(client: str, pattern: str, rules: Rules | None) -> Judgement:
    """Whether a subscriber may have a subscription to this pattern."""
    return _judge(Deed.SUBSCRIBE, client, pattern, rules)


def may_publish(client: str, topic: str, rules: Rules | None) -> Judgement:
    """Whether a publisher may publish under this topic. What is reserved nobody may, whatever the rules say."""
    if topic.startswith(RESERVED_TOPICS):
        account = rules.of_client(client) if rules is not None else None
        return Judgement(Deed.PUBLISH, client, topic, Verdict.RESERVED, account.account if account else "")
    return _judge(Deed.PUBLISH, client, topic, rules)


def may_see(operator: OperatorRights, client: str, rules: Rules | None) -> bool:
    """Whether an operator is told the name of a client."""
    if operator.tenant is None or operator.sees_others or rules is None:
        return True
    account = rules.of_client(client)
    return account is not None and account.tenant == operator.tenant


def _judge(deed: Deed, client: str, pattern: str, rules: Rules | None) -> Judgement:
    if rules is None:
        return Judgement(deed, client, pattern, Verdict.UNRULED)
    account = rules.of_client(client)
    if account is None:
        return Judgement(deed, client, pattern, Verdict.UNKNOWN_ACCOUNT)
    granted = account.publish if deed is Deed.PUBLISH else account.subscribe
    suffices = matches if deed is Deed.PUBLISH else covers
    rule = next((one for one in granted if suffices(one, pattern)), None)
    if rule is not None:
        return Judgement(deed, client, pattern, Verdict.COVERED, account.account, rule)
    verdict = Verdict.NOT_COVERED if granted else Verdict.NO_RIGHT
    return Judgement(deed, client, pattern, verdict, account.account, rules=granted)


_ADAPTER: Final[TypeAdapter[_RulesFile]] = TypeAdapter(_RulesFile)


def read_rules(content: bytes) -> Rules:
    """The rules that `write_rules` wrote; raise `MalformedMessage` that says what is wrong."""
    found = read_json(_ADAPTER, content, RULES_BYTES_MAX, "rules", "v")
    return Rules(found.accounts, found.operators)


def write_rules(rules: Rules) -> str:
    """The text of a file with these rules."""
    file = _RulesFile(accounts=tuple(rules), operators=rules.operators)
    return file.model_dump_json(exclude_none=True, indent=2) + "\n"
