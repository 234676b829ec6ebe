"""The options of a head and of an edge process: the one place where each is described, with unit, default
and range.

Both are frozen. Nothing here opens a file or reads the environment by itself: `reading.py` does that, and renders
`docs/configuration.md` from these very fields. Derived addresses (management, link, client) are properties, so that an
operator gives each address once.
"""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tidegate_protocol.ids import check_name
from tidegate_protocol.messages import Capacity

from .balancing import BalancingOptions, unit as _unit
from .quotas import QUOTAS_MAX, QuotaEntry
from .tls import SYSTEM_AUTHORITIES, Tls
from .urls import DEFAULT_PORTS, ServerUrl

HEAD_HTTP_PORT: Final = 15780
EDGE_HTTP_PORT: Final = 15781
PROMETHEUS_PORTS: Final = {"http": 15692, "https": 15691}
MIB: Final = 1 << 20
GIB: Final = 1 << 30


def _amqp(url: ServerUrl) -> ServerUrl:
    if not url.scheme.startswith("amqp"):
        raise ValueError(f"has the scheme {url.scheme!r} instead of amqp or amqps")
    return url


def _http(url: ServerUrl) -> ServerUrl:
    if not url.scheme.startswith("http"):
        raise ValueError(f"has the scheme {url.scheme!r} instead of http or https")
    return url


def _own_password(url: ServerUrl) -> ServerUrl:
    if url.guessable and not url.on_loopback and not url.by_certificate:
        raise ValueError(f"leads to {url.host} with a password that anybody could guess, or none")
    return url


def _has_certificate(option: str, url: ServerUrl, tls: Tls) -> None:
    if url.by_certificate and tls.cert_file is None:
        raise ValueError(f"{option}: names an account without a password; give one, or tls_cert_file")


def _is_linked(option: str, url: ServerUrl) -> None:
    if url.by_certificate:
        raise ValueError(f"{option}: is without a password; links have accounts of their own, with passwords")


Name = Annotated[str, AfterValidator(check_name)]
AmqpUrl = Annotated[ServerUrl, AfterValidator(_amqp)]
LoginUrl = Annotated[ServerUrl, AfterValidator(_amqp), AfterValidator(_own_password)]
"""An address that is logged in to: off this machine, with a password of its own, or an account and its certificate."""
HttpUrl = Annotated[ServerUrl, AfterValidator(_http)]


class Options(BaseModel):
    """Frozen, and nothing in it that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Neighbour(Options):
    """A neighbouring head, as an entry of `neighbours`."""

    name: Name = Field(description="Name of the neighbouring head.")
    url: LoginUrl = Field(description="AMQP address of its RabbitMQ as this process reaches it, for control messages.")
    link_url: AmqpUrl | None = Field(
        None, description="AMQP address of its RabbitMQ as this head's RabbitMQ reaches it. Default: `url`."
    )

    @property
    def link(self) -> ServerUrl:
        """Where the shovel of the link writes to."""
        return (self.link_url or self.url).with_credentials_of(self.url)


class BrokerConfig(Options):
    """Options that heads and edges share."""

    name: Name = Field(description="Name of this broker, unique among all brokers it can meet.")
    cluster: Name = Field(description="Name of the cluster: one head and its edges.")
    url: LoginUrl = Field(
        description="AMQP address of this broker's RabbitMQ and virtual host, with user and password."
    )
    management_url: HttpUrl | None = Field(
        None,
        description="Address of its management API. Default: the host and credentials of `url`, port 15672 "
        "(15671 with amqps).",
    )
    prometheus_url: HttpUrl | None = Field(
        None,
        description="Address of its Prometheus endpoint, where load is read. Default: the host and credentials of "
        "`url`, port 15692 (15691 with amqps).",
    )
    accounts: Literal["unchecked", "checked"] = Field(
        "unchecked",
        description="Whether all parts name their accounts (`user_id`), so that brokers speak only as themselves and "
        "duplicates are judged per account. `tidegate access prepare` switches it on, with the accounts that it takes: "
        "`broker.<name>` for brokers, and for links `link.<head>` with the tag `impersonator`. Publishers name theirs "
        "once every link of the tree was seen to pass accounts on.",
    )
    rules_file: str | None = Field(
        None,
        description="What accounts may publish and subscribe, as `tidegate access prepare` wrote it; a relative path "
        "starts at the configuration file. Read again when it changes, or on SIGHUP. Default: no rules, everything is "
        'allowed. A head with rules needs `client_names = "own"`.',
    )
    period_s: float = Field(
        1.0, ge=0.1, le=60, description="How often signs of life are sent.", json_schema_extra=_unit("s")
    )
    http_host: str = Field("127.0.0.1", description="Address that /healthz, /readyz and /metrics listen on.")
    http_port: int = Field(HEAD_HTTP_PORT, ge=0, le=65535, description="Port for the same; 0 takes any free one.")
    http_cert_file: str | None = Field(
        None, description="Certificate for the same, in PEM form: they are served with TLS then."
    )
    http_key_file: str | None = Field(None, description="Its key. Default: in the file of the certificate.")
    tls_ca_file: str | None = Field(
        None,
        description="Authorities that RabbitMQ's certificates are checked against (amqps, https), in PEM form. "
        "Default: those of the system.",
    )
    tls_cert_file: str | None = Field(
        None, description="Certificate of this process, for a RabbitMQ that asks for one."
    )
    tls_key_file: str | None = Field(None, description="Its key. Default: in the file of the certificate.")
    startup_timeout_s: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="How long to wait at start for a RabbitMQ that can't be reached.",
        json_schema_extra=_unit("s"),
    )
    shutdown_timeout_s: float = Field(
        10.0,
        ge=0,
        le=600,
        description="How long work in progress may take after SIGTERM.",
        json_schema_extra=_unit("s"),
    )
    output_series_max: int = Field(
        200,
        ge=0,
        le=20_000,
        description="Output queues that /metrics shows one by one, those with most waiting first.",
    )
    topic_series_max: int = Field(
        50,
        ge=0,
        le=5_000,
        description="Topics that /metrics shows one by one; the rest is shown together, as `other`.",
    )
    telemetry: bool = Field(
        True, description="Whether records for later analysis are written to a stream of the head's RabbitMQ."
    )
    telemetry_period_s: float = Field(
        1.0,
        ge=0.1,
        le=3600,
        description="How often a broker writes its load, at most once per sample.",
        json_schema_extra=_unit("s"),
    )
    telemetry_detail_period_s: float = Field(
        10.0,
        ge=0.2,
        le=3600,
        description="How often thresholds, rates of publishers and latencies of subscribers are written.",
        json_schema_extra=_unit("s"),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "human", "json"] = Field(
        "auto", description="Form of log lines; auto is human on a terminal and JSON otherwise."
    )

    quotas: tuple[QuotaEntry, ...] = Field(
        (),
        max_length=QUOTAS_MAX,
        description="What accounts and tenants may use: a list of tables with `account` or `tenant`, `subscriptions`, "
        "`publishers`, `connections`, `messages_per_s`, `bytes_per_s`, `useless_messages_per_s`, `queue_bytes`, and "
        "`publish`, the topics that an account may publish on.",
    )

    @model_validator(mode="after")
    def _equip(self) -> BrokerConfig:
        """Every address knows its certificates; a file that is of no use is found out now."""
        tls = Tls(self.tls_ca_file, self.tls_cert_file, self.tls_key_file)
        for option in ("url", "head_url", "management_url", "prometheus_url", "warden_url"):
            address = getattr(self, option, None)
            if address is not None:
                object.__setattr__(self, option, replace(address, tls=tls))
                _has_certificate(option, address, tls)
        if self.url.by_certificate and (self.management_url is None or not self.management_url.password):
            raise ValueError(
                "management_url: is without user and password, which RabbitMQ's HTTP API needs: it takes no certificate"
            )
        return self

    @property
    def http_tls(self) -> ssl.SSLContext | None:
        """How /healthz, /readyz and /metrics are served; None: without TLS."""
        if self.http_cert_file is None:
            return None
        return Tls(None, self.http_cert_file, self.http_key_file).server_context()

    @property
    def management(self) -> ServerUrl:
        """The management API, with credentials."""
        if self.management_url is not None:
            return self.management_url.with_credentials_of(self.url)
        scheme = "https" if self.url.scheme == "amqps" else "http"
        return replace(self.url, scheme=scheme, port=DEFAULT_PORTS[scheme], vhost="/")

    @property
    def prometheus(self) -> ServerUrl:
        """The Prometheus endpoint, with credentials."""
        if self.prometheus_url is not None:
            return self.prometheus_url.with_credentials_of(self.url)
        scheme = "https" if self.url.scheme == "amqps" else "http"
        return replace(self.url, scheme=scheme, port=PROMETHEUS_PORTS[scheme], vhost="/")


class HeadConfig(BalancingOptions, BrokerConfig):
    """Options of `tidegate head`."""

    neighbours: tuple[Neighbour, ...] = Field(
        (),
        max_length=64,
        description="Neighbouring heads in the tree: a list of tables with `name`, `url`, `link_url`.",
    )
    publisher_url: AmqpUrl | None = Field(
        None,
        description="Address of this head as publishers reach it; credentials are left out. Default: `url`.",
    )
    client_names: Literal["any", "own"] = Field(
        "any",
        description="Which names clients may use: any, or their own: the name of their RabbitMQ user, and names that "
        "begin with it and a hyphen.",
    )
    times: Literal["unchecked", "checked"] = Field(
        "unchecked",
        description="Whether this head's RabbitMQ stamps every publication with its own time (from 3.12 on, with "
        "`message_interceptors.incoming.set_header_timestamp.overwrite = true`), so that subscribers judge lateness by "
        "a publisher's clock only as far as it agrees. Not where the RabbitMQ of an edge does it, too.",
    )
    warden_url: HttpUrl | None = Field(
        None,
        description="Management API of this head's RabbitMQ with an account that has the tag `administrator`: with it "
        "accounts that flood are closed and kept out for a while. Without it they are only named.",
    )
    uplink_bytes_per_s: float | None = Field(
        None, gt=0, description="Outgoing bandwidth, where it is known.", json_schema_extra=_unit("bytes/s")
    )
    downlink_bytes_per_s: float | None = Field(
        None, gt=0, description="Incoming bandwidth, where it is known.", json_schema_extra=_unit("bytes/s")
    )
    link_limit_bytes: int = Field(
        GIB,
        ge=MIB,
        description="What may wait on one link before publishers are refused (never dropped).",
        json_schema_extra=_unit("bytes"),
    )
    link_ca_file: str | None = Field(
        None,
        description="Authorities that this head's RabbitMQ checks the RabbitMQs it forwards to against (amqps): a path "
        "on its machine. Default: `tls_ca_file`, else `/etc/ssl/certs/ca-certificates.crt`.",
    )
    link_cert_file: str | None = Field(
        None,
        description="Certificate that this head's RabbitMQ presents to those it forwards to, where they ask for one: a "
        "path on its machine.",
    )
    link_key_file: str | None = Field(None, description="Its key. Default: in the file of the certificate.")
    link_prefetch: int = Field(
        4000,
        ge=1,
        le=50_000,
        description="Messages in flight on one link.",
        json_schema_extra=_unit("messages"),
    )
    quarantine_messages_max: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Messages that the far end of a link refused and that are kept; of more, the oldest go.",
        json_schema_extra=_unit("messages"),
    )
    quarantine_bytes_max: int = Field(
        64 * MIB, ge=MIB, description="Bytes of the same.", json_schema_extra=_unit("bytes")
    )
    quarantine_age_s: int = Field(
        30 * 24 * 3600,
        ge=60,
        le=365 * 24 * 3600,
        description="How long they are kept.",
        json_schema_extra=_unit("s"),
    )

    delivery_metrics: bool = Field(
        True,
        description="Whether subscribers are asked to report latencies for /metrics even where telemetry is off.",
    )
    telemetry_age_s: int = Field(
        7 * 24 * 3600,
        ge=60,
        le=10 * 365 * 24 * 3600,
        description="How long records are kept; RabbitMQ drops whole segments.",
        json_schema_extra=_unit("s"),
    )
    telemetry_size_bytes: int = Field(
        1_000_000_000,
        ge=1_000_000,
        description="How much is kept of them; the oldest segments go first.",
        json_schema_extra=_unit("bytes"),
    )
    telemetry_segment_bytes: int = Field(
        50_000_000,
        ge=100_000,
        le=3_000_000_000,
        description="Size of one segment; never more than `telemetry_size_bytes`.",
        json_schema_extra=_unit("bytes"),
    )

    @model_validator(mode="after")
    def _segments_fit(self) -> HeadConfig:
        given = "telemetry_segment_bytes" in self.model_fields_set
        if given and self.telemetry_segment_bytes > self.telemetry_size_bytes:
            raise ValueError(
                f"telemetry_segment_bytes: is larger than telemetry_size_bytes ({self.telemetry_size_bytes})"
            )
        return self

    @model_validator(mode="after")
    def _names_are_checked(self) -> HeadConfig:
        if self.rules_file is not None and self.client_names != "own":
            raise ValueError('rules_file: needs client_names = "own", or clients could use the names of others')
        return self

    @model_validator(mode="after")
    def _equip_neighbours(self) -> HeadConfig:
        for one in self.neighbours:
            _has_certificate("neighbours", one.url, self.url.tls)
            _is_linked("link_url", one.link)
        equipped = tuple(n.model_copy(update={"url": replace(n.url, tls=self.url.tls)}) for n in self.neighbours)
        object.__setattr__(self, "neighbours", equipped)
        return self

    @model_validator(mode="after")
    def _distinct(self) -> HeadConfig:
        names = [neighbour.name for neighbour in self.neighbours]
        if self.name in names:
            raise ValueError(f"neighbours: head {self.name} is named as its own neighbour")
        if len(set(names)) != len(names):
            raise ValueError("neighbours: a neighbour is named twice")
        return self

    @property
    def quarantine_limits(self) -> tuple[int, int, int]:
        """Messages, bytes and age in seconds of what is set aside."""
        return self.quarantine_messages_max, self.quarantine_bytes_max, self.quarantine_age_s

    @property
    def telemetry_limits(self) -> tuple[int, int, int]:
        """Age in seconds, size and segment size in bytes of the telemetry stream."""
        size = self.telemetry_size_bytes
        return self.telemetry_age_s, size, min(self.telemetry_segment_bytes, size)

    @property
    def link_authorities(self) -> str:
        """Where this head's RabbitMQ finds the authorities it trusts."""
        return self.link_ca_file or self.tls_ca_file or SYSTEM_AUTHORITIES

    @property
    def publisher_address(self) -> str:
        """What publishers that come from another head are told; they bring credentials of their own."""
        return (self.publisher_url or self.url).without_credentials()

    @property
    def capacity(self) -> Capacity:
        """What is configured."""
        return Capacity(uplink_bytes_per_s=self.uplink_bytes_per_s, downlink_bytes_per_s=self.downlink_bytes_per_s)


class EdgeConfig(BalancingOptions, BrokerConfig):
    """Options of `tidegate edge`."""

    head_url: LoginUrl = Field(
        description="AMQP address of the head's RabbitMQ and virtual host, for control messages."
    )
    client_url: AmqpUrl | None = Field(
        None,
        description="Address of this edge as subscribers reach it; credentials are left out. Default: `url`.",
    )
    link_url: AmqpUrl | None = Field(
        None, description="AMQP address of this edge as the head's RabbitMQ reaches it. Default: `url`."
    )
    uplink_bytes_per_s: float | None = Field(
        None, gt=0, description="Outgoing bandwidth, where it is known.", json_schema_extra=_unit("bytes/s")
    )
    downlink_bytes_per_s: float | None = Field(
        None, gt=0, description="Incoming bandwidth, where it is known.", json_schema_extra=_unit("bytes/s")
    )
    matching_per_s: float | None = Field(
        None,
        gt=0,
        description="Messages that can be matched, where it is known.",
        json_schema_extra=_unit("messages/s"),
    )
    output_limit_bytes: int = Field(
        64 * MIB,
        ge=1024,
        description="What may wait for one subscription; beyond it the oldest is dropped and counted.",
        json_schema_extra=_unit("bytes"),
    )
    drops_size_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="How much is kept of what RabbitMQ drops from output queues, for a replay; 0 keeps and counts "
        "nothing of it.",
        json_schema_extra=_unit("bytes"),
    )
    drops_age_s: int = Field(
        7 * 24 * 3600,
        ge=60,
        le=10 * 365 * 24 * 3600,
        description="How long it is kept; RabbitMQ drops whole segments.",
        json_schema_extra=_unit("s"),
    )
    http_port: int = Field(EDGE_HTTP_PORT, ge=0, le=65535, description="Port for the same; 0 takes any free one.")

    @model_validator(mode="after")
    def _has_link(self) -> EdgeConfig:
        _is_linked("link_url", self.link)
        return self

    @property
    def link(self) -> ServerUrl:
        """Where the head's shovel writes to."""
        return (self.link_url or self.url).with_credentials_of(self.url)

    @property
    def client_address(self) -> str:
        """What subscribers are told; they bring credentials of their own."""
        return (self.client_url or self.url).without_credentials()

    @property
    def capacity(self) -> Capacity:
        """What is configured."""
        return Capacity(
            uplink_bytes_per_s=self.uplink_bytes_per_s,
            downlink_bytes_per_s=self.downlink_bytes_per_s,
            matching_per_s=self.matching_per_s,
        )
