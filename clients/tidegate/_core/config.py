"""Small value objects: limits, time-outs, backoff, and the address of a RabbitMQ.

Invariant: a value is frozen and was checked when it was made, so that a client refuses a bad option at its creation and
never later. Nothing here reads the environment or opens a connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidegate_protocol.form import BODY_BYTES_DEFAULT, BODY_BYTES_MAX

from .errors import InvalidUrl, InvalidValue

PREFETCH_MAX: Final = 65_535
"""AMQP's prefetch count has 16 bits, and 0 means "no limit", which we never ask for."""
PREFETCH_BYTES_DEFAULT: Final = 64 << 20
WINDOW_MAX: Final = 100_000
DEFAULT_PORTS: Final = {"amqp": 5672, "amqps": 5671}
TLS_OPTIONS: Final = frozenset({"cafile", "capath", "certfile", "keyfile", "no_verify_ssl", "tokenfile"})


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a client keeps in memory and how often it tries."""

    window: int = 1_000
    """Publications without confirmation; publish() waits for a place beyond it."""
    window_bytes: int = 64 << 20
    body_bytes: int = BODY_BYTES_DEFAULT
    topics: int = 100_000
    """Topics of one publisher. Each needs a counter for as long as the publisher lives."""
    publish_attempts: int = 20
    """How often a publication that RabbitMQ rejects (a full link) is sent before its receipt fails."""
    prefetch: int = 1_000
    """Messages under way to one subscription.

    A prefetch of at least 2·λ·(deadline + round trip) never throttles: 1,000 carries 250 messages/s at a
    deadline of 1.5 s over half a second, and costs at most a thousand bodies of memory.
    """
    prefetch_bytes: int = PREFETCH_BYTES_DEFAULT
    """The same in bytes: where bodies are large, fewer messages than `prefetch` are under way, by their mean size."""
    streams: int = 20_000
    """Pairs of publisher and topic whose sequence is followed; the least recently seen is forgotten first."""

    def __post_init__(self) -> None:
        _check_positive(self)
        _check_range("limits.window", self.window, WINDOW_MAX)
        _check_range("limits.prefetch", self.prefetch, PREFETCH_MAX)
        _check_range("limits.body_bytes", self.body_bytes, BODY_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long things may take, in seconds."""

    connect_s: float = 10.0
    attempt_s: float = 3.0
    """One request to the head, before it is sent again."""
    request_s: float = 20.0
    """A request with all its repetitions; also the whole of subscribe()."""
    flush_s: float = 30.0
    close_s: float = 30.0
    heartbeat_s: float = 20.0
    """AMQP heartbeat: a dead peer is noticed after at most twice this."""
    hello_s: float = 5.0
    """How often a publisher tells its head that it is there, until the head names a period."""

    def __post_init__(self) -> None:
        _check_positive(self)
        _check_range("timeouts.heartbeat_s", self.heartbeat_s, 3_600)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between attempts: exponential, bounded, with jitter so that no crowd comes back at once."""

    first_s: float = 0.1
    factor: float = 2.0
    limit_s: float = 5.0
    jitter: float = 0.5
    """The share of a delay that is left to chance."""

    def __post_init__(self) -> None:
        _check_positive(self)
        _check_range("backoff.jitter", self.jitter, 1)

    def delay_s(self, attempt: int, chance: float) -> float:
        """How long to wait before attempt `attempt` (from 0); `chance` is a random number in [0, 1)."""
        # The exponent is capped because a float overflows long before a patient client gives up.
        full_s = min(self.limit_s, self.first_s * self.factor ** min(attempt, 60))
        return full_s * (1 - self.jitter * chance)


class TokenSource(Protocol):
    """Gives a token that is good for a while."""

    def current(self) -> str: ...

    def hold(self, holder: Any) -> None:
        """Renew the token of a connection."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed `amqp[s]://user:password@host:port/vhost?option=value`; without a password where a certificate says who
    it is.
    """

    scheme: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    tls: Mapping[str, str] = field(default_factory=dict)
    tokens: TokenSource | None = field(default=None, repr=False, compare=False)
    """Where tokens come from that are sent in place of a password."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL; raise `InvalidUrl` that says which part is wrong."""
        if not isinstance(url, str):
            raise InvalidUrl("url", type(url).__name__, "is not text", "write amqp://user:password@host:5672/vhost")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidUrl("url", _censored(url), str(error), "write amqp://user:password@host:5672/vhost") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise InvalidUrl("url", _censored(url), f"has the scheme {parts.scheme!r}", "use amqp:// or amqps://")
        if not parts.hostname:
            raise InvalidUrl("url", _censored(url), "has no host", "write amqp://user:password@host:5672/vhost")
        if port == 0:
            raise InvalidUrl("url", _censored(url), "has port 0", "leave it out or use a number up to 65535")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(set(options) - TLS_OPTIONS)
        if unknown:
            known = ", ".join(sorted(TLS_OPTIONS))
            raise InvalidUrl("url", _censored(url), f"has the unknown option {unknown[0]!r}", f"known are {known}")
        path = parts.path[1:]
        if "/" in path:
            raise InvalidUrl("url", _censored(url), "has a slash in the virtual host", "write it as %2F")
        by_certificate = bool(parts.username) and not parts.password and "certfile" in options
        if by_certificate and parts.scheme != "amqps":
            problem = "names an account without a password, to be known by its certificate, and is without TLS"
            raise InvalidUrl("url", _censored(url), problem, "use amqps://, or give the password")
        return cls(
            parts.scheme,
            parts.hostname,
            port or DEFAULT_PORTS[parts.scheme],
            unquote(parts.username or "guest"),
            "" if by_certificate else unquote(parts.password or "guest"),
            unquote(path) or "/",
            options,
        )

    @property
    def by_certificate(self) -> bool:
        """Whether the account is known by its certificate (SASL's EXTERNAL), and not by a password."""
        return self.tokens is None and not self.password

    def at(self, url: str) -> Address:
        """The address `url` of another broker, entered with the credentials and TLS options of this one.

        Raise `InvalidUrl` where it would be entered without TLS and this one is not: a password that was given for
        TLS is not sent in the clear because a head says so.
        """
        other = Address.parse(url)
        if self.scheme == "amqps" and other.scheme != "amqps":
            problem = "is without TLS, and the head was reached with TLS"
            raise InvalidUrl(
                "url", str(other), problem, "give that broker an amqps:// address (client_url, publisher_url)"
            )
        return replace(other, user=self.user, password=self.password, tls=self.tls, tokens=self.tokens)

    def __str__(self) -> str:
        """The address as it may be shown: without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{quote(self.vhost, safe='')}"

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context for this address; None for plain `amqp`."""
        if self.scheme != "amqps":
            return None
        context = ssl.create_default_context(cafile=self.tls.get("cafile"), capath=self.tls.get("capath"))
        if self.tls.get("no_verify_ssl", "0") not in ("", "0", "false"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "certfile" in self.tls:
            context.load_cert_chain(self.tls["certfile"], self.tls.get("keyfile"))
        return context


def _censored(url: str) -> str:
    """`url` without everything before the last '@' of its authority, which may hold a password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url.rpartition("@")[2]


def _check_positive(options: Limits | Timeouts | Backoff) -> None:
    group = type(options).__name__.lower()
    for option in fields(options):
        value = getattr(options, option.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InvalidValue(f"{group}.{option.name}", value, "is not a positive number", "use a number above 0")


def _check_range(name: str, value: float, limit: float) -> None:
    if value > limit:
        raise InvalidValue(name, value, "is too large", f"use at most {limit}")
