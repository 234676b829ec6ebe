"""What a head knows: digests, numbers, publishers."""

from __future__ import annotations

from hashlib import sha256

import pytest

from tidegate_agents.head.registry import NUMBER_MAX, Registry
from tidegate_agents.kit.subscriptions import registry_digest
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


def test_a_number_is_not_given_again_soon() -> None:
    registry = Registry()
    registry.edge("e")
    for number in range(4):
        assert registry.next_number("s") == number
        registry.add("e", subscription(number=number, pattern=f"p{number}"))
    registry.remove("e", "s", 2)
    registry.remove("e", "s", 3)
    assert registry.count_of("s") == 2
    assert [registry.next_number("s") for _ in range(2)] == [4, 5]
    registry.remove("e", "s", 0)
    registry.remove("e", "s", 1)
    assert registry.next_number("s") == 6, "not even after it had nothing left"
    assert registry.next_number("t") == 0
    assert registry.next_number("t", at_least=500) == 500
    registry.validate()


def test_numbers_start_anew_after_the_largest_past_those_in_use() -> None:
    registry = Registry()
    registry.edge("e")
    registry.add("e", subscription(number=0, pattern="a"))
    registry.add("e", subscription(number=NUMBER_MAX, pattern="b"))
    assert registry.next_number("s") == 1
    assert registry.next_number("s") == 2


def test_the_numbers_of_departed_subscribers_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_agents.head.registry.NUMBERS_REMEMBERED_MAX", 2)
    registry = Registry()
    for name in ("s", "t", "u"):
        assert registry.next_number(name) == 0
    assert registry.next_number("s") == 0
    assert registry.next_number("u") == 1
    registry.validate()


def test_who_is_in_two_places_is_known() -> None:
    registry = Registry()
    registry.edge("e")
    registry.edge("f")
    registry.add("e", subscription(number=0))
    registry.add("f", subscription(number=1))
    assert registry.doubled == {("s", "a")}
    registry.remove("e", "s", 0)
    assert registry.doubled == set()


def test_a_subscription_is_found_by_its_pattern_on_whatever_edge() -> None:
    registry = Registry()
    registry.edge("e1")
    registry.edge("e2")
    registry.add("e2", subscription())
    assert registry.find("s", "a") == [("e2", subscription())]
    assert registry.find("s", "b") == []
    assert registry.holders(("s", 0)) == ["e2"]
    registry.forget_edge("e2")
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
        registry.publisher_gone("p~1")
        registry.validate()
    assert registry.expire_publishers(1_000.0) == []
    registry.validate()
