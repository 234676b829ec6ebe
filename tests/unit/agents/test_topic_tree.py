"""Trees of topics and patterns: what is found, what is left behind, and how much work it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.agents_driver import subscription
from tests.support.parts_driver import PartsDriver
from tidegate_agents.head.publishers import paths
from tidegate_agents.load.metrics import PublisherSample
from tidegate_agents.topics import tree as module
from tidegate_agents.topics.tree import TopicTree, matching

MANY = 300


def found(topics: list[str], patterns: list[str]) -> list[tuple[str, str]]:
    return sorted(matching(TopicTree(topics), TopicTree(patterns)))


def test_wildcards_take_what_they_take_in_rabbitmq() -> None:
    patterns = ["#", "*", "a.#", "a.*", "#.b", "a.#.b", "#.#", "a.b"]
    assert found(["a"], patterns) == [("a", "#"), ("a", "#.#"), ("a", "*"), ("a", "a.#")]
    assert [pattern for _, pattern in found(["a.b"], patterns)] == sorted({*patterns} - {"*"})
    assert found([""], patterns) == [("", "#"), ("", "#.#")], "no words at all"


def test_nothing_is_left_of_what_was_discarded() -> None:
    tree = TopicTree(["a", "a.b.c", "a.b", "a.b"])
    assert len(tree) == 3
    for text in ("a.b", "a.b", "x", "a.b.c.d"):
        tree.discard(text)
        tree.validate()
    assert set(tree) == {"a", "a.b.c"}
    for text in ("a.b.c", "a"):
        tree.discard(text)
        tree.validate()
    assert not list(tree)
    assert not tree._root.children


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a word was looked at so far; comparing a pattern with a topic counts as well."""
    calls = 0

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            return original(*arguments)

        return counting

    monkeypatch.setattr(module, "_step", counted(module._step))
    monkeypatch.setattr(paths, "matches", counted(paths.matches))
    return lambda: calls


def quiet(driver: PartsDriver) -> PartsDriver:
    """Without the checks after each step, which do compare everything with everything."""
    driver.validate = lambda: None  # type: ignore[method-assign]
    return driver


def sampled(prefix: str) -> list[PublisherSample]:
    return [PublisherSample("p~1", f"{prefix}.{n}.rain", 1.0, 100.0) for n in range(MANY)]


FORMS = ["sensor.{}.*", "*.{}.*", "#.{}.#", "sensor.#.{}.rain"]


@pytest.mark.parametrize("form", FORMS)
def test_new_topics_are_not_compared_with_every_pattern(form: str, steps: Callable[[], int]) -> None:
    driver = quiet(PartsDriver())
    driver.edge("e1")
    for number in range(MANY):
        driver.context.ledger.found("e1", subscription(number=number, pattern=form.format(number)))
    driver.tick()
    before = steps()
    driver.sample(*sampled("reply"))
    driver.tick()
    driver.sample(*sampled("sensor"))
    driver.tick()
    assert steps() - before <= 2 * 3 * MANY, "so many words came"
    assert driver.parts.paths.topics_of(form.format(7)) == [
        f"{prefix}.7.rain" for prefix in ("reply", "sensor") if not (form.startswith("sensor") and prefix == "reply")
    ]


@pytest.mark.parametrize("form", FORMS)
def test_an_edge_that_returns_with_many_patterns_is_not_compared_with_every_topic(
    form: str, steps: Callable[[], int]
) -> None:
    driver = quiet(PartsDriver())
    driver.edge("e1")
    driver.sample(*sampled("sensor"))
    for number in range(MANY):
        driver.context.ledger.found("e1", subscription(number=number, pattern=form.format(number)))
    for alive in (True, False, True):
        before = steps()
        driver.context.registry.edges["e1"].alive = alive
        driver.tick()
        assert steps() - before <= 1 + 2 * MANY, "so many words there are below the first one, and that"
    assert driver.parts.paths.topics_of(form.format(7)) == ["sensor.7.rain"]
