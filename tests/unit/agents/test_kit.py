"""The pieces every agent is built with: questions repeated and given up, answers gathered, memories bounded."""

from __future__ import annotations

import pytest

from tidegate_agents.config import ATTEMPTS_MAX, REPLIES_JOINED_MAX
from tidegate_agents.kit.answers import rejected_for, why_not
from tidegate_agents.kit.calls import Answer, Calls, Silence
from tidegate_agents.kit.dispatch import Dispatch
from tidegate_agents.kit.gather import Gatherings
from tidegate_agents.kit.memory import Recent
from tidegate_agents.kit.outbox import Outbox, joined
from tidegate_agents.machine import (
    Action,
    CancelTimer,
    Record,
    Reply,
    ReplyAddress,
    Send,
    SendClient,
    SetTimer,
)
from tidegate_protocol.decisions import MoveOutcome, Rejected, Rejection, Removed, WhyNot
from tidegate_protocol.messages import (
    ControlMessage,
    PublisherGoodbye,
    Refusal,
    RefusalReason,
    RegistryRequest,
    StatusRequest,
)
from tidegate_protocol.rendering import refusals

QUESTION = StatusRequest()
ANSWER = PublisherGoodbye(publisher="p~1")
REFUSAL = Refusal(reason=RefusalReason.LIMIT, message="there is no room")


class Part:
    """A part with calls and gatherings, and what it heard."""

    def __init__(self) -> None:
        self.outbox = Outbox("h", 7)
        self.dispatch = Dispatch()
        self.calls = Calls(self.outbox, "call", 2.0, lambda subject, answer: self.heard.append((subject, answer)))
        self.gatherings = Gatherings(self.outbox, "many", self._gathered, self._complete)
        self.calls.register(self.dispatch)
        self.gatherings.register(self.dispatch)
        self.heard: list[tuple[str, Answer]] = []
        self.complete: list[str] = []
        self.stops_when_heard = False

    def _gathered(self, subject: str, broker: str, answer: Answer) -> None:
        self.heard.append((f"{subject} {broker}", answer))
        if self.stops_when_heard:
            self.gatherings.stop(subject)

    def _complete(self, subject: str) -> None:
        self.complete.append(subject)

    def actions(self) -> list[Action]:
        for check in self.dispatch.checks:
            check()
        return self.outbox.take_actions()

    def sent(self) -> list[str]:
        """The ids of the requests that went out since this was last asked, in order."""
        return [a.request_id or "" for a in self.actions() if isinstance(a, Send | SendClient)]

    def answer(self, request_id: str, message: ControlMessage = ANSWER) -> None:
        self.dispatch.answer(*self.outbox.requests.pop(request_id, ("", "")), message)

    def undeliverable(self, request_id: str) -> None:
        self.dispatch.answer(*self.outbox.requests.pop(request_id, ("", "")), Silence.ABSENT)


# Calls


def test_a_question_is_repeated_and_then_given_up() -> None:
    part = Part()
    part.calls.ask("x y", "e1", QUESTION)
    assert part.actions() == [Send("e1", QUESTION, "h~7~1"), SetTimer("call x y", 2.0)]
    for attempt in range(2, ATTEMPTS_MAX + 1):
        part.dispatch.timer("call x y")
        assert part.actions() == [Send("e1", QUESTION, f"h~7~{attempt}"), SetTimer("call x y", 2.0)]
        assert part.calls.attempts("x y") == attempt
    assert part.heard == []
    part.dispatch.timer("call x y")
    assert part.heard == [("x y", Silence.LATE)]
    assert part.sent() == []
    assert part.outbox.requests == {}, "an answer that comes now is of no interest"


def test_only_the_answer_to_the_latest_repetition_counts() -> None:
    part = Part()
    part.calls.ask("x", "e1", QUESTION)
    part.dispatch.timer("call x")
    first, second = part.sent()
    part.answer(first)
    assert part.heard == []
    part.answer(second)
    assert part.heard == [("x", ANSWER)]


def test_an_answer_that_is_not_taken_leaves_the_question_open() -> None:
    part = Part()
    part.calls.ask("x", "e1", QUESTION)
    part.answer(*part.sent(), REFUSAL)
    assert part.heard == [("x", REFUSAL)]
    part.dispatch.timer("call x")
    assert len(part.sent()) == 1
    part.calls.close("x")
    assert part.actions() == [CancelTimer("call x")]
    part.dispatch.timer("call x")
    assert part.actions() == []
    part.calls.close("x")
    assert part.actions() == [], "closing again changes nothing"


def test_an_addressee_that_is_not_there_is_told_at_once() -> None:
    part = Part()
    part.calls.ask_client("x", "s1", QUESTION)
    actions = part.actions()
    assert actions == [SendClient("s1", QUESTION, "h~7~1"), SetTimer("call x", 2.0)]
    part.undeliverable("h~7~1")
    assert part.heard == [("x", Silence.ABSENT)]
    part.dispatch.timer("call x")
    assert part.calls.attempts("x") == 2, "it may be there again"


def test_a_new_question_about_the_same_subject_replaces_the_one_before() -> None:
    part = Part()
    part.calls.ask("x", "e1", QUESTION)
    part.dispatch.timer("call x")
    part.calls.ask("x", "e2", RegistryRequest(after="q"), within_s=5.0, attempts_max=1)
    old = part.sent()[:2]
    assert part.calls.attempts("x") == 1
    for request_id in old:
        part.answer(request_id)
    assert part.heard == []
    part.dispatch.timer("call x")
    assert part.heard == [("x", Silence.LATE)]


def test_a_question_may_be_made_anew_for_each_repetition() -> None:
    part = Part()
    left = iter("ab")
    part.calls.ask("x", "e1", lambda: RegistryRequest(after=next(left)))
    assert part.calls.again("x")
    told = [action.message for action in part.actions() if isinstance(action, Send)]
    assert told == [RegistryRequest(after="a"), RegistryRequest(after="b")]


def test_a_question_is_not_asked_more_often_than_it_may_be() -> None:
    part = Part()
    part.calls.ask_client("x", "s1", QUESTION, attempts_max=2)
    assert part.calls.again("x")
    assert not part.calls.again("x")
    assert len(part.sent()) == 2


def test_waiting_asks_nothing_and_ends() -> None:
    part = Part()
    part.calls.ask("x", "e1", QUESTION)
    asked = part.sent()
    part.calls.wait("x", 9.0)
    assert part.actions() == [SetTimer("call x", 9.0)]
    part.answer(*asked)
    assert part.heard == []
    part.dispatch.timer("call x")
    assert part.heard == [("x", Silence.LATE)]


@pytest.mark.parametrize(
    ("answer", "rejection", "outcome", "detail"),
    [
        (Silence.ABSENT, Rejection.PROCESS_ABSENT, MoveOutcome.PROCESS_ABSENT, ""),
        (Silence.LATE, Rejection.NO_ANSWER, MoveOutcome.NO_ANSWER, ""),
        (Refusal(reason=RefusalReason.LIMIT, message="full"), Rejection.REFUSED, MoveOutcome.REFUSED, "full"),
        (QUESTION, Rejection.REFUSED, MoveOutcome.REFUSED, QUESTION.kind),
    ],
)
def test_an_answer_that_does_not_help_is_named(
    answer: Answer, rejection: Rejection, outcome: MoveOutcome, detail: str
) -> None:
    assert rejected_for("e1", answer) == Rejected("e1", rejection, detail=detail)
    assert why_not("e1", answer) == WhyNot(outcome, ("e1",), detail)


# Gatherings


def test_a_gathering_is_complete_when_all_were_heard() -> None:
    part = Part()
    part.gatherings.ask("g", {"e2": QUESTION, "e1": QUESTION}, within_s=3.0)
    actions = part.actions()
    assert actions == [Send("e1", QUESTION, "h~7~1"), Send("e2", QUESTION, "h~7~2"), SetTimer("many g", 3.0)]
    part.answer("h~7~2")
    assert part.gatherings.missing("g") == ["e1"]
    assert part.complete == []
    part.undeliverable("h~7~1")
    assert part.heard == [("g e2", ANSWER), ("g e1", Silence.ABSENT)]
    assert part.complete == ["g"]
    assert part.actions() == [CancelTimer("many g")]
    assert "g" not in part.gatherings


def test_a_gathering_names_who_was_silent_when_the_time_is_over() -> None:
    part = Part()
    part.gatherings.ask("g", {"e1": QUESTION, "e2": QUESTION, "e3": QUESTION}, within_s=3.0)
    late = part.sent()
    part.answer(late[1])
    part.dispatch.timer("many g")
    assert part.heard == [("g e2", ANSWER), ("g e1", Silence.LATE), ("g e3", Silence.LATE)]
    assert part.complete == ["g"]
    part.answer(late[0])
    assert len(part.heard) == 3
    assert part.outbox.requests == {}


def test_those_who_are_silent_are_asked_again_while_they_may_be() -> None:
    part = Part()
    part.gatherings.ask("g", {"e1": QUESTION, "e2": QUESTION}, within_s=3.0, attempts_max=2)
    first, second = part.sent()
    part.answer(second)
    part.dispatch.timer("many g")
    (again,) = part.sent()
    part.answer(first)
    assert part.complete == [], "the first question was replaced"
    part.answer(again)
    assert part.complete == ["g"]


def test_with_nobody_to_ask_a_gathering_is_complete_at_once() -> None:
    part = Part()
    part.gatherings.ask("g", {}, within_s=3.0)
    assert part.complete == ["g"]
    assert part.actions() == [SetTimer("many g", 3.0), CancelTimer("many g")]


def test_more_brokers_may_join_a_gathering() -> None:
    part = Part()
    part.gatherings.ask("g", {"e1": QUESTION})
    part.gatherings.ask("g", {"e2": QUESTION})
    first, second = part.sent()
    part.answer(first)
    assert part.complete == []
    part.answer(second)
    assert part.complete == ["g"]


def test_a_broker_may_be_awaited_without_being_asked() -> None:
    part = Part()
    part.gatherings.ask("g", {"h": None, "e1": QUESTION}, within_s=3.0)
    part.answer(*part.sent())
    assert part.complete == []
    part.gatherings.done("g", "h")
    assert part.complete == ["g"]
    part.gatherings.done("g", "h")
    assert part.complete == ["g"]


def test_a_gathering_that_its_part_stops_is_not_completed() -> None:
    part = Part()
    part.stops_when_heard = True
    part.gatherings.ask("g", {"e1": QUESTION, "e2": QUESTION}, within_s=3.0)
    part.dispatch.timer("many g")
    assert part.heard == [("g e1", Silence.LATE)]
    assert part.complete == []
    part.gatherings.ask("g", {"e1": QUESTION, "e2": QUESTION}, within_s=3.0)
    assert part.gatherings.stop("g") == ["e1", "e2"]
    assert part.gatherings.stop("g") == []
    assert part.outbox.requests == {}


# Memory


def test_the_oldest_is_forgotten_and_what_is_written_again_is_new() -> None:
    memory: Recent[str, int] = Recent(2)
    memory["a"], memory["b"] = 1, 2
    memory["a"] = 3
    memory["c"] = 4
    memory.validate()
    assert dict(memory) == {"a": 3, "c": 4}
    assert list(memory) == ["a", "c"]
    assert memory.get("b") is None
    assert memory.pop("a", None) == 3
    assert len(memory) == 1
    memory.setdefault("d", 5)
    memory.setdefault("e", 6)
    assert list(memory) == ["d", "e"]


# Outbox


def test_actions_go_out_in_order_and_once() -> None:
    outbox = Outbox("e1", 3)
    decision = Removed("subscriber", 0, "e1")
    outbox.now = 5.0
    outbox.decide(decision)
    outbox.set_timer("t", -1.0)
    with pytest.raises(AssertionError):
        outbox.validate()
    assert outbox.take_actions() == [Record(decision), SetTimer("t", 0.0)]
    assert outbox.chronicle.decisions == [decision]
    assert [dated.at_s for dated in outbox.chronicle.matching(lambda _: True, 9)] == [5.0]
    outbox.validate()


def test_a_request_that_was_dropped_is_led_nowhere() -> None:
    outbox = Outbox("e1", 3)
    first = outbox.request("h", QUESTION, "part", "one")
    second = outbox.send_client("s", QUESTION, "part", "two")
    assert outbox.requests == {first: ("part", "one"), second: ("part", "two")}
    outbox.drop_request(first)
    outbox.drop_request(first)
    outbox.drop_request(None)
    assert outbox.requests == {second: ("part", "two")}


def test_everybody_who_asked_is_answered() -> None:
    outbox = Outbox("e1", 3)
    one, other = ReplyAddress("a", "1"), ReplyAddress("b", "2")
    outbox.reply(one, ANSWER)
    outbox.reply(None, ANSWER)
    outbox.reply([one, None, other], ANSWER)
    assert outbox.take_actions() == [Reply(one, ANSWER), Reply(one, ANSWER), Reply(other, ANSWER)]
    outbox.refuse(other, refusals.limit("x" * 5_000, 7, "field"), 2.0)
    (refused,) = outbox.take_actions()
    assert isinstance(refused, Reply)
    assert isinstance(refused.message, Refusal)
    assert refused.message.message == "x" * refusals.TEXT_MAX
    assert (refused.message.field, refused.message.retry_after_s) == ("field", 2.0)


def test_of_those_who_ask_the_same_the_latest_are_answered() -> None:
    waiting: list[ReplyAddress] = []
    for number in range(REPLIES_JOINED_MAX + 3):
        waiting = joined(waiting, ReplyAddress("a", str(number)))
    assert joined(waiting, None) == waiting
    assert [address.request for address in waiting] == [str(n) for n in range(3, REPLIES_JOINED_MAX + 3)]
