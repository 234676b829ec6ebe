"""`tidegate bench agents`: what one decision of an edge's agent costs, against the number of its subscriptions.

The agent is the one of production; nothing runs around it but this measurement. One *decision* is everything between a
sample that shows an overload and the plan of who goes where:

    EdgeSampled → rates, thresholds, state, bundles in offloading order → balance-request
    balance-candidates → ranking, effects on both sides → balance-plan

Each size is measured several times on one agent, in virtual time; the head then takes none of the moves, so that the
next round finds the same state. Figures are medians, in milliseconds of processor time. Growth is judged against
n·log n between successive sizes: a ratio of 1 means exactly that, below 1 less.

Keys of the JSON object:

| key | what |
| --- | --- |
| `rounds` | measurements per size |
| `sizes[].subscriptions`, `.topics` | how many on the edge |
| `sizes[].sample_ms` | a sample without overload: what an edge pays every period |
| `sizes[].detect_ms`, `.plan_ms` | the two halves of a decision |
| `sizes[].decision_ms` | both together |
| `sizes[].decision_best_ms` | the quickest of all rounds: what is left when nothing else uses the machine |
| `sizes[].moves` | subscriptions that the plan moves |
| `sizes[].bytes_per_subscription` | memory of the agent alone |
| `sizes[].ratio_to_n_log_n` | growth of `decision_ms` since the size before, against that of n·log n |
| `growth_exponent` | fitted over all sizes: decision time ~ n to this |
| `n_log_n_ratio_max` | the largest `ratio_to_n_log_n` |
| `decision_ms_at_10000` | the figure that the target is about; None if that size was not measured |
| `control_messages_per_s` | to and from one edge's process, `idle` and `busy` (between a burst and its end) |
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any, Final

from tidegate_agents.config import BalancingConfig, EdgeConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.metrics import BrokerSample, Role, SubscriptionSample
from tidegate_agents.machine import Action, EdgeSampled, MessageReceived, ReplyReceived, Send, Started
from tidegate_experiments.rate.scale import ScaleOptions, scale_scenario
from tidegate_experiments.rate.world import FlowOptions, FlowWorld
from tidegate_protocol.balancing.loads import BrokerLoad, PieLocal
from tidegate_protocol.balancing.paths import PatternPath, PatternPaths
from tidegate_protocol.balancing.sessions import (
    BalanceAccepted,
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    Candidate,
)
from tidegate_protocol.messages import Capacity, LoadState, Subscription
from tidegate_protocol.names import output_queue
from tidegate_simulator.observer import Observer

from ..progress import Report

SIZES: Final = (100, 1_000, 10_000, 100_000)
SIZE_MAX: Final = 1_000_000
TARGET_SIZE: Final = 10_000
SUBSCRIBERS_PER_TOPIC: Final = 50
TOPICS_MIN: Final = 10
CANDIDATES: Final = 5
MESSAGES_PER_S: Final = 10.0
MESSAGE_BYTES: Final = 400.0
STEADY_SHARE: Final = 0.8
"""What of its uplink the edge is offered when all is well."""
OVERLOAD_SHARE: Final = 1.1
WARM_UP_SAMPLES: Final = 3
CONFIRMING_SAMPLES_MAX: Final = 5
REQUESTS_MAX: Final = 4
"""How often an agent may ask for candidates in one session."""
ROUND_S: Final = 200.0
"""Virtual time between rounds: longer than any back-off after a session that came to nothing."""
CONTROL_EDGES: Final = 10
CONTROL_SUBSCRIPTIONS: Final = 200
CONTROL_BURST_S: Final = 60.0
CONTROL_DURATION_S: Final = 120.0
_EDGE: Final = "e0"
_HEAD: Final = "h0"
_CLUSTER: Final = "c0"


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one size, before they are compared."""

    subscriptions: int
    topics: int
    sample_ms: float
    detect_ms: float
    plan_ms: float
    decision_best_ms: float
    moves: int
    bytes_per_subscription: int

    @property
    def decision_ms(self) -> float:
        return self.detect_ms + self.plan_ms


def run_agents(sizes: Sequence[int], rounds: int, report: Report) -> dict[str, Any]:
    """Measure all sizes and return the figures."""
    measured = [measure(size, rounds, report) for size in sorted(set(sizes))]
    report("control messages", 0, 1)
    control = control_messages()
    report("control messages", 1, 1)
    return figures(measured, rounds, control)


def figures(measured: Sequence[Measured], rounds: int, control: dict[str, float]) -> dict[str, Any]:
    """What is printed: the sizes side by side, and how time grows from one to the next."""
    ratios: list[float | None] = [None]
    for before, after in pairwise(measured):
        growth = _n_log_n(after.subscriptions) / _n_log_n(before.subscriptions)
        ratios.append(after.decision_ms / before.decision_ms / growth)
    known = [ratio for ratio in ratios if ratio is not None]
    target = next((size for size in measured if size.subscriptions == TARGET_SIZE), None)
    return {
        "rounds": rounds,
        "sizes": [
            {
                "subscriptions": size.subscriptions,
                "topics": size.topics,
                "sample_ms": round(size.sample_ms, 4),
                "detect_ms": round(size.detect_ms, 4),
                "plan_ms": round(size.plan_ms, 4),
                "decision_ms": round(size.decision_ms, 4),
                "decision_best_ms": round(size.decision_best_ms, 4),
                "moves": size.moves,
                "bytes_per_subscription": size.bytes_per_subscription,
                "ratio_to_n_log_n": None if ratio is None else round(ratio, 3),
            }
            for size, ratio in zip(measured, ratios, strict=True)
        ],
        "growth_exponent": _exponent(measured),
        "n_log_n_ratio_max": round(max(known), 3) if known else None,
        "decision_ms_at_10000": None if target is None else round(target.decision_ms, 3),
        "control_messages_per_s": {name: round(rate, 2) for name, rate in control.items()},
    }


def _n_log_n(size: int) -> float:
    return size * log(size)


def _exponent(measured: Sequence[Measured]) -> float | None:
    """The slope of the logarithms, by least squares."""
    if len(measured) < 2:
        return None
    xs = [log(size.subscriptions) for size in measured]
    ys = [log(size.decision_ms) for size in measured]
    return round(statistics.linear_regression(xs, ys).slope, 3)


# One size


class EdgeLoad:
    """An edge with `size` subscriptions, and samples of it when all is well and in a burst."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.topics = max(TOPICS_MIN, size // SUBSCRIBERS_PER_TOPIC)
        offered = size * MESSAGES_PER_S * MESSAGE_BYTES
        uplink = offered / STEADY_SHARE
        self.capacity = Capacity(uplink_bytes_per_s=uplink, downlink_bytes_per_s=uplink)
        self.subscriptions = tuple(self._subscription(index) for index in range(size))
        self.paths = tuple(
            PatternPath(pattern=self._pattern(topic), path_us=1_000, local=True) for topic in range(self.topics)
        )
        self.steady = self._sampled(MESSAGES_PER_S, MESSAGES_PER_S, 0.0)
        burst = MESSAGES_PER_S * OVERLOAD_SHARE / STEADY_SHARE
        # Half of the tight deadline waits already: every tight queue is past its threshold.
        self.overloaded = self._sampled(burst, burst / OVERLOAD_SHARE, burst)

    def _pattern(self, index: int) -> str:
        return f"sensor.t{index % self.topics}"

    def _subscription(self, index: int) -> Subscription:
        tight = index % self.topics % 2 == 0
        return Subscription(
            subscriber=f"s{index:07d}",
            number=0,
            pattern=self._pattern(index),
            deadline_us=1_000_000 if tight else 60_000_000,
            expires_s=600,
        )

    def _sampled(self, enqueue: float, drain: float, ready: float) -> EdgeSampled:
        samples = tuple(
            SubscriptionSample(
                output_queue(s.subscriber, s.number),
                s.pattern,
                enqueue,
                drain,
                ready,
                drain * 0.02,
                0.02,
                MESSAGE_BYTES,
            )
            for s in self.subscriptions
        )
        broker = BrokerSample(
            _EDGE,
            Role.EDGE,
            self.topics * enqueue * MESSAGE_BYTES,
            self.size * enqueue * MESSAGE_BYTES,
            self.topics * enqueue,
            self.capacity,
        )
        return EdgeSampled(broker, samples, 0.01)

    def agent(self) -> EdgeAgent:
        config = EdgeConfig(
            _EDGE,
            _CLUSTER,
            _HEAD,
            "amqp://e0",
            "amqp://e0",
            1,
            self.capacity,
            outputs_max=SIZE_MAX,
            balancing=BalancingConfig(),
        )
        agent = EdgeAgent(config)
        agent.handle(Started(outputs=self.subscriptions), 0.0)
        for first in range(0, len(self.paths), 500):
            paths = PatternPaths(head=_HEAD, paths=self.paths[first : first + 500])
            agent.handle(MessageReceived(paths), 0.0)
        return agent

    def candidates(self, session: str) -> BalanceCandidates:
        """Enough of them, and empty enough, that a plan is found."""
        uplink = self.capacity.uplink_bytes_per_s or 0.0
        loads = [
            BrokerLoad(
                broker=f"e{number}",
                state=LoadState.LOW,
                bytes_in_per_s=0.1 * uplink,
                bytes_offered_per_s=0.5 * uplink,
                messages_in_per_s=100.0,
                capacity=self.capacity,
            )
            for number in range(1, CANDIDATES + 1)
        ]
        offers = tuple(Candidate(cluster=_CLUSTER, head=_HEAD, load=load) for load in loads)
        return BalanceCandidates(session=session, candidates=offers)

    def reports(self) -> list[MessageReceived]:
        """The load reports of the other edges."""
        return [
            MessageReceived(
                PieLocal(broker=f"e{number}", cluster=_CLUSTER, state=LoadState.LOW, metrics={}, period_s=1.0)
            )
            for number in range(1, CANDIDATES + 1)
        ]


def measure(size: int, rounds: int, report: Report) -> Measured:
    """The medians of one size."""
    step = f"{size:,} subscriptions"
    report(step, 0, rounds + 1)
    load = EdgeLoad(size)
    bytes_each = _memory(load)
    report(step, 1, rounds + 1)
    agent = load.agent()
    samples: list[float] = []
    detects: list[float] = []
    plans: list[float] = []
    moves = 0
    for turn in range(rounds):
        now = ROUND_S * (turn + 1)
        samples += [_timed(agent, load.steady, now + second)[0] for second in range(WARM_UP_SAMPLES)]
        for heard in load.reports():
            agent.handle(heard, now + WARM_UP_SAMPLES)
        detect_s, request = _until_request(agent, load, now + WARM_UP_SAMPLES)
        after = now + WARM_UP_SAMPLES + CONFIRMING_SAMPLES_MAX
        plan_s, (plan_id, plan) = _until_plan(agent, load, request, after)
        moves = len(plan.moves)
        agent.handle(ReplyReceived(plan_id, BalanceAccepted(session=plan.session, moves=0)), after)
        detects.append(detect_s)
        plans.append(plan_s)
        report(step, turn + 2, rounds + 1)
    return Measured(
        size,
        load.topics,
        statistics.median(samples) * 1000.0,
        statistics.median(detects) * 1000.0,
        statistics.median(plans) * 1000.0,
        min(detect + plan for detect, plan in zip(detects, plans, strict=True)) * 1000.0,
        moves,
        bytes_each,
    )


def _until_request(agent: EdgeAgent, load: EdgeLoad, now: float) -> tuple[float, tuple[str, str]]:
    """How long the sample took that led to a session, and the ids of its request and of the session.

    An overload is acted upon when it has been confirmed; the last of these samples is the one that counts.
    """
    for second in range(CONFIRMING_SAMPLES_MAX):
        seconds, actions = _timed(agent, load.overloaded, now + second)
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, BalanceRequest):
                assert action.request_id is not None
                return seconds, (action.request_id, action.message.session)
    raise AssertionError(f"no request in {CONFIRMING_SAMPLES_MAX} samples")


def _until_plan(
    agent: EdgeAgent, load: EdgeLoad, request: tuple[str, str], now: float
) -> tuple[float, tuple[str, BalancePlan]]:
    """How long all planning took, and the plan: where a deadline is in danger, an agent that found none asks on."""
    seconds = 0.0
    for _ in range(REQUESTS_MAX):
        took_s, actions = _timed(agent, ReplyReceived(request[0], load.candidates(request[1])), now)
        seconds += took_s
        sent = [action for action in actions if isinstance(action, Send) and action.request_id is not None]
        for action in sent:
            if isinstance(action.message, BalancePlan):
                return seconds, (action.request_id or "", action.message)
            if isinstance(action.message, BalanceRequest):
                request = (action.request_id or "", action.message.session)
    raise AssertionError(f"no plan after {REQUESTS_MAX} answers")


def _timed(agent: EdgeAgent, event: EdgeSampled | ReplyReceived, now: float) -> tuple[float, list[Action]]:
    # Collecting garbage in the middle would be counted as the agent's; it has its turn between the measurements.
    gc.collect(0)
    gc.disable()
    try:
        # Of this process: whoever else uses the machine is not the agent's fault.
        began = time.process_time()
        actions = agent.handle(event, now)
        return time.process_time() - began, actions
    finally:
        gc.enable()


def _memory(load: EdgeLoad) -> int:
    """Bytes per subscription that an agent holds after a sample, besides the subscriptions themselves."""
    gc.collect()
    tracemalloc.start()
    try:
        agent = load.agent()
        agent.handle(load.steady, 1.0)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        assert agent.outputs
        return round(held / load.size)
    finally:
        tracemalloc.stop()


# Control messages


class _OfOneEdge(Observer):
    """Counts the control messages to and from single edges, by the second."""

    def __init__(self, edges: Sequence[str]) -> None:
        self.counts: dict[str, dict[int, int]] = {edge: {} for edge in edges}
        self.noticed_s = 0.0
        """When a session last began or ended anywhere."""

    def control_sent(self, sender: str, receiver: str, kind: str, now: float) -> None:
        if kind == "session-notice":
            self.noticed_s = now
        for name in (sender, receiver):
            counts = self.counts.get(name)
            if counts is not None:
                counts[int(now)] = counts.get(int(now), 0) + 1

    def per_s(self, edge: str, from_s: float, until_s: float) -> float:
        total = sum(count for second, count in self.counts[edge].items() if from_s <= second < until_s)
        return total / (until_s - from_s)


def control_messages() -> dict[str, float]:
    """Per second, of an edge at which nothing happens and of one that is relieved after a burst."""
    options = ScaleOptions(
        edges=CONTROL_EDGES,
        subscriptions_per_edge=CONTROL_SUBSCRIPTIONS,
        burst_s=CONTROL_BURST_S,
        duration_s=CONTROL_DURATION_S,
    )
    prepared = scale_scenario(options)
    edges = sorted(edge.name for edge in prepared.scenario.edges)
    busy, idle = edges[0], edges[-1]
    counted = _OfOneEdge((busy, idle))
    world = FlowWorld(prepared.scenario, FlowOptions(), (counted,))
    world.adopt(prepared.subscriptions())
    world.run()
    ended_s = max(counted.noticed_s, CONTROL_BURST_S + 1.0)
    return {
        "idle": counted.per_s(idle, CONTROL_BURST_S / 2.0, CONTROL_BURST_S),
        "busy": counted.per_s(busy, CONTROL_BURST_S, ended_s),
    }
