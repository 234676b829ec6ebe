"""Who listens where in an embedded cluster, worked out from a topology before anything is started.

Pure but for the reservation of ports. Without conditioning every address is RabbitMQ's own. With it, clients, links
and control messages of other brokers go through the conditioner of the broker they reach, and a head's links
leave through its own conditioner, so that its uplink is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from ..topology import BrokerSpec, Kind, Topology
from .conditioner import ListenerConfig
from .nodes import NodePorts, RabbitNode
from .ports import LOOPBACK, Ports

COMPACT_NODE = "rabbit"


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """One broker: its place, and the ports of its doors. `doors` is empty where it is not conditioned."""

    name: str
    cluster: str
    kind: Kind
    spec: BrokerSpec
    node: str
    http_port: int
    doors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All brokers, and the ports of the nodes that carry them."""

    topology: Topology
    conditioned: bool
    nodes: Mapping[str, NodePorts]
    brokers: Mapping[str, BrokerPlan]

    @classmethod
    def make(cls, topology: Topology, ports: Ports, *, compact: bool, conditioned: bool | None) -> LaunchPlan:
        """Reserve what is needed; raise `ClientPortTaken` for a fixed port that is in use."""
        if conditioned is None:
            conditioned = _needs_conditioning(topology, compact)
        nodes: dict[str, NodePorts] = {}
        brokers: dict[str, BrokerPlan] = {}
        if compact:
            nodes[COMPACT_NODE] = NodePorts.reserve(ports)
        for cluster in topology.cluster:
            for kind, spec in cluster.brokers:
                fixed = None if spec.port is None else ports.fixed(spec.port, spec.name)
                if not compact:
                    nodes[spec.name] = NodePorts.reserve(ports, None if conditioned else fixed)
                brokers[spec.name] = BrokerPlan(
                    name=spec.name,
                    cluster=cluster.name,
                    kind=kind,
                    spec=spec,
                    node=COMPACT_NODE if compact else spec.name,
                    http_port=ports.free(),
                    doors=_doors(topology, cluster.name, kind, fixed, ports) if conditioned else {},
                )
        return cls(topology, conditioned, nodes, brokers)

    def head_of(self, cluster: str) -> BrokerPlan:
        """The head of a cluster."""
        return next(b for b in self.brokers.values() if b.cluster == cluster and b.kind == "head")

    def edges_of(self, cluster: str) -> list[BrokerPlan]:
        """The edges of a cluster."""
        return [b for b in self.brokers.values() if b.cluster == cluster and b.kind == "edge"]

    def port(self, broker: str, door: str) -> int:
        """Where to connect: the door of the conditioner, or RabbitMQ itself where there is none."""
        plan = self.brokers[broker]
        return plan.doors.get(door, self.nodes[plan.node].amqp)

    def link_port(self, head: str, target: str) -> int:
        """Where the shovel of the link from `head` to `target` connects."""
        return self.brokers[head].doors.get(f"to:{target}", self.port(target, "link"))

    def listeners(self, broker: str) -> tuple[ListenerConfig, ...]:
        """What the conditioner of a broker listens on."""
        plan = self.brokers[broker]
        rabbit = self.nodes[plan.node].amqp
        between_heads = {self.head_of(name).name: delay_s for name, delay_s in self.topology.neighbours(plan.cluster)}
        found = []
        for door, port in plan.doors.items():
            target = door.removeprefix("to:")
            outgoing = target != door
            delay_s = plan.spec.client_delay_s if door == "client" else plan.spec.link_delay_s
            delay_s += between_heads.get(target, 0.0) if outgoing else 0.0
            target_port = self.port(target, "link") if outgoing else rabbit
            found.append(ListenerConfig(door, port, LOOPBACK, target_port, delay_s, outgoing))
        return tuple(found)


def address(node: RabbitNode, port: int, vhost: str, *, credentials: bool = True) -> str:
    """An AMQP address on this machine."""
    user = f"{node.user}:{node.password}@" if credentials else ""
    return f"amqp://{user}{node.host}:{port}/{quote(vhost, safe='')}"


def _needs_conditioning(topology: Topology, compact: bool) -> bool:
    specs = [spec for cluster in topology.cluster for _, spec in cluster.brokers]
    shaped = any(spec.is_shaped for spec in specs) or any(link.delay_s for link in topology.link)
    # One node has one AMQP port: a broker with a port of its own needs a door of its own.
    return shaped or (compact and any(spec.port is not None for spec in specs))


def _doors(topology: Topology, cluster: str, kind: Kind, fixed: int | None, ports: Ports) -> dict[str, int]:
    doors = {"client": ports.free() if fixed is None else fixed, "link": ports.free()}
    if kind == "head":
        own = next(c for c in topology.cluster if c.name == cluster)
        heads = {c.name: c.head.name for c in topology.cluster}
        targets = [edge.name for edge in own.edge] + [heads[name] for name, _ in topology.neighbours(cluster)]
        doors |= {f"to:{target}": ports.free() for target in targets}
    return doors
