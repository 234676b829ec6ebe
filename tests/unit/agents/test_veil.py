"""Operators of tenants: they look and never act, and no answer names a client of somebody else."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.support.agents_driver import Driver, of, replies, subscribe
from tests.unit.protocol.decision_samples import SAMPLES
from tidegate_agents.head.veil import NAMELESS, veiled
from tidegate_agents.machine import Action, MessageReceived, Reply, ReplyAddress
from tidegate_protocol.balancing.drains import DrainRequest
from tidegate_protocol.decisions import Decision
from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason, StatusReply, StatusRequest, encode
from tidegate_protocol.operations import (
    BrokerState,
    Culprit,
    Explained,
    ExplainReply,
    ExplainRequest,
    OverviewReply,
    OverviewRequest,
    PauseRequest,
    PlanRequest,
    QueueState,
    Role,
    SessionState,
    Told,
)
from tidegate_protocol.parts import LoadState
from tidegate_protocol.rights import AccountRights, OperatorRights, Rules

RULES = Rules(
    (
        AccountRights(account="mine", tenant="north", subscribe=("#",)),
        AccountRights(account="theirs", tenant="south", subscribe=("#",)),
        AccountRights(account="loose", subscribe=("#",)),
    ),
    (
        OperatorRights(account="boss"),
        OperatorRights(account="ops", tenant="north"),
        OperatorRights(account="auditor", tenant="north", sees_others=True),
    ),
)
OTHERS = ("siren-7", "theirs-1", "loose")
"""Names that are in the samples of decisions, or belong to other tenants."""


def ask(driver: Driver, message: ControlMessage, account: str) -> list[Action]:
    return driver.give(MessageReceived(message, ReplyAddress("op", "1"), account))


def ruled() -> Driver:
    driver = Driver(rules=RULES)  # type: ignore[arg-type]
    driver.hello("e1")
    return driver


@pytest.mark.parametrize(
    "message", [DrainRequest(edge="e1"), PauseRequest(paused=True), PlanRequest()], ids=lambda message: message.kind
)
def test_an_operator_of_a_tenant_looks_and_never_acts(message: ControlMessage) -> None:
    driver = ruled()
    for account in ("ops", "auditor", ""):
        (refusal,) = replies(ask(driver, message, account), Refusal)
        assert refusal.reason is RefusalReason.NOT_ALLOWED
    assert not driver.agent.paused
    assert not replies(ask(driver, message, "boss"), Refusal)


def test_looking_is_for_everybody_who_says_who_he_is() -> None:
    driver = ruled()
    for account in ("boss", "ops", "auditor", "another"):
        assert replies(ask(driver, StatusRequest(), account), StatusReply)
    assert replies(ask(driver, StatusRequest(), ""), Refusal)
    assert replies(Driver().tell(StatusRequest()), StatusReply), "as before, where nobody is restricted"


def test_a_client_of_others_is_as_unknown_as_one_that_does_not_exist() -> None:
    driver = Driver(rules=RULES)  # type: ignore[arg-type]
    for name in ("mine", "theirs"):
        driver.tell(subscribe(f"{name}-1", "a"))  # there is no edge: it is decided, and remembered
    told = {
        (account, about): [reply.message.kind for reply in of(ask(driver, ExplainRequest(about=about), account), Reply)]
        for account in ("ops", "auditor", "boss")
        for about in ("mine-1", "theirs-1")
    }
    explained = ["explain-reply"]
    assert told == {
        ("ops", "mine-1"): explained,
        ("ops", "theirs-1"): ["refusal"],
        ("auditor", "mine-1"): explained,
        ("auditor", "theirs-1"): explained,
        ("boss", "mine-1"): explained,
        ("boss", "theirs-1"): explained,
    }
    (refusal,) = replies(ask(driver, ExplainRequest(about="theirs-1"), "ops"), Refusal)
    (unknown,) = replies(ask(driver, ExplainRequest(about="nobody-1"), "ops"), Refusal)
    assert refusal.message.replace("theirs-1", "X") == unknown.message.replace("nobody-1", "X")


def test_an_overview_is_asked_of_edges_and_veiled_when_it_is_answered() -> None:
    driver = Driver(rules=RULES)  # type: ignore[arg-type]
    (reply,) = replies(ask(driver, OverviewRequest(), "ops"), OverviewReply)
    assert reply.cluster == "c"


def queue(subscriber: str) -> QueueState:
    return QueueState(
        edge="e1",
        queue=f"out.{subscriber}.0",
        subscriber=subscriber,
        number=0,
        pattern="secret.plan" if subscriber in OTHERS else "a",
        deadline_s=1,
        allowed_wait_s=1,
        depth=0,
    )


def everything(decisions: tuple[Decision, ...]) -> tuple[OverviewReply, ExplainReply]:
    broker = BrokerState(
        broker="e1", role=Role.EDGE, state=LoadState.LOW, queues=(queue("mine-1"), *map(queue, OTHERS))
    )
    culprits = tuple(Culprit(what="x", client=name, broker="e1", ago_us=1) for name in ("mine-1", *OTHERS))
    sessions = tuple(
        SessionState(session=f"s~{number}", source="e1", phase="x", began=one, started_ago_us=1)
        for number, one in enumerate(decisions)
    )
    told = tuple(Told(broker="h", ago_us=1, decision=one.kind, record=one) for one in decisions)
    overview = OverviewReply(
        cluster="c", head="h", version="1", policy="p", brokers=(broker,), sessions=sessions[:50], culprits=culprits
    )
    explained = ExplainReply(
        about="",
        what=Explained.CLUSTER,
        cluster="c",
        head="h",
        policy="p",
        decisions=told,
        brokers=(broker,),
        queues=broker.queues,
        sessions=sessions[:50],
        culprits=culprits,
    )
    return overview, explained


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.kind)
def test_no_name_of_others_is_in_any_answer(sample: Decision) -> None:
    """Every kind of decision there is, about a client of others."""
    for reply in everything((sample,)):
        shown = encode(veiled(reply, "", lambda client: client.startswith("mine"))).decode()
        assert "mine-1" in shown
        for name in (*OTHERS, "secret.plan", "alert."):
            assert name not in shown, (sample.kind, shown)


def test_what_is_about_its_own_is_told_without_the_others() -> None:
    own = [dataclasses.replace(one, subscriber="mine-1") for one in SAMPLES if hasattr(one, "subscriber")]
    assert len(own) > 5
    _, reply = everything(tuple(own))
    shown = veiled(reply, "", lambda client: client.startswith("mine"))
    assert isinstance(shown, ExplainReply)
    assert [told.decision for told in shown.decisions] == [one.kind for one in own]
    plain = json.loads(encode(shown))
    assert all("rejected" not in told["record"] and "detail" not in told["record"] for told in plain["decisions"])


def test_what_is_told_to_everybody_names_brokers_only() -> None:
    for kind in NAMELESS:
        names = {field.name for field in dataclasses.fields(kind)}
        assert not names & {"subscriber", "publisher", "queue", "pattern", "detail", "rejected"}, kind
