"""Who reaches whom in an embedded cluster, and through which door."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidegate_brokers.settings.options import EdgeConfig, HeadConfig
from tidegate_embedded.plan import Plan, conditioned_for_clients_only, needs_conditioner
from tidegate_embedded.ports import Ports
from tidegate_embedded.topology import Topology

TOPOLOGY = Topology.parse(
    """
    [[cluster]]
    name = "a"
    [[cluster.edge]]
    link_delay_s = 0.1
    client_delay_s = 0.2
    uplink_bytes_per_s = 1000
    matching_per_s = 50
    [[cluster.edge]]
    [[cluster]]
    name = "b"
    [[cluster]]
    name = "c"
    [[link]]
    between = ["a", "b"]
    delay_s = 0.05
    [[link]]
    between = ["b", "c"]
    """
)


@dataclass
class Node:
    """Addresses only: a plan starts nothing."""

    name: str
    amqp_port: int
    host: str = "127.0.0.1"
    management_port: int = 2
    prometheus_port: int = 3
    user: str = "user"
    password: str = "secret"

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...


NAMES = ["a-head", "a-edge-0", "a-edge-1", "b-head", "c-head"]


@pytest.fixture
def plan() -> Iterator[Plan]:
    nodes = {name: Node(name, 100 + index) for index, name in enumerate(NAMES)}
    with closing(Ports()) as ports:
        yield Plan(TOPOLOGY, dict(nodes), needs_conditioner(TOPOLOGY, compact=False), ports)


def test_only_shaped_brokers_and_delayed_heads_are_conditioned(plan: Plan) -> None:
    assert {name for name, member in plan.members.items() if member.is_conditioned} == {"a-head", "a-edge-0", "b-head"}


def test_a_fixed_port_on_a_shared_node_needs_a_door() -> None:
    topology = Topology.parse('[[cluster]]\nname = "a"\n[cluster.head]\nport = 7000')
    assert needs_conditioner(topology, compact=False) == set()
    assert needs_conditioner(topology, compact=True) == {"a-head"}


def test_delays_of_both_ends_and_of_the_link_add_up(plan: Plan) -> None:
    edge = plan.conditioner(plan.members["a-edge-0"], Path("x"))
    head = plan.conditioner(plan.members["a-head"], Path("x"))
    assert {(one.name, one.delay_s, one.outgoing) for one in edge.listeners} == {
        ("client", 0.2, False),
        ("link", 0.1, False),
        ("to:a-head", 0.1, True),
    }
    assert {(one.name, one.delay_s) for one in head.listeners if one.outgoing} == {
        ("to:a-edge-0", 0.0),
        ("to:a-edge-1", 0.0),
        ("to:b-head", 0.05),
        ("control:b-head", 0.05),
    }
    assert (edge.uplink_bytes_per_s, edge.downlink_bytes_per_s) == (1000, None)


def test_an_outgoing_door_leads_to_the_entrance_of_the_other(plan: Plan) -> None:
    doors = {one.name: one.target_port for one in plan.conditioner(plan.members["a-head"], Path("x")).listeners}
    assert doors["to:a-edge-0"] == plan.members["a-edge-0"].link_port
    assert doors["to:b-head"] == plan.members["b-head"].link_port
    assert doors["to:a-edge-1"] == plan.members["a-edge-1"].node.amqp_port
    assert doors["client"] == doors["link"] == plan.members["a-head"].node.amqp_port


def test_what_brokers_say_to_heads_is_delayed_but_never_queues_behind_data(plan: Plan) -> None:
    edge = plan.conditioner(plan.members["a-edge-0"], Path("x"))
    head = plan.conditioner(plan.members["a-head"], Path("x"))
    assert [one.name for one in edge.listeners if not one.shaped] == ["to:a-head"]
    assert [one.name for one in head.listeners if not one.shaped] == ["control", "control:b-head"]
    to_head = next(one for one in edge.listeners if one.name == "to:a-head")
    assert to_head.target_port == plan.members["a-head"].control_port
    to_neighbour = next(one for one in head.listeners if one.name == "control:b-head")
    assert to_neighbour.target_port == plan.members["b-head"].control_port
    assert edge.uplink_bytes_per_s is not None


def test_configuration_files_are_what_the_processes_read(plan: Plan) -> None:
    head = HeadConfig.model_validate(tomllib.loads(plan.process_config(plan.members["b-head"], 0.5)))
    to_a, to_c = head.neighbours
    b_head = plan.members["b-head"]
    assert (to_a.name, to_a.url.port, to_a.link.port) == (
        "a-head",
        b_head.control_doors["a-head"],
        b_head.doors["a-head"],
    )
    assert (to_c.name, to_c.url.port, to_c.link.port) == (
        "c-head",
        b_head.control_doors["c-head"],
        b_head.doors["c-head"],
    )
    assert head.period_s == 0.5

    member = plan.members["a-edge-0"]
    edge = EdgeConfig.model_validate(tomllib.loads(plan.process_config(member, 1.0)))
    assert edge.url.port == member.node.amqp_port
    assert edge.head_url.port == member.doors["a-head"]
    assert edge.link.port == plan.members["a-head"].doors["a-edge-0"]
    assert edge.client_address == f"amqp://127.0.0.1:{member.client_port}/a-edge-0"
    assert (edge.uplink_bytes_per_s, edge.downlink_bytes_per_s, edge.matching_per_s) == (1000, None, 50)
    assert edge.http_port == member.http_port

    lonely = HeadConfig.model_validate(tomllib.loads(plan.process_config(plan.members["c-head"], 1.0)))
    assert [(one.url.port, one.link.port) for one in lonely.neighbours] == [(b_head.control_port, b_head.link_port)]


def test_only_addresses_for_clients_lack_the_password(plan: Plan) -> None:
    info = plan.info(plan.members["a-edge-0"])
    assert "secret" not in info.client_url
    assert "secret" in info.url
    assert plan.client_url(plan.head("a")).startswith("amqp://user:secret@")
    with pytest.raises(KeyError):
        plan.head("nowhere")


def test_a_head_far_from_its_clients_only_has_plain_links() -> None:
    text = '[[cluster]]\nname = "a"\n[cluster.head]\nclient_delay_s = 0.2\n[[cluster.edge]]\nlink_delay_s = 0.1'
    topology = Topology.parse(text)
    nodes = {name: Node(name, 100 + index) for index, name in enumerate(("a-head", "a-edge-0"))}
    conditioned, clients_only = needs_conditioner(topology, compact=False), conditioned_for_clients_only(topology)
    with closing(Ports()) as ports:
        plan = Plan(topology, dict(nodes), conditioned, ports, clients_only=clients_only)
    assert conditioned == {"a-head", "a-edge-0"}
    assert clients_only == {"a-head"}
    head, edge = plan.members["a-head"], plan.members["a-edge-0"]
    assert [one.name for one in plan.conditioner(head, Path("x")).listeners] == ["client"]
    settings = EdgeConfig.model_validate(tomllib.loads(plan.process_config(edge, 1.0)))
    assert settings.link.port == edge.link_port
    doors = {one.name: one.target_port for one in plan.conditioner(edge, Path("x")).listeners}
    assert doors["to:a-head"] == head.node.amqp_port
