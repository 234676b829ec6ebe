"""The agent of an edge."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import of, replies, sent, subscription
from tidegate_agents.config import EdgeConfig
from tidegate_agents.edge import outputs as outputs_module
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.kit.subscriptions import registry_digest
from tidegate_agents.machine import (
    Action,
    ActionFailed,
    DeclareOutput,
    DeleteOutput,
    Event,
    MessageReceived,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    ReplyAddress,
    ReplyReceived,
    ServerSeen,
    SetTimer,
    Started,
    StopRequested,
    TimerFired,
)
from tidegate_protocol.messages import (
    ControlMessage,
    EdgeGoodbye,
    EdgeHello,
    EdgeWelcome,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    StatusRequest,
    Subscription,
)


class Edge:
    """An edge `e` of head `h`."""

    def __init__(self, *outputs: Subscription, **config: float) -> None:
        self.agent = EdgeAgent(EdgeConfig("e", "c", "h", "amqp://e:1", "amqp://e:2", **config))  # type: ignore[arg-type]
        self.now = 1.0
        self.first = self.give(Started(outputs=outputs))
        self._requests = 0

    def give(self, event: Event) -> list[Action]:
        actions = self.agent.handle(event, self.now)
        self.agent.validate()
        return actions

    def tell(self, message: ControlMessage) -> list[Action]:
        self._requests += 1
        return self.give(MessageReceived(message, ReplyAddress("h", str(self._requests))))

    def prepare(self, asked: Subscription) -> list[Action]:
        return self.tell(OutputPrepare(subscription=asked))

    def remove(self, number: int = 0) -> list[Action]:
        return self.tell(OutputRemove(subscriber="s", number=number))


def test_it_says_hello_every_period_with_the_digest_of_what_it_adopted() -> None:
    edge = Edge(subscription())
    (hello,) = sent(edge.first, EdgeHello, "h")
    assert isinstance(hello.message, EdgeHello)
    assert (hello.message.registry_count, hello.message.registry_digest) == (
        1,
        registry_digest([subscription()]),
    )
    assert hello.request_id is not None
    edge.give(ReplyReceived(hello.request_id, EdgeWelcome(head="h", cluster="c", period_s=0.5)))
    assert edge.agent.head_heard_s == 1.0
    actions = edge.give(TimerFired("hello"))
    assert sent(actions, EdgeHello)
    assert of(actions, SetTimer) == [SetTimer("hello", 0.5)]


def test_a_head_is_heard_however_long_its_answers_take() -> None:
    """Every second there was another hello, and only the answer to the latest one counted: an edge more than a second
    away from its head was never ready, and did not hear that balancing was paused.
    """
    edge = Edge()
    hellos = sent(edge.first, EdgeHello)
    for second in range(1, 40):
        edge.now += 1.0
        hellos += sent(edge.give(TimerFired("hello")), EdgeHello)
        if second < 5:
            continue
        request_id = hellos[second - 5].request_id
        assert request_id is not None
        version = second - 4
        welcome = EdgeWelcome(head="h", cluster="c", period_s=1.0, paused=version % 2 == 1, pause_version=version)
        edge.give(ReplyReceived(request_id, welcome))
        assert edge.agent.head_heard_s == edge.now
        assert edge.agent._context.paused == (version % 2 == 1)


def test_an_answer_that_was_overtaken_by_a_later_one_does_not_count() -> None:
    edge = Edge()
    first, second = *sent(edge.first, EdgeHello), *sent(edge.give(TimerFired("hello")), EdgeHello)
    assert first.request_id is not None
    assert second.request_id is not None
    edge.give(ReplyReceived(second.request_id, EdgeWelcome(head="h", cluster="c", period_s=0.5)))
    edge.give(ReplyReceived(first.request_id, EdgeWelcome(head="h", cluster="c", period_s=1.0)))
    assert of(edge.give(TimerFired("hello")), SetTimer) == [SetTimer("hello", 0.5)]


def test_it_says_hello_even_if_something_else_that_is_due_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Edge(subscription())

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(edge.agent._markers, "expire", fail)
    with pytest.raises(ZeroDivisionError):
        edge.give(TimerFired("hello"))
    actions = edge.give(OutputsListed((subscription(),)))
    assert sent(actions, EdgeHello)
    assert [timer.name for timer in of(actions, SetTimer)] == ["hello"]


def test_an_output_is_ready_once_declared_and_repetitions_are_answered_together() -> None:
    edge = Edge()
    assert of(edge.prepare(subscription()), DeclareOutput) == [DeclareOutput(subscription())]
    assert edge.prepare(subscription()) == []
    assert not edge.agent.outputs
    actions = edge.give(OutputDeclared(subscription()))
    assert replies(actions, OutputReady) == [OutputReady(subscription=subscription(), queue="out.s.0")] * 2
    assert edge.agent.outputs == (subscription(),)


def test_a_known_output_is_declared_again_because_it_may_have_expired() -> None:
    edge = Edge(subscription())
    assert of(edge.prepare(subscription()), DeclareOutput)
    assert replies(edge.give(OutputDeclared(subscription())), OutputReady)


def test_another_pattern_under_the_same_number_is_a_conflict() -> None:
    edge = Edge(subscription())
    (refusal,) = replies(edge.prepare(subscription(pattern="b")), Refusal)
    assert refusal.reason is RefusalReason.CONFLICT


def test_an_output_is_removed_once_deleted_and_removing_may_be_repeated() -> None:
    edge = Edge(subscription())
    assert of(edge.remove(), DeleteOutput)
    assert edge.remove() == []
    assert len(replies(edge.give(OutputDeleted("s", 0)), OutputRemoved)) == 2
    assert replies(edge.remove(), OutputRemoved)
    assert not edge.agent.outputs


def test_what_is_prepared_while_being_removed_is_there_in_the_end() -> None:
    edge = Edge(subscription())
    edge.remove()
    assert of(edge.prepare(subscription()), DeclareOutput)
    assert replies(edge.give(OutputDeleted("s", 0)), OutputRemoved)
    assert replies(edge.give(OutputDeclared(subscription())), OutputReady)
    assert edge.agent.outputs == (subscription(),)


def test_what_is_removed_while_being_prepared_is_gone_in_the_end() -> None:
    edge = Edge()
    edge.prepare(subscription())
    assert of(edge.remove(), DeleteOutput)
    assert replies(edge.give(OutputDeclared(subscription())), OutputReady)
    assert replies(edge.give(OutputDeleted("s", 0)), OutputRemoved)
    assert not edge.agent.outputs


def test_failures_of_rabbitmq_are_told() -> None:
    edge = Edge(subscription(number=1))
    (declare,) = of(edge.prepare(subscription()), DeclareOutput)
    (refusal,) = replies(edge.give(ActionFailed(declare, "precondition failed")), Refusal)
    assert refusal.reason is RefusalReason.FAILED
    assert "precondition failed" in refusal.message
    (delete,) = of(edge.remove(1), DeleteOutput)
    (refusal,) = replies(edge.give(ActionFailed(delete, "in use")), Refusal)
    assert "in use" in refusal.message
    assert edge.agent.outputs == (subscription(number=1),)


def test_an_expired_queue_is_forgotten_when_it_was_missing_twice() -> None:
    edge = Edge(subscription(), subscription(number=1, pattern="b"))
    assert edge.give(OutputsListed((subscription(),))) == []
    assert edge.agent.outputs != (subscription(),)
    edge.give(OutputsListed((subscription(),)))
    assert edge.agent.outputs == (subscription(),)


def test_a_listing_older_than_a_declaration_does_no_harm() -> None:
    edge = Edge()
    edge.prepare(subscription())
    edge.give(OutputDeclared(subscription()))
    edge.give(OutputsListed(()))
    edge.give(OutputsListed((subscription(),)))
    edge.give(OutputsListed(()))
    assert edge.agent.outputs == (subscription(),)


def test_an_unknown_queue_is_adopted_when_it_was_listed_twice() -> None:
    edge = Edge()
    edge.give(OutputsListed((subscription(),)))
    assert not edge.agent.outputs
    edge.give(OutputsListed((subscription(),)))
    assert edge.agent.outputs == (subscription(),)


def test_the_registry_is_given_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs_module, "REGISTRY_PAGE_MAX", 2)
    outputs = [subscription(number=n, pattern=f"p{n}") for n in (10, 2, 1)]
    edge = Edge(*outputs)
    found: list[Subscription] = []
    after = None
    for _ in range(2):
        (page,) = replies(edge.tell(RegistryRequest(after=after)), RegistryPage)
        found += page.subscriptions
        after = page.after
    assert after is None
    assert sorted(s.number for s in found) == [1, 2, 10]


def test_draining_takes_nothing_new_but_keeps_what_is_there() -> None:
    edge = Edge(subscription())
    edge.agent.drain()
    (refusal,) = replies(edge.prepare(subscription(number=1, pattern="b")), Refusal)
    assert refusal.reason is RefusalReason.NOT_READY
    assert of(edge.prepare(subscription()), DeclareOutput)
    (hello,) = sent(edge.give(TimerFired("hello")), EdgeHello)
    assert isinstance(hello.message, EdgeHello)
    assert hello.message.draining


def test_limits_are_named() -> None:
    edge = Edge(subscription(), outputs_max=1)
    (refusal,) = replies(edge.prepare(subscription(number=1, pattern="b")), Refusal)
    assert "outputs_max = 1" in refusal.message
    edge = Edge(pending_max=1)
    edge.prepare(subscription())
    (refusal,) = replies(edge.prepare(subscription(number=1, pattern="b")), Refusal)
    assert "pending_max = 1" in refusal.message


def test_stopping_says_goodbye_and_no_hello_follows() -> None:
    edge = Edge()
    assert sent(edge.give(StopRequested()), EdgeGoodbye, "h")
    assert edge.give(TimerFired("hello")) == []


def test_without_its_rabbitmq_it_is_silent_and_says_hello_as_soon_as_that_is_back() -> None:
    """Its head would otherwise hold it for alive, and those who can't reach it would never be placed elsewhere."""
    edge = Edge(subscription())
    assert not sent(edge.give(ServerSeen(False)), EdgeHello, "h")
    still = edge.give(TimerFired("hello"))
    assert not sent(still, EdgeHello, "h")
    assert [timer.name for timer in of(still, SetTimer)] == ["hello"]
    assert sent(edge.give(ServerSeen(True)), EdgeHello, "h")
    assert sent(edge.give(TimerFired("hello")), EdgeHello, "h")


def test_a_message_that_is_not_for_an_edge_is_refused_and_counted() -> None:
    edge = Edge()
    assert replies(edge.tell(StatusRequest()), Refusal)[0].reason is RefusalReason.INVALID
    assert edge.agent.ignored == 1
