"""Certificates: what RabbitMQ is told to check, and why one was refused, however deep a library has wrapped it."""

from __future__ import annotations

import ssl
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tidegate._io.tls import certificate_refusal
from tidegate_agents.machine import EnsureLink, LinkKind
from tidegate_brokers.plane.fences import FenceWatch
from tidegate_brokers.plane.head import HeadPlane
from tidegate_brokers.settings.options import HeadConfig
from tidegate_brokers.settings.reading import load_config
from tidegate_brokers.settings.tls import refusal
from tidegate_brokers.settings.urls import ServerUrl

NEEDED = {"name": "north", "cluster": "coast", "url": "amqps://u:hush@rabbit"}


def destination(url: str) -> dict[str, list[str]]:
    plane = HeadPlane("h", ServerUrl.parse("amqp://x"), frozenset(), 1, 1, FenceWatch(lambda key: None))
    plane.link_authorities = "/etc/own authorities.pem"
    shovel = plane._shovel(EnsureLink("edge", LinkKind.EDGE, url))
    return parse_qs(urlsplit(shovel["dest-uri"]).query)


def test_a_link_with_tls_is_checked_by_rabbitmq_itself() -> None:
    options = destination("amqps://link:pw@edge.example:5671/%2F")
    assert options["verify"] == ["verify_peer"]
    assert options["cacertfile"] == ["/etc/own authorities.pem"]
    assert options["server_name_indication"] == ["edge.example"]
    assert "verify" not in destination("amqp://link:pw@edge.example:5672/%2F")


def test_every_address_of_a_broker_gets_its_certificates() -> None:
    given = {**NEEDED, "tls_ca_file": "/ca.pem", "neighbours": [{"name": "a", "url": "amqps://u:hush@other"}]}
    config = load_config(HeadConfig, None, {}, given)
    for url in (config.url, config.management, config.prometheus, config.neighbours[0].url):
        assert url.tls.ca_file == "/ca.pem"
        assert url.secure
    assert config.management.port == 15671
    assert config.link_authorities == "/ca.pem"


def refused() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


class PikaError(Exception):
    """pika keeps the causes of a failed connection in a list."""

    def __init__(self, *exceptions: Exception) -> None:
        super().__init__("failed")
        self.exceptions = exceptions


@pytest.mark.parametrize("find", [refusal, certificate_refusal])
def test_the_reason_is_found_behind_other_errors(find: object) -> None:
    assert callable(find)
    wrapped = httpx.ConnectError("x")
    wrapped.__cause__ = OSError("y")
    wrapped.__cause__.__context__ = refused()
    assert find(wrapped) == "self-signed certificate"
    assert find(OSError("refused")) is None
    assert find(None) is None


def test_the_reason_is_found_among_pika_s_causes() -> None:
    assert certificate_refusal(PikaError(OSError("first"), PikaError(refused()))) == "self-signed certificate"
    circle = PikaError()
    circle.exceptions = (circle,)
    assert certificate_refusal(circle) is None
