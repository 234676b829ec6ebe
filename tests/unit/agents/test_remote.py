"""Subscriptions moved to another cluster: both heads' sides, and the markers of all heads."""

from __future__ import annotations

import pytest

from tests.support.agents_driver import of, sent, subscription
from tests.support.parts_driver import PartsDriver, answers, clients, decisions, markers, messages
from tidegate_agents import fitting, marker_flood
from tidegate_agents.acceptances import DOUBT_ATTEMPTS_MAX, LEAVING_ATTEMPTS_MAX
from tidegate_agents.config import ATTEMPTS_MAX
from tidegate_agents.machine import Action, ActionFailed, ChangeRoutes, MarkerPublished, PublishMarker, Send, SetTimer
from tidegate_agents.migration_steps import Move
from tidegate_agents.remote import END_ATTEMPTS_MAX
from tidegate_protocol.balancing import (
    AcceptEnd,
    AcceptReply,
    AcceptRequest,
    BalanceRequest,
    BrokerLoad,
    Candidate,
    LoadReply,
    LoadRequest,
    MarkerRequest,
    MarkerSent,
    MetricReport,
    MigrationAck,
    MigrationReport,
    MigrationStage,
    PieGlobal,
    PieLocal,
    PlaceReply,
    PlaceRequest,
    PlannedMove,
    RemoteLoads,
    RemoteLoadsRequest,
    SessionNotice,
    SessionPhase,
)
from tidegate_protocol.messages import (
    LoadState,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
)
from tidegate_protocol.names import marker_key, marker_pattern, marker_prefix, output_queue

LOAD = PlannedMove(subscriber="s", number=0, target="f1", bytes_in_per_s=50.0, bytes_out_per_s=50.0)
ID = "h~7~m1"


def move(number: int = 1) -> Move:
    return Move(f"h~7~m{number}", "session", "e1", subscription(), "f1", "n", LOAD)


def source() -> PartsDriver:
    """The old head, with the subscription on its edge e1."""
    driver = PartsDriver("m", "n")
    driver.edge("e1")
    driver.context.enter("e1", subscription())
    driver.do()
    return driver


def accept_reply(migration: str = ID) -> AcceptReply:
    return AcceptReply(
        migration=migration, edge="f1", number=4, url="amqp://f1:1", queue=output_queue("s", 4), head_url="amqp://n:1"
    )


def one(actions: list[Action], kind: type, to: str | None = None) -> Send:
    (found,) = sent(actions, kind, to)
    return found


def begun(driver: PartsDriver) -> list[Action]:
    driver.context.now = driver.now
    driver.parts.steps.prepare(move())
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
    driver.parts.steps.prepare(move(2))
    actions = driver.do()
    assert not messages(actions, MarkerRequest)
    driver.answer(one(actions, AcceptRequest), accept_reply("h~7~m2"))
    assert driver.heard.places["h~7~m2"].heads == ALL


def test_a_head_that_has_not_confirmed_its_routes_stops_the_migration() -> None:
    driver = source()
    driver.silent = {"m"}
    begun(driver)
    driver.fire(f"wait remote {ID}", 4.0)
    assert "no confirmed routes at m" in driver.heard.problems[ID]


def test_a_head_that_does_not_answer_the_flood_stops_the_migration() -> None:
    driver = source()
    actions = begun(driver)
    driver.answer(one(actions, AcceptRequest), accept_reply())
    driver.lose(one(actions, MarkerRequest, "m"))
    assert "the process of m is not there" in driver.heard.problems[ID]
    assert not driver.heard.places


def test_a_refusal_and_silence_of_the_other_head_stop_the_migration() -> None:
    driver = source()
    actions = begun(driver)
    driver.answer(one(actions, AcceptRequest), Refusal(reason=RefusalReason.CONFLICT, message="full"))
    assert driver.heard.problems[ID] == "n: full"
    driver = source()
    count = len(messages(begun(driver), AcceptRequest))
    while ID not in driver.heard.problems:
        count += len(messages(driver.fire(f"accept {ID}", 6.0), AcceptRequest))
    assert count == ATTEMPTS_MAX


def test_markers_are_published_by_all_heads_and_again_if_asked() -> None:
    driver = prepared()
    place = driver.heard.places[ID]
    driver.parts.steps.publish_markers(move(), place)
    actions = driver.do()
    assert markers(actions) == [PublishMarker(marker_key(ID, "h"))]
    assert {request.to for request in sent(actions, MarkerRequest)} == {"m", "n"}
    driver.parts.steps.publish_markers(move(), place)  # the client started over in the meantime
    assert not markers(driver.do())
    actions = discovered(driver, actions)
    assert markers(actions) == [PublishMarker(marker_key(ID, "h"))]
    assert not driver.heard.problems


def test_a_head_that_joined_meanwhile_stops_the_migration() -> None:
    driver = prepared()
    driver.parts.steps.publish_markers(move(), driver.heard.places[ID])
    actions = driver.do()
    driver.give(MarkerPublished(marker_key(ID, "h")))
    driver.answer(one(actions, MarkerRequest, "m"), MarkerSent(migration=ID, heads=("m", "new")))
    driver.answer(one(actions, MarkerRequest, "n"), MarkerSent(migration=ID, heads=("n",)))
    assert "instead of" in driver.heard.problems[ID]


@pytest.mark.parametrize("moved", [False, True])
def test_the_end_takes_the_markers_route_away_and_is_told_until_it_is_heard(moved: bool) -> None:
    driver = prepared()
    driver.parts.steps.end(move(), moved)
    actions = driver.do()
    assert ("e1", (marker_pattern(ID),)) in [(c.target, c.remove) for c in of(actions, ChangeRoutes)]
    assert [end.moved for end in messages(actions, AcceptEnd)] == [moved]
    actions = driver.fire(f"accept-end {ID} n", 2.0)
    driver.answer(one(actions, AcceptEnd, "n"), MigrationAck(migration=ID))
    assert not messages(driver.fire(f"accept-end {ID} n", 2.0), AcceptEnd)


def test_the_end_is_not_told_for_ever_and_may_come_at_any_time() -> None:
    driver = source()
    begun(driver)
    driver.parts.steps.end(move(), False)
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
    driver.parts.steps.end(move(), False)
    driver.do()
    driver.parts.steps.prepare(move(2))
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
    driver.context.late_report(report)
    actions = driver.do()
    assert [(end.moved, end.edge, end.number) for end in messages(actions, AcceptEnd)] == [(True, "f1", 4)] * 2
    assert [(gone.subscriber, gone.number) for gone in messages(actions, OutputRemove)] == [("s", 0)]
    driver = source()
    stayed = {"stage": MigrationStage.STAYED, "edge": "e1", "number": 0, "other_edge": "f1", "other_number": 4}
    driver.context.late_report(report.model_copy(update=stayed))
    actions = driver.do()
    assert [(end.moved, end.edge, end.number) for end in messages(actions, AcceptEnd)] == [(False, "f1", 4)] * 2
    assert not messages(actions, OutputRemove)
    # So is what an edge may hold that has not told yet.
    driver = source()
    driver.context.withdraw("e1", ("s", 0))
    driver.context.registry.edges["e1"].settled = False
    driver.context.late_report(report)
    assert [(gone.subscriber, gone.number) for gone in messages(driver.do(), OutputRemove)] == [("s", 0)]
    driver.context.registry.edges["e1"].settled = True
    driver.context.late_report(report.model_copy(update={"migration": "h~6~m3", "other_number": 1}))
    assert not messages(driver.do(), OutputRemove)
    # A migration inside the cluster concerns nobody else.
    driver.edge("f1")
    driver.context.late_report(report.model_copy(update={"migration": "h~6~m2"}))
    assert not messages(driver.do(), AcceptEnd)


# Asking other clusters


def asking() -> BalanceRequest:
    return BalanceRequest(session="x", edge="e1", metric="uplink", reason="full", patterns=("a",), remote=True)


def broker(name: str, state: LoadState = LoadState.LOW, busy: bool = False) -> BrokerLoad:
    return BrokerLoad(
        broker=name, state=state, busy=busy, bytes_in_per_s=10.0, bytes_offered_per_s=10.0, messages_in_per_s=1.0
    )


def test_neighbours_with_room_are_asked_and_what_they_offer_is_put_together() -> None:
    driver = PartsDriver("m", "n", "o")
    driver.edge("e1")
    driver.tell(PieGlobal(cluster="x", head="m", state=LoadState.HIGH, period_s=5.0))
    driver.parts.candidates.ask("x", asking())
    actions = driver.do()
    assert {request.to for request in sent(actions, RemoteLoadsRequest)} == {"n", "o"}
    driver.lose(one(actions, RemoteLoadsRequest, "o"))
    offered = tuple(Candidate(cluster="y", head="n", load=broker(name)) for name in ("f2", "f1", "e1"))
    actions = driver.answer(one(actions, RemoteLoadsRequest, "n"), RemoteLoads(session="x", candidates=offered))
    # One that is called like an edge of our own can't be told from it.
    assert [found.load.broker for found in driver.sessions.candidates["x"]] == ["f1", "f2"]
    (decision,) = decisions(actions, "remote-candidates")
    assert decision.session == "x"
    assert decision.rejected == {"m": "its cluster is HIGH", "o": "its process is not there"}


def test_nobody_is_waited_for_longer_than_the_time_allows() -> None:
    driver = PartsDriver("n")
    driver.parts.candidates.ask("x", asking())
    request = one(driver.do(), RemoteLoadsRequest)
    driver.fire("remote-loads x", 2.0)
    assert driver.sessions.candidates["x"] == ()
    driver.answer(request, RemoteLoads(session="x"))  # too late
    alone = PartsDriver()
    alone.parts.candidates.ask("x", asking())
    alone.do()
    assert alone.sessions.candidates["x"] == ()


# The new head


def target() -> PartsDriver:
    """The new head `n` with LOW edges f1 and f2, neighbour of `h`."""
    driver = PartsDriver("h", "o", head="n")
    driver.sample(bytes_out=100.0, round_trips={"h": 0.3})
    for name in ("f1", "f2"):
        driver.edge(name)
        metrics = {"uplink": MetricReport(value=0.1)}
        driver.tell(PieLocal(broker=name, cluster="cluster-n", state=LoadState.LOW, metrics=metrics, period_s=1_000.0))
    return driver


def request() -> AcceptRequest:
    return AcceptRequest(
        migration=ID,
        head="h",
        edge="f1",
        subscription=subscription(),
        marker=marker_pattern(ID),
        load=LOAD,
        source="e1",
    )


def ready(driver: PartsDriver, actions: list[Action]) -> list[Action]:
    prepare = one(actions, OutputPrepare)
    assert isinstance(prepare.message, OutputPrepare)
    asked = prepare.message.subscription
    return driver.answer(prepare, OutputReady(subscription=asked, queue=output_queue("s", asked.number)))


def test_edges_are_offered_as_they_say_they_are_with_what_they_were_promised() -> None:
    driver = target()
    driver.context.enter("f1", subscription("other", 0, "a"))
    driver.context.promises.promise("p", "f1", LOAD)
    actions = driver.tell(RemoteLoadsRequest(session="x", head="h", patterns=("a", "b")))
    driver.answer(one(actions, LoadRequest, "f2"), LoadReply(session="x", load=broker("f2", busy=True)))
    actions = driver.answer(one(actions, LoadRequest, "f1"), LoadReply(session="x", load=broker("f1")))
    (reply,) = answers(actions, RemoteLoads)
    (candidate,) = reply.candidates
    assert (candidate.cluster, candidate.head, candidate.load.broker) == ("cluster-n", "n", "f1")
    assert candidate.patterns == ("a",)
    assert candidate.load.bytes_offered_per_s == 60.0
    assert candidate.extra_path_us == 150_000


def test_as_many_shared_patterns_are_named_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "PATTERNS_BYTES_MAX", 8)
    driver = target()
    for number, pattern in enumerate("abc"):
        driver.context.enter("f1", subscription("other", number, pattern))
    actions = driver.tell(RemoteLoadsRequest(session="x", head="h", patterns=("c", "a", "b")))
    driver.answer(one(actions, LoadRequest, "f2"), LoadReply(session="x", load=broker("f2", busy=True)))
    actions = driver.answer(one(actions, LoadRequest, "f1"), LoadReply(session="x", load=broker("f1")))
    (reply,) = answers(actions, RemoteLoads)
    assert [candidate.patterns for candidate in reply.candidates] == [("c", "a")]


def test_nothing_is_offered_by_a_full_head_or_of_busy_edges() -> None:
    driver = target()
    driver.sessions.edges = {"f1": "mine", "f2": "mine"}
    (reply,) = answers(driver.tell(RemoteLoadsRequest(session="x", head="h")), RemoteLoads)
    assert reply.candidates == ()
    driver = target()
    for _ in range(5):
        driver.sample(bytes_out=930.0)
    (reply,) = answers(driver.tell(RemoteLoadsRequest(session="x", head="h")), RemoteLoads)
    assert reply.candidates == ()


def test_edges_that_are_slow_to_tell_are_left_out() -> None:
    driver = target()
    actions = driver.tell(RemoteLoadsRequest(session="x", head="h"))
    driver.answer(one(actions, LoadRequest, "f1"), LoadReply(session="x", load=broker("f1")))
    assert not answers(driver.tell(RemoteLoadsRequest(session="x", head="h")), RemoteLoads)
    found = answers(driver.fire("remote-load x", 1.6), RemoteLoads)
    assert [[c.load.broker for c in reply.candidates] for reply in found] == [["f1"], ["f1"]]


def accepted() -> PartsDriver:
    driver = target()
    ready(driver, driver.tell(request()))
    return driver


def test_a_place_is_confirmed_when_it_is_made_and_the_same_again_if_asked_again() -> None:
    driver = target()
    actions = driver.tell(request())
    assert [notice.phase for notice in messages(actions, SessionNotice)] == [SessionPhase.STARTED]
    (prepare,) = messages(actions, OutputPrepare)
    assert prepare.marker == marker_pattern(ID)
    assert driver.context.routes.is_carried("f1", marker_key(ID, "o"))
    assert not answers(driver.tell(request()), AcceptReply)
    (first, second) = answers(ready(driver, actions), AcceptReply)
    assert first == second
    assert (first.edge, first.url, first.head_url) == ("f1", "amqp://f1:1", "amqp://n:1")
    assert answers(driver.tell(request()), AcceptReply) == [first]
    assert ("f1", ("s", first.number)) in driver.context.reserved


def test_a_place_without_live_routes_at_every_head_is_refused_and_taken_back() -> None:
    driver = target()
    driver.silent = {"o"}
    actions = driver.tell(request())
    assert not answers(ready(driver, actions), AcceptReply)
    actions = driver.fire(f"wait output {ID}", 4.0)
    (refusal,) = answers(actions, Refusal)
    assert "no confirmed routes at o" in refusal.message
    assert messages(actions, OutputRemove)
    assert not driver.sessions.edges
    assert not driver.context.routes.is_carried("f1", marker_key(ID, "o"))


def test_when_the_client_has_moved_the_place_is_its_own_and_rests() -> None:
    driver = accepted()
    actions = driver.tell(AcceptEnd(migration=ID, head="h", moved=True))
    assert answers(actions, MigrationAck)
    ((edge, _),) = driver.context.granted
    assert edge == "f1"
    assert not driver.context.reserved
    assert driver.context.cooldowns.rests(("s", "a"), driver.now + 59.0)
    assert not driver.context.routes.is_carried("f1", marker_key(ID, "h"))
    (notice,) = messages(actions, SessionNotice)
    assert (notice.phase, notice.moved) == (SessionPhase.ENDED, 1)
    # Doubled and late messages change nothing.
    assert answers(driver.tell(AcceptEnd(migration=ID, head="h", moved=False)), MigrationAck)
    assert driver.context.granted
    (refusal,) = answers(driver.tell(request()), Refusal)
    assert refusal.reason is RefusalReason.CONFLICT


def test_when_the_client_has_stayed_the_place_is_removed() -> None:
    driver = accepted()
    actions = driver.tell(AcceptEnd(migration=ID, head="h", moved=False))
    assert messages(actions, OutputRemove)
    assert not driver.context.granted
    assert not driver.sessions.edges


def test_the_old_head_tells_again_until_the_place_is_gone() -> None:
    """Its edge was down, this head was restarted and forgot what it had acknowledged, and the place stayed for ever."""
    driver = accepted()
    end = AcceptEnd(migration=ID, head="h", moved=False, edge="f1", subscriber="s", pattern="a", number=0)
    actions = driver.tell(end)
    (refusal,) = answers(actions, Refusal)
    assert refusal.reason is RefusalReason.NOT_READY
    assert answers(driver.tell(end), Refusal)
    remove = one(actions, OutputRemove, "f1")
    assert isinstance(remove.message, OutputRemove)
    driver.removals.answered(
        f"f1 s {remove.message.number}", OutputRemoved(subscriber="s", number=remove.message.number, edge="f1")
    )
    driver.do()
    assert answers(driver.tell(end), MigrationAck)


def test_a_client_that_leaves_before_its_old_head_knows_that_it_moved_is_kept_waiting_but_not_for_ever() -> None:
    """It unsubscribed here, its report that it had moved was never heard, and its old queue stayed for ever."""
    driver = accepted()
    ((_, key),) = driver.context.reserved
    leaves = driver.parts.acceptances.leaves_too_early
    assert leaves(key)
    (report,) = messages(driver.do(), MigrationReport)
    assert (report.migration, report.stage, report.edge) == (ID, MigrationStage.MOVED, "f1")
    assert (report.other_edge, report.other_number) == ("e1", 0)
    assert sum(leaves(key) for _ in range(100)) == LEAVING_ATTEMPTS_MAX - 1
    driver = accepted()
    driver.tell(AcceptEnd(migration=ID, head="h", moved=True))
    assert not driver.parts.acceptances.leaves_too_early(key)


def test_an_end_that_overtakes_its_request_wins() -> None:
    driver = target()
    assert answers(driver.tell(AcceptEnd(migration=ID, head="h", moved=False)), MigrationAck)
    actions = driver.tell(request())
    assert answers(actions, Refusal)
    assert not messages(actions, OutputPrepare)


def test_if_nobody_says_how_it_ended_the_place_is_kept_and_the_markers_route_goes() -> None:
    driver = target()
    actions = ready(driver, driver.tell(request()))
    (timer,) = [a for a in of(actions, SetTimer) if a.name == f"acceptance {ID}"]
    actions = driver.fire(timer.name, timer.after_s)
    assert not messages(actions, OutputRemove)
    assert driver.context.granted
    assert not driver.context.routes.is_carried("f1", marker_key(ID, "h"))
    # Should it turn out that the client never came, it goes after all.
    assert messages(driver.tell(AcceptEnd(migration=ID, head="h", moved=False)), OutputRemove)


def doubtful() -> tuple[PartsDriver, Send]:
    """Nobody said how it ended: the old head is asked where the client is."""
    driver = accepted()
    actions = driver.fire(f"acceptance {ID}", 60.0)
    return driver, one(actions, PlaceRequest, "h")


def test_a_place_in_doubt_is_removed_when_its_client_says_that_it_is_elsewhere() -> None:
    driver, asked = doubtful()
    actions = driver.answer(asked, PlaceReply(subscriber="s", pattern="a", edge="e1", number=0))
    assert messages(actions, OutputRemove)
    driver, asked = doubtful()
    actions = driver.answer(asked, PlaceReply(subscriber="s", pattern="a", edge="f1", number=0))
    assert not messages(actions, OutputRemove)
    assert driver.context.granted
    # It is not known, or in the middle of something: asked again, but not for ever.
    driver, asked = doubtful()
    moving = PlaceReply(subscriber="s", pattern="a", edge="e1", number=0, migration="h~7~m9")
    assert not messages(driver.answer(asked, moving), OutputRemove)
    count = sum(len(messages(driver.fire(f"doubt {ID}", 20.0), PlaceRequest)) for _ in range(20))
    assert count == DOUBT_ATTEMPTS_MAX - 1
    assert driver.context.granted


@pytest.mark.parametrize(
    ("place", "removed"), [(("e1", 0), True), (("e1", 5), False), (("e2", 0), False), (("f1", 4), False)]
)
def test_a_guest_that_its_old_head_has_too_never_came_if_it_is_where_it_was(
    place: tuple[str, int], removed: bool
) -> None:
    """Both heads were restarted before it was told to come: nobody knew any more that it had been expected."""
    driver = target()
    origin = {"number": 4, "origin": "h", "origin_edge": "e1", "origin_number": 0}
    driver.context.enter("f1", subscription().model_copy(update=origin))
    driver.do()
    driver.context.guest_in_doubt("o", ("s", 4))
    assert not messages(driver.do(), PlaceRequest), "it came from elsewhere"
    driver.context.guest_in_doubt("h", ("s", 4))
    asked = one(driver.do(), PlaceRequest, "h")
    actions = driver.answer(asked, PlaceReply(subscriber="s", pattern="a", edge=place[0], number=place[1]))
    assert [gone.number for gone in messages(actions, OutputRemove)] == ([4] if removed else [])


def test_a_guest_that_uses_its_place_is_not_in_doubt() -> None:
    driver = target()
    origin = {"number": 4, "origin": "h", "origin_edge": "e1", "origin_number": 0}
    driver.context.enter("f1", subscription().model_copy(update=origin))
    driver.context.granted.add(("f1", ("s", 4)))
    driver.context.guest_in_doubt("h", ("s", 4))
    assert not messages(driver.do(), PlaceRequest)


def test_a_place_in_doubt_that_is_being_moved_from_is_removed_when_that_has_been_given_up() -> None:
    driver, asked = doubtful()
    (place,) = driver.context.granted
    driver.heard.moving = {place}
    elsewhere = PlaceReply(subscriber="s", pattern="a", edge="e1", number=0)
    assert not messages(driver.answer(asked, elsewhere), OutputRemove)
    asked = one(driver.fire(f"doubt {ID}", 20.0), PlaceRequest, "h")
    driver.heard.moving = set()
    assert messages(driver.answer(asked, elsewhere), OutputRemove)


def test_a_head_asks_its_client_on_behalf_of_another_one() -> None:
    driver = source()
    (asked,) = clients(driver.tell(PlaceRequest(subscriber="s", pattern="a")), PlaceRequest)
    reply = PlaceReply(subscriber="s", pattern="a", edge="e1", number=0)
    assert answers(driver.answer(asked, reply), PlaceReply) == [reply]
    (asked,) = clients(driver.tell(PlaceRequest(subscriber="s", pattern="a")), PlaceRequest)
    assert answers(driver.lose(asked), Refusal)
    driver.tell(PlaceRequest(subscriber="s", pattern="a"))
    driver.tick(100.0)
    assert not driver.context.requests


def test_strangers_wrong_markers_and_busy_edges_are_refused() -> None:
    driver = target()
    for update in (
        {"head": "stranger"},
        {"marker": "a.b"},
        {"edge": "unknown"},
    ):
        assert answers(driver.tell(request().model_copy(update=update)), Refusal), update
    driver.sessions.edges["f1"] = "mine"
    (refusal,) = answers(driver.tell(request()), Refusal)
    assert "in session mine" in refusal.message


def test_a_restarted_head_removes_a_place_whose_client_never_came_but_none_that_is_used() -> None:
    driver = target()
    driver.context.enter("f1", subscription(number=4))
    driver.context.enter("f1", subscription(number=5))
    driver.context.granted.add(("f1", ("s", 5)))
    end = AcceptEnd(migration=ID, head="h", moved=False, edge="f1", subscriber="s", pattern="a", number=4)
    driver.context.registry.edges["f1"].settled = False
    (refusal,) = answers(driver.tell(end), Refusal)
    assert refusal.reason is RefusalReason.NOT_READY
    driver.context.registry.edges["f1"].settled = True
    assert [gone.number for gone in messages(driver.tell(end), OutputRemove)] == [4]
    used = end.model_copy(update={"migration": "h~7~m2", "number": 5})
    assert not messages(driver.tell(used), OutputRemove)
    moved = end.model_copy(update={"migration": "h~7~m3", "moved": True})
    assert not messages(driver.tell(moved), OutputRemove)
    # Whoever never learned the number means whatever nobody uses.
    driver.context.enter("f1", subscription(number=6))
    unnumbered = end.model_copy(update={"migration": "h~7~m4", "number": None})
    assert 6 in [gone.number for gone in messages(driver.tell(unnumbered), OutputRemove)]
    assert ("f1", ("s", 5)) in driver.context.granted


# The flood


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
