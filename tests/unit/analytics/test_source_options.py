"""Options of the Spark source: what is understood, and that every refusal names the option and a remedy."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rabbitmq_stream_source.errors import InvalidOption
from rabbitmq_stream_source.offsets import StreamKey
from rabbitmq_stream_source.options import Settings, parse_options

URL = "amqp://ann:s3cret@rabbit.example:5673/field"
PATTERN = {"streamsPattern": "a.*", "managementUrl": "http://m"}


def parse(environment: dict[str, str] | None = None, **options: str) -> Settings:
    return parse_options({"url": URL, "streams": "s", **options}, environment or {})


def test_the_least_that_is_needed() -> None:
    settings = parse()
    (broker,) = settings.brokers
    assert (broker.name, broker.virtual_host, broker.address) == (
        "rabbit.example:5673/field", "field", "amqp://rabbit.example:5673/field",
    )  # fmt: skip
    assert (broker.amqp.user, broker.amqp.password) == ("ann", "s3cret")
    assert settings.streams == ("s",)
    assert settings.starting.of(StreamKey("any", "s")) == "earliest"
    assert settings.ending.of(StreamKey("any", "s")) == "latest"
    assert not settings.skip_lost


def test_names_of_options_are_known_in_any_case() -> None:
    assert parse_options({"URL": URL, "Streams": "s", "ONDATALOSS": "skip"}, {}).skip_lost


def test_several_brokers_have_names_of_their_own() -> None:
    settings = parse_options({"urls": f"north={URL}, amqps://south.example", "streams": "a, b,"}, {})
    assert [broker.name for broker in settings.brokers] == ["north", "south.example:5671//"]
    assert settings.streams == ("a", "b")
    assert settings.broker("north").amqp.port == 5673
    assert settings.brokers[1].amqp.secure


def test_a_broker_of_the_checkpoint_that_has_no_url_is_named() -> None:
    with pytest.raises(InvalidOption, match=r"urls: .* 'old'.*urls=old=amqp://"):
        parse().broker("old")


def test_the_management_api_is_asked_with_the_credentials_of_the_broker() -> None:
    settings = parse_options({"url": URL, **PATTERN}, {})
    management = settings.brokers[0].management
    assert management is not None
    assert (management.user, management.password, management.address) == ("ann", "s3cret", "http://m:15672")


def test_a_password_may_come_from_the_environment() -> None:
    options = {"url": "amqp://rabbit.example", "streams": "s", "user": "bea", "passwordEnv": "SECRET"}
    endpoint = parse_options(options, {"SECRET": "hush"}).brokers[0].amqp
    assert (endpoint.user, endpoint.password) == ("bea", "hush")


def test_settings_travel_and_never_show_a_password() -> None:
    settings = parse()
    assert "s3cret" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prefech": "3"}, "prefech: .*did you mean prefetch"),
        ({"color": "red"}, "color: .*the options are url, urls"),
        ({"url": ""}, "url: missing; give url"),
        ({"urls": URL}, "url: urls is given too"),
        ({"url": "http://rabbit.example"}, "url: .*give amqp://"),
        ({"url": "amqp://rabbit.example:port"}, "url: not a URL"),
        ({"url": "amqp://rabbit.example/v?heartbeat=3"}, r"url: .*%3F"),
        ({"url": "amqp://rabbit.example/a/b"}, "url: .*%2F"),
        ({"streams": ""}, "streams: missing"),
        ({"streams": "a,b,a"}, "streams: 'a' is there twice"),
        ({"streamsPattern": "x"}, "streams: streamsPattern is given too"),
        ({"managementUrl": "http://m"}, "managementUrl: it is used with streamsPattern only"),
        ({"streams": "", "streamsPattern": "x"}, "managementUrl: missing"),
        ({"streams": "", **PATTERN, "streamsPattern": "("}, "streamsPattern: .*regular expression"),
        ({"streams": "", "streamsPattern": "x", "managementUrls": "http://a,http://b"}, "managementUrls: 2 for 1"),
        ({"passwordEnv": "NOT_THERE"}, "passwordEnv: .*NOT_THERE; set it"),
        ({"maxRowsPerBatch": "0"}, "maxRowsPerBatch: '0'.*from 1"),
        ({"rowsPerPartition": "many"}, "rowsPerPartition: 'many'.*whole number"),
        ({"prefetch": "65536"}, "prefetch: '65536'.*to 65535"),
        ({"connectRetries": "-1"}, "connectRetries: '-1'.*from 0"),
        ({"readTimeoutS": "soon"}, "readTimeoutS: 'soon'.*seconds"),
        ({"readTimeoutS": "nan"}, "readTimeoutS: 'nan'.*seconds"),
        ({"onDataLoss": "maybe"}, "onDataLoss: 'maybe'.*fail or skip"),
        ({"caFile": "/no/such/file"}, "caFile: no URL uses TLS"),
        ({"url": "amqps://h", "caFile": "/no/such/file"}, "caFile: there is no file /no/such/file"),
        ({"startingOffsets": "yesterday"}, "startingOffsets: 'yesterday'.*earliest, latest"),
        ({"startingOffsets": '{"s": '}, "startingOffsets: broken JSON"),
        ({"startingOffsets": '{"s": -1}'}, "startingOffsets: -1"),
        ({"startingOffsets": '{"s": true}'}, "startingOffsets: True"),
        ({"endingOffsets": "9999999999999999999"}, "endingOffsets: "),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as caught:
        parse(**options)
    assert caught.value.remedy
    assert "s3cret" not in str(caught.value)


def test_two_brokers_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidOption, match="two brokers are called n"):
        parse_options({"urls": f"n={URL},n=amqp://other", "streams": "s"}, {})


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    with pytest.raises(InvalidOption, match="certFile: missing"):
        parse(url="amqps://h", keyFile=str(key))


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("17", 17),
        ("2024-05-01T12:00:00+02:00", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        ("2024-05-01T10:00:00", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        ('{"s": 17}', 17),
        ('{"b": {"s": "latest"}, "s": 3}', "latest"),
        ('{"other": 17}', "earliest"),
    ],
)
def test_points(text: str, point: object) -> None:
    assert parse(startingOffsets=text).starting.of(StreamKey("b", "s")) == point


@pytest.mark.parametrize("text", ['{"t": 1}', '{"b": {"t": 1}}', '{"c": {"s": 1}}'])
def test_a_point_for_a_stream_that_is_not_read_is_a_mistake(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingOffsets: there is no stream"):
        parse(startingOffsets=text).starting.check_names([StreamKey("b", "s")])
