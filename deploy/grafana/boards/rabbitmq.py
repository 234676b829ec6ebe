"""What matters of the RabbitMQs behind the brokers."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from ..panels import GREEN, RED, Rows, board, filled, lines, number, q
from ..queries import OF_BROKERS, RATE

ALARMS = " + ".join(
    f"sum(max by (broker) (rabbitmq_alarms_{name}{{{OF_BROKERS}}}))"
    for name in ("memory_used_watermark", "free_disk_space_watermark")
)

ROWS: Rows = (
    (
        "Now",
        (
            number(
                "RabbitMQs up",
                "That Prometheus can scrape.",
                "short",
                f'sum(up{{{OF_BROKERS}, job="rabbitmq"}})',
            ),
            number(
                "Alarms",
                "Of memory or disk: each blocks everybody who publishes.",
                "short",
                ALARMS,
                steps=((None, GREEN), (1, RED)),
            ),
            number(
                "Messages held",
                "Ready and unacknowledged, in all queues and streams; what grows on a head is its telemetry.",
                "short",
                f"sum(rabbitmq_queue_messages{{{OF_BROKERS}}})",
            ),
            number("Queues", "On all of them.", "short", f"sum(rabbitmq_queues{{{OF_BROKERS}}})"),
            number("Connections", "To all of them.", "short", f"sum(rabbitmq_connections{{{OF_BROKERS}}})"),
            number(
                "Unroutable",
                "Published in the last five minutes and wanted by nobody.",
                "short",
                f"sum(increase(rabbitmq_global_messages_unroutable_dropped_total{{{OF_BROKERS}}}[5m]))",
                decimals=0,
            ),
        ),
    ),
    (
        "Room",
        (
            lines(
                "Memory",
                "In use; dashed: where RabbitMQ begins to block.",
                "bytes",
                [
                    q(f"max by (broker) (rabbitmq_process_resident_memory_bytes{{{OF_BROKERS}}})", "{{broker}}"),
                    q(f"min by (broker) (rabbitmq_resident_memory_limit_bytes{{{OF_BROKERS}}})", "limit of {{broker}}"),
                ],
                dashed="/^limit/",
            ),
            lines(
                "Free disk",
                "Dashed: where RabbitMQ begins to block.",
                "bytes",
                [
                    q(f"min by (broker) (rabbitmq_disk_space_available_bytes{{{OF_BROKERS}}})", "{{broker}}"),
                    q(
                        f"max by (broker) (rabbitmq_disk_space_available_limit_bytes{{{OF_BROKERS}}})",
                        "limit of {{broker}}",
                    ),
                ],
                dashed="/^limit/",
            ),
            lines(
                "File descriptors",
                "Open; dashed: as many as there may be.",
                "short",
                [
                    q(f"max by (broker) (rabbitmq_process_open_fds{{{OF_BROKERS}}})", "{{broker}}"),
                    q(f"min by (broker) (rabbitmq_process_max_fds{{{OF_BROKERS}}})", "limit of {{broker}}"),
                ],
                dashed="/^limit/",
            ),
            lines(
                "Run queue",
                "Erlang processes that wait for a processor: above the number of cores it is short of them.",
                "short",
                [q(f"max by (broker) (rabbitmq_erlang_scheduler_run_queue{{{OF_BROKERS}}})", "{{broker}}")],
            ),
        ),
    ),
    (
        "Messages",
        (
            *(
                lines(
                    title,
                    description,
                    "cps",
                    [
                        q(
                            f"sum by (broker) (rate(rabbitmq_global_messages_{metric}_total{{{OF_BROKERS}}}{RATE}))",
                            "{{broker}}",
                        )
                    ],
                    span=6,
                )
                for title, description, metric in (
                    ("Published", "Received from publishers and links.", "received"),
                    ("Delivered", "To subscribers and links.", "delivered"),
                    ("Redelivered", "Again, after a connection was lost.", "redelivered"),
                    ("Acknowledged", "By subscribers and links.", "acknowledged"),
                )
            ),
            lines(
                "Waiting and in flight",
                "Ready; dashed: unacknowledged. A head's include its telemetry, which waits for nobody.",
                "short",
                [
                    q(f"sum by (broker) (rabbitmq_queue_messages_ready{{{OF_BROKERS}}})", "{{broker}}"),
                    q(f"sum by (broker) (rabbitmq_queue_messages_unacked{{{OF_BROKERS}}})", "in flight: {{broker}}"),
                ],
                dashed="/^in flight/",
            ),
            lines(
                "Connections and consumers",
                "Connections; dashed: consumers.",
                "short",
                [
                    q(f"sum by (broker) (rabbitmq_connections{{{OF_BROKERS}}})", "{{broker}}"),
                    q(f"sum by (broker) (rabbitmq_consumers{{{OF_BROKERS}}})", "consumers: {{broker}}"),
                ],
                dashed="/^consumers/",
            ),
            lines(
                "Connections opened",
                "Many per second are clients that do not keep theirs.",
                "cps",
                [q(f"sum by (broker) (rate(rabbitmq_connections_opened_total{{{OF_BROKERS}}}{RATE}))", "{{broker}}")],
            ),
            lines(
                "Alarms",
                "1 while RabbitMQ blocks publishers, as its broker saw it.",
                "short",
                [
                    q(
                        f"max by (broker, resource) (tidegate_rabbitmq_alarm_info{{{OF_BROKERS}}})",
                        "{{broker}}: {{resource}}",
                    )
                ],
                limits=((1, RED),),
            ),
        ),
    ),
)


def rabbitmq() -> builders.Dashboard:
    """The dashboard."""
    return filled(
        board(
            "tidegate-rabbitmq", "RabbitMQ", "What matters of the RabbitMQs behind the brokers.", "cluster", "brokers"
        ),
        ROWS,
    )
