"""The caller's mistakes: each is refused at once, says which field is wrong, and shows no password."""

from __future__ import annotations

import pytest

import tidegate
from tidegate import (
    AsyncPublisher,
    AsyncSubscriber,
    Backoff,
    Closed,
    InvalidName,
    InvalidUrl,
    InvalidValue,
    Limits,
    Publisher,
    Subscriber,
    Timeouts,
)
from tidegate._core.config import Address
from tidegate._core.options import make_inbox, make_request

CLIENTS = [AsyncPublisher, AsyncSubscriber, Publisher, Subscriber]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "url",
    [
        "http://u:secret@host",
        "host:5672",
        "amqp://",
        "amqp://u:secret@host:99999",
        "amqp://u:secret@host/a/b",
        "amqp://u:secret@host/?color=red",
        "",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(client: type, url: str) -> None:
    with pytest.raises(InvalidUrl) as error:
        client(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ["", "a.b", "a:b", "-a", "a" * 49, "a b"])
def test_a_bad_name_is_refused(client: type, name: str) -> None:
    with pytest.raises(InvalidName):
        client("amqp://localhost", name=name)


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), "1", True, None])
def test_a_deadline_that_is_no_time_is_refused(deadline: object) -> None:
    with pytest.raises(InvalidValue) as error:
        make_request("s", "a.#", deadline, 600)  # type: ignore[arg-type]
    assert error.value.field == "deadline"


@pytest.mark.parametrize("expires_s", [0, 1.5, 31 * 24 * 3600])
def test_an_expiry_out_of_range_is_refused(expires_s: object) -> None:
    with pytest.raises(InvalidValue) as error:
        make_request("s", "a.#", 1.0, expires_s)  # type: ignore[arg-type]
    assert error.value.field == "expires_s"


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidValue, match="pattern"):
        make_request("s", "a..b", 1.0, 600)
    with pytest.raises(InvalidValue, match="prefetch"):
        make_inbox("a.#", 1.0, "auto", 70_000, Limits())
    with pytest.raises(InvalidValue, match="acknowledge"):
        make_inbox("a.#", 1.0, "sometimes", None, Limits())
    with pytest.raises(InvalidValue, match="window"):
        Publisher("amqp://localhost", window=0)
    with pytest.raises(InvalidValue, match="connect_s"):
        Timeouts(connect_s=0)
    with pytest.raises(InvalidValue, match="jitter"):
        Backoff(jitter=2)


def test_an_address_is_read_and_lends_its_credentials() -> None:
    head = Address.parse("amqps://al%40ice:p%2Fw@head.example/v%2Fh?cafile=ca.pem")
    assert (head.host, head.port, head.user, head.password, head.vhost) == (
        "head.example",
        5671,
        "al@ice",
        "p/w",
        "v/h",
    )
    edge = head.at("amqps://edge.example:1234/e")
    assert (edge.host, edge.port, edge.user, edge.password, edge.vhost) == (
        "edge.example",
        1234,
        "al@ice",
        "p/w",
        "e",
    )
    assert edge.tls == {"cafile": "ca.pem"}
    assert "p/w" not in f"{head} {head!r}"


def test_credentials_given_for_tls_are_not_lent_to_an_address_without() -> None:
    secure, plain = Address.parse("amqps://alice:secret@head"), Address.parse("amqp://alice:secret@head")
    with pytest.raises(InvalidUrl, match="without TLS") as refused:
        secure.at("amqp://edge:5672/e")
    assert "secret" not in str(refused.value)
    assert plain.at("amqp://edge").scheme == "amqp"
    assert plain.at("amqps://edge").scheme == "amqps", "one that asks for more is taken"


def test_backoff_grows_to_its_limit_and_jitters_downwards() -> None:
    backoff = Backoff(first_s=1, factor=2, limit_s=10, jitter=0.5)
    assert [backoff.delay_s(attempt, 0.0) for attempt in range(5)] == [1, 2, 4, 8, 10]
    assert backoff.delay_s(10_000, 1.0) == 5


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(Closed):
        Publisher("amqp://localhost").publish("a", b"")
    with pytest.raises(Closed):
        Subscriber("amqp://localhost").subscribe("a", deadline=1)
    with pytest.raises(Closed):
        await AsyncPublisher("amqp://localhost").publish("a", b"")
    with pytest.raises(Closed):
        await AsyncSubscriber("amqp://localhost").subscribe("a", deadline=1)


def test_every_public_name_is_there() -> None:
    assert sorted(tidegate.__all__) == tidegate.__all__
    assert all(hasattr(tidegate, name) for name in tidegate.__all__)
