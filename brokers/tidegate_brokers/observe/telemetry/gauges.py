"""What telemetry counts of itself. Labels are bounded: the reasons below."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge


class DropReason(StrEnum):
    """Why a record is not in the stream, as far as its writer knows."""

    BUFFER_FULL = "buffer-full"
    """More came than could be written: no connection, or RabbitMQ takes nothing."""
    UNCONFIRMED = "unconfirmed"
    """The connection was lost before RabbitMQ had confirmed it. It may be there; it is not written twice."""
    REFUSED = "refused"
    """RabbitMQ would not have it, or nothing is bound to the exchange."""
    TOO_LARGE = "too-large"
    TOO_MANY = "too-many"
    """Clients reported more than is written per period."""
    STOPPED = "stopped"
    """The process ended first."""


class TelemetryMetrics:
    """Counters of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.written = Counter(
            "tidegate_telemetry_written_records", "Records that RabbitMQ has confirmed", registry=registry
        )
        self.written_bytes = Counter("tidegate_telemetry_written_bytes", "Bodies of those records", registry=registry)
        self.dropped = Counter(
            "tidegate_telemetry_dropped_records", "Records that were given up", ["reason"], registry=registry
        )
        for reason in DropReason:
            self.dropped.labels(reason.value)
        self.buffered = Gauge("tidegate_telemetry_buffered_records", "Records that wait", registry=registry)
