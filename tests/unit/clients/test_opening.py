"""What a client remembers of servers that it opened connections to."""

from __future__ import annotations

from dataclasses import replace

from tidegate._core.config import Address
from tidegate._core.opening import ADDRESSES_MAX, USUAL_FOR_S, OpeningDiffers, Openings, Tune

ADDRESS = Address.parse("amqp://host:5672/v")
TUNE_OK = b"\x01\x00\x00\x00\x00\x00\x0c\x00\x0a\x00\x1f\x00\x63\x00\x01\x00\x00\x00\x14\xce"


def test_a_wrong_guess_is_corrected_once() -> None:
    openings = Openings()
    assert openings.anticipate(ADDRESS, 0.0) == Tune()
    differs = OpeningDiffers(TUNE_OK)
    assert differs.tune == Tune(99, 65_536)
    openings.fell_back(ADDRESS, differs.tune, 0.0)
    assert openings.anticipate(ADDRESS, 0.0) == Tune(99, 65_536)
    assert openings.anticipate(replace(ADDRESS, port=1), 0.0) == Tune()
    # The same again means that something else is wrong.
    openings.fell_back(ADDRESS, differs.tune, 0.0)
    assert openings.anticipate(ADDRESS, 1.0) is None
    assert openings.fallbacks == 2


def test_the_usual_way_is_for_a_while() -> None:
    openings = Openings()
    openings.fell_back(ADDRESS, OpeningDiffers(b"\x01\x00\x00something else").tune, 100.0)
    assert openings.anticipate(ADDRESS, 100.0 + USUAL_FOR_S - 1) is None
    assert openings.anticipate(ADDRESS, 100.0 + USUAL_FOR_S) == Tune()


def test_the_memory_is_bounded() -> None:
    openings = Openings()
    for port in range(1, ADDRESSES_MAX + 2):
        openings.fell_back(replace(ADDRESS, port=port), None, 0.0)
    assert openings.anticipate(replace(ADDRESS, port=1), 0.0) == Tune()
    assert openings.anticipate(replace(ADDRESS, port=2), 0.0) is None
