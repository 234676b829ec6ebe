"""Data planes: routing like RabbitMQ's, a fair uplink, prefetch, acknowledgements, redelivery, limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import output_queue
from tidegate_simulator.kernel import Kernel
from tidegate_simulator.links import Link, Message, Pipe
from tidegate_simulator.plane_edge import Consumer, EdgePlane
from tidegate_simulator.plane_head import HeadPlane
from tidegate_simulator.trace import Trace


def message(index: int, topic: str = "t", size_bytes: float = 100.0) -> Message:
    return Message(f"p~1:{topic}:{index}", index, topic, size_bytes, 0.0)


def subscription(subscriber: str, pattern: str = "t", expires_s: int = 600) -> Subscription:
    return Subscription(subscriber=subscriber, number=0, pattern=pattern, deadline_us=1_000_000, expires_s=expires_s)


@dataclass
class Taker:
    """A subscriber that acknowledges at once, or when it is told to."""

    edge: Edge
    name: str
    eager: bool = True
    got: list[tuple[float, int]] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)
    consumer: Consumer | None = None

    def receive(self, one: Message) -> None:
        self.got.append((round(self.edge.kernel.now, 9), one.index))
        if self.eager:
            self.acknowledge()

    def acknowledge(self, count: int = 1) -> None:
        assert self.consumer is not None
        self.edge.plane.acknowledge(self.consumer, count)

    @property
    def indices(self) -> list[int]:
        return [index for _, index in self.got]


class Edge:
    """An edge's plane with takers on it."""

    def __init__(self, uplink: float | None = None, delay_s: float = 0.2) -> None:
        self.kernel = Kernel(1)
        self.dropped: list[tuple[str, int]] = []
        self.plane = EdgePlane(
            self.kernel,
            Trace(),
            0,
            uplink_bytes_per_s=uplink,
            downlink_bytes_per_s=None,
            matching_per_s=None,
            client_delay_s=delay_s,
            on_dropped=lambda who, what: self.dropped.append((who, what.index)),
        )

    def taker(self, name: str, pattern: str = "t", prefetch: int = 1_000, eager: bool = True) -> Taker:
        self.plane.declare(subscription(name, pattern))
        return self.attach(name, prefetch, eager)

    def attach(self, name: str, prefetch: int = 1_000, eager: bool = True) -> Taker:
        taker = Taker(self, name, eager)
        taker.consumer = self.plane.consume(output_queue(name, 0), prefetch, taker.receive, taker.lost.append)
        return taker

    def counts(self, name: str) -> tuple[int, int]:
        self.plane.settle()
        queue = self.plane.queues[output_queue(name, 0)]
        return len(queue.ready), len(queue.unacked)


# Edges


def test_queues_share_the_uplink_in_the_order_of_arrival() -> None:
    edge = Edge(uplink=1_000.0)
    first, second = edge.taker("a"), edge.taker("b")
    edge.plane.arrive(message(0))
    edge.plane.arrive(message(1))
    edge.kernel.run(2.0)
    assert first.got == [(0.3, 0), (0.5, 1)]
    assert second.got == [(0.4, 0), (0.6, 1)]


def test_an_overloaded_uplink_serves_flows_in_proportion() -> None:
    """Two flows that ask for 150 % of the uplink get two thirds of it each: FIFO is the same wait for all."""
    edge = Edge(uplink=1_000.0, delay_s=0.0)
    light, heavy = edge.taker("light", "l"), edge.taker("heavy", "h")
    for step in range(100):
        for index, topic in ((3 * step, "l"), (3 * step + 1, "h"), (3 * step + 2, "h")):
            edge.kernel.at(step * 0.2, edge.plane.arrive, message(index, topic))
    edge.kernel.run(20.0)
    assert abs(len(light.got) - 200 / 3) <= 2
    assert abs(len(heavy.got) - 400 / 3) <= 2
    edge.kernel.run(40.0)
    assert len(light.got) + len(heavy.got) == 300


def test_acknowledgements_come_in_after_the_delay() -> None:
    edge = Edge()
    edge.taker("a")
    edge.plane.arrive(message(0))
    edge.kernel.run(0.39)
    assert edge.counts("a") == (0, 1)
    edge.kernel.run(0.4)
    assert edge.counts("a") == (0, 0)
    assert edge.plane.queues[output_queue("a", 0)].acked == 1


def test_a_prefetch_holds_the_rest_back_until_there_is_room() -> None:
    edge = Edge()
    taker = edge.taker("a", prefetch=2)
    for index in range(5):
        edge.plane.arrive(message(index))
    assert edge.counts("a") == (3, 2)
    edge.kernel.run(3.0)
    assert taker.got == [(0.2, 0), (0.2, 1), (0.6, 2), (0.6, 3), (1.0, 4)]


def test_one_consumer_per_queue() -> None:
    edge = Edge()
    edge.taker("a")
    assert edge.attach("a").consumer is None
    assert edge.attach("nobody").consumer is None


def test_what_was_not_acknowledged_is_delivered_again_in_order() -> None:
    edge = Edge()
    taker = edge.taker("a", eager=False)
    for index in range(4):
        edge.plane.arrive(message(index))
    edge.kernel.run(0.3)
    taker.acknowledge()
    edge.kernel.run(0.6)
    assert taker.consumer is not None
    edge.plane.detach(taker.consumer)
    assert edge.counts("a") == (3, 0)
    edge.plane.arrive(message(4))
    again = edge.attach("a")
    edge.kernel.run(2.0)
    assert again.indices == [1, 2, 3, 4]


def test_a_consumer_that_leaves_frees_the_line_for_the_others() -> None:
    edge = Edge(uplink=1_000.0, delay_s=0.0)
    leaver, other = edge.taker("a", "a"), edge.taker("b", "b")
    for index in range(4):
        edge.plane.arrive(message(2 * index, "a"))
        edge.plane.arrive(message(2 * index + 1, "b"))
    edge.kernel.run(0.25)  # the third message is half out, and goes to the leaver
    assert leaver.consumer is not None
    edge.plane.detach(leaver.consumer)
    edge.kernel.run(2.0)
    assert leaver.got == [(0.1, 0)]
    assert other.got == [(0.2, 1), (0.4, 3), (0.5, 5), (0.6, 7)]
    assert edge.counts("a") == (3, 0)


def test_a_limit_drops_the_oldest_and_counts_them() -> None:
    edge = Edge()
    edge.plane.declare(subscription("a"))
    for index in range(5):
        edge.plane.arrive(message(index))
    edge.plane.limit(output_queue("a", 0), 2)
    assert edge.dropped == [("a", 0), ("a", 1), ("a", 2)]
    edge.plane.arrive(message(5))
    assert edge.plane.dropped == 4
    edge.plane.limit(output_queue("a", 0), None)
    edge.plane.arrive(message(6))
    edge.kernel.run(1.0)
    taker = edge.attach("a")
    edge.kernel.run(2.0)
    assert taker.indices == [4, 5, 6]


def test_an_edge_that_was_down_keeps_its_queues() -> None:
    edge = Edge()
    taker = edge.taker("a")
    edge.plane.arrive(message(0))
    edge.plane.go_down()
    assert taker.lost == [False]
    assert edge.attach("a").consumer is None
    edge.kernel.run(1.0)
    edge.plane.go_up()
    again = edge.attach("a")
    edge.kernel.run(2.0)
    assert taker.got == []
    assert again.indices == [0]


def test_a_deleted_queue_is_lost_for_its_consumer_and_gets_nothing_more() -> None:
    edge = Edge()
    taker = edge.taker("a")
    edge.plane.delete(output_queue("a", 0))
    edge.plane.arrive(message(0))
    edge.kernel.run(1.0)
    assert taker.lost == [True]
    assert taker.got == []
    assert edge.plane.unrouted == 1


def test_a_queue_that_nobody_uses_expires() -> None:
    edge = Edge()
    edge.plane.declare(subscription("used", expires_s=5))
    edge.attach("used")
    edge.plane.declare(subscription("unused", expires_s=5))
    edge.kernel.run(6.0)
    edge.plane.expire()
    assert sorted(edge.plane.queues) == [output_queue("used", 0)]


def test_markers_reach_the_queues_they_are_bound_to_and_no_others() -> None:
    edge = Edge()
    bound, other = edge.taker("a"), edge.taker("b", "#")
    assert edge.plane.bind_marker(output_queue("a", 0), "tidegate.marker.m.*")
    assert not edge.plane.bind_marker(output_queue("nobody", 0), "tidegate.marker.m.*")
    edge.plane.arrive(Message(None, 9, "tidegate.marker.m.h", 1.0, 0.0))
    edge.plane.unbind_marker(output_queue("a", 0), "tidegate.marker.m.*")
    edge.plane.arrive(Message(None, 10, "tidegate.marker.m.h", 1.0, 0.0))
    edge.kernel.run(1.0)
    assert bound.indices == [9]
    assert other.indices == [9, 10]  # "#" matches any key, as in RabbitMQ


# Heads


def marker(key: str) -> Message:
    return Message(None, 2, key, 1.0, 0.0)


class Head:
    """A head's plane whose links lead into lists."""

    def __init__(self) -> None:
        self.kernel = Kernel(1)
        self.arrived: dict[str, list[int]] = {}
        self.plane = HeadPlane(self.kernel, Trace(), 0, None, None, self.make_link, marker)

    def make_link(self, target: str, uplink: Pipe) -> Link:
        into = self.arrived.setdefault(target, [])
        return Link(self.kernel, target, uplink, 0.1, lambda one: into.append(one.index))

    def run(self) -> dict[str, list[int]]:
        self.kernel.run(self.kernel.now + 1.0)
        return self.arrived


def test_a_publication_goes_once_to_each_link_that_needs_it() -> None:
    head = Head()
    for target, patterns in (("e1", ("a.*", "a.b")), ("e2", ("#",)), ("e3", ("c",))):
        head.plane.ensure_link(target)
        head.plane.change_routes(target, patterns, ())
    head.plane.publish("p~1", message(1, "a.b"))
    head.plane.change_routes("e2", (), ("#",))
    head.plane.publish("p~1", message(2, "a.b"))
    head.plane.publish("p~1", message(3, "x"))
    assert head.run() == {"e1": [1, 2], "e2": [1], "e3": []}
    assert head.plane.unrouted == 1


def test_nothing_goes_back_where_it_came_from() -> None:
    head = Head()
    for target in ("h2", "h3", "e1"):
        head.plane.ensure_link(target)
        head.plane.change_routes(target, ("t",), ())
    head.plane.forwarded("h2", message(1))
    head.plane.publish("p~1", message(2))
    assert head.run() == {"h2": [2], "h3": [1, 2], "e1": [1, 2]}


def test_a_link_without_a_shovel_keeps_what_is_bound_to_it() -> None:
    head = Head()
    head.plane.change_routes("e1", ("t",), ())
    head.plane.publish("p~1", message(1))
    assert head.run() == {"e1": []}
    head.plane.ensure_link("e1")
    assert head.run() == {"e1": [1]}


def test_a_marker_follows_what_came_before_on_the_links_named() -> None:
    head = Head()
    for target in ("e1", "e2", "e3"):
        head.plane.ensure_link(target)
    head.plane.change_routes("e1", ("t",), ())
    head.plane.publish("p~1", message(1))
    head.plane.publish_marker("tidegate.marker.m.h", ("e1", "e2"))
    head.plane.publish("p~1", message(3))
    assert head.run() == {"e1": [1, 2, 3], "e2": [2], "e3": []}


def test_a_watched_fence_is_told_of_once_it_comes_from_that_neighbour() -> None:
    head, told = Head(), list[str]()
    head.plane.fence_arrived = told.append
    fence = Message(None, 1, "tidegate.marker.f.h2", 1.0, 0.0)
    head.plane.forwarded("h2", fence)
    head.plane.watch_fence("h2", fence.topic)
    head.plane.forwarded("h3", fence)
    assert told == []
    head.plane.forwarded("h2", fence)
    assert told == [fence.topic]
    head.plane.unwatch_fence("h2", fence.topic)
    head.plane.forwarded("h2", fence)
    assert told == [fence.topic]


def test_a_dropped_link_carries_on_what_waits_in_it() -> None:
    head = Head()
    head.plane.ensure_link("e1")
    head.plane.change_routes("e1", ("t",), ())
    head.plane.publish("p~1", message(1))
    head.plane.drop_link("e1")
    head.plane.publish("p~1", message(2))
    assert head.run() == {"e1": [1]}
    assert head.plane.adopted() == {}
