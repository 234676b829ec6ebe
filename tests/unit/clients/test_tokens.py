"""Tokens in place of passwords: when each is renewed, and what a provider that fails does to connections."""

from __future__ import annotations

import base64
import json
import threading
import time
from pathlib import Path

import pytest

from tidegate._core.config import Address
from tidegate._core.errors import ConnectionFailed, InvalidUrl
from tidegate._io import tokens
from tidegate._io.tokens import Tokens, authenticated, expiry_s, secret_of


def web_token(claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"head.{payload}.signature"


class Connection:
    """One that remembers the tokens it was given."""

    def __init__(self) -> None:
        self.usable = True
        self.given: list[str] = []
        self.came = threading.Event()

    def renew(self, token: str) -> None:
        self.given.append(token)
        self.came.set()


@pytest.mark.parametrize(
    ("token", "expires_s"),
    [
        (web_token({"exp": 12}), 12.0),
        (web_token({"exp": "12"}), None),
        (web_token({"exp": True}), None),
        (web_token([1]), None),
        ("opaque", None),
        ("a.b.c", None),
        ("a.b", None),
        ("..", None),
        ("é.é.é", None),
    ],
)
def test_the_expiry_of_a_token_is_read_where_it_has_one(token: str, expires_s: float | None) -> None:
    assert expiry_s(token) == expires_s


def test_a_token_is_asked_for_once_while_it_is_good() -> None:
    asked: list[int] = []

    def provider() -> str:
        asked.append(1)
        return web_token({"exp": time.time() + 1000})

    kept = Tokens(provider)
    assert kept.current() == kept.current()
    assert len(asked) == 1


def test_connections_get_a_newer_token_before_theirs_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "RENEW_S_MIN", 0.01)
    monkeypatch.setattr(tokens, "RETRY_S", 0.01)
    answers = iter(["first", RuntimeError("the identity provider is away"), "second", "third"])

    def provider() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return web_token({"exp": time.time() + 0.02, "name": answer})

    kept, connection, closed = Tokens(provider), Connection(), Connection()
    closed.usable = False
    kept.current()
    kept.hold(closed)
    kept.hold(connection)
    assert connection.came.wait(10)
    connection.usable = False
    assert not closed.given
    assert expiry_s(connection.given[0]) is not None


def test_without_connections_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "RENEW_S_MIN", 0.01)
    kept, connection = Tokens(lambda: web_token({"exp": 0})), Connection()
    kept.hold(connection)
    assert connection.came.wait(10)
    connection.usable = False
    thread = kept._thread
    if thread is not None:
        thread.join(10)
    assert kept._thread is None


def test_an_address_takes_its_token_from_a_file_or_a_program(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of a file\n")
    plain = Address.parse("amqps://buoy:secret@host")
    assert secret_of(authenticated(plain, None)) == "secret"
    found = authenticated(Address.parse(f"amqps://buoy@host?tokenfile={file}"), None)
    assert (found.user, secret_of(found)) == ("buoy", "of a file")
    assert not found.by_certificate
    given = authenticated(plain, lambda: "of a program")
    assert secret_of(given.at("amqps://other")) == "of a program"
    assert "program" not in repr(given)
    broken = authenticated(plain, lambda: "")
    with pytest.raises(ConnectionFailed, match="there is no token"):
        secret_of(broken)


def test_an_account_without_a_password_is_known_by_its_certificate() -> None:
    assert Address.parse("amqps://buoy@host?certfile=c.pem").by_certificate
    assert not Address.parse("amqps://buoy:secret@host?certfile=c.pem").by_certificate
    assert not Address.parse("amqps://host?certfile=c.pem").by_certificate
    assert not Address.parse("amqps://buoy@host").by_certificate
    with pytest.raises(InvalidUrl, match="without TLS"):
        Address.parse("amqp://buoy@host?certfile=c.pem")
