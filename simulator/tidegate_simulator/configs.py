"""What agents and clients of a run are told at their start, in message mode, in rate mode and on real brokers alike."""

from __future__ import annotations

from typing import Final

from tidegate_agents.config import BalancingConfig, EdgeConfig, HeadConfig, NeighbourConfig
from tidegate_protocol.messages import Capacity, SubscribeRequest

from .scenario import EdgeSpec, HeadSpec, SubscriberSpec

URL_START: Final = "amqp://"


def url_of(name: str) -> str:
    """The address of a broker's RabbitMQ."""
    return URL_START + name


def head_capacity(spec: HeadSpec) -> Capacity:
    return Capacity(uplink_bytes_per_s=spec.uplink_bytes_per_s, downlink_bytes_per_s=spec.downlink_bytes_per_s)


def edge_capacity(spec: EdgeSpec) -> Capacity:
    return Capacity(
        uplink_bytes_per_s=spec.uplink_bytes_per_s,
        downlink_bytes_per_s=spec.downlink_bytes_per_s,
        matching_per_s=spec.matching_per_s,
    )


def known_capacity(spec: EdgeSpec) -> Capacity:
    """What an edge's agent is told of it."""
    return edge_capacity(spec) if spec.capacity_known else Capacity()


def head_config(spec: HeadSpec, balancing: BalancingConfig, incarnation: int) -> HeadConfig:
    """A cluster has the name of its head: names are short enough for this, `scenario_check` sees to it."""
    return HeadConfig(
        head=spec.name,
        cluster=spec.name,
        incarnation=incarnation,
        neighbours=tuple(
            NeighbourConfig(other, url_of(other), passes_accounts=True) for other in sorted(spec.neighbours)
        ),
        publisher_url=url_of(spec.name),
        checked_accounts=True,
        capacity=head_capacity(spec),
        balancing=balancing,
    )


def edge_config(spec: EdgeSpec, balancing: BalancingConfig, incarnation: int) -> EdgeConfig:
    return EdgeConfig(
        edge=spec.name,
        cluster=spec.head,
        head=spec.head,
        client_url=url_of(spec.name),
        link_url=url_of(spec.name),
        passes_accounts=True,
        incarnation=incarnation,
        capacity=known_capacity(spec),
        balancing=balancing,
    )


def subscribe_request(spec: SubscriberSpec) -> SubscribeRequest:
    return SubscribeRequest(subscriber=spec.name, pattern=spec.pattern, deadline_us=round(spec.deadline_s * 1e6))
