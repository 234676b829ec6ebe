"""The options of the source, read once on the driver into frozen objects.

Every option that is unknown, missing or senseless is refused with its name and a remedy, before anything connects. What
comes out of here is complete: nothing else looks at options or at the environment. It travels to the executors, so it
holds plain values only, and its `repr` shows no password.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from .errors import InvalidOption
from .points import EARLIEST, LATEST, Points, parse_points

STREAMS_MAX: Final = 10_000
MAX_ROWS_PER_BATCH: Final = 1_000_000
ROWS_PER_PARTITION: Final = 50_000
ROWS_MAX: Final = 2**62
CONNECT_RETRIES: Final = 10
"""With the pauses of `retries` about 40 s: a RabbitMQ that restarts is back by then."""
READ_TIMEOUT_S: Final = 30.0
PREFETCH: Final = 2_000
PREFETCH_MAX: Final = 65_535

NAMES: Final = (
    "url", "urls", "user", "passwordEnv", "streams", "streamsPattern", "managementUrl", "managementUrls",
    "startingOffsets", "endingOffsets", "maxRowsPerBatch", "rowsPerPartition", "caFile", "certFile", "keyFile",
    "onDataLoss", "connectRetries", "readTimeoutS", "prefetch",
)  # fmt: skip

_NAMED_URL: Final = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]*)=)?(\S+)")
_PORTS: Final = {"amqp": 5672, "amqps": 5671, "http": 15672, "https": 15671}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect, and as whom."""

    scheme: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)

    @property
    def secure(self) -> bool:
        return self.scheme in ("amqps", "https")

    @property
    def address(self) -> str:
        """For people: without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Broker:
    """A RabbitMQ with a virtual host. Its name is part of every offset in the checkpoint."""

    name: str
    amqp: Endpoint
    virtual_host: str
    management: Endpoint | None = None

    @property
    def address(self) -> str:
        return f"{self.amqp.address}/{'%2F' if self.virtual_host == '/' else self.virtual_host}"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files that must be on the driver and on every executor."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All of it."""

    brokers: tuple[Broker, ...]
    streams: tuple[str, ...]
    pattern: str | None
    starting: Points
    ending: Points
    max_rows_per_batch: int
    rows_per_partition: int
    tls: Tls
    skip_lost: bool
    connect_retries: int
    read_timeout_s: float
    prefetch: int

    def broker(self, name: str) -> Broker:
        for broker in self.brokers:
            if broker.name == name:
                return broker
        known = ", ".join(broker.name for broker in self.brokers)
        raise InvalidOption(
            "urls", f"the checkpoint knows a broker {name!r}, the option names {known}",
            f"give that broker its old name (urls={name}=amqp://…), or use another checkpointLocation",
        )  # fmt: skip


class _Given:
    """The options as given, by name in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {key.lower(): value.strip() for key, value in options.items()}
        known = {name.lower(): name for name in NAMES}
        for key in self._values.keys() - known.keys():
            close = difflib.get_close_matches(key, known, n=1)
            remedy = f"did you mean {known[close[0]]}?" if close else f"the options are {', '.join(NAMES)}"
            raise InvalidOption(key, "there is no such option", remedy)

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower()) or None

    def one_of(self, single: str, several: str) -> tuple[str, list[str]]:
        """The values of `url` or `urls`, and which of them was given."""
        one, many = self.text(single), self.text(several)
        if one and many:
            raise InvalidOption(single, f"{several} is given too", "give one of them")
        if one:
            return single, [one]
        return several, self.names(several)

    def names(self, name: str) -> list[str]:
        parts = [part.strip() for part in (self.text(name) or "").split(",")]
        return [part for part in parts if part]

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise InvalidOption(name, f"{text!r} is not possible", f"give a whole number from {low} to {high}")
        return int(text)

    def seconds(self, name: str, default: float, low: float, high: float) -> float:
        text = self.text(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:
            raise InvalidOption(name, f"{text!r} is not possible", f"give seconds from {low:g} to {high:g}")
        return value


def parse_options(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Make settings of what the user gave; raise `InvalidOption` at the first thing that is wrong."""
    given = _Given(options)
    brokers = _brokers(given, environment)
    streams, pattern = _streams(given)
    loss = given.text("onDataLoss") or "fail"
    if loss not in ("fail", "skip"):
        raise InvalidOption("onDataLoss", f"{loss!r} is not possible", "give fail or skip")
    return Settings(
        brokers=brokers,
        streams=streams,
        pattern=pattern,
        starting=parse_points("startingOffsets", given.text("startingOffsets"), EARLIEST),
        ending=parse_points("endingOffsets", given.text("endingOffsets"), LATEST),
        max_rows_per_batch=given.whole("maxRowsPerBatch", MAX_ROWS_PER_BATCH, 1, ROWS_MAX),
        rows_per_partition=given.whole("rowsPerPartition", ROWS_PER_PARTITION, 1, ROWS_MAX),
        tls=_tls(given, brokers),
        skip_lost=loss == "skip",
        connect_retries=given.whole("connectRetries", CONNECT_RETRIES, 0, 1_000),
        read_timeout_s=given.seconds("readTimeoutS", READ_TIMEOUT_S, 0.1, 3_600.0),
        prefetch=given.whole("prefetch", PREFETCH, 1, PREFETCH_MAX),
    )


def _streams(given: _Given) -> tuple[tuple[str, ...], str | None]:
    names, pattern = given.names("streams"), given.text("streamsPattern")
    management = given.text("managementUrl") or given.text("managementUrls")
    if bool(names) == bool(pattern):
        problem = "streamsPattern is given too" if names else "missing"
        raise InvalidOption("streams", problem, "give names in streams, or a regular expression in streamsPattern")
    if names and management:
        raise InvalidOption("managementUrl", "it is used with streamsPattern only", "leave it out")
    if len(names) > STREAMS_MAX:
        raise InvalidOption("streams", f"{len(names)} names", f"give at most {STREAMS_MAX}")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidOption("streams", f"{repeated[0]!r} is there twice", "name each stream once")
    if pattern:
        if not management:
            raise InvalidOption("managementUrl", "missing", "streamsPattern needs it to list the queues")
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidOption("streamsPattern", f"{pattern!r}: {error}", "give a regular expression") from None
    return tuple(names), pattern


def _brokers(given: _Given, environment: Mapping[str, str]) -> tuple[Broker, ...]:
    option, urls = given.one_of("url", "urls")
    if not urls:
        raise InvalidOption("url", "missing", "give url, as amqp://user:password@host:5672/vhost, or urls for several")
    login = _login(given, environment)
    management_option, management_urls = given.one_of("managementUrl", "managementUrls")
    if management_urls and len(management_urls) != len(urls):
        raise InvalidOption(
            management_option,
            f"{len(management_urls)} for {len(urls)} brokers",
            f"give one per URL of {option}, in order",
        )
    brokers: list[Broker] = []
    for index, text in enumerate(urls):
        match = _NAMED_URL.fullmatch(text)
        name, url = match.groups() if match else (None, text)
        amqp, parts = _endpoint(option, url, ("amqp", "amqps"), login)
        virtual_host = unquote(parts.path[1:]) or "/"
        if "/" in parts.path[1:]:
            raise InvalidOption(option, "a virtual host with a slash", "write the slash as %2F")
        management = None
        if management_urls:
            alike = (amqp.user, amqp.password)
            management, _ = _endpoint(management_option, management_urls[index], ("http", "https"), alike)
        host = f"[{amqp.host}]" if ":" in amqp.host else amqp.host
        broker = Broker(name or f"{host}:{amqp.port}/{virtual_host}", amqp, virtual_host, management)
        if any(broker.name == other.name for other in brokers):
            raise InvalidOption(option, f"two brokers are called {broker.name}", "name each once, or call them apart")
        brokers.append(broker)
    return tuple(brokers)


def _login(given: _Given, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The user and password that are not in the URL."""
    user, variable = given.text("user"), given.text("passwordEnv")
    if variable is None:
        return user, None
    password = environment.get(variable)
    if not password:
        raise InvalidOption(
            "passwordEnv", f"the driver has no environment variable {variable}",
            "set it before the Spark session is started",
        )  # fmt: skip
    return user, password


def _endpoint(
    option: str, url: str, schemes: tuple[str, str], login: tuple[str | None, str | None]
) -> tuple[Endpoint, SplitResult]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # The text of the error may quote the URL, and with it a password.
        raise InvalidOption(option, "not a URL", f"give {schemes[0]}://host:port") from None
    if parts.scheme not in schemes or not parts.hostname:
        raise InvalidOption(
            option, "not a URL of that kind", f"give {schemes[0]}://host:port or {schemes[1]}://host:port"
        )
    if parts.query or parts.fragment:
        raise InvalidOption(option, "a URL with ? or #", "write these as %3F and %23, and options as options")
    user = unquote(parts.username) if parts.username else login[0] or "guest"
    password = unquote(parts.password) if parts.password else login[1] or "guest"
    return Endpoint(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], user, password), parts


def _tls(given: _Given, brokers: tuple[Broker, ...]) -> Tls:
    files = {name: given.text(name) for name in ("caFile", "certFile", "keyFile")}
    secure = any(b.amqp.secure or (b.management and b.management.secure) for b in brokers)
    for name, file in files.items():
        if file is None:
            continue
        if not secure:
            raise InvalidOption(name, "no URL uses TLS", "give amqps:// (or https://) URLs, or leave it out")
        if not Path(file).is_file():
            raise InvalidOption(name, f"there is no file {file}", "put it there on the driver and on every executor")
    if files["keyFile"] and not files["certFile"]:
        raise InvalidOption("certFile", "missing", "keyFile needs it")
    return Tls(files["caFile"], files["certFile"], files["keyFile"])
