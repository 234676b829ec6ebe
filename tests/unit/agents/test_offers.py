"""What is named about candidates fits into a control message, whatever there is to name, and is shared out fairly."""

from __future__ import annotations

import pytest

from tests.support.head_cluster import load
from tidegate_agents.head.moving import offers
from tidegate_agents.head.moving.offers import PATTERNS_BYTES_MAX, RESTING_BYTES_MAX, fitting_candidates
from tidegate_protocol.balancing.sessions import CANDIDATES_MAX, SHARED_PATTERNS_MAX, BalanceCandidates, Candidate
from tidegate_protocol.messages import CONTROL_BYTES_MAX, encode
from tidegate_protocol.topics import TOPIC_BYTES_MAX


def candidate(name: str, *patterns: str) -> Candidate:
    return Candidate(cluster="c", head="h", load=load(name), patterns=patterns)


def pattern(number: int, filler: str = "x") -> str:
    return f"{number:05d}.".ljust(TOPIC_BYTES_MAX // len(filler.encode()) - 6, filler)


@pytest.mark.parametrize("filler", ["x", '"', "\\", "ü"])
def test_the_largest_answer_there_can_be_fits_into_a_message(filler: str) -> None:
    patterns = tuple(pattern(number, filler) for number in range(SHARED_PATTERNS_MAX))
    names = [f"e{number}-".ljust(48, "x") for number in range(CANDIDATES_MAX)]
    one_of_them = candidate("e", *patterns)
    found = fitting_candidates([one_of_them.model_copy(update={"load": load(name)}) for name in names])
    resting = offers.fitting((f"out.{'s' * 48}.{number}" for number in range(20_000)), RESTING_BYTES_MAX)
    message = BalanceCandidates(session="e~1~1", candidates=found, resting=resting, occupied=tuple(names))
    assert CONTROL_BYTES_MAX / 2 < len(encode(message)) <= CONTROL_BYTES_MAX
    assert [one.load.broker for one in found] == names
    assert {one.patterns for one in found} == {patterns[: len(found[0].patterns)]}, "the first ones, of each as many"
    assert found[0].patterns


def test_what_one_does_not_need_the_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "PATTERNS_BYTES_MAX", 40)
    many = ("a", "b", "c", "d", "e", "f")  # four bytes each
    found = fitting_candidates([candidate("e1", *many), candidate("e2", "z"), candidate("e3", *many)])
    assert [one.patterns for one in found] == [("a", "b", "c", "d"), ("z",), ("a", "b", "c", "d")]


def test_what_fits_is_left_as_it_is() -> None:
    candidates = (candidate("e1", "a"), candidate("e2"))
    assert fitting_candidates(candidates) == candidates
    assert fitting_candidates(()) == ()
    assert PATTERNS_BYTES_MAX + RESTING_BYTES_MAX < CONTROL_BYTES_MAX
