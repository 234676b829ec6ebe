"""Names, publisher ids, message ids, and the names of queues and routing keys made of them."""

from __future__ import annotations

import pytest

from tidegate_protocol import names
from tidegate_protocol.errors import InvalidName, InvalidTopic, InvalidValue
from tidegate_protocol.ids import (
    NAME_LENGTH_MAX,
    PUBLISHER_ID_LENGTH_MAX,
    MessageId,
    check_name,
    check_publisher_id,
    publisher_id,
)
from tidegate_protocol.topics import TOPIC_BYTES_MAX

SHORT_STRING_BYTES_MAX = 255
"""AMQP 0-9-1: message ids, routing keys, queue and exchange names are short strings."""


@pytest.mark.parametrize("value", ["a", "7", "siren-7", "Edge_1", "x" * NAME_LENGTH_MAX])
def test_legal_names(value: str) -> None:
    assert check_name(value) == value


@pytest.mark.parametrize(
    "value",
    ["", "-a", "_a", "a.b", "a:b", "a b", "a~b", "a*", "#", "ä", "a\n", "x" * (NAME_LENGTH_MAX + 1), None, 7],
)
def test_illegal_names(value: object) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(value, "edge")  # type: ignore[arg-type]
    assert caught.value.field == "edge"
    assert caught.value.value == value
    assert str(caught.value).startswith("edge ")
    assert caught.value.remedy in str(caught.value)


def test_publisher_ids_count_incarnations_in_base_36() -> None:
    assert publisher_id("buoy", 0) == "buoy~0"
    assert publisher_id("buoy", 35) == "buoy~z"
    assert publisher_id("buoy", 36) == "buoy~10"
    assert int(publisher_id("buoy", 1_700_000_000_000_000).partition("~")[2], 36) == 1_700_000_000_000_000


def test_a_publisher_id_too_long_for_a_message_id_is_refused() -> None:
    longest = publisher_id("x" * NAME_LENGTH_MAX, 36**15 - 1)
    assert len(longest) == PUBLISHER_ID_LENGTH_MAX
    with pytest.raises(InvalidName, match="at most 64"):
        publisher_id("x" * NAME_LENGTH_MAX, 36**15)


@pytest.mark.parametrize("value", ["", "buoy", "~0", "buoy~", "buoy~A", "bu:oy~0", "buoy~0\n", "a~0~0"])
def test_illegal_publisher_ids(value: str) -> None:
    with pytest.raises(InvalidName):
        check_publisher_id(value)


def test_the_longest_message_id_fits_amqp() -> None:
    longest = MessageId(publisher_id("x" * 48, 36**15 - 1), "é" * (TOPIC_BYTES_MAX // 2), 10**20 - 1)
    assert len(str(longest).encode()) <= SHORT_STRING_BYTES_MAX
    assert MessageId.parse(str(longest)) == longest


def test_message_ids_of_topics_with_colons() -> None:
    identity = MessageId("buoy~0", "geo:47:11.level", 12)
    assert MessageId.parse(str(identity)) == identity


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "7",
        "buoy~0",
        "buoy~0:topic",
        "buoy~0::7",
        "buoy~0:topic:",
        "buoy~0:topic:-1",
        "buoy~0:topic:1.5",
        "buoy~0:topic:١",
        "buoy~0:topic:²",
        "buoy~0:topic:1 ",
        "buoy~0:topic:007",
        "buoy~0:topic:" + "9" * 21,
        "buoy~0:topic:" + "9" * 5_000,
        "buoy:topic:1",
        ":topic:1",
        "0a1b2c3d-0000-4000-8000-000000000000",
    ],
)
def test_ids_of_foreign_clients_are_no_ids_of_ours(text: str | None) -> None:
    assert MessageId.parse(text) is None


def test_names_of_queues_exchanges_and_keys_fit_amqp() -> None:
    longest = "x" * NAME_LENGTH_MAX
    for name in (
        names.ingress_exchange(longest),
        names.link_queue(longest),
        names.output_queue(longest, 1_000_000),
        names.control_queue(longest),
        names.broker_key(longest),
        names.client_key(longest),
        names.pie_local_key(longest),
        names.pie_global_key(longest),
    ):
        assert len(name.encode()) <= SHORT_STRING_BYTES_MAX


def test_public_names_are_pinned() -> None:
    # Foreign clients and what a predecessor left in RabbitMQ depend on these.
    assert names.PUBLISH_EXCHANGE == "tidegate.publish"
    assert names.DELIVER_EXCHANGE == "tidegate.deliver"
    assert names.CONTROL_EXCHANGE == "tidegate.control"
    assert names.ingress_exchange("h") == "tidegate.ingress.h"
    assert names.link_queue("e") == "link.e"
    assert names.output_queue("s", 3) == "out.s.3"
    assert names.control_queue("h") == "control.h"
    assert names.broker_key("e") == "broker.e"
    assert names.pie_local_key("c") == "pie.local.c"
    assert names.pie_global_key("c") == "pie.global.c"


def test_errors_shorten_what_they_quote() -> None:
    error = InvalidTopic("topic", "x" * 10_000, "is long", "use less")
    assert len(str(error)) < 200
    assert isinstance(error, InvalidValue)
    assert isinstance(error, ValueError)
