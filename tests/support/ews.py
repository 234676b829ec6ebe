"""The early-warning experiment of seeds 000 and 001 in numbers: brokers, topics, placement, and a FIFO uplink as
a fluid, worked out by hand to compare with. Nothing here comes from the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass

EDGES = {"b0": (800, 6.5), "b1": (1500, 8.0), "b2": (1300, 5.0), "b3": (1000, 8.0)}
"""Seed 000 Table V: CPU in MHz, bandwidth up and down in Mbps."""

PLACED = {"b0": [5, 6, 7, 11, 15], "b1": [1, 3, 8, 14], "b2": [10, 12], "b3": [2, 4, 9, 13]}
"""Seed 001 Table 7."""

MESSAGES_PER_S = 50
BURST_S = 30
BURSTING = (2, 4, 6, 8, 10, 12, 14)
BROKER_TO_BROKER_S = 0.1
TO_SUBSCRIBER_S = 0.2


@dataclass(frozen=True)
class Topic:
    """One row of seed 000 Table VI."""

    publishers: int
    subscribers: int
    deadline_s: float
    message_bytes: int


TOPICS = {
    1: Topic(1, 8, 1.8, 200),
    2: Topic(2, 2, 1.7, 800),
    3: Topic(5, 1, 1.6, 1000),
    4: Topic(4, 2, 1.5, 400),
    5: Topic(3, 3, 1.4, 200),
    6: Topic(1, 1, 1.3, 400),
    7: Topic(2, 5, 1.2, 300),
    8: Topic(2, 7, 1.1, 400),
    9: Topic(5, 2, 1.0, 500),
    10: Topic(4, 4, 0.9, 200),
    11: Topic(1, 5, 30, 600),
    12: Topic(3, 2, 60, 400),
    13: Topic(1, 6, 40, 200),
    14: Topic(2, 3, 50, 300),
    15: Topic(4, 5, 100, 200),
}


def bandwidth(edge: str) -> float:
    """In bytes per second."""
    return EDGES[edge][1] * 1e6 / 8


def rate(topic: int, *, burst: bool) -> float:
    """Messages per second to each subscriber."""
    return TOPICS[topic].publishers * MESSAGES_PER_S * (2.0 if burst and topic in BURSTING else 1.0)


def offered(topic: int, *, burst: bool) -> float:
    """Bytes per second to all subscribers of a topic."""
    return rate(topic, burst=burst) * TOPICS[topic].subscribers * TOPICS[topic].message_bytes


def offered_on(edge: str, *, burst: bool) -> float:
    """Bytes per second that an edge's uplink is asked for."""
    return sum(offered(topic, burst=burst) for topic in PLACED[edge])


def drain_rate(edge: str, topic: int, *, burst: bool) -> float:
    """Messages per second to each subscriber: every flow gets the same share of what it offers."""
    return rate(topic, burst=burst) * min(1.0, bandwidth(edge) / offered_on(edge, burst=burst))


def depth_at(edge: str, topic: int, at_s: float) -> float:
    """Messages that wait for each subscriber, if nobody balances."""
    growth = rate(topic, burst=True) - drain_rate(edge, topic, burst=True)
    return growth * max(at_s - BURST_S, 0.0)
