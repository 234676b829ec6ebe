"""Making a running RabbitMQ agree with a layout: accounts come, change and go, and what was revoked ends at once.

`tidegate access apply` does this as the warden of each RabbitMQ, an account with the tag `administrator` that no
process of ours uses (docs/adr/0012).

Invariants:

- what RabbitMQ holds is read, compared and changed only where it differs: applying a layout twice changes nothing the
  second time, and one that was interrupted is finished by applying it again;
- a right on keys is replaced and never deleted: without one RabbitMQ would allow every key;
- the connections of an account are closed after its rights were changed, because channels remember rights, unless it is
  certain that it lost none. Connections of other accounts stay;
- only accounts that we have made are ever taken away: those whose password is the one that we keep.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidegate_protocol.names import PUBLISH_EXCHANGE
from tidegate_protocol.rights import Rules
from tidegate_protocol.topics import covers

from ..rabbit.accounts import AccountsApi
from ..rabbit.management import Json
from .definitions import HASHING, SALT_BYTES, password_hash
from .expressions import publishing_expression
from .roles import Account

REASON: Final = "its rights have changed"
"""Told to clients whose connections are closed."""

NAMES: Final = ("configure", "write", "read")
KEYS: Final = ("exchange", "write", "read")


class ChangeKind(StrEnum):
    """What was done about an account."""

    ADDED = "added"
    PASSWORD = "password"
    TAGS = "tags"
    RIGHTS = "rights"
    SHUT_OUT = "shut-out"
    """It has no business on this virtual host any more."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Change:
    """What was done about one account on one RabbitMQ."""

    broker: str
    account: str
    kinds: tuple[ChangeKind, ...]
    closed: int = 0
    """Connections that were closed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the RabbitMQ of one broker should hold."""

    broker: str
    accounts: Sequence[Account]
    passwords: Mapping[str, str]
    gone: Mapping[str, str] = field(default_factory=dict)
    """Accounts of ours, with their passwords, that are not in the layout any more or have no business on this
    RabbitMQ."""
    elsewhere: frozenset[str] = frozenset()
    """Accounts of ours that have no business on this virtual host."""
    before: Rules | None = None
    """The rules that held before, as far as they are known: to tell whether an account has lost something."""
    rules: Rules | None = None


async def apply(api: AccountsApi, wanted: Wanted) -> list[Change]:
    """Make RabbitMQ hold what is wanted; what had to be changed."""
    await api.check_vhost()
    users, names, keys = await api.users(), await api.permissions(), await api.topic_permissions()
    changes = [change for one in wanted.accounts if (change := await _account(api, wanted, one, users, names, keys))]
    for user in sorted(wanted.elsewhere & names.keys()):
        await api.delete_permission(user)
        changes.append(Change(wanted.broker, user, (ChangeKind.SHUT_OUT,), await api.close_user(user, REASON)))
    for user in sorted(wanted.gone.keys() & users.keys()):
        if not _has_password(users[user], wanted.gone[user]):
            continue  # of the same name, and not of our making
        await api.delete_user(user)
        changes.append(Change(wanted.broker, user, (ChangeKind.DELETED,), await api.close_user(user, REASON)))
    return changes


async def _account(
    api: AccountsApi,
    wanted: Wanted,
    account: Account,
    users: Mapping[str, Json],
    names: Mapping[str, Json],
    keys: Mapping[tuple[str, str], Json],
) -> Change | None:
    user, known = account.user, users.get(account.user)
    kinds: list[ChangeKind] = []
    password, tags = wanted.passwords[user], ",".join(account.tags)
    if known is None:
        kinds.append(ChangeKind.ADDED)
    elif not _has_password(known, password):
        kinds.append(ChangeKind.PASSWORD)
    if known is not None and _tags(known) != set(account.tags):
        kinds.append(ChangeKind.TAGS)
    if kinds:
        await api.put_user(user, password_hash(password), HASHING, tags)
    lost = bool(kinds)
    on_names = {"configure": account.configure, "write": account.write, "read": account.read}
    if {name: names.get(user, {}).get(name) for name in NAMES} != on_names:
        await api.put_permission(user, on_names)
        kinds.append(ChangeKind.RIGHTS)
        lost = True
    for rights in account.topics:
        there = keys.get((user, rights.exchange), {})
        on_keys = {"exchange": rights.exchange, "write": rights.write, "read": rights.read}
        if {name: there.get(name) for name in KEYS} != on_keys:
            await api.put_topic_permission(user, on_keys)
            kinds.append(ChangeKind.RIGHTS)
            lost |= not (rights.exchange == PUBLISH_EXCHANGE and _only_wider(user, there, wanted))
    if not kinds:
        return None
    closed = await api.close_user(user, REASON) if lost and known is not None else 0
    return Change(wanted.broker, user, tuple(dict.fromkeys(kinds)), closed)


def _only_wider(user: str, there: Json, wanted: Wanted) -> bool:
    """Whether an account may publish all that it could before: what it could is known, and RabbitMQ held just that."""
    before = wanted.before.of_client(user) if wanted.before is not None else None
    after = wanted.rules.of_client(user) if wanted.rules is not None else None
    if before is None or after is None or there.get("write") != publishing_expression(before.publish):
        return False
    return all(any(covers(new, old) for new in after.publish) for old in before.publish)


def _tags(known: Json) -> set[str]:
    # Text in RabbitMQ 3.8, a list from 3.9 on.
    tags = known.get("tags", "")
    return set(tags if isinstance(tags, list) else filter(None, str(tags).split(",")))


def _has_password(known: Json, password: str) -> bool:
    try:
        salt = base64.b64decode(str(known.get("password_hash", "")))[:SALT_BYTES]
    except ValueError:
        return False
    return known.get("password_hash") == password_hash(password, salt)
