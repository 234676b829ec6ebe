"""What a head tells operators of its links: who sent what could not be carried, and which links are in trouble."""

from __future__ import annotations

from tests.unit.agents.test_operations import Operated
from tidegate_agents.head.links import CULPRIT_S, CULPRITS_MAX, UNKNOWN
from tidegate_agents.machine import LinkLimitFits, LinkObserved
from tidegate_protocol.decisions import (
    LinkLimit,
    LinkLimitDiffers,
    LinkRelayed,
    MessageSetAside,
    RelayOutcome,
    SetAsideReason,
)
from tidegate_protocol.operations import Explained, ExplainReply, ExplainRequest, OverviewReply, OverviewRequest


def set_aside(account: str = "", publisher: str = "", entry: str = "q-1-1") -> LinkObserved:
    return LinkObserved(MessageSetAside("e1", SetAsideReason.TOO_LARGE, entry, account, publisher, "t.a", 7))


def test_the_account_that_was_checked_is_named_before_what_a_message_says_of_itself() -> None:
    cluster = Operated("e1")
    for event in (set_aside("villain", "buoy~1"), set_aside("", "siren~1"), set_aside()):
        cluster.run(event)
    reply = cluster.answer_to(OverviewRequest(), OverviewReply)
    assert [one.client for one in reply.culprits] == ["siren~1", UNKNOWN, "villain"]


def test_a_culprit_can_be_explained() -> None:
    cluster = Operated("e1")
    cluster.run(set_aside("villain", "buoy~1"))
    cluster.run(set_aside("villain", "buoy~1", "q-1-2"))
    reply = cluster.answer_to(ExplainRequest(about="villain"), ExplainReply)
    assert reply.what is Explained.PUBLISHER
    assert [one.record.entry for one in reply.decisions if isinstance(one.record, MessageSetAside)] == [
        "q-1-1",
        "q-1-2",
    ]


def test_culprits_are_forgotten_after_a_while_and_never_too_many() -> None:
    cluster = Operated("e1")
    for number in range(2 * CULPRITS_MAX):
        cluster.run(set_aside(f"villain-{number}"))
    cluster.now += CULPRIT_S / 2
    cluster.run(set_aside("late"))
    cluster.now += CULPRIT_S / 2 + 1.0
    reply = cluster.answer_to(OverviewRequest(), OverviewReply)
    assert [one.client for one in reply.culprits] == ["late"]


def test_a_link_is_in_trouble_until_it_was_helped() -> None:
    cluster = Operated("e1")
    cluster.run(LinkObserved(LinkRelayed("e1", RelayOutcome.LINK_REFUSED)))
    differs = LinkLimitDiffers("h", "e1", LinkLimit.MESSAGE, None, 1000)
    cluster.run(LinkObserved(differs))
    reply = cluster.answer_to(OverviewRequest(), OverviewReply)
    assert [one.decision for one in reply.links] == [LinkLimitDiffers.kind, LinkRelayed.kind]
    cluster.run(LinkObserved(LinkRelayed("e1", RelayOutcome.PASSED, 10)))
    assert [one.record for one in cluster.answer_to(OverviewRequest(), OverviewReply).links] == [differs]
    cluster.run(LinkLimitFits("e1"))
    assert cluster.answer_to(OverviewRequest(), OverviewReply).links == ()
