"""Who makes the load and who goes first: seed 000 Table IV and the session of §V, on its own numbers."""

from __future__ import annotations

import pytest

from tests.support import ews
from tests.support.formulas import SubscriberLoad
from tidegate_agents.load.metrics import Metric, Role
from tidegate_agents.policy.bundles import (
    Bundle,
    Group,
    PublisherLoad,
    offloading_order,
    publisher_bundles,
    subscriber_bundle,
    subscriber_bundles,
)


def bundle(name: str, place: Group = Group.LOCAL, queue: Group = Group.EMPTY, wait_s: float = 1.0) -> Bundle:
    return Bundle(name, (f"{name}.0",), 1.0, 1.0, 1.0, place, queue, wait_s)


PLACES = [bundle("n", Group.NONE), bundle("l", Group.LOCAL), bundle("rl", Group.BOTH), bundle("r", Group.REMOTE)]
QUEUES = [bundle("o", queue=Group.OVERLOADED), bundle("w", queue=Group.WAITING), bundle("e", queue=Group.EMPTY)]


@pytest.mark.parametrize(
    ("role", "metric", "bundles", "order"),
    [
        (Role.EDGE, Metric.DOWNLINK, PLACES, "r rl l n"),
        (Role.EDGE, Metric.UPLINK, PLACES, "r rl l n"),
        # S_r = S_rl = S_l: the same allowed wait, so the name decides.
        (Role.EDGE, Metric.MATCHING, PLACES, "n l r rl"),
        (Role.EDGE, Metric.QUEUE_DEPTH, QUEUES, "e w o"),
        (Role.HEAD, Metric.DOWNLINK, PLACES, "n r rl l"),
        (Role.HEAD, Metric.UPLINK, PLACES, "r rl l n"),
    ],
)
def test_table_iv(role: Role, metric: Metric, bundles: list[Bundle], order: str) -> None:
    for given in (bundles, bundles[::-1]):
        result = offloading_order(role, metric, given)
        assert " ".join(b.topic for b in result) == order


def test_inside_a_group_the_larger_allowed_wait_goes_first_then_the_name() -> None:
    bundles = [bundle("b", wait_s=2), bundle("c", wait_s=50), bundle("a", wait_s=2), bundle("z", Group.REMOTE)]
    assert [b.topic for b in offloading_order(Role.EDGE, Metric.UPLINK, bundles)] == ["z", "c", "a", "b"]
    assert [b.topic for b in offloading_order(Role.EDGE, Metric.MATCHING, bundles)] == ["c", "a", "b", "z"]


def test_publishers_of_a_group_go_by_load_then_by_name() -> None:
    loads = [PublisherLoad(f"p{n}", f"t{n}", rate, 100, edges=1) for n, rate in ((1, 5), (2, 50), (3, 5))]
    order = offloading_order(Role.HEAD, Metric.UPLINK, publisher_bundles(loads))
    assert [b.topic for b in order] == ["t2", "t1", "t3"]


def test_a_bundle_is_as_close_to_late_as_its_closest_member() -> None:
    members = [
        SubscriberLoad("a.0", "t", 100, 400, allowed_wait_s=2.0, depth=0, local=True),
        SubscriberLoad("b.0", "t", 100, 400, allowed_wait_s=0.5, depth=3, remote=True),
    ]
    found = subscriber_bundle(members)
    assert (found.queue, found.place, found.allowed_wait_s, found.depth) == (Group.WAITING, Group.BOTH, 0.5, 3)
    assert subscriber_bundle(members, {"a.0"}).queue is Group.OVERLOADED
    assert subscriber_bundle(members[:1]).queue is Group.EMPTY
    assert subscriber_bundle([SubscriberLoad("c.0", "t", 0, 0, 1.0)]).place is Group.NONE


def test_a_message_comes_in_once_and_goes_out_to_each() -> None:
    found = subscriber_bundle([SubscriberLoad(f"s{n}.0", "t", 50, 200, 1.5) for n in range(8)])
    assert (found.bytes_in_per_s, found.bytes_out_per_s, found.messages_in_per_s) == (10_000, 80_000, 50)


def test_a_publisher_comes_in_once_and_goes_out_on_every_link() -> None:
    load = PublisherLoad("p", "t", 100, 50, edges=2, neighbours=frozenset({"h2"}))
    (found,) = publisher_bundles([load])
    assert (found.bytes_in_per_s, found.bytes_out_per_s, found.place) == (5000, 15000, Group.BOTH)


def test_publishers_of_one_topic_are_one_bundle() -> None:
    loads = [PublisherLoad(f"p{n}", f"t{n % 2}", 10, 100) for n in range(5)]
    found = publisher_bundles(loads)
    assert [(b.topic, b.clients) for b in found] == [("t0", ("p0", "p2", "p4")), ("t1", ("p1", "p3"))]
    assert found == publisher_bundles(loads[::-1])


def test_the_order_on_b1_at_34_s() -> None:
    """Everything waits, topic 8 too long: topic 14 may wait longest, then topic 1."""
    clients = [
        SubscriberLoad(
            f"s{topic}-{n}.0",
            f"t{topic}",
            ews.rate(topic, burst=True),
            ews.TOPICS[topic].message_bytes,
            ews.TOPICS[topic].deadline_s - 0.3,
            ews.depth_at("b1", topic, 34),
            local=True,
        )
        for topic in ews.PLACED["b1"]
        for n in range(ews.TOPICS[topic].subscribers)
    ]
    overloaded = {client.name for client in clients if client.pattern == "t8"}
    order = offloading_order(Role.EDGE, Metric.QUEUE_DEPTH, subscriber_bundles(clients, overloaded))
    assert [b.topic for b in order] == ["t14", "t1", "t3", "t8"]
    assert [len(b.clients) for b in order] == [3, 8, 1, 7]
