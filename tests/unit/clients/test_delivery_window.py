"""A window of messages whose bodies fit into a number of bytes."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tidegate._core.delivery_window import OBSERVED_MAX, OBSERVED_MIN, WIDE_FACTOR, DeliveryWindow


def window(size: int, count: int = OBSERVED_MIN, messages: int = 1_000, bytes_max: int = 1_000_000) -> DeliveryWindow:
    found = DeliveryWindow(messages, bytes_max)
    for _ in range(count):
        found.came(size)
    return found


def test_small_bodies_leave_the_window_as_it_was_asked_for() -> None:
    assert window(100).messages == 1_000
    assert not window(100).is_too_wide(1_000)


def test_large_bodies_narrow_it() -> None:
    found = window(100_000)
    assert found.messages == 10
    assert found.is_too_wide(1_000)
    assert not found.is_too_wide(int(WIDE_FACTOR * 10)), "a little too wide is not worth beginning anew"


def test_a_few_bodies_prove_nothing() -> None:
    assert window(100_000, count=OBSERVED_MIN - 1).messages == 1_000


def test_one_message_may_always_be_under_way() -> None:
    assert window(16 << 20).messages == 1


def test_it_follows_sizes_that_change() -> None:
    found = window(100_000, count=OBSERVED_MAX)
    for _ in range(20 * OBSERVED_MAX):
        found.came(100)
    assert found.messages == 1_000


@given(st.lists(st.integers(0, 1 << 24), max_size=200), st.integers(1, 65_535), st.integers(1, 1 << 30))
def test_it_is_never_more_than_asked_for_nor_less_than_one(sizes: list[int], messages: int, bytes_max: int) -> None:
    found = DeliveryWindow(messages, bytes_max)
    for size in sizes:
        found.came(size)
        assert 1 <= found.messages <= messages
