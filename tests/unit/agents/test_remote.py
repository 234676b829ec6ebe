"""Subscriptions moved to another cluster: the side of the head that they leave."""

from __future__ import annotations

import pytest

from tests.support.abroad import ID, broker, move, one
from tests.support.agents_driver import of, sent, subscription
from tests.support.decisions import rejections
from tests.support.parts_driver import PartsDriver, answers, clients, decisions, markers, messages
from tidegate_agents.config import ATTEMPTS_MAX
from tidegate_agents.head.abroad.leaving import END_ATTEMPTS_MAX
from tidegate_agents.machine import Action, ChangeRoutes, MarkerPublished, PublishMarker
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.abroad import AcceptEnd, AcceptReply, AcceptRequest, RemoteLoads, RemoteLoadsRequest
from tidegate_protocol.balancing.loads import PieGlobal
from tidegate_protocol.balancing.markers import MarkerRequest, MarkerSent
from tidegate_protocol.balancing.migrations import MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import PlaceReply, PlaceRequest
from tidegate_protocol.balancing.sessions import (
    BalanceRequest,
    Candidate,
)
from tidegate_protocol.messages import (
    LoadState,
    OutputRemove,
    Refusal,
    RefusalReason,
)
from tidegate_protocol.names import marker_key, marker_pattern, output_queue


def source() -> PartsDriver:
    """The old head, with the subscription on its edge e1."""
    driver = PartsDriver("m", "n")
    driver.edge("e1")
    driver.context.ledger.found("e1", subscription())
    driver.do()
    return driver


def accept_reply(migration: str = ID) -> AcceptReply:
    return AcceptReply(
        migration=migration, edge="f1", number=4, url="amqp://f1:1", queue=output_queue("s", 4), head_url="amqp://n:1"
    )


def begun(driver: PartsDriver) -> list[Action]:
    driver.context.now = driver.now
    driver.steps.prepare(move(), driver.heard)
    return driver.do()


def discovered(driver: PartsDriver, actions: list[Action]) -> list[Action]:
    """All heads answer the question who is there."""
    done = driver.give(MarkerPublished(markers(actions)[0].key))
    for request in sent(actions, MarkerRequest):
        assert isinstance(request.message, MarkerRequest)
        heads = (request.to, f"behind-{request.to}")
        done += driver.answer(request, MarkerSent(migration=request.message.migration, heads=heads))
    return done


ALL = ("behind-m", "behind-n", "h", "m", "n")


def prepared() -> PartsDriver:
    driver = source()
    actions = begun(driver)
    driver.answer(one(actions, AcceptRequest), accept_reply())
    discovered(driver, actions)
    return driver


# The old head


def test_a_place_is_ready_when_the_other_head_has_made_it_the_routes_are_live_and_all_heads_are_known() -> None:
    driver = source()
    actions = begun(driver)
    request = one(actions, AcceptRequest, "n")
    assert isinstance(request.message, AcceptRequest)
    assert (request.message.edge, request.message.marker) == ("f1", marker_pattern(ID))
    assert ("e1", (marker_pattern(ID),)) in [(c.target, c.add) for c in of(actions, ChangeRoutes)]
    driver.answer(request, accept_reply())
    assert not driver.heard.places
    discovered(driver, actions)
    place = driver.heard.places[ID]
    assert (place.edge, place.number, place.head, place.heads) == ("f1", 4, "n", ALL)
    assert place.head_url == "amqp://n:1"
    assert not driver.heard.problems


def test_the_heads_are_not_asked_again_for_the_next_subscription() -> None:
    driver = prepared()
    driver.steps.prepare(move(2), driver.heard)
    actions = driver.do()
    assert not messages(actions, MarkerRequest)
    driver.answer(one(actions, AcceptRequest), accept_reply("h~7~m2"))
    assert driver.heard.places["h~7~m2"].heads == ALL


def test_a_head_that_has_not_confirmed_its_routes_stops_the_migration() -> None:
    driver = source()
    driver.silent = {"m"}
    begun(driver)
    driver.fire(f"wait remote {ID}", 4.0)
    assert driver.heard.problems[ID] == d.WhyNot(d.MoveOutcome.NO_ROUTE, ("m",))


def test_a_head_that_does_not_answer_the_flood_stops_the_migration() -> None:
    driver = source()
    actions = begun(driver)
    driver.answer(one(actions, AcceptRequest), accept_reply())
    driver.lose(one(actions, MarkerRequest, "m"))
    assert driver.heard.problems[ID] == d.WhyNot(d.MoveOutcome.PROCESS_ABSENT, ("m",))
    assert not driver.heard.places


def test_a_refusal_and_silence_of_the_other_head_stop_the_migration() -> None:
    driver = source()
    actions = begun(driver)
    driver.answer(one(actions, AcceptRequest), Refusal(reason=RefusalReason.CONFLICT, message="full"))
    assert driver.heard.problems[ID] == d.WhyNot(d.MoveOutcome.REFUSED, ("n",), "full")
    driver = source()
    count = len(messages(begun(driver), AcceptRequest))
    while ID not in driver.heard.problems:
        count += len(messages(driver.fire(f"accept {ID}", 6.0), AcceptRequest))
    assert count == ATTEMPTS_MAX


def test_markers_are_published_by_all_heads_and_again_if_asked() -> None:
    driver = prepared()
    place = driver.heard.places[ID]
    driver.steps.publish_markers(move(), place)
    actions = driver.do()
    assert markers(actions) == [PublishMarker(marker_key(ID, "h"))]
    assert {request.to for request in sent(actions, MarkerRequest)} == {"m", "n"}
    driver.steps.publish_markers(move(), place)  # the client started over in the meantime
    assert not markers(driver.do())
    actions = discovered(driver, actions)
    assert markers(actions) == [PublishMarker(marker_key(ID, "h"))]
    assert not driver.heard.problems


def test_a_head_that_joined_meanwhile_stops_the_migration() -> None:
    driver = prepared()
    driver.steps.publish_markers(move(), driver.heard.places[ID])
    actions = driver.do()
    driver.give(MarkerPublished(marker_key(ID, "h")))
    driver.answer(one(actions, MarkerRequest, "m"), MarkerSent(migration=ID, heads=("m", "new")))
    driver.answer(one(actions, MarkerRequest, "n"), MarkerSent(migration=ID, heads=("n",)))
    assert driver.heard.problems[ID] == d.WhyNot(d.MoveOutcome.NO_MARKERS, ("behind-m", "behind-n", "new"))


@pytest.mark.parametrize("moved", [False, True])
def test_the_end_takes_the_markers_route_away_and_is_told_until_it_is_heard(moved: bool) -> None:
    driver = prepared()
    driver.steps.end(move(), moved)
    actions = driver.do()
    assert ("e1", (marker_pattern(ID),)) in [(c.target, c.remove) for c in of(actions, ChangeRoutes)]
    assert [end.moved for end in messages(actions, AcceptEnd)] == [moved]
    actions = driver.fire(f"accept-end {ID} n", 2.0)
    driver.answer(one(actions, AcceptEnd, "n"), MigrationAck(migration=ID))
    assert not messages(driver.fire(f"accept-end {ID} n", 2.0), AcceptEnd)


def test_the_end_is_not_told_for_ever_and_may_come_at_any_time() -> None:
    driver = source()
    begun(driver)
    driver.steps.end(move(), False)
    count = len(messages(driver.do(), AcceptEnd))
    for _ in range(30):
        count += len(messages(driver.fire(f"accept-end {ID} n", 2.0), AcceptEnd))
    assert count == END_ATTEMPTS_MAX
    assert not driver.context.requests or all(part == "flood" for part, _ in driver.context.requests.values())


@pytest.mark.parametrize("known", [True, False])
def test_what_is_still_to_be_told_of_an_earlier_attempt_is_told_if_it_names_a_place(known: bool) -> None:
    """The other head was down, and never heard that nobody would come: the client was sent elsewhere meanwhile."""
    driver = prepared() if known else source()
    if not known:
        begun(driver)
    driver.steps.end(move(), False)
    driver.do()
    driver.steps.prepare(move(2), driver.heard)
    driver.do()
    told = messages(driver.fire(f"accept-end {ID} n", 2.0), AcceptEnd)
    assert [end.number for end in told] == ([4] if known else [])


def test_a_restarted_head_passes_on_what_a_client_reports_and_removes_what_it_left() -> None:
    driver = source()
    report = MigrationReport(
        migration="h~6~m1",
        subscriber="s",
        stage=MigrationStage.MOVED,
        pattern="a",
        edge="f1",
        number=4,
        other_edge="e1",
        other_number=0,
    )
    driver.steps.late_report(report)
    actions = driver.do()
    assert [(end.moved, end.edge, end.number) for end in messages(actions, AcceptEnd)] == [(True, "f1", 4)] * 2
    assert [(gone.subscriber, gone.number) for gone in messages(actions, OutputRemove)] == [("s", 0)]
    driver = source()
    stayed = {"stage": MigrationStage.STAYED, "edge": "e1", "number": 0, "other_edge": "f1", "other_number": 4}
    driver.steps.late_report(report.model_copy(update=stayed))
    actions = driver.do()
    assert [(end.moved, end.edge, end.number) for end in messages(actions, AcceptEnd)] == [(False, "f1", 4)] * 2
    assert not messages(actions, OutputRemove)
    # So is what an edge may hold that has not told yet.
    driver = source()
    driver.context.ledger.withdraw(("e1", ("s", 0)))
    driver.context.registry.edges["e1"].settled = False
    driver.steps.late_report(report)
    assert [(gone.subscriber, gone.number) for gone in messages(driver.do(), OutputRemove)] == [("s", 0)]
    driver.context.registry.edges["e1"].settled = True
    driver.steps.late_report(report.model_copy(update={"migration": "h~6~m3", "other_number": 1}))
    assert not messages(driver.do(), OutputRemove)
    # A migration inside the cluster concerns nobody else.
    driver.edge("f1")
    driver.steps.late_report(report.model_copy(update={"migration": "h~6~m2"}))
    assert not messages(driver.do(), AcceptEnd)


# Asking other clusters


def asking() -> BalanceRequest:
    return BalanceRequest(session="x", edge="e1", metric="uplink", patterns=("a",), reach=d.Reach.ABROAD)


def test_neighbours_with_room_are_asked_and_what_they_offer_is_put_together() -> None:
    driver = PartsDriver("m", "n", "o")
    driver.edge("e1")
    driver.tell(PieGlobal(cluster="x", head="m", state=LoadState.HIGH, period_s=5.0))
    driver.candidates.ask("x", asking(), driver.sessions.remote_answered)
    actions = driver.do()
    assert {request.to for request in sent(actions, RemoteLoadsRequest)} == {"n", "o"}
    driver.lose(one(actions, RemoteLoadsRequest, "o"))
    offered = tuple(Candidate(cluster="y", head="n", load=broker(name)) for name in ("f2", "f1", "e1"))
    actions = driver.answer(one(actions, RemoteLoadsRequest, "n"), RemoteLoads(session="x", candidates=offered))
    # One that is called like an edge of our own can't be told from it.
    assert [found.load.broker for found in driver.sessions.candidates["x"]] == ["f1", "f2"]
    (decision,) = decisions(actions, d.RemotesAsked)
    assert decision.session == "x"
    assert rejections(decision) == {"m": d.Rejection.STATE, "o": d.Rejection.PROCESS_ABSENT}


def test_nobody_is_waited_for_longer_than_the_time_allows() -> None:
    driver = PartsDriver("n")
    driver.candidates.ask("x", asking(), driver.sessions.remote_answered)
    request = one(driver.do(), RemoteLoadsRequest)
    driver.fire("remote-loads x", 2.0)
    assert driver.sessions.candidates["x"] == ()
    driver.answer(request, RemoteLoads(session="x"))  # too late
    alone = PartsDriver()
    alone.candidates.ask("x", asking(), alone.sessions.remote_answered)
    alone.do()
    assert alone.sessions.candidates["x"] == ()


def test_a_head_asks_its_client_on_behalf_of_another_one() -> None:
    driver = source()
    (asked,) = clients(driver.tell(PlaceRequest(subscriber="s", pattern="a")), PlaceRequest)
    reply = PlaceReply(subscriber="s", pattern="a", edge="e1", number=0)
    assert answers(driver.answer(asked, reply), PlaceReply) == [reply]
    (asked,) = clients(driver.tell(PlaceRequest(subscriber="s", pattern="a")), PlaceRequest)
    assert answers(driver.lose(asked), Refusal)
    driver.tell(PlaceRequest(subscriber="s", pattern="a"))
    driver.fire("remote-place 3", ATTEMPTS_MAX * driver.context.config.reply_timeout_s)
    assert not driver.context.requests
