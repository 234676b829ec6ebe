"""The process of a head: the HOM and its links. Run as `python -m tidegate_brokers.head`."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial

from aiormq.abc import AbstractChannel

from tidegate_agents.config import HeadConfig as AgentConfig
from tidegate_agents.config import NeighbourConfig
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.machine import FenceArrived, LinkKind
from tidegate_protocol.messages import ControlMessage
from tidegate_protocol.names import (
    ANSWER_KEY,
    HEAD_KEY,
    HOM_KEY,
    OPERATOR_KEY,
    broker_key,
    control_queue,
    pie_global_key,
    pie_local_key,
)

from .access.admission import Admission
from .observe.counters import BrokerMetrics, distribution_version
from .observe.exporting.load import HeadLoadMetrics
from .observe.telemetry.parts import Telemetry, head_telemetry
from .plane.fences import FenceWatch
from .plane.head import HeadPlane
from .plane.worker import PlaneWorker
from .process import BrokerProcess, Parts, main, new_metrics
from .rabbit.control import ControlChannel, ControlInbox
from .rabbit.management import Management
from .runtime import Runtime
from .sensing.senses import Senses, head_senses
from .settings.options import HeadConfig

ROUTINE_PERIODS = 5
"""How many periods lie between two looks at the links."""


async def run_head(config: HeadConfig, stop: asyncio.Event) -> None:
    """Run a head until `stop` is set; raise `BrokerError` if it can't start."""
    metrics = new_metrics("head", config)
    management = Management(config.management, config.url.vhost)
    parts = _build(config, management, metrics)
    await BrokerProcess(config, management, parts, metrics).run(stop)


def _build(config: HeadConfig, management: Management, metrics: BrokerMetrics) -> Parts:
    incarnation = time.time_ns() // 1_000_000
    agent = HeadAgent(
        AgentConfig(
            head=config.name,
            cluster=config.cluster,
            incarnation=incarnation,
            neighbours=tuple(NeighbourConfig(n.name, n.link.reveal()) for n in config.neighbours),
            version=distribution_version(),
            period_s=config.period_s,
            publisher_url=config.publisher_address,
            checked_accounts=config.accounts == "checked",
            checked_times=config.times == "checked",
            capacity=config.capacity,
            balancing=config.for_agents,
        )
    )
    runtime = Runtime(agent, metrics)
    plane = _plane(config, runtime)
    _count_routes(plane, metrics)
    look = partial(_look_at_links, plane, metrics)
    worker = PlaneWorker(plane, config.url, management, runtime.post, metrics, look, ROUTINE_PERIODS * config.period_s)
    inbox = ControlInbox("head", config.name, control_queue(config.name), _keys(config))
    senses = head_senses(config, lambda: len(plane.links), runtime.post, management, metrics.registry)
    post = senses.switchboard.post
    own_names = config.client_names == "own"
    admission = Admission(head=True, own_names=own_names, brokers=own_names and config.accounts == "checked")
    own = ControlChannel("control", config.url, post, metrics, inbox, admission)
    neighbours = {n.name: ControlChannel(f"neighbour-{n.name}", n.url, post, metrics) for n in config.neighbours}
    senses.connect(
        own.reply, {name: partial(_ask_neighbour, channel, broker_key(name)) for name, channel in neighbours.items()}
    )

    def route(to: str) -> tuple[ControlChannel, str]:
        return neighbours.get(to, own), broker_key(to)

    runtime.connect(worker, own, route)
    telemetry = head_telemetry(config, management, incarnation, metrics.registry)
    runtime.observer = telemetry.observe
    _report_to(telemetry, senses, config)
    metrics.registry.register(HeadLoadMetrics(senses.sensed, lambda: telemetry.decisions.state, lambda: agent.paused))
    return Parts(
        runtime,
        worker,
        own,
        shovels=True,
        lacking=senses.lacking,
        control_required=True,
        others=tuple(neighbours.values()),
        senses=senses.tasks,
        telemetry=telemetry,
    )


def _plane(config: HeadConfig, runtime: Runtime) -> HeadPlane:
    return HeadPlane(
        name=config.name,
        url=config.url,
        neighbours=frozenset(n.name for n in config.neighbours),
        link_limit_bytes=config.link_limit_bytes,
        link_prefetch=config.link_prefetch,
        link_authorities=config.link_authorities,
        link_certificate=(config.link_cert_file, config.link_key_file),
        fences=FenceWatch(lambda key: runtime.post(FenceArrived(key))),
    )


async def _look_at_links(
    plane: HeadPlane, metrics: BrokerMetrics, channel: AbstractChannel, management: Management
) -> None:
    found = await plane.watch(channel, management)
    for target in set(metrics.links) - found.keys():
        metrics.forget_link(target)
    for target, state in found.items():
        metrics.observe_link(target, state.shovel, state.waiting, state.forwarded)


def _report_to(telemetry: Telemetry, senses: Senses, config: HeadConfig) -> None:
    """Have what clients report recorded and counted."""
    senses.also_reported = telemetry.publisher_reported
    if config.telemetry or config.delivery_metrics:
        senses.switchboard.subscriber_reported = telemetry.subscriber_reported


def _keys(config: HeadConfig) -> tuple[str, ...]:
    """What a head listens to: clients, operators, edges, other heads, load reports."""
    reports = pie_local_key(config.cluster), pie_global_key(config.cluster)
    return HOM_KEY, ANSWER_KEY, OPERATOR_KEY, HEAD_KEY, broker_key(config.name), *reports


def _ask_neighbour(channel: ControlChannel, key: str, message: ControlMessage, request_id: str) -> None:
    channel.send(key, message, request_id)


def _count_routes(plane: HeadPlane, metrics: BrokerMetrics) -> None:
    for kind in LinkKind:
        neighbours = kind is LinkKind.HEAD
        metrics.routes.labels(kind.value).set_function(partial(_routes_count, plane, neighbours))


def _routes_count(plane: HeadPlane, neighbours: bool) -> int:
    routes = plane.routes.items()
    return sum(len(patterns) for target, patterns in routes if (target in plane.neighbours) == neighbours)


if __name__ == "__main__":
    sys.exit(main(HeadConfig, run_head, "head"))
