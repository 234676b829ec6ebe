"""Who reaches whom, and how: turns a topology and reserved ports into addresses and configuration files.

A broker with a bandwidth or a delay sits behind a conditioner. Clients then use its `client` door, other brokers its
`link` door, and what it sends to another broker leaves through its own `to:<broker>` door first. Control never queues
behind data: what an edge says to its head, and heads to each other (`control:<head>`), takes doors that delay it and
pass the shaped lanes by (`control` on the side that is told). Broker processes reach the RabbitMQ of their own broker
directly. Between two brokers the delays of both ends add up. Nothing here starts or opens anything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from .conditioner import ConditionerConfig
from .nodes import RabbitNode, amqp_url, management_url, prometheus_url
from .ports import LOOPBACK, Ports
from .proxy import ListenerConfig
from .topology import BrokerSpec, Kind, Topology

STARTUP_TIMEOUT_S: Final = 60.0
SHUTDOWN_TIMEOUT_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """What one may want to know of a running broker. URLs hold the credentials of the launch, except `client_url`."""

    name: str
    cluster: str
    kind: Kind
    vhost: str
    url: str
    """Its RabbitMQ, directly."""
    client_url: str
    """Its RabbitMQ as clients reach it, through the conditioner if it has one; without credentials."""
    management_url: str
    http_url: str
    """Its process: /healthz, /readyz, /metrics. Nobody answers there if the cluster runs without processes."""
    node: RabbitNode = field(repr=False)


@dataclass(frozen=True, slots=True)
class Member:
    """One broker with its ports; `link_port`, `control_port` and `doors` only if its links are conditioned."""

    spec: BrokerSpec
    cluster: str
    kind: Kind
    node: RabbitNode
    http_port: int
    client_port: int
    is_conditioned: bool
    """Whether a conditioner stands before its RabbitMQ."""
    link_port: int | None
    control_port: int | None
    doors: dict[str, int]
    """Port of the `to:<broker>` door by broker."""
    control_doors: dict[str, int]
    """Port of the `control:<head>` door by neighbouring head."""

    @property
    def name(self) -> str:
        """The broker's name; its virtual host has the same."""
        return self.spec.name

    @property
    def entrance(self) -> tuple[str, int]:
        """Where other brokers come in."""
        return (self.node.host, self.node.amqp_port) if self.link_port is None else (LOOPBACK, self.link_port)

    @property
    def control_entrance(self) -> tuple[str, int]:
        """Where the control messages of its edges and of other heads come in."""
        return (self.node.host, self.node.amqp_port) if self.control_port is None else (LOOPBACK, self.control_port)


class Plan:
    """All members of a cluster and the addresses between them."""

    def __init__(
        self,
        topology: Topology,
        nodes: dict[str, RabbitNode],
        conditioned: Collection[str],
        ports: Ports,
        *,
        clients_only: Collection[str] = (),
    ) -> None:
        """`clients_only`: conditioned brokers whose links to other brokers are plain, and take no door."""
        self._topology = topology
        self.members: dict[str, Member] = {}
        heads = {cluster.head.name for cluster in topology.cluster}
        for cluster, kind, spec in all_brokers(topology):
            node = nodes[spec.name]
            is_conditioned = spec.name in conditioned
            has_doors = is_conditioned and spec.name not in clients_only
            others = [other for other, _ in peers(topology, cluster, spec.name)] if has_doors else []
            client_port = node.amqp_port
            if is_conditioned:
                client_port = ports.free() if spec.port is None else spec.port
            self.members[spec.name] = Member(
                spec=spec,
                cluster=cluster,
                kind=kind,
                node=node,
                http_port=ports.free(),
                client_port=client_port,
                is_conditioned=is_conditioned,
                link_port=ports.free() if has_doors else None,
                control_port=ports.free() if has_doors and kind == "head" else None,
                doors={other: ports.free() for other in others},
                control_doors={other: ports.free() for other in others if kind == "head" and other in heads},
            )

    def info(self, member: Member) -> BrokerInfo:
        """The public view of a member."""
        host = LOOPBACK if member.is_conditioned else member.node.host
        return BrokerInfo(
            name=member.name,
            cluster=member.cluster,
            kind=member.kind,
            vhost=member.name,
            url=amqp_url(member.node, member.name),
            client_url=f"amqp://{host}:{member.client_port}/{quote(member.name, safe='')}",
            management_url=management_url(member.node),
            http_url=f"http://{LOOPBACK}:{member.http_port}",
            node=member.node,
        )

    def client_url(self, member: Member) -> str:
        """As `BrokerInfo.client_url`, with credentials."""
        host = LOOPBACK if member.is_conditioned else member.node.host
        return _url(member, host, member.client_port)

    def conditioner(self, member: Member, control: Path) -> ConditionerConfig:
        """What the conditioner of a member is told."""
        assert member.is_conditioned
        spec, node = member.spec, member.node
        doors = [ListenerConfig("client", member.client_port, node.host, node.amqp_port, spec.client_delay_s)]
        if member.link_port is not None:
            doors.append(ListenerConfig("link", member.link_port, node.host, node.amqp_port, spec.link_delay_s))
        if member.control_port is not None:
            doors.append(
                ListenerConfig(
                    "control", member.control_port, node.host, node.amqp_port, spec.link_delay_s, shaped=False
                )
            )
        shaped = member.kind == "head"
        for other, delay_s in peers(self._topology, member.cluster, member.name) if member.doors else ():
            target = self.members[other]
            host, port = target.entrance if shaped else target.control_entrance
            door, delay_s = member.doors[other], spec.link_delay_s + delay_s
            doors.append(ListenerConfig(f"to:{other}", door, host, port, delay_s, outgoing=True, shaped=shaped))
            if other in member.control_doors:
                door, (host, port) = member.control_doors[other], target.control_entrance
                doors.append(ListenerConfig(f"control:{other}", door, host, port, delay_s, outgoing=True, shaped=False))
        return ConditionerConfig(
            broker=member.name,
            host=LOOPBACK,
            control=str(control),
            uplink_bytes_per_s=spec.uplink_bytes_per_s,
            downlink_bytes_per_s=spec.downlink_bytes_per_s,
            listeners=tuple(doors),
        )

    def process_config(self, member: Member, period_s: float) -> str:
        """The TOML file of a member's head or edge process."""
        info = self.info(member)
        values: dict[str, object] = {
            "name": member.name,
            "cluster": member.cluster,
            "url": info.url,
            "management_url": info.management_url,
            "prometheus_url": prometheus_url(member.node),
            "http_port": member.http_port,
            "period_s": period_s,
            "startup_timeout_s": STARTUP_TIMEOUT_S,
            "shutdown_timeout_s": SHUTDOWN_TIMEOUT_S,
        }
        tables = ""
        capacities: tuple[str, ...] = ("uplink_bytes_per_s", "downlink_bytes_per_s", "matching_per_s")
        if member.kind == "head":
            capacities = capacities[:2]
            values["publisher_url"] = info.client_url
            for neighbour in self._neighbour_heads(member):
                named: dict[str, object] = {
                    "name": neighbour.name,
                    "url": self._reach_control(member, neighbour),
                    "link_url": self._reach(member, neighbour),
                }
                tables += "\n[[neighbours]]\n" + _toml(named)
        else:
            head = self._head_of(member.cluster)
            values |= {
                "head_url": self._reach_control(member, head),
                "client_url": info.client_url,
                "link_url": self._reach(head, member),
            }
        values |= {key: value for key in capacities if (value := getattr(member.spec, key)) is not None}
        values |= self._topology.balancing.model_dump(exclude_unset=True, exclude_none=True)
        values |= self._topology.telemetry.options(member.kind)
        return _toml(values) + tables

    def head(self, cluster: str) -> Member:
        """The head of a cluster; KeyError if there is no such cluster."""
        return self._head_of(cluster)

    def _head_of(self, cluster: str) -> Member:
        for member in self.members.values():
            if member.cluster == cluster and member.kind == "head":
                return member
        raise KeyError(cluster)

    def _neighbour_heads(self, member: Member) -> Iterator[Member]:
        for cluster, _ in self._topology.neighbours(member.cluster):
            yield self._head_of(cluster)

    def _reach(self, source: Member, target: Member) -> str:
        """The target's RabbitMQ as the RabbitMQ of the source reaches it, with data."""
        return _url(target, *((LOOPBACK, source.doors[target.name]) if source.doors else target.entrance))

    def _reach_control(self, source: Member, target: Member) -> str:
        """The same for the process of the source, with control messages; what an edge sends is nothing else."""
        doors = source.doors if source.kind == "edge" else source.control_doors
        return _url(target, *((LOOPBACK, doors[target.name]) if doors else target.control_entrance))


def all_brokers(topology: Topology) -> Iterator[tuple[str, Kind, BrokerSpec]]:
    """Every broker with its cluster and kind."""
    for cluster in topology.cluster:
        for kind, spec in cluster.brokers:
            yield cluster.name, kind, spec


def peers(topology: Topology, cluster: str, broker: str) -> list[tuple[str, float]]:
    """The brokers that `broker` opens connections to, each with the delay of the link between the two heads, if any."""
    by_name = {one.name: one for one in topology.cluster}
    own = by_name[cluster]
    if broker != own.head.name:
        return [(own.head.name, 0.0)]
    edges = [(edge.name, 0.0) for edge in own.edge]
    return edges + [(by_name[other].head.name, delay_s) for other, delay_s in topology.neighbours(cluster)]


def needs_conditioner(topology: Topology, *, compact: bool) -> set[str]:
    """Brokers whose links are not plain loopback. A shared node has one port, so a fixed one needs a door as well."""
    found = {spec.name for _, _, spec in all_brokers(topology) if spec.is_shaped or (compact and spec.port is not None)}
    for cluster in topology.cluster:
        if any(delay_s > 0 for _, delay_s in topology.neighbours(cluster.name)):
            found.add(cluster.head.name)
    return found


def conditioned_for_clients_only(topology: Topology) -> set[str]:
    """Brokers that are far from their clients and have nothing else about them that a conditioner has to do."""
    found = set()
    for cluster, _, spec in all_brokers(topology):
        bandwidths = (spec.uplink_bytes_per_s, spec.downlink_bytes_per_s)
        delays_s = [spec.link_delay_s, *(delay_s for _, delay_s in peers(topology, cluster, spec.name))]
        if spec.client_delay_s > 0 and not any(bandwidths) and not any(delays_s):
            found.add(spec.name)
    return found


def _url(member: Member, host: str, port: int) -> str:
    return f"amqp://{member.node.user}:{member.node.password}@{host}:{port}/{quote(member.name, safe='')}"


def _toml(values: Mapping[str, object]) -> str:
    # Names, addresses and finite numbers read the same in JSON and in TOML.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
