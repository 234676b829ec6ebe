"""Addresses that hold a password and never show it.

A `ServerUrl` is what a configuration gives for an AMQP or a management address. Its text forms are
redacted; only `reveal()` returns the password, and only the places that open a connection call it. It also knows the
certificates for a connection to that address.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from pydantic_core import core_schema

from .tls import Tls

DEFAULT_PORTS: Final = {"amqp": 5672, "amqps": 5671, "http": 15672, "https": 15671}
DEFAULT_USER: Final = "guest"
NO_TLS_FILES: Final = Tls()


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """`scheme://user:password@host:port/vhost`; the virtual host is `/` where the address names none."""

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    vhost: str = "/"
    tls: Tls = field(default=NO_TLS_FILES, repr=False)

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """Read an address; raise `ValueError`, whose text never holds the password."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError("is not a URL with a numeric port") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise ValueError(f"has the scheme {parts.scheme!r} instead of one of {', '.join(sorted(DEFAULT_PORTS))}")
        if not parts.hostname:
            raise ValueError("names no host")
        path = parts.path[1:]
        if "/" in path:
            raise ValueError("has a '/' inside the virtual host: write it as %2F")
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port or DEFAULT_PORTS[parts.scheme],
            user=None if parts.username is None else unquote(parts.username),
            password=None if parts.password is None else unquote(parts.password),
            vhost=unquote(path) or "/",
        )

    def _text(self, credentials: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = "/" + quote(self.vhost, safe="") if self.scheme.startswith("amqp") else ""
        return f"{self.scheme}://{credentials}{host}:{self.port}{path}"

    def reveal(self) -> str:
        """The whole address, password included: for opening a connection, never for a log."""
        user, password = self.credentials
        if self.by_certificate:
            return self._text(f"{quote(user, safe='')}@")
        return self._text(f"{quote(user, safe='')}:{quote(password, safe='')}@")

    def without_credentials(self) -> str:
        """The address as clients may see it."""
        return self._text("")

    @property
    def credentials(self) -> tuple[str, str]:
        """User and password; RabbitMQ's own default where the address has none."""
        if self.user is None:
            return DEFAULT_USER, DEFAULT_USER
        return self.user, self.password or ""

    @property
    def by_certificate(self) -> bool:
        """Whether the account is known by its certificate (SASL's EXTERNAL): it is named, and has no password."""
        return self.scheme == "amqps" and self.user is not None and not self.password

    @property
    def on_loopback(self) -> bool:
        """Whether it leads to this machine."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def guessable(self) -> bool:
        """Whether anybody could guess user and password: there are none, or RabbitMQ's own, or twice the same."""
        user, password = self.credentials
        return not password or password == user

    def with_credentials_of(self, other: ServerUrl) -> ServerUrl:
        """This address, with the other's user and password where it has none of its own."""
        return self if self.user is not None else replace(self, user=other.user, password=other.password)

    @property
    def secure(self) -> bool:
        """Whether it is spoken to with TLS."""
        return self.scheme in ("amqps", "https")

    def tls_context(self) -> ssl.SSLContext | None:
        """For a connection to it; None where there is no TLS."""
        return self.tls.context() if self.secure else None

    def __str__(self) -> str:
        return self._text("" if self.user is None else f"{quote(self.user, safe='')}:***@")

    def __repr__(self) -> str:
        return f"ServerUrl({self})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def _validate(cls, value: object) -> ServerUrl:
        if isinstance(value, ServerUrl):
            return value
        if not isinstance(value, str):
            raise ValueError("is not text")
        return cls.parse(value)
