"""Covering sets: what enters and what leaves, and that the order of arrival does not matter."""

from __future__ import annotations

import pytest

from tidegate_agents.topics import covering as module
from tidegate_agents.topics.covering import NO_CHANGE, CoverChange, CoveringSet
from tidegate_protocol.topics import covers


def test_a_covered_pattern_changes_nothing() -> None:
    covering = CoveringSet(["a.#"])
    assert covering.add("a.b") == NO_CHANGE
    assert covering.maximal == {"a.#"}
    assert "a.b" in covering
    assert covering.covers("a.b.c")


def test_a_general_pattern_replaces_those_it_covers() -> None:
    covering = CoveringSet(["a.b", "a.c", "b"])
    assert covering.add("a.*") == CoverChange(entered=("a.*",), left=("a.b", "a.c"))
    assert covering.maximal == {"a.*", "b"}


def test_what_was_covered_comes_back() -> None:
    covering = CoveringSet(["a.b", "a.*", "a.#", "#"])
    assert covering.remove("#") == CoverChange(entered=("a.#",), left=("#",))
    assert covering.remove("a.#") == CoverChange(entered=("a.*",), left=("a.#",))
    assert covering.remove("a.*") == CoverChange(entered=("a.b",), left=("a.*",))


def test_a_pattern_counts_as_often_as_it_was_added() -> None:
    covering = CoveringSet(["a", "a"])
    assert covering.count("a") == 2
    assert covering.remove("a") == NO_CHANGE
    assert covering.remove("a") == CoverChange(left=("a",))
    with pytest.raises(KeyError):
        covering.remove("a")


@pytest.mark.parametrize("patterns", [("#.*", "*.#"), ("*.#", "#.*")])
def test_the_smallest_stands_for_equivalent_patterns(patterns: tuple[str, str]) -> None:
    covering = CoveringSet(patterns)
    assert covering.maximal == {"#.*"}
    assert covering.remove("#.*") == CoverChange(entered=("*.#",), left=("#.*",))
    covering.validate()


@pytest.mark.parametrize("form", ["sensor.{}", "sensor.{}.*", "sensor.{}.#"])
def test_many_patterns_with_different_stems_are_cheap_to_keep(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern is compared with those whose stem begins its own, not with its thousands of peers."""
    calls = 0

    def counting(general: str, special: str) -> bool:
        nonlocal calls
        calls += 1
        return covers(general, special)

    monkeypatch.setattr(module, "covers", counting)
    covering = CoveringSet(["x.#"])
    for number in range(2_000):
        covering.add(form.format(number))
    for number in range(2_000):
        covering.remove(form.format(number))
    assert covering.maximal == {"x.#"}
    assert calls <= 2 * 2_000


def test_thousands_of_patterns_that_begin_with_wildcards_are_told_apart_by_their_words() -> None:
    """Compared one by one, these would take minutes and run into the time limit."""
    patterns = [f"#.s{number}.#" for number in range(5_000)] + [f"*.s{number}.#" for number in range(5_000)]
    found = CoveringSet(patterns)
    assert found.maximal == set(patterns[:5_000])
    assert found.add("#").left == tuple(sorted(patterns[:5_000]))
    assert found.remove("#").entered == tuple(sorted(patterns[:5_000]))
