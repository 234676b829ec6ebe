"""What an SDK does with rules: a publisher refuses what its account may not publish, before RabbitMQ has to."""

from __future__ import annotations

import pytest

from tidegate import NotConfirmed, Refused
from tidegate._core.config import Limits
from tidegate._core.publishing import PublishingMachine
from tidegate._core.window import Publication


def machine() -> PublishingMachine:
    made = PublishingMachine("buoy~1", Limits())
    made.opened()
    return made


def publish(publisher: PublishingMachine, topic: str) -> Publication:
    return publisher.admit(publisher.draft(topic, b"x", None, True), 1)


def test_without_rules_anything_may_be_published() -> None:
    publisher = machine()
    publisher.restrict(None)
    publish(publisher, "a.b")
    publisher.validate()


def test_what_no_rule_matches_is_refused_and_takes_no_number() -> None:
    publisher = machine()
    publisher.restrict(("a.*", "b"))
    for topic in ("c", "a.b.c", "c"):
        with pytest.raises(
            Refused, match=rf"buoy may not publish {topic}.*a\.\*, b.*tidegate access explain"
        ) as caught:
            publisher.draft(topic, b"x", None, True)
        assert (caught.value.reason, caught.value.field) == ("not-allowed", "topic")
    assert publish(publisher, "a.x").id == "buoy~1:a.x:0"
    assert "c" not in publisher.topics
    publisher.restrict(())
    with pytest.raises(Refused, match="let it publish nothing"):
        publisher.draft("a.x", b"x", None, True)
    publisher.restrict(("#",))
    assert publish(publisher, "a.x").id == "buoy~1:a.x:1"
    publisher.validate()


def test_what_waits_fails_when_its_right_is_gone_and_the_rest_goes_out() -> None:
    publisher = machine()
    lost, kept = publish(publisher, "a"), publish(publisher, "b")
    publisher.restrict(("b",))
    assert isinstance(lost.error, NotConfirmed)
    assert "may not publish" in lost.error.problem
    assert publisher.take(0.0) == [kept]
    publisher.validate()


def test_what_was_in_flight_is_not_sent_again_to_be_refused_again() -> None:
    """RabbitMQ closes the channel at the first publication that it refuses, with everything in flight behind it."""
    publisher = machine()
    lost, kept = publish(publisher, "a"), publish(publisher, "b")
    assert publisher.take(0.0) == [lost, kept]
    publisher.restrict(("b",))
    assert not lost.settled, "RabbitMQ may have taken it"
    publisher.lost()
    publisher.opened()
    assert isinstance(lost.error, NotConfirmed)
    assert publisher.take(0.0) == [kept]
    publisher.validate()
