"""What a head's and an edge's agent are told once, when they are made: names, periods, limits.

Read by the CLI and passed in; nothing here changes afterwards. Every limit that a request can run into is a
field here, so that a refusal can name it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.messages import Capacity

SILENT_PERIODS_MAX: Final = 3
"""Whoever has not been heard of for this many periods is not alive: state is soft."""

STORY_LENGTH_MAX: Final = 1_000
"""How many recent decisions an agent remembers."""

EDGES_TRIED_MAX: Final = 3
"""How many edges one allocation asks before it is refused."""

ATTEMPTS_MAX: Final = 3
"""How often one request between brokers is sent before it is given up."""

REPLIES_JOINED_MAX: Final = 16
"""How many repetitions of one pending request are answered together; of more, only the latest."""

MISMATCHES_WHILE_BUSY_MAX: Final = 10
"""How many hellos in a row may disagree with our view of a busy edge before its registry is read again.

While subscriptions come and go a hello is older than what we know, so that a difference means nothing yet.
"""

HOP_WAIT_SHARE: Final = 0.8
"""What share of its own waiting time a head grants the next one, so that answers come in time."""


@dataclass(frozen=True, slots=True)
class NeighbourConfig:
    """A neighbouring head and the address our shovel writes to."""

    name: str
    link_url: str


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """One head. `incarnation` must be larger at every start; milliseconds of the wall clock will do.

    It keeps what an earlier run of this head said about its routes apart from what this one says.
    """

    head: str
    cluster: str
    incarnation: int
    neighbours: tuple[NeighbourConfig, ...] = ()
    version: str = ""
    period_s: float = 1.0
    publisher_period_s: float = 5.0
    reply_timeout_s: float = 2.0
    """How long an edge or a neighbour may take to answer, on top of the waiting it was granted."""
    routes_wait_s: float = 4.0
    """How long a subscriber is kept waiting for heads that have not confirmed their routes."""
    adopt_grace_s: float = 5.0
    """How long after the start to put off a subscription that an edge not yet read may hold already."""
    edge_forget_s: float = 24 * 3600.0
    """An edge silent for this long is forgotten and its link taken down."""
    edges_max: int = 256
    subscriptions_max: int = 200_000
    subscriptions_per_subscriber_max: int = 1_000
    patterns_per_link_max: int = 50_000
    pending_max: int = 2_000
    publishers_max: int = 50_000


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """One edge and the head it belongs to."""

    edge: str
    cluster: str
    head: str
    client_url: str
    link_url: str
    incarnation: int = 0
    capacity: Capacity = field(default_factory=Capacity)
    period_s: float = 1.0
    outputs_max: int = 20_000
    pending_max: int = 2_000
    draining: bool = False
