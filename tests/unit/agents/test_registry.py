"""What a head knows: digests, numbers, publishers."""

from __future__ import annotations

from hashlib import sha256

from tidegate_agents.registry import Registry, registry_digest
from tidegate_protocol.messages import Subscription


def subscription(subscriber: str = "s", number: int = 0, pattern: str = "a", deadline_us: int = 5) -> Subscription:
    return Subscription(subscriber=subscriber, number=number, pattern=pattern, deadline_us=deadline_us, expires_s=600)


def test_the_digest_is_the_sum_of_its_lines() -> None:
    """Head and edge may run different versions: the definition is a contract."""
    lines = ["s 0 a 5 600", "s 1 b.# 5 600"]
    total = sum(int.from_bytes(sha256(line.encode()).digest()[:8], "big") for line in lines)
    subscriptions = [subscription(), subscription(number=1, pattern="b.#")]
    assert registry_digest(subscriptions) == f"{total % 2**64:016x}"
    assert registry_digest([]) == "0" * 16


def test_the_digest_sees_every_field() -> None:
    variants = [
        subscription(),
        subscription("t"),
        subscription(number=1),
        subscription(pattern="b"),
        subscription(deadline_us=6),
    ]
    assert len({registry_digest([variant]) for variant in variants}) == len(variants)


def test_freed_numbers_are_used_again_lowest_first() -> None:
    registry = Registry()
    registry.edge("e")
    for number in range(4):
        assert registry.free_number("s") == number
        registry.add("e", subscription(number=number, pattern=f"p{number}"))
    registry.remove("e", "s", 2)
    registry.remove("e", "s", 1)
    assert registry.free_number("s") == 1
    assert registry.free_number("s", frozenset({1})) == 2
    assert registry.free_number("t") == 0
    assert registry.count_of("s") == 2


def test_a_subscription_is_found_by_its_pattern_on_whatever_edge() -> None:
    registry = Registry()
    registry.edge("e1")
    registry.edge("e2")
    registry.add("e2", subscription())
    assert registry.find("s", "a") == [("e2", subscription())]
    assert registry.find("s", "b") == []
    assert registry.holders(("s", 0)) == ["e2"]
    assert registry.forget_edge("e2") == [subscription()]
    assert registry.find("s", "a") == []
    registry.validate()


def test_publishers_expire_unless_they_are_heard_of_again() -> None:
    registry = Registry()
    registry.publisher_heard("p~1", until_s=3.0)
    registry.publisher_heard("q~1", until_s=4.0)
    registry.publisher_heard("p~1", until_s=8.0)
    assert registry.expire_publishers(5.0) == ["q~1"]
    assert registry.expire_publishers(7.9) == []
    assert registry.expire_publishers(8.0) == ["p~1"]
    assert not registry.publishers
    registry.validate()


def test_a_publisher_that_comes_and_goes_leaves_no_trace() -> None:
    registry = Registry()
    for second in range(100):
        registry.publisher_heard("p~1", until_s=second + 3.0)
        assert registry.publisher_gone("p~1")
        registry.validate()
    assert registry.expire_publishers(1_000.0) == []
    registry.validate()
