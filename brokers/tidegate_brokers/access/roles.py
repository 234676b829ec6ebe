"""The accounts of each part on each RabbitMQ, and the least rights with which it works.

RabbitMQ grants rights per virtual host by three regular expressions over names of exchanges and queues (configure,
write, read), and on a topic exchange by two over routing keys (docs/adr/0008).

Invariants:

- no client may write to the default exchange: it would reach any queue there is, past every other rule;
- a client may bind its own queue to the key of its own orders, and to nothing else;
- on an edge a subscriber may read output queues of its own name and of names that begin with it and a hyphen;
- accounts of brokers, links and wardens have a dot in their names, which no client's name has;
- only wardens have the tag `administrator`; of our processes a head has the password of its own warden, nobody else's;
- an account that may pass on the `user_id` of others (`impersonator`) delivers data, and can do nothing else.

RabbitMQ can't know whether a request to a head names a client of its sender; the head checks that with `names.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.names import (
    ACCOUNTS_EXCHANGE,
    ANSWER_KEY,
    CONTROL_EXCHANGE,
    DELIVER_EXCHANGE,
    DROPPED_EXCHANGE,
    DROPS_STREAM,
    HEAD_KEY,
    HOM_KEY,
    LINK_ACCOUNT_START,
    LINK_CHECK_EXCHANGE,
    LINK_PREFIX,
    OPERATOR_KEY,
    OUTPUT_PREFIX,
    PUBLISH_EXCHANGE,
    REPLAY_EXCHANGE,
    SEAL_EXCHANGE,
    TELEMETRY_EXCHANGE,
    TELEMETRY_STREAM,
    broker_key,
    client_key,
    control_queue,
    ingress_exchange,
    pie_global_key,
    pie_local_key,
)

from ..plane.fences import FENCE_PREFIX
from .expressions import publishing_expression

NOTHING: Final = "^$"
DEFAULT_EXCHANGE: Final = "amq.default"
"""What RabbitMQ calls the exchange without a name when it looks at rights."""
ANY_NAME: Final = "[A-Za-z0-9_-]+"
GENERATED: Final = "amq\\.gen-.*"
"""Queues that RabbitMQ names. Those of clients are exclusive: no other connection may use them, whatever its rights."""
BROKER_TAGS: Final = ("monitoring", "policymaker")
"""To read listings and to set policies and shovels."""
LINK_TAGS: Final = ("impersonator",)
"""A shovel copies the property `user_id`, and RabbitMQ refuses another account's: the shovel would try the same message
for ever, and everything behind it would wait. With this tag the publisher's account arrives as it was checked at the
head.
"""


WARDEN_TAGS: Final = ("administrator",)
"""RabbitMQ lets nobody else close the connections of others or limit them (docs/adr/0012)."""


@dataclass(frozen=True, slots=True)
class TopicRights:
    """Keys that may be published with, and bound, on one topic exchange."""

    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class Account:
    """A user of one RabbitMQ with its rights on one virtual host."""

    user: str
    configure: str = NOTHING
    write: str = NOTHING
    read: str = NOTHING
    topics: tuple[TopicRights, ...] = ()
    tags: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    """What RabbitMQ itself allows the user: connections and channels."""


def broker_user(broker: str) -> str:
    """The account of a broker's process, the same everywhere."""
    return f"broker.{broker}"


def link_user(head: str) -> str:
    """The account with which a head's RabbitMQ forwards, to its edges and to its neighbours."""
    return f"{LINK_ACCOUNT_START}{head}"


def warden_user(broker: str) -> str:
    """The account that changes accounts on a broker's RabbitMQ."""
    return f"warden.{broker}"


def _one_of(*alternatives: str) -> str:
    return f"^({'|'.join(alternatives)})$"


def _exactly(*names: str) -> str:
    return _one_of(*(re.escape(name).replace("\\-", "-") for name in names))


def _names_of(user: str) -> str:
    return f"{re.escape(user).replace(chr(92) + '-', '-')}(-{ANY_NAME})?"


# On every RabbitMQ


def warden_account(broker: str) -> Account:
    """Changes accounts and closes their connections, over the management API. It has no right to any message."""
    return Account(warden_user(broker), tags=WARDEN_TAGS)


# On the RabbitMQ of a head


def head_account(head: str) -> Account:
    """The head's own process."""
    names = ("tidegate\\..*", *(f"{re.escape(prefix)}.*" for prefix in (LINK_PREFIX, FENCE_PREFIX)))
    mine = re.escape(control_queue(head)).replace("\\-", "-")
    everything = _one_of(*names, mine)
    return Account(
        broker_user(head),
        configure=everything,
        write=_one_of(*names, mine, re.escape(DEFAULT_EXCHANGE)),
        read=everything,
        tags=BROKER_TAGS,
    )


def edge_at_head(edge: str, cluster: str) -> Account:
    """An edge's process: it reports to the head and is spoken to."""
    queue, reports = control_queue(edge), pie_local_key(cluster)
    return Account(
        broker_user(edge),
        configure=_exactly(CONTROL_EXCHANGE, queue),
        write=_exactly(CONTROL_EXCHANGE, TELEMETRY_EXCHANGE, queue, DEFAULT_EXCHANGE),
        read=_exactly(CONTROL_EXCHANGE, queue),
        topics=(
            TopicRights(CONTROL_EXCHANGE, _exactly(HEAD_KEY, reports), _exactly(broker_key(edge), reports)),
            TopicRights(TELEMETRY_EXCHANGE, ".*", NOTHING),
        ),
    )


def neighbour_at_head(neighbour: str, head: str, cluster: str) -> Account:
    """A neighbouring head's process: it asks and reports."""
    return Account(
        broker_user(neighbour),
        configure=_exactly(CONTROL_EXCHANGE),
        write=_exactly(CONTROL_EXCHANGE),
        topics=(TopicRights(CONTROL_EXCHANGE, _exactly(broker_key(head), pie_global_key(cluster)), NOTHING),),
    )


def link_at_head(neighbour: str) -> Account:
    """What comes over the link from a neighbouring head, into the exchange made for it.

    No right here depends on a key: RabbitMQ 4 checks the keys in `CC`, too, and a key that a link may not write would
    stop the link.
    """
    return Account(
        link_user(neighbour), write=_exactly(ingress_exchange(neighbour), LINK_CHECK_EXCHANGE), tags=LINK_TAGS
    )


def client_at_head(user: str, publish: Sequence[str] = ()) -> Account:
    """A publisher or a subscriber: it asks the head, takes orders for its own names, and publishes topics that one of
    the patterns in `publish` matches.

    RabbitMQ 4 shows an exchange only to accounts with some right on it, and publishers look for the one that tells them
    to name their account. Nothing is bound to that one.
    """
    data = (re.escape(PUBLISH_EXCHANGE), re.escape(ACCOUNTS_EXCHANGE)) if publish else ()
    writes = (GENERATED, re.escape(CONTROL_EXCHANGE), *data)
    orders = f"^{re.escape(client_key(''))}{_names_of(user)}(~[0-9a-z]+)?$"
    return Account(
        user,
        configure=f"^{GENERATED}$",
        write=_one_of(*writes),
        read=_one_of(GENERATED, re.escape(CONTROL_EXCHANGE)),
        topics=(
            TopicRights(CONTROL_EXCHANGE, _exactly(HOM_KEY, ANSWER_KEY), orders),
            # Also for who publishes nothing: without such a right RabbitMQ would allow any key.
            TopicRights(PUBLISH_EXCHANGE, publishing_expression(publish), NOTHING),
        ),
    )


def operator_at_head(user: str) -> Account:
    """The account of an operator, who looks, pauses and drains, and may read telemetry."""
    return Account(
        user,
        write=_exactly(CONTROL_EXCHANGE),
        read=_exactly(TELEMETRY_STREAM),
        topics=(TopicRights(CONTROL_EXCHANGE, _exactly(OPERATOR_KEY), NOTHING),),
        tags=("monitoring",),
    )


def analyst_at_head(user: str) -> Account:
    """The account of an analyst, who reads telemetry."""
    return Account(user, read=_exactly(TELEMETRY_STREAM))


# On the RabbitMQ of an edge


def edge_account(edge: str) -> Account:
    """The edge's own process."""
    # Those for what is dropped are queues as well as exchanges.
    names = (DELIVER_EXCHANGE, SEAL_EXCHANGE, DROPPED_EXCHANGE, DROPS_STREAM, REPLAY_EXCHANGE)
    exchanges = [re.escape(name) for name in names]
    everything = _one_of(*exchanges, f"{re.escape(OUTPUT_PREFIX)}.*")
    return Account(broker_user(edge), configure=everything, write=everything, read=everything, tags=BROKER_TAGS)


def link_at_edge(head: str) -> Account:
    """What comes over the link from the head; no right depends on a key, as in `link_at_head`."""
    return Account(link_user(head), write=_exactly(DELIVER_EXCHANGE, LINK_CHECK_EXCHANGE), tags=LINK_TAGS)


def subscriber_at_edge(user: str) -> Account:
    """A subscriber: it reads what waits for it."""
    return Account(user, read=f"^{re.escape(OUTPUT_PREFIX)}{_names_of(user)}\\.[0-9]+$")
