"""What of the reports of publishers is believed."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tidegate_agents.head.publishers.credibility import (
    BURST_FACTOR,
    CLAIM_FLOOR_BYTES_PER_S,
    CLAIM_FLOOR_PER_S,
    ROUND_TRIP_S_CAP,
    ROUND_TRIP_S_FLOOR,
    UNVERIFIED_S_MAX,
    Claim,
    Credit,
    believed,
)
from tidegate_agents.load.metrics import AccountSample, PublisherSample
from tidegate_protocol.decisions import Untruth


def claim(account: str, rate: float, size: float = 100.0, trip_s: float = 0.01, topic: str = "t") -> Claim:
    return Claim(account, PublisherSample(f"{account or 'nobody'}~1", topic, rate, size, trip_s))


def measured(**rates: float) -> dict[str, AccountSample]:
    return {name: AccountSample(name, rate, rate * 300.0, published_per_s=rate) for name, rate in rates.items()}


def test_what_agrees_with_what_was_measured_is_believed_as_it_is() -> None:
    claims = (claim("buoy", 100.0), claim("rival", 30.0, topic="u"))
    found = believed(claims, measured(buoy=90.0, rival=31.0))
    assert found.samples == tuple(one.sample for one in claims)
    assert not found.untrue


def test_a_burst_is_believed_before_it_is_measured() -> None:
    assert not believed((claim("buoy", 380.0),), measured(buoy=100.0)).untrue


def test_more_messages_than_measured_are_clipped() -> None:
    found = believed((claim("rival", 1e6, topic="a"), claim("rival", 1e6, topic="b")), measured(rival=5.0))
    assert sum(one.messages_per_s for one in found.samples) == BURST_FACTOR * 5.0
    (lie,) = found.untrue
    assert (lie.account, lie.publisher, lie.reason) == ("rival", "rival~1", Untruth.MESSAGES)


def test_more_bytes_than_measured_are_clipped() -> None:
    (sample,) = believed((claim("rival", 10.0, size=1e9),), measured(rival=10.0)).samples
    assert sample.messages_per_s == 10.0
    assert sample.messages_per_s * sample.message_bytes <= max(BURST_FACTOR * 3000.0, CLAIM_FLOOR_BYTES_PER_S) * 1.001


def test_an_account_that_publishes_nothing_is_not_believed_at_all() -> None:
    found = believed((claim("rival", 5.0),), measured(buoy=5.0))
    assert found.samples == ()
    assert [one.reason for one in found.untrue] == [Untruth.UNMEASURED]
    waiting = believed((claim("rival", 1e6),), measured(buoy=5.0), 100.0, {"rival"})
    assert sum(one.messages_per_s for one in waiting.samples) == 150.0, "at most what the head takes in"


def test_a_topic_that_an_account_may_not_publish_on_is_left_out() -> None:
    rule = lambda account, topic: account == "buoy" or topic != "quake"  # noqa: E731
    claims = (claim("buoy", 5.0, topic="quake"), claim("rival", 5.0, topic="quake"), claim("rival", 5.0, topic="own"))
    found = believed(claims, measured(buoy=5.0, rival=10.0), may_publish=rule)
    assert [(one.publisher, one.topic) for one in found.samples] == [("buoy~1", "quake"), ("rival~1", "own")]
    assert [one.reason for one in found.untrue] == [Untruth.TOPIC]


def test_a_round_trip_counts_up_to_what_is_usual() -> None:
    claims = (claim("buoy", 5.0, trip_s=0.02), claim("rival", 5.0, trip_s=60.0))
    found = believed(claims, measured(buoy=5.0, rival=5.0))
    assert [one.round_trip_s for one in found.samples] == [0.02, ROUND_TRIP_S_FLOOR]
    assert [one.reason for one in found.untrue] == [Untruth.ROUND_TRIP]
    far = tuple(claim(name, 5.0, trip_s=0.9) for name in ("a", "b", "c"))
    assert not believed(far, measured(a=5.0, b=5.0, c=5.0)).untrue, "where everybody is far away, nobody lies"


def test_an_account_that_publishes_in_silence_has_a_vote_on_what_is_usual() -> None:
    (sample,) = believed((claim("rival", 5.0, trip_s=60.0),), measured(plain=5.0, rival=5.0)).samples
    assert sample.round_trip_s == ROUND_TRIP_S_FLOOR
    (first,) = believed((claim("rival", 5.0, trip_s=60.0),), measured(rival=5.0)).samples
    assert first.round_trip_s == ROUND_TRIP_S_FLOOR, "the first to publish does not decide for all"
    (alone,) = believed((claim("guest", 5.0, trip_s=60.0),), measured(guest=5.0), shared=("guest",)).samples
    assert alone.round_trip_s == ROUND_TRIP_S_CAP, "where everybody has the same account, its word is all there is"


def test_what_an_honest_publisher_may_say_is_clipped_and_names_nobody() -> None:
    """A burst that is shorter than what is measured at a time, and a RabbitMQ that confirms late."""
    found = believed((claim("buoy", 100.0), claim("other", 5.0, trip_s=6.0)), measured(buoy=20.0, other=5.0))
    assert [(one.messages_per_s, one.round_trip_s) for one in found.samples] == [(80.0, 0.01), (5.0, 0.5)]
    assert not found.untrue


def test_where_only_the_loudest_were_measured_the_others_are_believed_as_much_as_comes_in() -> None:
    claims = (claim("buoy", 100.0), claim("quiet", 2.0), claim("rival", 1e6))
    found = believed(claims, measured(buoy=100.0), 200.0, complete=False)
    assert {one.publisher: one.messages_per_s for one in found.samples} == {
        "buoy~1": 100.0, "quiet~1": 2.0, "rival~1": 300.0,
    }  # fmt: skip
    assert {one.publisher for one in found.untrue} == {"rival~1"}


def test_credit_is_spent_by_reporting_and_renewed_by_publishing() -> None:
    credit = Credit()
    silent, publishing = measured(buoy=1.0), measured(rival=1.0)
    assert credit.left(0.0, ["rival"], silent) == {"rival"}
    assert credit.left(UNVERIFIED_S_MAX / 2, ["rival"], silent) == {"rival"}
    assert credit.left(UNVERIFIED_S_MAX * 0.75, [], silent) == frozenset(), "a pause costs nothing, and gives nothing"
    assert credit.left(UNVERIFIED_S_MAX * 1.25, ["rival"], silent) == frozenset()
    assert credit.left(UNVERIFIED_S_MAX * 1.3, ["rival"], publishing) == {"rival"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "b", "c"]), st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e9),
            st.sampled_from(["t", "u"]),
        ),
        max_size=20,
    ),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0, 1e4), max_size=3),
)  # fmt: skip
def test_whatever_is_claimed_no_more_is_believed_than_was_measured(
    said: list[tuple[str, float, float, float, str]], rates: dict[str, float]
) -> None:
    known = measured(**rates)
    claims = [claim(*one) for one in said]
    found = believed(claims, known)
    for account in ("a", "b", "c"):
        mine = [one for one in found.samples if one.publisher == f"{account}~1"]
        rate = rates.get(account, 0.0)
        assert sum(one.messages_per_s for one in mine) <= max(BURST_FACTOR * rate, CLAIM_FLOOR_PER_S) * 1.001
        assert rate > 0.0 or sum(one.messages_per_s for one in mine) == 0.0
    assert all(one.finite and one.round_trip_s <= ROUND_TRIP_S_CAP for one in found.samples)
    assert found.samples == tuple(sorted(found.samples, key=lambda one: (one.publisher, one.topic)))
