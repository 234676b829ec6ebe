"""How far apart brokers and clients are: delays one way, over the links that there are.

Heads form a tree, edges hang on their heads, a client reaches its head over a line of its own and everything else
from there on. Knows nothing of what is sent.
"""

from __future__ import annotations

from functools import cache

from .scenario import Scenario


class Distances:
    """Delays in seconds between any two names of a scenario; a publisher may be named by its id."""

    def __init__(self, scenario: Scenario) -> None:
        self._ways: dict[str, dict[str, float]] = {}
        specs = {head.name: head for head in scenario.heads}
        for head in scenario.heads:
            for neighbour in head.neighbours:
                # Both sides name the delay between them; where they disagree the longer one counts.
                delay_s = max(head.neighbour_delay_s, specs[neighbour].neighbour_delay_s)
                self._connect(head.name, neighbour, delay_s)
            self._ways.setdefault(head.name, {})
        client_s: dict[str, float] = {}
        for edge in scenario.edges:
            self._connect(edge.name, edge.head, edge.head_delay_s)
            client_s[edge.head] = max(client_s.get(edge.head, 0.0), edge.client_delay_s)
        for publisher in scenario.publishers:
            self._connect(publisher.name, publisher.head, publisher.delay_s)
        for subscriber in scenario.subscribers:
            # A subscriber is about as far from its head as from the farthest edge it may be sent to.
            self._connect(subscriber.name, subscriber.head, client_s.get(subscriber.head, 0.0))
        self.delay_s = cache(self._delay_s)

    def _connect(self, one: str, other: str, delay_s: float) -> None:
        self._ways.setdefault(one, {})[other] = delay_s
        self._ways.setdefault(other, {})[one] = delay_s

    def _delay_s(self, one: str, other: str) -> float:
        """The only way there is through a tree; 0 to and from whoever is not in the scenario, as an operator."""
        one, other = one.partition("~")[0], other.partition("~")[0]
        if one == other or one not in self._ways or other not in self._ways:
            return 0.0
        found = {one: 0.0}
        to_visit = [one]
        for name in to_visit:
            for following, delay_s in self._ways[name].items():
                if following not in found:
                    found[following] = found[name] + delay_s
                    to_visit.append(following)
        return found.get(other, 0.0)
