"""What a delivery is known by: its message id, and the account that RabbitMQ has checked for it.

An id is what its sender says, and the ids of others are readable in any delivery. So ids of different accounts never
meet: the *identity* of a delivery is its account and its id, and everything that remembers deliveries (watermarks, what
is held back during a move, what is not settled) goes by identities.

- With an account (the property `user_id`, which RabbitMQ compares with the connection that publishes, and links pass
  on): account, `SEPARATOR`, id.
- An account of a link is none: that link can't pass on the publisher's, and has written its own over it.
- Without one, where the cluster vouches for accounts: none. Such a message is delivered like a plain AMQP client's,
  and its id is never used to drop anything.
- Without one, where it does not: the id alone, which is as good as the sender's word.

A message that an edge replays (`is_replayed`) has the edge's account, and says in a header which account it had: it is
known by that one, so that it is delivered once.

Invariant: the identities of two accounts differ, whatever the ids are. No account holds the separator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidegate_protocol.ids import MessageId
from tidegate_protocol.names import ACCOUNT_HEADER, BROKER_ACCOUNT_START, LINK_ACCOUNT_START, REPLAYED_HEADER

SEPARATOR: Final = "\0"


def identity_of(account: str | None, message_id: str | None, checked_accounts: bool) -> str | None:
    """What a delivery is known by; None for one that is known by its content only."""
    if not message_id:
        return None
    if account and not account.startswith(LINK_ACCOUNT_START):
        return f"{account}{SEPARATOR}{message_id}"
    # An id that holds the separator could pass for an account with an id.
    return None if checked_accounts or SEPARATOR in message_id else message_id


def is_replayed(account: str | None, headers: Mapping[str, Any] | None, checked_accounts: bool) -> bool:
    """Whether an edge sends again what was dropped: its account says so, where the cluster vouches for accounts."""
    if not headers or REPLAYED_HEADER not in headers:
        return False
    return not checked_accounts or (account is not None and account.startswith(BROKER_ACCOUNT_START))


def replayed_account(headers: Mapping[str, Any]) -> str | None:
    """The account of the publisher of a replayed message, as RabbitMQ had checked it when it was published."""
    account = headers.get(ACCOUNT_HEADER)
    return account if isinstance(account, str) and account else None


def parse_identity(identity: str | None) -> MessageId | None:
    """The id in an identity; None where there is none of ours."""
    if not identity:
        return None
    _, separator, message_id = identity.partition(SEPARATOR)
    return MessageId.parse(message_id if separator else identity)


def stream_of(identity: str) -> str:
    """What the sequence in an identity counts: its account, its publisher and its topic."""
    return identity.rpartition(":")[0]
