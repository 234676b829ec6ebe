"""A subscription moves while plain publishers go on: the application gets each publisher's contents once and in order.

One head routes what several channels publish, in one order, into the old link and, from the bind on, into the new one;
its marker goes into both. RabbitMQ promises no order between channels, so the links may differ in it. Hypothesis
chooses what is published, where bind and marker stand, and how the deliveries of both queues interleave.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, strategies as st

from tests.support.moving_client import PlainClient
from tidegate._core.hold import Admission
from tidegate._core.migration import LINGER
from tidegate._core.moves import TimerFired
from tidegate._core.overlap import RACE_S

CHANNELS = "abc"
MARKER = "marker"


@dataclass(frozen=True)
class Traffic:
    """What is routed, in order, and what comes through each link."""

    published: list[str]
    old: list[str]
    new: list[str]


@st.composite
def repeating(draw: st.DrawFn) -> Traffic:
    """Contents repeat, even all of them; across channels the links differ in their order."""
    contents = {channel: draw(st.integers(1, 4)) for channel in CHANNELS}
    counts = dict.fromkeys(CHANNELS, 0)
    published = []
    for channel in draw(st.lists(st.sampled_from(CHANNELS), max_size=24)):
        published.append(f"{channel}{counts[channel] % contents[channel]}")
        counts[channel] += 1
    marker = draw(st.integers(0, len(published)))
    bind = draw(st.integers(0, marker))
    new = [*mixed(draw, published[bind:marker]), MARKER, *mixed(draw, published[marker:])]
    return Traffic(published, [*published[:marker], MARKER, *published[marker:]], new)


@st.composite
def racing(draw: st.DrawFn) -> Traffic:
    """Contents never repeat; of each channel one message may have raced with the marker, in either link."""
    channels = draw(st.lists(st.sampled_from(CHANNELS), max_size=16))
    published = [f"{channel}{number}" for number, channel in enumerate(channels)]
    marker = draw(st.integers(0, len(published)))
    bind = draw(st.integers(0, marker))
    links = [[*published[:marker], MARKER, *published[marker:]], [*published[bind:marker], MARKER, *published[marker:]]]
    for channel in CHANNELS:
        behind = [content for content in published[marker:] if content[0] == channel]
        if behind and draw(st.booleans()):
            link = links[draw(st.integers(0, 1))]
            link.remove(behind[0])
            link.insert(link.index(MARKER), behind[0])
    return Traffic(published, *links)


def mixed(draw: st.DrawFn, contents: list[str]) -> list[str]:
    """In another order, but the same one for each channel."""
    turns = draw(st.permutations([content[0] for content in contents]))
    waiting = {channel: [content for content in contents if content[0] == channel] for channel in CHANNELS}
    return [waiting[channel].pop(0) for channel in turns]


def run(traffic: Traffic, turns: list[bool], before_order: int, pause_s: float, linger_s: float = 0.0) -> None:
    client = PlainClient(linger_s)
    old, new = list(traffic.old), list(traffic.new)

    def step(slot: int, link: list[str]) -> None:
        content = link.pop(0)
        if content == MARKER:
            client.marked(slot)
        else:
            client.comes(slot, content, pause_s=pause_s)

    for _ in range(min(before_order, len(old))):
        step(client.old, old)
    slot = client.begin()
    for through_old in [*turns, *[False] * len(new), *[True] * len(old)]:
        link = old if through_old else new
        if link and (client.machine.migrating or not through_old):
            step(client.old if through_old else slot, link)
    if client.machine.migrating:
        client.now += linger_s
        client.carry_out(client.do(TimerFired(LINGER)))
    assert not client.machine.migrating
    while new:
        step(slot, new)
    assert client.machine.admit(client.old, None, "late", b"late") is Admission.STRAY
    for channel in CHANNELS:
        handed = [content for content in client.handed if content[0] == channel]
        assert handed == [content for content in traffic.published if content[0] == channel]


@given(repeating(), st.lists(st.booleans(), max_size=50), st.integers(0, 24))
def test_contents_that_repeat_come_once_and_in_order(traffic: Traffic, turns: list[bool], before_order: int) -> None:
    run(traffic, turns, before_order, pause_s=2 * RACE_S)


@given(racing(), st.lists(st.booleans(), max_size=40), st.integers(0, 16))
def test_messages_that_race_with_the_marker_come_once_and_in_order(
    traffic: Traffic, turns: list[bool], before_order: int
) -> None:
    # While the client lingers at the old queue, the new one brings whatever stands near its marker.
    run(traffic, turns, before_order, pause_s=RACE_S / 1_000, linger_s=1.0)
