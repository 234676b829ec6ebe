"""Drives one edge's agent by hand: samples, reports of its peers, and the answers of a scripted head."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support import ews
from tests.support.agents_driver import sent
from tests.support.decisions import Kind, recorded
from tidegate_agents.config import BalancingConfig, EdgeConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.load.metrics import BrokerSample, Role, SubscriptionSample
from tidegate_agents.machine import (
    Action,
    EdgeSampled,
    Event,
    MessageReceived,
    ReplyAddress,
    ReplyReceived,
    Started,
)
from tidegate_protocol.balancing.loads import BrokerLoad, MetricReport, PieLocal
from tidegate_protocol.balancing.sessions import (
    BalanceAccepted,
    BalanceCandidates,
    BalancePlan,
    BalanceRequest,
    Candidate,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.messages import Capacity, ControlMessage, LoadState, Subscription
from tidegate_protocol.names import output_queue


def capacity_of(edge: str) -> Capacity:
    width = ews.bandwidth(edge)
    return Capacity(uplink_bytes_per_s=width, downlink_bytes_per_s=width, matching_per_s=ews.EDGES[edge][0])


def ews_subscriptions(edge: str) -> list[Subscription]:
    return [
        Subscription(
            subscriber=f"s{topic}-{n}",
            number=0,
            pattern=f"t{topic}",
            deadline_us=round(ews.TOPICS[topic].deadline_s * 1e6),
            expires_s=600,
        )
        for topic in ews.PLACED[edge]
        for n in range(ews.TOPICS[topic].subscribers)
    ]


def ews_broker(edge: str, *, burst: bool) -> BrokerSample:
    arriving = {topic: ews.rate(topic, burst=burst) for topic in ews.PLACED[edge]}
    return BrokerSample(
        edge,
        Role.EDGE,
        sum(rate * ews.TOPICS[topic].message_bytes for topic, rate in arriving.items()),
        ews.offered_on(edge, burst=burst),
        sum(arriving.values()),
        capacity_of(edge),
    )


def ews_candidate(edge: str, *, burst: bool = True) -> Candidate:
    sample = ews_broker(edge, burst=burst)
    load = BrokerLoad(
        broker=edge,
        state=LoadState.LOW,
        bytes_in_per_s=sample.bytes_in_per_s,
        bytes_offered_per_s=sample.bytes_offered_per_s,
        messages_in_per_s=sample.messages_in_per_s,
        capacity=sample.capacity,
    )
    return Candidate(cluster="c", head="h", load=load)


AT_ONCE = BalancingConfig(queue_samples_needed=1, noise_allowance=0.0)
"""Acts on the first sample and allows for no noise, so that a test sees the bare formulas."""


class EdgeDriver:
    """An edge of cluster `c` behind head `h`; every step is validated."""

    def __init__(
        self,
        edge: str = "e",
        subscriptions: Iterable[Subscription] = (),
        capacity: Capacity | None = None,
        balancing: BalancingConfig | None = None,
        now: float = 0.0,
    ) -> None:
        self.edge = edge
        self.subscriptions = list(subscriptions)
        self.config = EdgeConfig(
            edge,
            "c",
            "h",
            "amqp://e:1",
            "amqp://e:2",
            incarnation=3,
            capacity=capacity or Capacity(),
            balancing=balancing or AT_ONCE,
        )
        self.agent = EdgeAgent(self.config)
        self.now = now
        self.done: list[Action] = []
        self._requests = 0
        self.give(Started(outputs=tuple(self.subscriptions)))

    def give(self, event: Event) -> list[Action]:
        actions = self.agent.handle(event, self.now)
        self.agent.validate()
        self.done += actions
        return actions

    def tell(self, message: ControlMessage) -> list[Action]:
        self._requests += 1
        return self.give(MessageReceived(message, ReplyAddress("h", str(self._requests))))

    def sample(
        self,
        subscriptions: Iterable[SubscriptionSample],
        broker: BrokerSample | None = None,
        head_round_trip_s: float = 0.0,
    ) -> list[Action]:
        """A second later, a sample; the broker's own is added up if it is not given."""
        found = tuple(subscriptions)
        self.now += 1.0
        if broker is None:
            coming_in = {s.pattern: (s.enqueue_per_s * s.message_bytes, s.enqueue_per_s) for s in found}
            broker = BrokerSample(
                self.edge,
                Role.EDGE,
                sum(rate for rate, _ in coming_in.values()),
                sum(s.offered_bytes_per_s for s in found),
                sum(messages for _, messages in coming_in.values()),
            )
        return self.give(EdgeSampled(broker, found, head_round_trip_s))

    def peer(self, name: str, state: LoadState = LoadState.LOW, uplink: float = 0.5, *, busy: bool = False) -> None:
        metrics = {"uplink": MetricReport(value=uplink, low=0.9)}
        self.tell(PieLocal(broker=name, cluster="c", state=state, busy=busy, metrics=metrics, period_s=1.0))

    def decisions(self, kind: type[Kind]) -> list[Kind]:
        return recorded(self.done, kind)

    # A scripted head

    def request(self, actions: list[Action]) -> tuple[str, BalanceRequest]:
        (send,) = sent(actions, BalanceRequest, "h")
        assert isinstance(send.message, BalanceRequest)
        assert send.request_id is not None
        return send.request_id, send.message

    def candidates(
        self, request: tuple[str, BalanceRequest], *candidates: Candidate, resting: tuple[str, ...] = ()
    ) -> tuple[str, BalancePlan]:
        """Answer a request with candidates; returns the plan."""
        answer = BalanceCandidates(session=request[1].session, candidates=candidates, resting=resting)
        (send,) = sent(self.give(ReplyReceived(request[0], answer)), BalancePlan, "h")
        assert isinstance(send.message, BalancePlan)
        assert send.request_id is not None
        return send.request_id, send.message

    def accept(self, plan: tuple[str, BalancePlan]) -> list[Action]:
        message = BalanceAccepted(session=plan[1].session, moves=len(plan[1].moves))
        return self.give(ReplyReceived(plan[0], message))

    def notice(
        self, session: str, phase: SessionPhase, source: str, moved: int = 0, took_s: float = 0.0
    ) -> list[Action]:
        return self.tell(
            SessionNotice(session=session, phase=phase, source=source, moved=moved, duration_us=round(took_s * 1e6))
        )


class Flow:
    """One subscription as a fluid: `sampled` gives what an agent would see of it after one more second."""

    def __init__(self, name: str, pattern: str, message_bytes: float, round_trip_s: float = 0.4) -> None:
        self.name = output_queue(name, 0)
        self.pattern = pattern
        self.message_bytes = message_bytes
        self.round_trip_s = round_trip_s
        self.depth = 0.0

    def sampled(self, arriving: float, able: float, noise: float = 0.0) -> SubscriptionSample:
        """`able` is what the uplink and the subscriber would take at most; `noise` messages more are in flight."""
        draining = min(able, arriving + self.depth)
        self.depth = max(self.depth + arriving - draining, 0.0)
        in_flight = max(draining * self.round_trip_s + noise, 0.0)
        return SubscriptionSample(
            self.name,
            self.pattern,
            arriving,
            draining,
            self.depth,
            in_flight,
            self.round_trip_s,
            self.message_bytes,
        )
