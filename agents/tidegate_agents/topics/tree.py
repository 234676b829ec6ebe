"""Topics, or patterns, as a tree of words: which topics match which patterns, without trying every pair.

Texts that begin with the same words share the way from the root, as in RabbitMQ's topic exchange. `matching` goes
through a tree of topics and a tree of patterns side by side. Invariants:

- a tree holds the words of what was added and not yet discarded, and nothing else;
- `matching` finds exactly the pairs for which `topics.matches` is true, each of them once, in an order that depends on
  what was added and discarded only;
- a topic is looked at once for all patterns, however many, and only as far as some pattern may still match what begins
  like it. So a new topic costs its words, and a new pattern the topics that begin with its words before the first
  wildcard; thousands of patterns that come together had better be looked up together. However many `#` a pattern has,
  each of its words is looked at once per word of a topic.

Knows no paths, edges or publishers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate_protocol.topics import ANY_WORDS, ONE_WORD


class _Node:
    __slots__ = ("any_words", "children", "text")

    def __init__(self, *, any_words: bool = False) -> None:
        self.children: dict[str, _Node] = {}
        self.text: str | None = None
        """What ends here."""
        self.any_words = any_words
        """Whether the last word is `#`, which takes any word and is still there for the next one."""


class TopicTree:
    """A set of topics, or of patterns."""

    __slots__ = ("_root", "_size")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._root = _Node()
        self._size = 0
        for text in texts:
            self.add(text)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        todo = [self._root]
        while todo:
            node = todo.pop()
            if node.text is not None:
                yield node.text
            todo += node.children.values()

    def add(self, text: str) -> None:
        """Put it in, if it is not there."""
        node = self._root
        for word in _words(text):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(any_words=word == ANY_WORDS)
            node = child
        self._size += node.text is None
        node.text = text

    def discard(self, text: str) -> None:
        """Take it out, if it is there."""
        way: list[tuple[_Node, str]] = []
        node = self._root
        for word in _words(text):
            way.append((node, word))
            child = node.children.get(word)
            if child is None:
                return
            node = child
        self._size -= node.text is not None
        node.text = None
        for parent, word in reversed(way):
            child = parent.children[word]
            if child.children or child.text is not None:
                return
            del parent.children[word]

    def validate(self) -> None:
        """Raise AssertionError if something is left of what is not there any more."""
        assert self._size == sum(1 for _ in self)
        todo = list(self._root.children.values())
        while todo:
            node = todo.pop()
            assert node.children or node.text is not None, "words that nothing begins with"
            todo += node.children.values()


def matching(topics: TopicTree, patterns: TopicTree) -> Iterator[tuple[str, str]]:
    """Every topic with every pattern that matches it. Neither tree may change meanwhile."""
    start: dict[_Node, None] = {}
    _stand(start, patterns._root)
    todo = [(topics._root, start)]
    while todo:
        node, places = todo.pop()
        if node.text is not None:
            for place in places:
                if place.text is not None:
                    yield node.text, place.text
        for word in _shared(node, places):
            after = _step(places, word)
            if after:
                todo.append((node.children[word], after))


def _shared(node: _Node, places: dict[_Node, None]) -> Iterable[str]:
    """The words below a node of topics that some pattern may take."""
    words = node.children
    if not words or any(place.any_words or ONE_WORD in place.children for place in places):
        return words
    found: dict[str, None] = {}
    for place in places:
        small, large = (place.children, words) if len(place.children) < len(words) else (words, place.children)
        for word in small:
            if word in large:
                found[word] = None
    return found


def _step(places: dict[_Node, None], word: str) -> dict[_Node, None]:
    """The places after one more word."""
    after: dict[_Node, None] = {}
    for place in places:
        if place.any_words:
            _stand(after, place)
        for taking in (word, ONE_WORD):
            child = place.children.get(taking)
            if child is not None:
                _stand(after, child)
    return after


def _stand(places: dict[_Node, None], node: _Node | None) -> None:
    """Add a place, and those reached from it by letting `#` stand for nothing."""
    while node is not None and node not in places:
        places[node] = None
        node = node.children.get(ANY_WORDS)


def _words(text: str) -> list[str]:
    # As in `topics`: the empty routing key is no words at all.
    return text.split(".") if text else []
