"""Subscriptions moved to another cluster: the side of the head that takes them over, and asks where clients are."""

from __future__ import annotations

import pytest

from tests.support.abroad import ID, LOAD, broker, one
from tests.support.agents_driver import of, subscription
from tests.support.parts_driver import PartsDriver, answers, messages
from tidegate_agents.head.abroad.arriving import LEAVING_ATTEMPTS_MAX
from tidegate_agents.head.abroad.endings import DOUBT_ATTEMPTS_MAX
from tidegate_agents.head.moving import offers
from tidegate_agents.head.places.ledger import RESERVED, USED
from tidegate_agents.machine import Action, Send, SetTimer
from tidegate_protocol.balancing.abroad import AcceptEnd, AcceptReply, AcceptRequest, RemoteLoads, RemoteLoadsRequest
from tidegate_protocol.balancing.loads import MetricReport, PieLocal
from tidegate_protocol.balancing.migrations import MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.balancing.places import PlaceReply, PlaceRequest
from tidegate_protocol.balancing.sessions import (
    LoadReply,
    LoadRequest,
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
from tidegate_protocol.names import marker_key, marker_pattern, output_queue
from tidegate_protocol.rights import AccountRights, Rules


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
    driver.context.ledger.found("f1", subscription("other", 0, "a"))
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


def test_a_subscription_that_the_rules_here_do_not_allow_is_not_taken_over() -> None:
    driver = target()
    driver.context.rules = Rules.of(AccountRights(account="s", subscribe=("b",)))
    actions = driver.tell(request())
    (refusal,) = answers(actions, Refusal)
    assert refusal.reason is RefusalReason.NOT_ALLOWED
    assert not messages(actions, OutputPrepare)


def test_as_many_shared_patterns_are_named_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "PATTERNS_BYTES_MAX", 8)
    driver = target()
    for number, pattern in enumerate("abc"):
        driver.context.ledger.found("f1", subscription("other", number, pattern))
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
    assert driver.context.ledger.state(("f1", ("s", first.number))) is RESERVED


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
    ((edge, _),) = driver.context.ledger.all_in(USED)
    assert edge == "f1"
    assert not tuple(driver.context.ledger.all_in(RESERVED))
    assert driver.context.cooldowns.rests(("s", "a"), driver.now + 59.0)
    assert not driver.context.routes.is_carried("f1", marker_key(ID, "h"))
    (notice,) = messages(actions, SessionNotice)
    assert (notice.phase, notice.moved) == (SessionPhase.ENDED, 1)
    # Doubled and late messages change nothing.
    assert answers(driver.tell(AcceptEnd(migration=ID, head="h", moved=False)), MigrationAck)
    assert tuple(driver.context.ledger.all_in(USED))
    (refusal,) = answers(driver.tell(request()), Refusal)
    assert refusal.reason is RefusalReason.CONFLICT


def test_a_client_that_was_accepted_before_a_restart_rests_once_it_has_moved() -> None:
    """The head did not remember the acceptance, and moved the client on two seconds after it had come."""
    driver = target()
    end = AcceptEnd(migration=ID, head="h", moved=True, edge="f1", subscriber="s", pattern="a", number=0)
    assert answers(driver.tell(end), MigrationAck)
    until_s = driver.now + driver.context.config.balancing.cooldown_s
    assert driver.context.cooldowns.rests(("s", "a"), until_s - 1.0)
    driver.now += 10.0
    assert answers(driver.tell(end), MigrationAck)
    assert not driver.context.cooldowns.rests(("s", "a"), until_s + 1.0)


def test_when_the_client_has_stayed_the_place_is_removed() -> None:
    driver = accepted()
    actions = driver.tell(AcceptEnd(migration=ID, head="h", moved=False))
    assert messages(actions, OutputRemove)
    assert not tuple(driver.context.ledger.all_in(USED))
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
    driver.answer(remove, OutputRemoved(subscriber="s", number=remove.message.number, edge="f1"))
    assert answers(driver.tell(end), MigrationAck)


def test_a_client_that_leaves_before_its_old_head_knows_that_it_moved_is_kept_waiting_but_not_for_ever() -> None:
    """It unsubscribed here, its report that it had moved was never heard, and its old queue stayed for ever."""
    driver = accepted()
    ((_, key),) = driver.context.ledger.all_in(RESERVED)
    leaves = driver.acceptances.leaves_too_early
    assert leaves(key)
    (report,) = messages(driver.do(), MigrationReport)
    assert (report.migration, report.stage, report.edge) == (ID, MigrationStage.MOVED, "f1")
    assert (report.other_edge, report.other_number) == ("e1", 0)
    assert sum(leaves(key) for _ in range(100)) == LEAVING_ATTEMPTS_MAX - 1
    driver = accepted()
    driver.tell(AcceptEnd(migration=ID, head="h", moved=True))
    assert not driver.acceptances.leaves_too_early(key)


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
    assert tuple(driver.context.ledger.all_in(USED))
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
    assert tuple(driver.context.ledger.all_in(USED))
    # It is not known, or in the middle of something: asked again, but not for ever.
    driver, asked = doubtful()
    moving = PlaceReply(subscriber="s", pattern="a", edge="e1", number=0, migration="h~7~m9")
    assert not messages(driver.answer(asked, moving), OutputRemove)
    count = sum(len(messages(driver.fire(f"doubt {ID}", 20.0), PlaceRequest)) for _ in range(20))
    assert count == DOUBT_ATTEMPTS_MAX - 1
    assert tuple(driver.context.ledger.all_in(USED))


@pytest.mark.parametrize(
    ("place", "removed"), [(("e1", 0), True), (("e1", 5), False), (("e2", 0), False), (("f1", 4), False)]
)
def test_a_guest_that_its_old_head_has_too_never_came_if_it_is_where_it_was(
    place: tuple[str, int], removed: bool
) -> None:
    """Both heads were restarted before it was told to come: nobody knew any more that it had been expected."""
    driver = target()
    origin = {"number": 4, "origin": "h", "origin_edge": "e1", "origin_number": 0}
    driver.context.ledger.found("f1", subscription().model_copy(update=origin))
    driver.do()
    driver.endings.guest_in_doubt("o", ("s", 4))
    assert not messages(driver.do(), PlaceRequest), "it came from elsewhere"
    driver.endings.guest_in_doubt("h", ("s", 4))
    asked = one(driver.do(), PlaceRequest, "h")
    actions = driver.answer(asked, PlaceReply(subscriber="s", pattern="a", edge=place[0], number=place[1]))
    assert [gone.number for gone in messages(actions, OutputRemove)] == ([4] if removed else [])


def test_a_guest_that_uses_its_place_is_not_in_doubt() -> None:
    driver = target()
    origin = {"number": 4, "origin": "h", "origin_edge": "e1", "origin_number": 0}
    driver.context.ledger.found("f1", subscription().model_copy(update=origin))
    driver.context.ledger.use(("f1", ("s", 4)))
    driver.endings.guest_in_doubt("h", ("s", 4))
    assert not messages(driver.do(), PlaceRequest)


def test_a_place_in_doubt_that_is_being_moved_from_is_removed_when_that_has_been_given_up() -> None:
    driver, asked = doubtful()
    (place,) = driver.context.ledger.all_in(USED)
    driver.heard.moving = {place}
    elsewhere = PlaceReply(subscriber="s", pattern="a", edge="e1", number=0)
    assert not messages(driver.answer(asked, elsewhere), OutputRemove)
    asked = one(driver.fire(f"doubt {ID}", 20.0), PlaceRequest, "h")
    driver.heard.moving = set()
    assert messages(driver.answer(asked, elsewhere), OutputRemove)


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
    driver.context.ledger.found("f1", subscription(number=4))
    driver.context.ledger.found("f1", subscription(number=5))
    driver.context.ledger.use(("f1", ("s", 5)))
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
    driver.context.ledger.renew("f1", subscription(number=6))
    unnumbered = end.model_copy(update={"migration": "h~7~m4", "number": None})
    assert 6 in [gone.number for gone in messages(driver.tell(unnumbered), OutputRemove)]
    assert driver.context.ledger.state(("f1", ("s", 5))) is USED
