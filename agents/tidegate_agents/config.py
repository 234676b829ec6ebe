"""What a head's and an edge's agent are told once, when they are made: names, periods, limits.

Read by the CLI and passed in; nothing here changes afterwards. Every limit that a request can run into is a
field here, so that a refusal can name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate_protocol.messages import Capacity
from tidegate_protocol.rights import Rules

from .load.threshold import MARGIN, SESSION_S_FIRST, ThresholdKind
from .quotas import AccountQuota

SILENT_PERIODS_MAX: Final = 3
"""A broker that has not been heard of for this many periods is not alive: state is soft."""

EDGES_TRIED_MAX: Final = 3
"""How many edges one allocation asks before it is refused."""

ATTEMPTS_MAX: Final = 3
"""How often one request between brokers is sent before it is given up."""

CLIENT_ATTEMPTS_MAX: Final = ATTEMPTS_MAX + 2
"""How often a client is told or asked the same thing: its way is longer than that to a broker."""

REPLIES_JOINED_MAX: Final = 16
"""How many repetitions of one pending request are answered together; of more, only the latest."""

MISMATCHES_WHILE_BUSY_MAX: Final = 10
"""How many hellos in a row may disagree with our view of a busy edge before its registry is read again.

While subscriptions come and go a hello is older than what we know, so that a difference means nothing yet.
"""

HOP_WAIT_SHARE: Final = 0.8
"""What share of its own waiting time a head grants the next one, so that answers come in time."""


@dataclass(frozen=True, slots=True)
class BalancingConfig:
    """How load is watched and moved. All brokers of a cluster are given the same."""

    policy: str = "peer-wd"
    seed: int = 0
    """For the policy `random`, which may not have a randomness of its own."""
    threshold: ThresholdKind = ThresholdKind.PROJECTED
    margin: float = MARGIN
    session_s_first: float = SESSION_S_FIRST
    """t_LB until sessions have been seen."""
    period_s: float = 1.0
    """How often load is sampled and judged, and the generation period of local load reports."""
    global_period_s: float = 5.0
    """The same for load reports between clusters."""
    queue_samples_needed: int = 2
    """In how many samples in a row a queue must be above its threshold before anything is done: at a burst, what is in
    flight jumps by as much as a threshold, for one sample."""
    noise_allowance: float = 3.0
    """How many standard deviations of what is in flight (√(μ × round trip)) a depth may be above its threshold. Where
    that is many messages it is bounded by a quarter of the margin, so that the deadline is kept all the same."""
    load_reply_timeout_s: float = 2.0
    """How long a candidate may take to tell its load."""
    plan_timeout_s: float = 5.0
    """How long a source may take to make its plan, once it has the candidates."""
    migration_timeout_s: float = 20.0
    """How long a client may take to move before it goes back."""
    session_timeout_s: float = 60.0
    """After this a session ends, whatever its migrations do; and a broker that hears nothing leaves it."""
    stabilizing_min_s: float = 2.0
    stabilizing_max_s: float = 10.0
    """After a session: at least so long, and at most so long until the moved load shows, no other one."""
    cooldown_s: float = 60.0
    """A client that was moved is left alone for this long."""
    retry_s: float = 5.0
    """After a session that came to nothing, the next attempt of the same source waits this long, then twice as
    long, up to `retry_max_s`."""
    retry_max_s: float = 60.0
    migrations_max: int = 200
    """Migrations under way at once in a cluster; the others of a session wait."""
    edge_away_s: float = 10.0
    """An edge silent for this long, and unreachable for a client, loses that client to another edge."""
    publisher_messages_per_s_max: float | None = None
    publisher_bytes_per_s_max: float | None = None
    useless_messages_per_s_max: float | None = None
    """What a publisher may send on topics nobody subscribes to. None: no limit."""
    flood_samples_needed: int = 3
    containment_s: float = 30.0
    slow_subscriber_samples_needed: int = 3
    slow_subscriber_messages_max: int = 100_000
    """What may wait for a subscriber that is too slow: many minutes of a usual stream, and no danger to RabbitMQ."""


@dataclass(frozen=True, slots=True)
class NeighbourConfig:
    """A neighbouring head and the address our shovel writes to."""

    name: str
    link_url: str
    passes_accounts: bool | None = None
    """Whether the account of that link passes on the accounts of publishers; None: it is being tried out."""


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
    publisher_url: str = ""
    """Where publishers that come from another head connect."""
    checked_accounts: bool = False
    """Whether accounts are checked here: publishers name theirs as soon as all links pass them on (`head/accounts.py`).
    """
    capacity: Capacity = field(default_factory=Capacity)
    balancing: BalancingConfig = field(default_factory=BalancingConfig)
    rules: Rules | None = None
    """What accounts may publish and subscribe, until others are seen. None: everything."""
    checked_times: bool = False
    """Whether the head's RabbitMQ stamps publications."""
    quotas: Mapping[str, AccountQuota] = field(default_factory=dict)
    """By account."""
    tenant_quotas: Mapping[str, AccountQuota] = field(default_factory=dict)
    """By tenant, for all of its accounts together."""
    quota_default: AccountQuota | None = None
    """Of every other account; None: no quota."""
    exempt_accounts: frozenset[str] = frozenset()
    """Accounts without a quota: the one that this head itself uses."""
    has_warden: bool = False
    """Whether accounts that flood can be kept out."""


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
    balancing: BalancingConfig = field(default_factory=BalancingConfig)
    passes_accounts: bool | None = False
    """Whether the account of its link passes on the accounts of publishers; None: it is being tried out."""
    rules: Rules | None = None
    """As of a head: an edge makes no queue that they don't allow, whatever its head says."""
    quotas: Mapping[str, AccountQuota] = field(default_factory=dict)
    """By account."""
