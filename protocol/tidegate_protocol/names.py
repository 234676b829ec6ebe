"""Names that several processes must agree on: exchanges, queues and control routing keys.

Nothing here touches a connection; it is the single place where such a name is spelled. The public ones
(`PUBLISH_EXCHANGE`, the message form in `form.py`) are a contract with foreign AMQP clients and do not change within
a protocol version.
"""

from __future__ import annotations

from typing import Final

SEAL_EXCHANGE: Final = "tidegate.seal"
"""On every RabbitMQ of ours: made again behind each change that must not be forgotten. Nothing goes through it."""

# Data plane, on a head: publishers write here, one ingress exchange per neighbouring head, one queue per link.
PUBLISH_EXCHANGE: Final = "tidegate.publish"
INGRESS_PREFIX: Final = "tidegate.ingress."
LINK_PREFIX: Final = "link."
ACCOUNTS_EXCHANGE: Final = "tidegate.accounts"
"""There while publishers may name their accounts (`user_id`): every link of the tree passes accounts on. Publishers
look for it when they connect, so that they know without any process of ours. Nothing goes through it."""
LINK_CHECK_EXCHANGE: Final = "tidegate.link-check"
"""On every RabbitMQ of ours: where the account of a link is tried out. Nothing is bound to it."""
LINK_ACCOUNT_START: Final = "link."
"""What accounts of links are called, before the name of their head. A message that names one has lost the account of
its publisher on the way."""
QUARANTINE_QUEUE: Final = "tidegate.quarantine"
"""Where a head keeps what its links could not carry."""
MARKER_EXCHANGE: Final = "tidegate.markers"
"""Where a head writes markers and fences. It goes by headers (`marker_header`), so that no key has to be bound."""

# Data plane, on an edge: links write here, one queue per subscription.
DELIVER_EXCHANGE: Final = "tidegate.deliver"
OUTPUT_PREFIX: Final = "out."
DROPPED_EXCHANGE: Final = "tidegate.dropped"
"""Where RabbitMQ sends what it drops from output queues: their dead-letter exchange."""
DROPS_STREAM: Final = "tidegate.drops"
"""The stream that keeps it, bounded; also the exchange whose bindings note how far it was counted and replayed."""
REPLAY_EXCHANGE: Final = "tidegate.replay"
"""Where an edge publishes dropped messages again, each for one output queue. It goes by headers, so that the routing
key is still the topic."""
REPLAYED_HEADER: Final = "tidegate-replayed"
"""Of a replayed message: the output queue that it is for. Counts where RabbitMQ has checked that a broker sent it."""
BROKER_ACCOUNT_START: Final = "broker."
"""How the accounts of brokers begin; no client's name has a dot."""
ACCOUNT_HEADER: Final = "tidegate-account"
"""Of a replayed message: the account of its publisher, as RabbitMQ had checked it. An edge can't send in its name."""

MARKER_PREFIX: Final = "tidegate.marker."
"""Keys of markers and fences: messages of our own among the data, which no application sees."""

# Control plane, on a head.
CONTROL_EXCHANGE: Final = "tidegate.control"
CONTROL_QUEUE_PREFIX: Final = "control."
HOM_KEY: Final = "hom"
"""Where clients send requests. Clients know a head's address but not its name, so the key is the same on every head."""
HEAD_KEY: Final = "head"
"""Where the edges of a cluster send to their head: they too know its address rather than its name."""
DRAIN_PREFIX: Final = "drain~"
"""With the name of an edge: what stands for a session in the decisions about the drain of that edge."""
ANSWER_KEY: Final = "answer"
"""Where clients answer the orders of a head. Brokers answer by the default exchange; a client must not have the right
to write there, because it would reach every queue."""
OPERATOR_KEY: Final = "operator"
"""Where operators send requests: a key of its own, so that RabbitMQ can tell who may."""

# Telemetry, on a head.
TELEMETRY_EXCHANGE: Final = "tidegate.telemetry"
"""Brokers write records here, with their kind as routing key; operators may bind queues of their own to it."""
TELEMETRY_STREAM: Final = "tidegate.telemetry"
"""The stream that keeps them."""
TELEMETRY_FILE: Final = "telemetry.jsonl"
"""Where an experiment leaves the records that a stream would hold, one per line."""


def ingress_exchange(head: str) -> str:
    """The exchange that receives what the neighbouring head `head` forwards."""
    return INGRESS_PREFIX + head


def link_queue(target: str) -> str:
    """The queue on a head that holds what waits to be forwarded to the broker `target`."""
    return LINK_PREFIX + target


def marker_header(target: str) -> str:
    """The header that takes a message of `MARKER_EXCHANGE` into the link to `target`."""
    return f"tidegate-to-{target}"


def output_queue(subscriber: str, number: int) -> str:
    """The queue on an edge that holds what waits for one subscription."""
    return f"{OUTPUT_PREFIX}{subscriber}.{number}"


def control_queue(broker: str) -> str:
    """The queue on a head's RabbitMQ from which the process of `broker` takes control messages."""
    return CONTROL_QUEUE_PREFIX + broker


def broker_key(broker: str) -> str:
    """Control messages for one broker."""
    return f"broker.{broker}"


def client_key(client: str) -> str:
    """Control messages for one client."""
    return f"client.{client}"


def marker_prefix(migration: str) -> str:
    """What the keys of all markers of a migration start with; a fence of a publisher's move is built the same way."""
    return MARKER_PREFIX + migration.replace(".", "-")


def marker_key(migration: str, head: str) -> str:
    """The key of the marker that one head publishes for a migration."""
    return f"{marker_prefix(migration)}.{head}"


def link_probe_key(head: str) -> str:
    """The key of the empty message by which a head finds out whether a link takes anything: a marker of no move."""
    return marker_key("probe", head)


def marker_pattern(migration: str) -> str:
    """Matches the markers of all heads for one migration, and nothing else."""
    return f"{marker_prefix(migration)}.*"


def pie_local_key(cluster: str) -> str:
    """Load reports of the brokers of one cluster."""
    return f"pie.local.{cluster}"


def pie_global_key(cluster: str) -> str:
    """Load reports that one cluster sends to its neighbours."""
    return f"pie.global.{cluster}"
