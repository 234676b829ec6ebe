"""A head with edges that answer at once, and clients whose answers are given by the test.

Everything between the head and its edges goes well unless a test says otherwise (`mute`); what goes to clients is
collected in `orders`, what the edges were told to remove in `removed`.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from tests.support.agents_driver import Driver, subscribe
from tidegate_agents.config import BalancingConfig
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import (
    Action,
    ChangeRoutes,
    Event,
    PublishMarker,
    Reply,
    ReplyReceived,
    RoutesChanged,
    Send,
    SendClient,
    TimerFired,
)
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.markers import MarkerBind, MarkerReady
from tidegate_protocol.balancing.migrations import MigrationReport, MigrationStage
from tidegate_protocol.balancing.sessions import (
    BalancePlan,
    BalanceRequest,
    LoadReply,
    LoadRequest,
    PlannedMove,
    SessionNotice,
)
from tidegate_protocol.decisions import Decision, PlanOutcome, Reach
from tidegate_protocol.messages import (
    Capacity,
    ControlMessage,
    LoadState,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    OutputRemoved,
    RegistryPage,
    RegistryRequest,
    SubscribeReply,
    Subscription,
)
from tidegate_protocol.names import output_queue

M = TypeVar("M")


class Cluster(Driver):
    """A head `h` with these edges, all of them heard of and empty."""

    def __init__(self, *edges: str, balancing: BalancingConfig | None = None, restarted: bool = False) -> None:
        super().__init__(balancing=balancing or BalancingConfig())  # type: ignore[arg-type]
        self.mute: set[type] = set()
        """Kinds of requests that edges don't answer."""
        self.orders: list[SendClient] = []
        self.removed: list[tuple[str, str, int]] = []
        self.notices: list[tuple[str, SessionNotice]] = []
        self.markers: list[PublishMarker] = []
        self.replies: list[ControlMessage] = []
        self.loads: dict[str, BrokerLoad] = {}
        self.outputs: dict[str, dict[tuple[str, int], Subscription]] = {edge: {} for edge in edges}
        if not restarted:
            for edge in edges:
                self.greet(edge)

    def greet(self, edge: str, draining: bool = False) -> None:
        self.settle(self.hello(edge, *self.outputs[edge].values(), draining=draining))

    # What happens by itself

    def settle(self, actions: list[Action]) -> list[Action]:
        """Let RabbitMQ and the edges do what they were told, until nothing is left. Returns all actions."""
        seen, todo = list(actions), deque(actions)
        while todo:
            event = self._event(todo.popleft())
            if event is not None:
                more = self.give(event)
                seen += more
                todo += more
        return seen

    def run(self, event: Event) -> list[Action]:
        return self.settle(self.give(event))

    def ask(self, message: ControlMessage) -> list[Action]:
        return self.settle(self.tell(message))

    def fire(self, name: str, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        return self.run(TimerFired(name))

    def period(self, seconds: float = 1.0, *silent: str) -> list[Action]:
        """Time passes; all edges but `silent` show that they are alive."""
        self.now += seconds
        for edge in sorted(self.outputs):
            if edge not in silent:
                self.greet(edge)
        return self.run(TimerFired("tick"))

    def _event(self, action: Action) -> Event | None:
        match action:
            case ChangeRoutes():
                return RoutesChanged(action.change_id)
            case PublishMarker():
                self.markers.append(action)
            case SendClient():
                self.orders.append(action)
            case Reply():
                self.replies.append(action.message)
            case Send(to, SessionNotice() as notice):
                self.notices.append((to, notice))
            case Send(to, message, request_id) if type(message) not in self.mute:
                answer = self._edge(to, message)
                if answer is not None and request_id is not None:
                    return ReplyReceived(request_id, answer)
            case _:
                pass
        return None

    def _edge(self, edge: str, message: ControlMessage) -> ControlMessage | None:
        match message:
            case OutputPrepare(subscription=subscription):
                self.outputs[edge][subscription.subscriber, subscription.number] = subscription
                queue = output_queue(subscription.subscriber, subscription.number)
                return OutputReady(subscription=subscription, queue=queue)
            case OutputRemove(subscriber=subscriber, number=number):
                self.outputs[edge].pop((subscriber, number), None)
                self.removed.append((edge, subscriber, number))
                return OutputRemoved(edge=edge, subscriber=subscriber, number=number)
            case MarkerBind():
                return MarkerReady(subscriber=message.subscriber, number=message.number, key=message.key)
            case RegistryRequest():
                held = tuple(self.outputs[edge].values())
                return RegistryPage(edge=edge, digest=registry_digest(held), subscriptions=held)
            case LoadRequest(session=session):
                return LoadReply(session=session, load=self.loads.get(edge, load(edge)))
            case _:
                return None

    # What the source of a session does

    def balance(
        self,
        session: str,
        *candidates: str,
        source: str = "e1",
        reach: Reach = Reach.HERE,
        fallbacks: tuple[str, ...] = (),
    ) -> ControlMessage:
        """Ask for help; returns the answer, or the last one before if there is none yet."""
        request = BalanceRequest(
            session=session,
            edge=source,
            metric="uplink",
            patterns=("a", "b"),
            candidates=candidates,
            reach=reach,
            fallbacks=fallbacks,
        )
        self.ask(request)
        return self.replies[-1]

    def plan(self, session: str, *moves: PlannedMove, source: str = "e1") -> ControlMessage:
        outcome = PlanOutcome.RELIEVED if moves else PlanOutcome.NO_IMPROVEMENT
        self.ask(BalancePlan(session=session, edge=source, moves=moves, outcome=outcome))
        return self.replies[-1]

    # What clients do

    def grant(self, subscriber: str, pattern: str = "a", deadline_us: int = 1_000) -> SubscribeReply:
        self.ask(subscribe(subscriber, pattern, deadline_us))
        reply = self.replies[-1]
        assert isinstance(reply, SubscribeReply)
        return reply

    def report(
        self,
        order: ControlMessage,
        stage: MigrationStage,
        answer_to: SendClient | None = None,
        reason: str = "",
        unsettled: bool = False,
    ) -> list[Action]:
        """A client's report about the order it was given: unasked, or as the answer to a request."""
        values = order.model_dump()
        old = (values.get("edge_from"), values.get("number_from"))
        new = (values["edge"], values["number"])
        here, other = (new, old) if stage is MigrationStage.MOVED else (old, new)
        if here[0] is None:
            here = new
        message = MigrationReport(
            migration=values["migration"],
            subscriber=values["subscriber"],
            stage=stage,
            pattern=values["pattern"],
            edge=here[0],
            number=here[1],
            other_edge=other[0],
            other_number=other[1],
            reason=reason,
            unsettled=unsettled,
        )
        if answer_to is None:
            return self.ask(message)
        assert answer_to.request_id is not None
        return self.run(ReplyReceived(answer_to.request_id, message))

    def ordered(self, kind: type[M]) -> list[M]:
        """The orders of this kind that clients were sent, oldest first."""
        return [order.message for order in self.orders if isinstance(order.message, kind)]

    def last_order(self, kind: type[M]) -> SendClient:
        return [order for order in self.orders if isinstance(order.message, kind)][-1]

    def decisions(self, kind: type[Decision]) -> list[str]:
        """With which outcomes, or why, decisions of this kind were made."""
        return [decision.label for decision in self.agent.story if isinstance(decision, kind)]

    def places(self, subscriber: str, pattern: str = "a") -> list[tuple[str, int]]:
        """Where queues for this client exist."""
        return [
            (edge, number)
            for edge in sorted(self.outputs)
            for (name, number), subscription in sorted(self.outputs[edge].items())
            if (name, subscription.pattern) == (subscriber, pattern)
        ]


def move(subscriber: str, number: int = 0, target: str = "e2", bytes_per_s: float = 10.0) -> PlannedMove:
    return PlannedMove(
        subscriber=subscriber,
        number=number,
        target=target,
        bytes_in_per_s=bytes_per_s,
        bytes_out_per_s=bytes_per_s,
        messages_in_per_s=1.0,
    )


def load(edge: str, state: LoadState = LoadState.LOW, busy: bool = False, offered: float = 0.0) -> BrokerLoad:
    return BrokerLoad(
        broker=edge,
        state=state,
        busy=busy,
        bytes_in_per_s=0.0,
        bytes_offered_per_s=offered,
        messages_in_per_s=0.0,
        capacity=Capacity(uplink_bytes_per_s=1e6),
    )
