"""The markers of all heads: a request that floods the tree of heads."""

from __future__ import annotations

import pytest

from tests.support.abroad import ID, one
from tests.support.agents_driver import sent
from tests.support.parts_driver import PartsDriver, answers, markers, messages
from tidegate_agents.config import ATTEMPTS_MAX
from tidegate_agents.head.moving import marker_flood
from tidegate_agents.machine import ActionFailed, MarkerPublished, PublishMarker
from tidegate_protocol.balancing.markers import MarkerRequest, MarkerSent
from tidegate_protocol.messages import (
    Refusal,
    RefusalReason,
)
from tidegate_protocol.names import marker_key, marker_prefix


def test_a_head_answers_when_its_marker_is_published_and_those_behind_it_have_answered() -> None:
    driver = PartsDriver("m", "n", "o")
    ask = MarkerRequest(migration=ID, head="m", key=marker_prefix(ID))
    actions = driver.tell(ask)
    assert markers(actions) == [PublishMarker(marker_key(ID, "h"))]
    assert {request.to for request in sent(actions, MarkerRequest)} == {"n", "o"}
    again = driver.tell(ask)
    assert not markers(again)
    driver.answer(one(actions, MarkerRequest, "n"), MarkerSent(migration=ID, heads=("n", "far")))
    driver.answer(one(actions, MarkerRequest, "o"), MarkerSent(migration=ID, heads=("o",)))
    found = answers(driver.give(MarkerPublished(marker_key(ID, "h"))), MarkerSent)
    assert [reply.heads for reply in found] == [("far", "h", "n", "o")] * 2


def test_one_head_that_does_not_answer_makes_the_whole_flood_fail() -> None:
    driver = PartsDriver("m", "n")
    actions = driver.tell(MarkerRequest(migration=ID, head="m", key=marker_prefix(ID)))
    driver.give(MarkerPublished(marker_key(ID, "h")))
    count = len(messages(actions, MarkerRequest))
    for _ in range(10):
        actions = driver.fire(f"flood {ID}", 2.0)
        count += len(messages(actions, MarkerRequest))
        if answers(actions, Refusal):
            break
    assert count == ATTEMPTS_MAX
    assert answers(actions, Refusal)
    # Asked again later it starts over.
    assert markers(driver.tell(MarkerRequest(migration=ID, head="m", key=marker_prefix(ID))))


def test_a_marker_that_can_not_be_published_makes_the_flood_fail() -> None:
    driver = PartsDriver("m")
    (marker,) = markers(driver.tell(MarkerRequest(migration=ID, head="m", key=marker_prefix(ID))))
    assert answers(driver.give(ActionFailed(marker, "refused")), Refusal)


def test_floods_are_bounded_and_strangers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_flood, "FLOODS_MAX", 1)
    driver = PartsDriver("m")
    assert answers(driver.tell(MarkerRequest(migration=ID, head="x", key=marker_prefix(ID))), Refusal)
    assert answers(driver.tell(MarkerRequest(migration=ID, head="m", key="a.b")), Refusal)
    driver.tell(MarkerRequest(migration=ID, head="m", key=marker_prefix(ID)))
    (refusal,) = answers(driver.tell(MarkerRequest(migration="y", head="m", key=marker_prefix("y"))), Refusal)
    assert refusal.reason is RefusalReason.LIMIT
