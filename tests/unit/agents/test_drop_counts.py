"""Drops as numbers: counted by queue and reason, decided once in a while, told to operators by way of the head."""

from __future__ import annotations

from tests.support.agents_driver import Driver, replies, sent
from tests.support.decisions import recorded
from tests.support.edge_driver import ews_subscriptions
from tidegate_agents.config import EdgeConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.edge.drops import REMIND_S
from tidegate_agents.load.metrics import BrokerSample, Role, SubscriptionSample
from tidegate_agents.machine import (
    Action,
    DropCount,
    DropsCounted,
    DropsTended,
    DropsTold,
    EdgeSampled,
    Event,
    MessageReceived,
    OutputDeleted,
    OutputsListed,
    Reply,
    ReplyAddress,
    Started,
    TendDrops,
    TimerFired,
)
from tidegate_protocol.decisions import DropReason, DropsPurged, MessagesDropped
from tidegate_protocol.drops import DroppedOutput, DropsOrder, DropsReply, DropsRequest
from tidegate_protocol.messages import Capacity, Refusal, RefusalReason
from tidegate_protocol.names import output_queue
from tidegate_protocol.operations import DROPS_TOLD_S, InspectReply, InspectRequest

SUBSCRIPTION = ews_subscriptions("b1")[0]
QUEUE = output_queue(SUBSCRIPTION.subscriber, SUBSCRIPTION.number)
OPERATOR = ReplyAddress("operator", "1")


class Edge:
    """An edge with one subscription."""

    def __init__(self) -> None:
        config = EdgeConfig(
            edge="b1", cluster="c", head="h", client_url="u", link_url="u", incarnation=1, capacity=Capacity()
        )
        self.agent = EdgeAgent(config)
        self.does(Started(outputs=(SUBSCRIPTION,)), 0.0)

    def does(self, event: Event, now: float) -> list[Action]:
        actions = self.agent.handle(event, now)
        self.agent.validate()
        return actions

    def drops(self, messages: int, now: float, reason: DropReason = DropReason.LIMIT) -> list[MessagesDropped]:
        actions = self.does(DropsCounted((DropCount(QUEUE, reason, messages),)), now)
        return recorded(actions, MessagesDropped)

    def state(self, now: float) -> tuple[int, tuple[str, ...]]:
        (reply,) = [a for a in self.does(MessageReceived(InspectRequest(), OPERATOR), now) if isinstance(a, Reply)]
        assert isinstance(reply.message, InspectReply)
        return reply.message.state.dropped, reply.message.state.dropping


def test_the_first_drop_is_a_decision_and_then_one_in_a_while() -> None:
    edge = Edge()
    (first,) = edge.drops(3, 1.0)
    assert (first.queue, first.reason, first.count, first.total) == (QUEUE, DropReason.LIMIT, 3, 3)
    assert not edge.drops(5, 2.0)
    (other,) = edge.drops(1, 2.0, DropReason.MESSAGE_EXPIRED)
    assert other.total == 1
    (second,) = edge.drops(2, 1.0 + REMIND_S)
    assert (second.count, second.total) == (7, 10)
    assert edge.agent.drops.totals[DropReason.LIMIT] == 10
    assert edge.agent.drops.by_queue()[QUEUE, DropReason.LIMIT] == 10


def test_the_state_of_an_edge_tells_of_drops_for_a_while() -> None:
    edge = Edge()
    edge.drops(3, 1.0)
    edge.drops(4, 2.0)
    assert edge.state(3.0) == (7, (QUEUE,))
    assert edge.state(3.0 + DROPS_TOLD_S) == (0, ())
    edge.drops(1, 4.0 + DROPS_TOLD_S)
    assert edge.state(5.0 + DROPS_TOLD_S) == (1, (QUEUE,))


def test_a_queue_that_expires_is_counted_by_its_last_depth() -> None:
    edge = Edge()
    sample = SubscriptionSample(QUEUE, SUBSCRIPTION.pattern, 0.0, 0.0, 12.0, 0.0, 0.1, 100.0, attached=False)
    edge.does(EdgeSampled(BrokerSample("b1", Role.EDGE), (sample,)), 1.0)
    edge.does(OutputsListed(()), 2.0)
    (decision,) = recorded(edge.does(OutputsListed(()), 3.0), MessagesDropped)
    assert (decision.reason, decision.count) == (DropReason.QUEUE_GONE, 12)


def test_a_queue_that_is_deleted_by_order_is_counted_and_nobody_is_told() -> None:
    edge = Edge()
    actions = edge.does(OutputDeleted(SUBSCRIPTION.subscriber, SUBSCRIPTION.number, waiting=9), 1.0)
    assert not recorded(actions, MessagesDropped)
    assert edge.agent.drops.totals[DropReason.QUEUE_DELETED] == 9
    assert edge.state(2.0) == (0, ())


def test_what_operators_want_is_handed_on_and_answered() -> None:
    edge = Edge()
    request = DropsRequest(subscriber="siren")
    assert TendDrops(request, OPERATOR) in edge.does(MessageReceived(request, OPERATOR), 1.0)
    reply = DropsReply(purged=3)
    assert edge.does(DropsTended(OPERATOR, reply), 2.0) == [Reply(OPERATOR, reply)]
    purged = DropsPurged(QUEUE, 3)
    assert recorded(edge.does(DropsTold(purged), 3.0), DropsPurged) == [purged]


def test_a_head_joins_what_its_edges_answer() -> None:
    driver = Driver()
    for edge in ("e1", "e2", "e3"):
        driver.hello(edge)
    asked = sent(driver.tell(DropsRequest(subscriber="siren")), DropsRequest)
    assert [one.to for one in asked] == ["e1", "e2", "e3"]
    few, many = (
        DroppedOutput(edge=edge, queue=f"out.siren.{n}", reasons={DropReason.LIMIT: n})
        for edge, n in (("e1", 1), ("e2", 5))
    )
    driver.answer(asked[0], DropsReply(outputs=(few,), purged=1))
    driver.answer(asked[1], DropsReply(outputs=(many,), purged=2, without=("e2",)))
    (reply,) = replies(driver.give(TimerFired("drops 1")), DropsReply)
    assert reply == DropsReply(outputs=(many, few), purged=3, missing=("e3",), without=("e2",))


def test_a_head_replays_for_one_subscriber_and_asks_edges_that_there_are() -> None:
    driver = Driver()
    driver.hello("e1")
    (everybody,) = replies(driver.tell(DropsRequest(order=DropsOrder.REPLAY)), Refusal)
    assert (everybody.reason, everybody.field) == (RefusalReason.INVALID, "subscriber")
    (stranger,) = replies(driver.tell(DropsRequest(edge="e9")), Refusal)
    assert (stranger.reason, stranger.field) == (RefusalReason.UNKNOWN, "edge")
    assert len(sent(driver.tell(DropsRequest(edge="e1")), DropsRequest)) == 1
