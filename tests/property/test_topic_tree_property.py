"""What trees of topics and patterns find, and what a head's paths make of it, against trying every pair."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tests.support.agents_driver import subscription
from tests.support.parts_driver import PartsDriver
from tidegate_agents.topics.tree import TopicTree, matching
from tidegate_protocol.topics import ANY_WORDS_MAX, matches

TOPICS = st.lists(st.sampled_from(["a", "b", "z"]), min_size=1, max_size=6).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=6).map(".".join)
LEGAL = PATTERNS.filter(lambda pattern: pattern.count("#") <= ANY_WORDS_MAX)
"""What a client may subscribe to. Trees find other patterns too."""


def changes(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[bool, str]]]:
    return st.lists(st.tuples(st.sampled_from([True, True, False]), texts), max_size=30)


def changed(changes: list[tuple[bool, str]]) -> tuple[TopicTree, set[str]]:
    tree, texts = TopicTree(), set[str]()
    for add, text in changes:
        if add:
            tree.add(text)
            texts.add(text)
        else:
            # What is there is taken away more often than something that never was.
            text = min(texts, default=text)
            tree.discard(text)
            texts.discard(text)
        tree.validate()
    assert (len(tree), set(tree)) == (len(texts), texts)
    return tree, texts


@given(changes(TOPICS), changes(PATTERNS))
def test_exactly_the_pairs_that_match_are_found_once(
    topic_changes: list[tuple[bool, str]], pattern_changes: list[tuple[bool, str]]
) -> None:
    topic_tree, topics = changed(topic_changes)
    pattern_tree, patterns = changed(pattern_changes)
    truth = sorted((topic, pattern) for topic in topics for pattern in patterns if matches(pattern, topic))
    assert sorted(matching(topic_tree, pattern_tree)) == truth
    for topic in topics:
        alone = sorted(pattern for _, pattern in matching(TopicTree([topic]), pattern_tree))
        assert alone == [pattern for found, pattern in truth if found == topic]
    for pattern in patterns:
        alone = sorted(topic for topic, _ in matching(topic_tree, TopicTree([pattern])))
        assert alone == [topic for topic, found in truth if found == pattern]


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(["p~1", "q~1"]), st.lists(TOPICS, max_size=4)),
    st.tuples(st.just("subscribe"), st.sampled_from(["e1", "e2"]), st.lists(LEGAL, min_size=1, max_size=4)),
    st.tuples(st.just("leave"), st.sampled_from(["e1", "e2"]), st.just([])),
    st.tuples(st.just("vanish or return"), st.sampled_from(["e1", "e2"]), st.just([])),
    st.tuples(st.just("tick"), st.just(""), st.just([])),
)


@given(st.lists(STEPS, max_size=30))
def test_the_topics_of_every_pattern_in_use_are_those_that_match(steps: list[tuple[str, str, list[str]]]) -> None:
    """After each step the driver compares all links of `Paths` with brute force."""
    driver = PartsDriver()
    held: dict[str, list[int]] = {"e1": [], "e2": []}
    patterns: dict[int, str] = {}
    published: dict[str, set[str]] = {}
    for edge in held:
        driver.edge(edge)
    for what, who, texts in steps:
        if what == "publish":
            driver.hello(who, *dict.fromkeys(texts))
            published[who] = set(texts)
        elif what == "subscribe":
            for pattern in texts:
                number = len(patterns)
                patterns[number] = pattern
                held[who].append(number)
                driver.context.ledger.found(who, subscription(number=number, pattern=pattern))
            driver.do()
        elif what == "leave" and held[who]:
            driver.context.ledger.withdraw((who, ("s", held[who].pop(0))))
            driver.do()
        elif what == "vanish or return":
            record = driver.context.registry.edges[who]
            record.alive = not record.alive
        else:
            driver.tick()
    driver.tick()
    topics = {topic for texts in published.values() for topic in texts}
    for pattern in patterns.values():
        found = driver.parts.paths.topics_of(pattern)
        assert sorted(found) == sorted(topic for topic in topics if matches(pattern, topic))
