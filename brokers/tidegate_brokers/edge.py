"""The process of an edge: the EOM and its output queues. Run as `python -m tidegate_brokers.edge`."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial

from tidegate_agents.config import SILENT_PERIODS_MAX, EdgeConfig as AgentConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.policy import policy_named
from tidegate_protocol.names import HEAD_KEY, broker_key, control_queue, pie_local_key
from tidegate_protocol.rights import Rules

from .access.admission import Admission
from .access.passing import link_watches
from .access.rules_file import RulesFile
from .drops.keeper import DropKeeper
from .links.limits import Limits
from .observe.counters import BrokerMetrics
from .observe.exporting.drops import DropMetrics
from .observe.exporting.load import EdgeLoadMetrics
from .observe.telemetry.parts import edge_telemetry
from .plane.drops import DropLimits, DropPlane
from .plane.edge import EdgePlane
from .plane.worker import PlaneWorker
from .process import BrokerProcess, Parts, main, new_metrics
from .rabbit.control import ControlChannel, ControlInbox
from .rabbit.management import Management
from .runtime import Runtime
from .sensing.senses import edge_senses
from .settings.options import EdgeConfig
from .settings.quotas import account_quotas

LIST_PERIODS = 5
"""How many periods lie between two listings of the output queues."""


async def run_edge(config: EdgeConfig, stop: asyncio.Event) -> None:
    """Run an edge until `stop` is set; raise `BrokerError` if it can't start."""
    metrics = new_metrics("edge", config)
    management = Management(config.management, config.url.vhost)
    parts = _build(config, management, metrics)
    await BrokerProcess(config, management, parts, metrics).run(stop)


def _build(config: EdgeConfig, management: Management, metrics: BrokerMetrics) -> Parts:
    incarnation = time.time_ns() // 1_000_000
    rules = RulesFile(config.rules_file, metrics)
    agent = _agent(config, incarnation, rules.rules)
    runtime = Runtime(agent, metrics)
    plane = EdgePlane(
        config.output_limit_bytes,
        drops=DropPlane(DropLimits(config.drops_age_s, config.drops_size_bytes)),
        quotas=account_quotas(config.quotas),
    )
    drops = DropKeeper(config.name, config.url, plane, management, runtime.post)
    runtime.tend_drops = drops.tend
    metrics.subscriptions.set_function(lambda: len(plane.outputs))
    worker = PlaneWorker(
        plane,
        config.url,
        management,
        runtime.post,
        metrics,
        plane.list_outputs,
        LIST_PERIODS * config.period_s,
    )
    inbox = ControlInbox(
        "edge", config.name, control_queue(config.name), (broker_key(config.name), pie_local_key(config.cluster))
    )
    senses = edge_senses(config, agent, plane, runtime.post, management, metrics.registry)
    admission = Admission(head=False, brokers=config.accounts == "checked")
    control = ControlChannel("control", config.head_url, senses.switchboard.post, metrics, inbox, admission)
    # An edge speaks to its head only, and knows its address, not its name.
    senses.connect(control.reply, {"head": lambda message, request: control.send(HEAD_KEY, message, request)})
    link_limits = Limits(config.name, config.url, runtime.post)
    senses.tell_limits(link_limits)
    runtime.connect(worker, control, lambda to: (control, HEAD_KEY))
    runtime.sample_soon = senses.sensor.soon
    telemetry = edge_telemetry(config, agent, incarnation, metrics.registry)
    runtime.observer = telemetry.observe
    limits = policy_named(config.policy, config.policy_seed).limits
    metrics.registry.register(EdgeLoadMetrics(agent, senses.sensed, limits, config.topic_series_max))
    metrics.registry.register(DropMetrics(agent.drops, config.output_series_max))
    return Parts(
        runtime,
        worker,
        control,
        shovels=False,
        lacking=lambda: _lacking(agent, config) + senses.lacking(),
        control_required=False,
        senses=(
            *(*senses.tasks, drops.run, link_limits.run, *link_watches(config, runtime.post)),
            partial(rules.watch, runtime.post),
        ),
        telemetry=telemetry,
    )


def _agent(config: EdgeConfig, incarnation: int, rules: Rules | None) -> EdgeAgent:
    return EdgeAgent(
        AgentConfig(
            edge=config.name,
            cluster=config.cluster,
            head=HEAD_KEY,
            client_url=config.client_address,
            link_url=config.link.reveal(),
            passes_accounts=None if config.accounts == "checked" else False,
            incarnation=incarnation,
            capacity=config.capacity,
            period_s=config.period_s,
            balancing=config.for_agents,
            rules=rules,
            quotas=account_quotas(config.quotas),
        )
    )


def _lacking(agent: EdgeAgent, config: EdgeConfig) -> list[str]:
    """An edge is ready while its head answers."""
    now = asyncio.get_running_loop().time()
    heard_s = agent.head_heard_s
    if heard_s is None:
        return ["the head has not answered yet"]
    if now - heard_s > SILENT_PERIODS_MAX * max(config.period_s, 1.0):
        return [f"the head has not answered for {now - heard_s:.1f} s"]
    return []


if __name__ == "__main__":
    sys.exit(main(EdgeConfig, run_edge, "edge"))
