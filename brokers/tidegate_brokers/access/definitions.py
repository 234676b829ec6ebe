"""Accounts in RabbitMQ's own form: the definitions that it reads when it starts, or that `rabbitmqctl` imports.

There are two files, to be read in the order of their names: rights on the keys of an exchange are refused by RabbitMQ
while there is no such exchange. They hold hashes of passwords, never passwords. Reading them again changes nothing that
is the same; accounts that are not in them any more are left alone, and have to be removed by hand.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate_protocol.names import LINK_CHECK_EXCHANGE

from .roles import Account

SALT_BYTES: Final = 4
QUEUES_MAX: Final = 100_000
"""Of one virtual host: more than brokers ever need, and less than RabbitMQ can hold."""
HASHING: Final = "rabbit_password_hashing_sha256"


def password_hash(password: str, salt: bytes | None = None) -> str:
    """As RabbitMQ keeps it: a salt, and the SHA-256 of salt and password."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def exchange_definitions(vhost: str, accounts: Sequence[Account]) -> dict[str, Any]:
    """One virtual host, and the exchanges whose keys are somebody's right; brokers find them as they declare them. And
    the one at which links are tried out: where it is, the accounts of links have their tags.
    """
    names = sorted({rights.exchange for account in accounts for rights in account.topics})
    types = {**dict.fromkeys(names, "topic"), LINK_CHECK_EXCHANGE: "fanout"}
    form = {"vhost": vhost, "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    exchanges = [{"name": name, "type": kind, **form} for name, kind in types.items()]
    return {
        "vhosts": [{"name": vhost}],
        "exchanges": exchanges,
        # Clients may declare queues for answers, and user limits know no queues.
        "parameters": [
            {"vhost": vhost, "component": "vhost-limits", "name": "limits", "value": {"max-queues": QUEUES_MAX}}
        ],
    }


def account_definitions(vhost: str, accounts: Sequence[Account], passwords: Mapping[str, str]) -> dict[str, Any]:
    """Who may do what in the virtual host."""
    return {
        "users": [
            {
                "name": account.user,
                "password_hash": password_hash(passwords[account.user]),
                "hashing_algorithm": HASHING,
                "tags": list(account.tags),
                "limits": dict(account.limits),
            }
            for account in accounts
        ],
        "permissions": [
            {
                "user": account.user,
                "vhost": vhost,
                "configure": account.configure,
                "write": account.write,
                "read": account.read,
            }
            for account in accounts
        ],
        "topic_permissions": [
            {"user": account.user, "vhost": vhost, "exchange": rights.exchange, "write": rights.write,
             "read": rights.read}
            for account in accounts
            for rights in account.topics
        ],
    }  # fmt: skip
