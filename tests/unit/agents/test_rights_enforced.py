"""Rules at a head and at an edge: what is refused, what new rules end, and what they leave alone."""

from __future__ import annotations

from tests.support.agents_driver import Driver, of, replies, sent, subscribe, subscription
from tidegate_agents.config import EdgeConfig
from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.head.rights import FORBIDDEN_PER_PERIOD_MAX
from tidegate_agents.machine import (
    Action,
    DeclareOutput,
    DeleteOutput,
    Event,
    MessageReceived,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    Record,
    ReplyAddress,
    RulesSeen,
    Started,
    Undeliverable,
)
from tidegate_protocol.decisions import Decision, RulesTaken, SubscriptionForbidden, SubscriptionRevoked
from tidegate_protocol.messages import (
    OutputPrepare,
    OutputReady,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    SubscribeReply,
    Subscription,
)
from tidegate_protocol.rights import AccountRights, Rules, Verdict

RULES = Rules.of(AccountRights(account="s", subscribe=("a.#",)), AccountRights(account="t", subscribe=("#",)))
NARROWER = Rules.of(AccountRights(account="s", subscribe=("a.b",)), AccountRights(account="t", subscribe=("#",)))
NOBODY = Rules.of()


def granted(driver: Driver, subscriber: str, pattern: str) -> SubscribeReply:
    actions = driver.tell(subscribe(subscriber, pattern))
    later = driver.bind(actions)
    for prepare in sent(actions, OutputPrepare):
        later += driver.ready(prepare)
    (reply,) = replies(later, SubscribeReply)
    return reply


def decided(actions: list[Action], kind: type[Decision]) -> list[Decision]:
    return [one.decision for one in of(actions, Record) if isinstance(one.decision, kind)]


def ruled() -> Driver:
    return Driver(rules=RULES)  # type: ignore[arg-type]


def held(subscriber: str, pattern: str) -> Subscription:
    return subscription(subscriber, 0, pattern)


# The head


def test_a_head_grants_what_a_rule_covers_and_refuses_the_rest_for_good() -> None:
    driver = ruled()
    driver.hello("e1")
    assert granted(driver, "s-1", "a.x.*").edge == "e1"
    for subscriber, pattern, verdict in (
        ("s-1", "b", Verdict.NOT_COVERED),
        ("s", "#", Verdict.NOT_COVERED),
        ("stranger", "a.b", Verdict.UNKNOWN_ACCOUNT),
    ):
        actions = driver.tell(subscribe(subscriber, pattern))
        (refusal,) = replies(actions, Refusal)
        assert (refusal.reason, refusal.field, refusal.retry_after_s) == (RefusalReason.NOT_ALLOWED, "pattern", None)
        assert pattern in refusal.message
        assert decided(actions, SubscriptionForbidden) == [SubscriptionForbidden(subscriber, pattern, verdict)]
        assert not sent(actions, OutputPrepare)
    assert granted(driver, "t", "b").edge == "e1", "others are as before"


def test_asking_again_and_again_does_not_fill_the_record_of_decisions() -> None:
    driver = ruled()
    driver.hello("e1")
    asked = [driver.tell(subscribe("s", f"b.{number % 50}")) for number in range(500)]
    assert all(replies(actions, Refusal) for actions in asked)
    recorded = [decision for actions in asked for decision in decided(actions, SubscriptionForbidden)]
    assert len(recorded) == FORBIDDEN_PER_PERIOD_MAX
    driver.tick()
    assert not decided(driver.tell(subscribe("s", "b.0")), SubscriptionForbidden), "once for each"
    assert decided(driver.tell(subscribe("s", "b.49")), SubscriptionForbidden)


def test_new_rules_end_what_they_do_not_allow_and_nothing_else() -> None:
    driver = ruled()
    driver.hello("e1")
    for subscriber, pattern in (("s-1", "a.x"), ("s-1", "a.b"), ("t", "a.x")):
        granted(driver, subscriber, pattern)
    actions = driver.give(RulesSeen(NARROWER))
    (remove,) = sent(actions, OutputRemove, "e1")
    assert remove.message == OutputRemove(subscriber="s-1", number=0)
    assert decided(actions, SubscriptionRevoked) == [SubscriptionRevoked("s-1", "a.x", "e1", Verdict.NOT_COVERED)]
    assert decided(actions, RulesTaken) == [RulesTaken("h", 2, 1)]
    driver.answer(remove, OutputRemoved(edge="e1", subscriber="s-1", number=0))
    (refusal,) = replies(driver.tell(subscribe("s-1", "a.x")), Refusal)
    assert refusal.reason is RefusalReason.NOT_ALLOWED
    assert granted(driver, "s-1", "a.b").queue == "out.s-1.1"
    assert granted(driver, "t", "a.x").queue == "out.t.0"


def test_whoever_waits_for_a_subscription_is_told_that_the_right_is_gone() -> None:
    driver = ruled()
    driver.hello("e1")
    asked = driver.tell(subscribe("s", "a.x"))
    (prepare,) = sent(asked, OutputPrepare)
    actions = driver.give(RulesSeen(NARROWER))
    (refusal,) = replies(actions, Refusal)
    assert refusal.reason is RefusalReason.NOT_ALLOWED
    assert sent(actions, OutputRemove, "e1"), "the queue may have been made all the same"
    assert not replies(driver.ready(prepare), SubscribeReply)


def test_a_revoked_place_is_removed_again_until_it_is_gone() -> None:
    driver = ruled()
    driver.hello("e1")
    granted(driver, "s", "a.x")
    (first,) = sent(driver.give(RulesSeen(NOBODY)), OutputRemove)
    assert first.request_id is not None
    driver.give(Undeliverable(first.request_id))
    driver.hello("e1", held("s", "a.x"))
    (again,) = sent(driver.tick(), OutputRemove)
    driver.answer(again, OutputRemoved(edge="e1", subscriber="s", number=0))
    assert not sent(driver.tick(), OutputRemove)


def test_a_right_that_is_given_back_is_one_again() -> None:
    driver = ruled()
    driver.hello("e1")
    granted(driver, "s", "a.x")
    (remove,) = sent(driver.give(RulesSeen(NOBODY)), OutputRemove)
    driver.answer(remove, OutputRemoved(edge="e1", subscriber="s", number=0))
    driver.give(RulesSeen(RULES))
    assert granted(driver, "s", "a.x").queue == "out.s.1"


def test_what_an_edge_lists_and_nobody_may_have_gets_no_route() -> None:
    """An edge that was taken over, or that goes by older rules."""
    driver = ruled()
    listed = held("s", "b")
    (ask,) = sent(driver.hello("e1", listed), RegistryRequest)
    actions = driver.answer(ask, RegistryPage(edge="e1", digest="x", subscriptions=(listed,)))
    assert sent(actions, OutputRemove, "e1")
    assert decided(actions, SubscriptionRevoked) == [SubscriptionRevoked("s", "b", "e1", Verdict.NOT_COVERED)]
    assert not driver.agent._context.routes.is_carried("e1", "b")


# The edge


class Edge:
    def __init__(self, rules: Rules | None, *outputs: Subscription) -> None:
        self.agent = EdgeAgent(EdgeConfig("e", "c", "h", "amqp://e:1", "amqp://e:2", rules=rules))
        self.first = self.give(Started(outputs=outputs))

    def give(self, event: Event) -> list[Action]:
        actions = self.agent.handle(event, 1.0)
        self.agent.validate()
        return actions

    def prepare(self, asked: Subscription) -> list[Action]:
        return self.give(MessageReceived(OutputPrepare(subscription=asked), ReplyAddress("h", "1")))


def test_an_edge_makes_no_queue_that_the_rules_do_not_allow_whatever_its_head_says() -> None:
    edge = Edge(RULES)
    actions = edge.prepare(held("s", "b"))
    (refusal,) = replies(actions, Refusal)
    assert refusal.reason is RefusalReason.NOT_ALLOWED
    assert not of(actions, DeclareOutput)
    allowed = held("s", "a.x")
    assert of(edge.prepare(allowed), DeclareOutput)
    assert replies(edge.give(OutputDeclared(allowed)), OutputReady)


def test_an_edge_ends_what_new_rules_do_not_allow_and_nothing_else() -> None:
    mine, other = held("s", "a.x"), held("t", "a.x")
    edge = Edge(RULES, mine, other)
    assert not of(edge.first, DeleteOutput)
    actions = edge.give(RulesSeen(NARROWER))
    assert of(actions, DeleteOutput) == [DeleteOutput(mine)]
    assert decided(actions, SubscriptionRevoked) == [SubscriptionRevoked("s", "a.x", "e", Verdict.NOT_COVERED)]
    assert not of(edge.give(RulesSeen(NARROWER)), DeleteOutput), "it is on its way"
    edge.give(OutputDeleted("s", 0))
    assert edge.agent.outputs == (other,)


def test_an_edge_that_starts_deletes_what_it_may_not_keep() -> None:
    edge = Edge(NARROWER, held("s", "a.x"), held("t", "a.x"))
    assert of(edge.first, DeleteOutput) == [DeleteOutput(held("s", "a.x"))]


def test_a_queue_that_is_just_being_made_goes_with_its_right() -> None:
    wanted = held("s", "a.x")
    edge = Edge(RULES)
    edge.prepare(wanted)
    actions = edge.give(RulesSeen(NARROWER))
    assert of(actions, DeleteOutput) == [DeleteOutput(wanted)]
    assert [refusal.reason for refusal in replies(actions, Refusal)] == [RefusalReason.NOT_ALLOWED]
    assert not replies(edge.give(OutputDeclared(wanted)), OutputReady)
    edge.give(OutputDeleted("s", 0))
    assert edge.agent.outputs == ()


def test_a_queue_that_somebody_else_has_made_is_not_adopted_but_deleted() -> None:
    found = held("s", "b")
    edge = Edge(RULES)
    edge.give(OutputsListed((found,)))
    actions = edge.give(OutputsListed((found,)))
    assert of(actions, DeleteOutput) == [DeleteOutput(found)]
    assert edge.agent.outputs == ()
