"""Configuration: which source wins, what errors say, and that no password is ever shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from tidegate_brokers.errors import ConfigurationError
from tidegate_brokers.settings.options import BrokerConfig, EdgeConfig, HeadConfig
from tidegate_brokers.settings.reading import load_config, render_reference

ROOT = Path(__file__).parents[3]
SECRET = "hush-hush"
URL = f"amqp://tidegate:{SECRET}@rabbit:5673/a%2Fb"
NEEDED = {"name": "north", "cluster": "coast", "url": URL}


def write(directory: Path, text: str) -> Path:
    file = directory / "head.toml"
    file.write_text(text)
    return file


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = write(tmp_path, f'name = "file"\ncluster = "file"\nurl = "{URL}"\nperiod_s = 2\nhttp_port = 1')
    environ = {"TIDEGATE_HEAD_CLUSTER": "variable", "TIDEGATE_HEAD_PERIOD_S": "3", "TIDEGATE_OTHER": "not ours"}
    config = load_config(HeadConfig, file, environ, {"period_s": "4", "http_port": None})
    assert (config.name, config.cluster, config.period_s) == ("file", "variable", 4.0)
    assert config.http_port == 1, "a flag that was not given does not count"
    assert config.startup_timeout_s == HeadConfig.model_fields["startup_timeout_s"].default


def test_the_address_that_clients_use_is_not_taken_for_the_broker_s_own() -> None:
    environ = {"TIDEGATE_URL": "amqp://head", "TIDEGATE_HEAD_URL": "amqp://head"}
    config = load_config(EdgeConfig, None, environ, {**NEEDED, "head_url": "amqp://u:hush@head"})
    assert config.url.host == "rabbit"


def test_neighbours_come_from_a_file_or_as_json(tmp_path: Path) -> None:
    file = write(tmp_path, f'[[neighbours]]\nname = "south"\nurl = "{URL}"')
    assert load_config(HeadConfig, file, {}, NEEDED).neighbours[0].name == "south"
    text = json.dumps([{"name": "east", "url": "amqp://u:hush@east", "link_url": "amqp://inside"}])
    (east,) = load_config(HeadConfig, file, {"TIDEGATE_HEAD_NEIGHBOURS": text}, NEEDED).neighbours
    assert east.name == "east"
    assert east.link.host == "inside"


@pytest.mark.parametrize(
    ("text", "option", "words"),
    [
        ("no toml at all", "--config", "is not TOML"),
        ('colour = "red"', "colour", "is not a known option; known are name, "),
        ("period_s = 0", "period_s", "greater than or equal to 0.1"),
        ('period_s = "often"', "period_s", "valid number"),
        ("http_port = 70000", "http_port", "less than or equal to 65535"),
        ('name = "a.b"', "name", "use letters, digits"),
        ('url = "rabbit"', "url", "scheme"),
        ('url = "amqp://"', "url", "names no host"),
        ('url = "amqp://h:port"', "url", "numeric port"),
        ('url = "amqp://h/a/b"', "url", "%2F"),
        ('management_url = "amqp://h"', "management_url", "instead of http or https"),
        ('neighbours = [{name = "north", url = "amqp://u:hush@h"}]', "neighbours", "its own neighbour"),
        (
            'neighbours = [{name = "a", url = "amqp://u:hush@h"}, {name = "a", url = "amqp://u:hush@h"}]',
            "neighbours",
            "twice",
        ),
        (
            'neighbours = [{name = "a", port = 3, url = "amqp://u:hush@h"}]',
            "neighbours.0.port",
            "known are name, url",
        ),
    ],
)
def test_an_error_names_option_source_and_remedy(tmp_path: Path, text: str, option: str, words: str) -> None:
    file = write(tmp_path, text)
    rest = {key: value for key, value in NEEDED.items() if not text.startswith(key + " ")}
    with pytest.raises(ConfigurationError) as caught:
        load_config(HeadConfig, file, {}, rest)
    assert caught.value.option == option
    assert str(file) in caught.value.source
    assert words in str(caught.value)
    assert caught.value.remedy


def test_the_source_of_a_wrong_value_is_named() -> None:
    with pytest.raises(ConfigurationError, match="variable TIDEGATE_HEAD_PERIOD_S"):
        load_config(HeadConfig, None, {"TIDEGATE_HEAD_PERIOD_S": "never"}, NEEDED)
    with pytest.raises(ConfigurationError, match="flag --period-s"):
        load_config(HeadConfig, None, {"TIDEGATE_HEAD_PERIOD_S": "1"}, {**NEEDED, "period_s": "never"})
    with pytest.raises(ConfigurationError, match=r"variable TIDEGATE_HEAD_NEIGHBOURS.*is not JSON"):
        load_config(HeadConfig, None, {"TIDEGATE_HEAD_NEIGHBOURS": "[,"}, NEEDED)


def test_a_missing_option_says_how_to_give_it() -> None:
    with pytest.raises(ConfigurationError, match=r"head_url.*is required; set .*TIDEGATE_EDGE_HEAD_URL or --head-url"):
        load_config(EdgeConfig, None, {}, NEEDED)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        load_config(HeadConfig, tmp_path / "nowhere.toml", {}, NEEDED)


def test_no_password_is_shown(tmp_path: Path) -> None:
    neighbours = [{"name": "south", "url": URL, "link_url": URL}]
    config = load_config(HeadConfig, None, {}, {**NEEDED, "neighbours": neighbours})
    for shown in (
        repr(config),
        str(config),
        config.model_dump_json(),
        str(config.url),
        repr(config.management),
    ):
        assert SECRET not in shown
        assert "***" in shown
    for wrong in (
        f"amqp://u:{SECRET}@h:x",
        f"ftp://u:{SECRET}@h",
        f"amqp://u:{SECRET}@h/a/b",
        f"amqp://u:{SECRET}@",
    ):
        with pytest.raises(ConfigurationError) as caught:
            load_config(HeadConfig, None, {}, {**NEEDED, "url": wrong})
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__, "the cause, which could show it, is left out"


def test_derived_addresses() -> None:
    config = load_config(EdgeConfig, None, {}, {**NEEDED, "head_url": "amqp://localhost"})
    assert config.url.reveal() == URL
    assert config.url.vhost == "a/b"
    assert config.client_address == "amqp://rabbit:5673/a%2Fb"
    assert config.link.reveal() == URL
    assert config.management.without_credentials() == "http://rabbit:15672"
    assert config.management.credentials == ("tidegate", SECRET)
    assert config.head_url.credentials == ("guest", "guest")


def test_an_address_keeps_odd_characters() -> None:
    text = "amqp://us%40er:p%2Fw%3A%25@[::1]:5673/%2F"
    config = load_config(HeadConfig, None, {}, {**NEEDED, "url": text})
    assert config.url.credentials == ("us@er", "p/w:%")
    assert config.url.reveal() == text


@pytest.mark.parametrize("model", [HeadConfig, EdgeConfig])
def test_every_option_is_described(model: type[BrokerConfig]) -> None:
    for option, info in model.model_fields.items():
        assert info.description, option
        unit = isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("unit")
        needs_unit = option.endswith(("_s", "_bytes", "_per_s"))
        assert bool(unit) or not needs_unit, f"{option} has no unit"


def test_a_segment_of_telemetry_is_never_larger_than_all_of_it() -> None:
    small = load_config(HeadConfig, None, {}, {**NEEDED, "telemetry_size_bytes": "2000000"})
    assert small.telemetry_limits == (7 * 24 * 3600, 2_000_000, 2_000_000)
    with pytest.raises(ConfigurationError, match="is larger than telemetry_size_bytes") as caught:
        load_config(
            HeadConfig,
            None,
            {"TIDEGATE_HEAD_TELEMETRY_SEGMENT_BYTES": "3000000"},
            {**NEEDED, "telemetry_size_bytes": "2000000"},
        )
    assert caught.value.option == "telemetry_segment_bytes"


def test_telemetry_is_switched_off_by_flag_or_variable() -> None:
    assert load_config(HeadConfig, None, {}, NEEDED).telemetry
    assert not load_config(HeadConfig, None, {"TIDEGATE_HEAD_TELEMETRY": "false"}, NEEDED).telemetry
    assert not load_config(HeadConfig, None, {}, {**NEEDED, "telemetry": "false"}).telemetry
    with pytest.raises(ConfigurationError, match="telemetry"):
        load_config(HeadConfig, None, {}, {**NEEDED, "telemetry": "perhaps"})


def test_a_configuration_does_not_change() -> None:
    config = load_config(HeadConfig, None, {}, NEEDED)
    with pytest.raises(ValidationError):
        config.name = "south"  # type: ignore[misc]


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == render_reference()


@pytest.mark.parametrize("role", ["head", "edge"])
def test_a_process_with_a_wrong_configuration_says_so_in_one_line(role: str) -> None:
    command = [sys.executable, "-m", "tidegate_cli", role, "--name", "north", "--cluster", "coast"]
    done = subprocess.run([*command, "--url", f"ftp://u:{SECRET}@h"], capture_output=True, text=True, check=False)
    assert done.returncode == os.EX_CONFIG
    assert done.stderr.startswith("error: option ")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr


@pytest.mark.parametrize("account", ["", "guest:guest@", "tidegate:tidegate@", "tidegate@", "tidegate:@"])
def test_a_password_that_anybody_could_guess_does_on_the_loopback_only(account: str) -> None:
    for host in ("localhost", "127.0.0.1", "127.8.8.8", "[::1]"):
        load_config(HeadConfig, None, {}, {**NEEDED, "url": f"amqp://{account}{host}"})
    for host in ("rabbit", "10.0.0.1", "0.0.0.0"):
        with pytest.raises(ConfigurationError, match="anybody could guess") as caught:
            load_config(HeadConfig, None, {}, {**NEEDED, "url": f"amqp://{account}{host}"})
        assert caught.value.option == "url"


def test_a_variable_may_name_a_file_that_holds_the_value(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(URL + "\n")
    needed = {"name": "north", "cluster": "coast"}
    config = load_config(HeadConfig, None, {"TIDEGATE_HEAD_URL_FILE": str(file), "TIDEGATE_HEAD_PERIOD_S": ""}, needed)
    assert config.url.password == SECRET
    assert config.period_s == HeadConfig.model_fields["period_s"].default, "an empty variable counts as not set"


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        (None, {}, "can't be read: No such file"),
        ("", {}, "is empty"),
        (URL, {"TIDEGATE_HEAD_URL": URL}, "is given beside TIDEGATE_HEAD_URL"),
        (f"amqp://u:{SECRET}@h:x", {}, "numeric port"),
    ],
)
def test_a_file_that_does_not_hold_it_is_named(
    tmp_path: Path, content: str | None, more: dict[str, str], words: str
) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_config(HeadConfig, None, {"TIDEGATE_HEAD_URL_FILE": str(file), **more}, {"name": "n", "cluster": "c"})
    assert "TIDEGATE_HEAD_URL" in caught.value.source
    assert SECRET not in str(caught.value)
