"""Who may publish and subscribe what: judgements, their words, and the file of the rules."""

from __future__ import annotations

import pytest

from tidegate_protocol.errors import MalformedMessage
from tidegate_protocol.parts import RefusalReason
from tidegate_protocol.rendering.refusals import not_allowed
from tidegate_protocol.rendering.rights import VERDICTS, judged
from tidegate_protocol.rights import (
    AccountRights,
    Judgement,
    Rules,
    Verdict,
    may_publish,
    may_subscribe,
    read_rules,
    write_rules,
)

RULES = Rules.of(
    AccountRights(account="siren", tenant="coast", subscribe=("coast.#", "weather.*")),
    AccountRights(account="buoy-a", publish=("coast.*.level",)),
)


@pytest.mark.parametrize(
    ("client", "pattern", "verdict", "rule"),
    [
        ("siren", "coast.alert.*", Verdict.COVERED, "coast.#"),
        ("siren-north-1", "weather.wind", Verdict.COVERED, "weather.*"),
        ("siren-1", "weather.#", Verdict.NOT_COVERED, ""),
        ("siren", "#", Verdict.NOT_COVERED, ""),
        ("siren", "*.alert", Verdict.NOT_COVERED, ""),
        ("buoy-a", "coast.x.level", Verdict.NO_RIGHT, ""),
        ("sirene", "coast.x", Verdict.UNKNOWN_ACCOUNT, ""),
        ("buoy", "coast.x", Verdict.UNKNOWN_ACCOUNT, ""),
        ("-siren", "coast.x", Verdict.UNKNOWN_ACCOUNT, ""),
        ("", "coast.x", Verdict.UNKNOWN_ACCOUNT, ""),
    ],
)
def test_a_subscription_is_allowed_if_one_rule_of_its_account_covers_it(
    client: str, pattern: str, verdict: Verdict, rule: str
) -> None:
    found = may_subscribe(client, pattern, RULES)
    assert (found.verdict, found.rule) == (verdict, rule)
    assert may_subscribe(client, pattern, None).verdict is Verdict.UNRULED


def test_two_rules_that_cover_a_pattern_only_together_do_not_allow_it() -> None:
    rules = Rules.of(AccountRights(account="x", subscribe=("a", "a.*.#")))
    assert not may_subscribe("x", "a.#", rules).allowed


@pytest.mark.parametrize(
    ("client", "topic", "verdict"),
    [
        ("buoy-a~k3", "coast.1.level", Verdict.COVERED),
        ("buoy-a", "coast.1.2.level", Verdict.NOT_COVERED),
        ("siren", "coast.1.level", Verdict.NO_RIGHT),
        ("buoy-a", "tidegate.marker.m", Verdict.RESERVED),
    ],
)
def test_publishing(client: str, topic: str, verdict: Verdict) -> None:
    assert may_publish(client, topic, RULES).verdict is verdict
    assert may_publish(client, "tidegate.x", None).verdict is Verdict.RESERVED


def test_a_refusal_names_the_pattern_the_rules_and_what_to_do() -> None:
    refusal = not_allowed(may_subscribe("siren-1", "quake.#", RULES))
    assert (refusal.reason, refusal.field) == (RefusalReason.NOT_ALLOWED, "pattern")
    for words in ("siren-1 may not subscribe to quake.#", "the account siren", "coast.#", "tidegate access apply"):
        assert words in refusal.message
    assert VERDICTS.keys() == set(Verdict)
    for verdict in Verdict:
        assert verdict in {may.verdict for may in every_judgement()}
    assert all(judged(one) for one in every_judgement())


def every_judgement() -> list[Judgement]:
    return [
        may_subscribe("siren", "coast.a", None),
        may_subscribe("siren", "coast.a", RULES),
        may_subscribe("siren", "b", RULES),
        may_subscribe("buoy-a", "b", RULES),
        may_subscribe("nobody", "b", RULES),
        may_publish("siren", "tidegate.a", RULES),
    ]


def test_rules_are_read_as_they_were_written() -> None:
    assert read_rules(write_rules(RULES).encode()) == RULES
    assert read_rules(b'{"v": 1}') == Rules.of()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"v": 2, "accounts": []}',
        b'{"v": 1, "accounts": [{"account": "a.b"}]}',
        b'{"v": 1, "accounts": [{"account": "a", "publish": ["a..b"]}]}',
        b'{"v": 1, "accounts": [{"account": "a", "subscribe": ["#.#.#"]}]}',
    ],
)
def test_rules_that_are_none_are_refused(content: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_rules(content)
