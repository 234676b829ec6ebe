"""Mutual TLS in configurations: what brokers may leave out, and what `tidegate access prepare --mutual` writes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tidegate_brokers.access.layout import Layout
from tidegate_brokers.access.preparing import STAMPING, Access
from tidegate_brokers.errors import ConfigurationError
from tidegate_brokers.settings.options import EdgeConfig, HeadConfig
from tidegate_brokers.settings.reading import load_values
from tidegate_brokers.settings.tls import shovel_options
from tidegate_brokers.settings.urls import ServerUrl

LAYOUT = """
[[head]]
name = "head"
cluster = "main"
host = "rabbit-1"

[[edge]]
name = "edge-1"
head = "head"
host = "rabbit-2"
"""
EDGE: dict[str, object] = {
    "name": "edge-1",
    "cluster": "main",
    "url": "amqps://broker.edge-1@rabbit-2",
    "head_url": "amqps://broker.edge-1@rabbit-1",
    "link_url": "amqps://link.head:secret@rabbit-2",
    "management_url": "https://broker.edge-1:secret@rabbit-2",
    "tls_cert_file": "broker.pem",
}


def access(directory: Path, environ: dict[str, str] | None = None, mutual: bool = True) -> Access:
    (directory / "layout.toml").write_text(LAYOUT)
    return Access(Layout.load(directory / "layout.toml"), directory, environ or {}, "/tls", mutual)


def test_what_is_written_for_mutual_tls(tmp_path: Path) -> None:
    access(tmp_path).write()
    edge = tomllib.loads((tmp_path / "edge-1" / "broker.toml").read_text())
    head = tomllib.loads((tmp_path / "head" / "broker.toml").read_text())
    assert edge["url"] == "amqps://broker.edge-1@rabbit-2:5671/%2F"
    assert (edge["tls_cert_file"], edge["tls_key_file"]) == ("/tls/broker/cert.pem", "/tls/broker/key.pem")
    assert ServerUrl.parse(edge["management_url"]).password
    assert ServerUrl.parse(edge["link_url"]).password
    assert (head["link_cert_file"], head["link_key_file"]) == ("/tls/cert.pem", "/tls/key.pem")
    written = (tmp_path / "edge-1" / "conf.d" / "tls.conf").read_text()
    assert "ssl_options.verify = verify_peer" in written
    assert "ssl_options.fail_if_no_peer_cert = true" in written
    assert "auth_mechanisms.1 = EXTERNAL" in written
    access(tmp_path, mutual=False).write()
    assert "EXTERNAL" not in (tmp_path / "edge-1" / "conf.d" / "tls.conf").read_text()


def test_mutual_needs_certificates(tmp_path: Path) -> None:
    (tmp_path / "layout.toml").write_text(LAYOUT)
    with pytest.raises(ConfigurationError, match="--mutual"):
        Access(Layout.load(tmp_path / "layout.toml"), tmp_path, {}, mutual=True)


def test_only_heads_with_checked_times_stamp(tmp_path: Path) -> None:
    access(tmp_path, {"TIDEGATE_HEAD_TIMES": "checked"}).write()
    assert (tmp_path / "head" / "conf.d" / "time.conf").read_text() == "{} = {}\n".format(*STAMPING)
    assert (tmp_path / "edge-1" / "conf.d" / "time.conf").read_text() == ""
    access(tmp_path).write()
    assert (tmp_path / "head" / "conf.d" / "time.conf").read_text() == ""


def test_a_broker_known_by_its_certificate(tmp_path: Path) -> None:
    config = load_values(EdgeConfig, EDGE, {})
    assert config.url.by_certificate
    assert config.management.credentials == ("broker.edge-1", "secret")
    assert config.url.reveal() == "amqps://broker.edge-1@rabbit-2:5671/%2F"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tls_cert_file": None}, "tls_cert_file"),
        ({"management_url": None}, "management_url"),
        ({"management_url": "https://rabbit-2"}, "management_url"),
        ({"link_url": None}, "link_url"),
        ({"url": "amqp://broker.edge-1@rabbit-2"}, "url"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, object], words: str) -> None:
    given = {name: value for name, value in {**EDGE, **change}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=words):
        load_values(EdgeConfig, given, {})


def test_a_neighbours_link_has_a_password() -> None:
    head = {
        "name": "head",
        "cluster": "main",
        "url": "amqps://broker.head@rabbit-1",
        "management_url": "https://broker.head:secret@rabbit-1",
        "tls_cert_file": "broker.pem",
        "neighbours": [{"name": "other", "url": "amqps://broker.head@rabbit-9"}],
    }
    with pytest.raises(ConfigurationError, match="link_url"):
        load_values(HeadConfig, head, {})


def test_a_shovel_presents_what_it_is_given() -> None:
    assert "&certfile" not in shovel_options("h", "/ca.pem")
    assert "&certfile=/c.pem&keyfile=/k.pem&" in shovel_options("h", "/ca.pem", "/c.pem", "/k.pem")
    assert "&certfile=/c.pem&keyfile=/c.pem&" in shovel_options("h", "/ca.pem", "/c.pem")
