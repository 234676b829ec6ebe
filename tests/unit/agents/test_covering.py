"""Covering sets: what enters and what leaves, and that the order of arrival does not matter."""

from __future__ import annotations

import pytest
from tidegate_agents.covering import NO_CHANGE, CoverChange, CoveringSet


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


def test_many_plain_topics_are_cheap_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain topic is compared with patterns that have wildcards only, not with its thousands of peers."""
    from tidegate_agents import covering as module

    calls = 0
    original = module.covers

    def counting(general: str, special: str) -> bool:
        nonlocal calls
        calls += 1
        return original(general, special)

    monkeypatch.setattr(module, "covers", counting)
    covering = CoveringSet(["x.#"])
    for number in range(2_000):
        covering.add(f"sensor.{number}")
    assert calls <= 2 * 2_000
