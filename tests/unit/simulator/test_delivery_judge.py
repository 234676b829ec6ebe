"""The judge against the plainest account there is: a list of what came."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tidegate_simulator.judging import LATE_TOLERANCE_S, NAMED_MAX, Judge, Wrong, is_late, stream_of, total

sequences = st.lists(st.integers(0, 12), max_size=30)


def judged(came: list[int], life: int = 0) -> tuple[Judge, list[Wrong | None]]:
    judge = Judge()
    return judge, [judge.take("p~1:t", sequence, life=life) for sequence in came]


def test_each_kind_of_wrong_is_told() -> None:
    judge, told = judged([3, 4, 4, 7, 6, 2, 6])
    assert told == [None, None, Wrong.DOUBLED, None, Wrong.OUT_OF_ORDER, Wrong.OUT_OF_ORDER, Wrong.DOUBLED]
    assert judge.lost("p~1:t", published=10) == [5, 8, 9]
    assert judge.lost("p~1:t", published=10, owed_from=0) == [0, 1, 5, 8, 9]
    assert judge.lost("p~1:t", published=6, owed_from=5) == [5]


@given(sequences, st.integers(0, 12), st.integers(0, 14))
def test_the_judge_agrees_with_a_list(came: list[int], owed_from: int, published: int) -> None:
    judge, told = judged(came)
    for place, sequence in enumerate(came):
        before = came[:place]
        newer = any(other > sequence for other in before)
        expected = Wrong.DOUBLED if sequence in before else Wrong.OUT_OF_ORDER if newer else None
        assert told[place] is expected
    assert judge.lost("p~1:t", published, owed_from) == [n for n in range(owed_from, published) if n not in came]
    assert judge.lost("p~1:t", published) == [n for n in range(min(came, default=0), published) if n not in came]
    assert [judge.came("p~1:t", n) for n in range(14)] == [n in came for n in range(14)]
    assert judge.following("p~1:t") == max(came, default=-1) + 1


@given(sequences, sequences)
def test_lives_are_judged_apart_and_lack_together(first: list[int], second: list[int]) -> None:
    judge, told = judged(first)
    told += [judge.take("p~1:t", sequence, life=1) for sequence in second]
    assert told == [*judged(first)[1], *judged(second)[1]]
    assert judge.lost("p~1:t", 14, owed_from=0) == [n for n in range(14) if n not in {*first, *second}]


def test_streams_are_judged_apart() -> None:
    judge = Judge()
    assert [judge.take(stream, 0) for stream in ("p~1:a", "p~1:b", "q~1:a")] == [None, None, None]
    assert judge.lost("q~1:b", published=2) == [0, 1]


def test_what_was_collected_may_be_older_but_not_doubled() -> None:
    judge, _ = judged([0, 5])
    assert judge.take("p~1:t", 3, collected=True) is None
    assert judge.take("p~1:t", 3, collected=True) is Wrong.DOUBLED


def test_the_first_few_offenders_are_named_and_all_are_counted() -> None:
    judges = [judged([0] * 20)[0], judged([1, 0])[0]]
    assert total(judges, Wrong.DOUBLED) == 19
    assert len(judges[0].offenders[Wrong.DOUBLED]) == NAMED_MAX
    assert judges[1].offenders == {Wrong.OUT_OF_ORDER: ["p~1:t:0 when p~1:t:2 was due"]}


def test_just_the_deadline_is_in_time() -> None:
    assert not is_late(0.1 + 0.2, 0.3)
    assert is_late(0.3 + 2 * LATE_TOLERANCE_S, 0.3)
    assert stream_of("p~1:a.b:17") == ("p~1:a.b", 17)
