"""The page of a report, from material made up: what it says, that everything is drawn, and that nothing is fetched."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st

from tidegate_analytics.report.loads import Lines
from tidegate_analytics.report.material import (
    US,
    BrokerLoad,
    Correlations,
    LatenessPoint,
    LoadPoint,
    Material,
    MetricError,
    Move,
    Predicted,
    QueueDepth,
    QueuePoint,
    Session,
    Span,
    TopicLateness,
    Totals,
)
from tidegate_analytics.report.page import page
from tidegate_analytics.report.summary import facts, sentences
from tidegate_analytics.report.svg import Scale, TimeAxis, shortened, ticks, window_s

START_US = 1_770_000_000 * US
SPAN = Span(START_US, START_US + 120 * US, 1, 5)
HOSTILE = "<script>alert(1)</script>"
NOTHING = Material(SPAN, Totals(records=3))


def at(seconds: float) -> int:
    return START_US + round(seconds * US)


def material() -> Material:
    """A burst, a session that moves two clients, and a topic that is late all the same; one name means harm."""
    loads = tuple(
        BrokerLoad("north", broker, tuple(LoadPoint(at(s), top * s / 120, state) for s in range(0, 120, 2)))
        for broker, top, state in (("edge-1", 1.07, "OVERLOAD"), ("edge-2", 0.4, "LOW"))
    )
    course = (3, 20, "edge-1"), (36, 20, "edge-1"), (1, 25, "edge-2")
    points = tuple(QueuePoint(at(10 + 2 * number), *one) for number, one in enumerate(course))
    queue = QueueDepth("siren-1", "quake.alert", 1_100_000, 1.8, points)
    topics = (
        TopicLateness("north", "quake.alert", 1_100_000, 1_000, 30, (LatenessPoint(at(0), 1_000, 30, 2e6),)),
        TopicLateness("north", HOSTILE, 2_000_000, 500, 0, (LatenessPoint(at(5), 500, 0, None),)),
    )
    sessions = (
        Session("edge-1~1~1", "edge-1", "subscribers", "peer-wd", at(12), at(13.5), True, 2, 0),
        Session("edge-1~1~2", "edge-1", "subscribers", "peer-wd", at(60), None, False, 0, 0),
    )
    moves = (Move("edge-1~1~1", "edge-1", "edge-2", "tide.level", at(13), at(13.2), 2, 0),)
    totals = Totals(
        records=400, refused=2, subscriptions=4, topics=2, received=1_500, late=30, sessions=2, sessions_moving=1,
        unnecessary=1, moves=2, edges=2, policies=("peer-wd",),
    )  # fmt: skip
    return Material(
        SPAN, totals, loads, (queue,), topics, sessions, moves,
        (Predicted("edge-1~1~1", "edge-1", "uplink", "source", 0.8, 0.83),),
        (MetricError("uplink", "source", 1, 1, 0.03, 0.03, 0.03),),
        Correlations(("a", "b"), ((1.0, 0.9), (0.9, 1.0)), frozenset({("a", "b")}), 24, 5), ("north",),
    )  # fmt: skip


def made(content: Material) -> str:
    return page(content, "A burst", datetime(2026, 2, 1, tzinfo=UTC), "lake/", Lines())


def pictures(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_every_chart_is_drawn_for_a_laptop_and_for_a_phone() -> None:
    drawn = pictures(made(material()))
    assert len(drawn) == 12
    labels = [one.attrib["aria-label"] for one in drawn]
    assert labels[::2] == labels[1::2]
    assert len(set(labels)) == 6
    widths = [float(one.attrib["width"]) for one in drawn]
    assert max(widths[::2]) == 900
    assert max(widths[1::2]) == 360


def test_nothing_is_drawn_outside_of_a_picture() -> None:
    for picture in pictures(made(material())):
        width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
        for element in picture.iter():
            for name, limit in (("x", width), ("x1", width), ("x2", width), ("cx", width), ("y", height)):
                if name in element.attrib:
                    assert -0.5 <= float(element.attrib[name]) <= limit + 0.5, (picture.attrib["aria-label"], name)


def test_the_page_fetches_nothing_and_names_do_no_harm() -> None:
    html = made(material())
    assert "default-src 'none'" in html
    assert not re.search(r"https?://|<script|<link|<img|url\(|@import", html)
    assert "&lt;script&gt;" in html


def test_axes_have_units() -> None:
    html = made(material())
    for words in ("seconds since 02:40:00 UTC", "% of its bandwidth", "deadline 1.1 s", "messages that wait (depth)",
                  "messages that may wait (threshold)", "predicted utilization", "low 90%"):  # fmt: skip
        assert words in html, words


def test_sentences_say_what_happened() -> None:
    told = " ".join(sentences(material()))
    assert "4 subscriptions to 2 topics got 1,500 messages; 30 of them (2.00%) came after their deadline" in told
    assert "Worst off was quake.alert, with 3.0% late against a deadline of 1.1 s" in told
    assert "2 sessions (peer-wd) were asked for, and 1 of them moved 2 clients; 1 was not necessary" in told
    assert "edge-1, was offered up to 105% of its uplink" in told
    assert "1.8 times what might wait" in told
    assert "3.0 percentage points on average, over 1 measurement" in told
    values = {fact.name: (fact.value, fact.bad) for fact in facts(material())}
    assert values["late"] == ("2.00%", True)
    assert values["moves"] == ("2", False)


def test_when_all_is_well_it_says_so() -> None:
    content = material()
    well = replace(
        content,
        totals=replace(content.totals, late=0, sessions=0, unnecessary=0, moves=0),
        topics=tuple(replace(topic, late=0) for topic in content.topics),
        sessions=(),
        moves=(),
    )
    told = " ".join(sentences(well))
    assert "every one of them in time" in told
    assert "No broker asked for a session" in told
    html = made(well)
    assert "nobody was moved in this time" in html
    assert "all deadlines kept" in html


def test_an_empty_chart_is_a_sentence_that_says_why() -> None:
    html = made(NOTHING)
    assert pictures(html) == []
    reasons = re.findall(r'<p class="none">(.*?)</p>', html)
    assert len(reasons) == 6
    assert "was telemetry switched off?" in reasons[0]
    assert "subscribers of the SDK do" in reasons[2]
    assert "too few windows" in reasons[5]
    without = replace(material(), loads=())
    assert "none knows the bandwidth of its uplink" in made(without)


@given(st.floats(1, 1e9), st.integers(2, 200))
def test_windows_are_as_few_as_asked_for(seconds: float, count: int) -> None:
    width = window_s(seconds, count)
    assert seconds / width <= count or width == 31_536_000


@given(st.floats(0.01, 1e6), st.integers(2, 12))
def test_ticks_are_few_and_within(high: float, count: int) -> None:
    found = ticks(0.0, high, count)
    assert 1 <= len(found) <= 2 * count + 2
    assert all(-1e-9 <= value <= high * (1 + 1e-6) for value in found)


@pytest.mark.parametrize("seconds", [1, 60, 900, 5_000, 80_000, 800_000, 40_000_000])
def test_a_time_axis_has_a_few_labels_at_any_length(seconds: int) -> None:
    axis = TimeAxis(Span(START_US, START_US + seconds * US, 1, 1), 40, 340)
    labels = axis.ticks()
    assert 1 <= len(labels) <= 6
    assert all(40 <= place <= 340 for place, _ in labels)


def test_a_scale_keeps_what_is_beyond_it_at_its_end() -> None:
    scale = Scale(0, 10, 100, 0)
    assert [scale(value) for value in (-5, 0, 5, 10, 99)] == [100, 100, 50, 0, 0]
    assert Scale(3, 3, 10, 20)(3) == 10


@given(st.text(max_size=80), st.floats(10, 400))
def test_a_shortened_text_fits_and_keeps_both_ends(text: str, width: float) -> None:
    short = shortened(text, width)
    assert len(short) <= max(4, width / (12 * 0.56))
    assert short == text or (short[0] == text[0] and short[-1] == text[-1])


def test_what_begins_and_ends_together_need_not_go_together() -> None:
    import numpy as np

    from tidegate_analytics.report.gather import coefficients, in_traffic

    steady, rising = [0, 0, 5, 10, 10, 10, 10, 10, 4, 0], [0, 0, 5, 10, 11, 12, 13, 14, 7, 0]
    falling = [0, 0, 5, 14, 13, 12, 11, 10, 4, 0]
    values = in_traffic(np.asarray([steady, rising, falling], dtype=np.float64))
    assert values.tolist()[0] == [10] * 5
    found = coefficients(values)
    assert found[0] == (None, None, None), "a rate that does not change goes with nothing"
    assert found[1][1:] == (pytest.approx(1.0), pytest.approx(-1.0, abs=0.01))
    assert in_traffic(np.zeros((2, 5))).shape == (2, 0)
