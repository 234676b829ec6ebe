"""Deadlines: who is late, and who is about to be."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from ..panels import GREEN, RED, YELLOW, Rows, board, filled, lines, number, q, rows, shares
from ..queries import OF_TOPIC, RATE, quantile

LATE, RECEIVED = "tidegate_delivery_late_messages_total", "tidegate_delivery_received_messages_total"

ROWS: Rows = (
    (
        "Now",
        (
            number(
                "Delivered in time",
                "Share of all deliveries of the last five minutes, by the reports of subscribers.",
                "percentunit",
                f"1 - sum(rate({LATE}{{{OF_TOPIC}}}[5m])) / sum(rate({RECEIVED}{{{OF_TOPIC}}}[5m]))",
                steps=((None, RED), (0.99, YELLOW), (0.9999, GREEN)),
                decimals=3,
            ),
            number(
                "Late messages",
                "Delivered after their deadline in the last five minutes.",
                "short",
                f"sum(increase({LATE}{{{OF_TOPIC}}}[5m]))",
                steps=((None, GREEN), (1, RED)),
                decimals=0,
            ),
            number(
                "Nearest to its threshold",
                "What waits over what may wait, of the fullest output queue; past 1 somebody is moved.",
                "percentunit",
                f"max(tidegate_topic_threshold_used_ratio{{{OF_TOPIC}}})",
                steps=((None, GREEN), (0.7, YELLOW), (1, RED)),
                decimals=0,
            ),
            number(
                "Queues past their threshold",
                "Output queues that hold more than their deadline allows.",
                "short",
                f"sum(tidegate_topic_past_threshold_count{{{OF_TOPIC}}})",
                steps=((None, GREEN), (1, RED)),
            ),
            number(
                "Infeasible",
                "Subscriptions whose deadline is shorter than the way to them takes.",
                "short",
                f"sum(tidegate_topic_infeasible_count{{{OF_TOPIC}}})",
                steps=((None, GREEN), (1, YELLOW)),
            ),
            number(
                "Missing messages",
                "Skipped and not there yet, over all subscriptions. Returns to 0 when links have caught up.",
                "short",
                f"sum(tidegate_delivery_missing_messages{{{OF_TOPIC}}})",
                steps=((None, GREEN), (1, YELLOW)),
            ),
        ),
    ),
    (
        "Who is late",
        (
            lines(
                "Late messages by topic",
                "Per second, as subscribers reported them (every ten seconds).",
                "cps",
                [q(f"sum by (cluster, topic) (rate({LATE}{{{OF_TOPIC}}}{RATE}))", "{{topic}}")],
                bars=True,
                stacked=True,
            ),
            lines(
                "Delivered in time by topic",
                "Share of deliveries before the deadline.",
                "percentunit",
                [
                    q(
                        f"""1 - sum by (cluster, topic) (rate({LATE}{{{OF_TOPIC}}}{RATE}))
               / sum by (cluster, topic) (rate({RECEIVED}{{{OF_TOPIC}}}{RATE}))""",
                        "{{topic}}",
                    )
                ],
                limits=((0.99, RED),),
                least=None,
            ),
            lines(
                "Latency by topic: 99 % and the deadline",
                "Dashed: the shortest deadline of the topic.",
                "s",
                [
                    q(quantile(0.99, "tidegate_delivery_latency_seconds", OF_TOPIC, "le, topic"), "{{topic}}"),
                    q(f"min by (topic) (tidegate_delivery_deadline_seconds{{{OF_TOPIC}}})", "deadline of {{topic}}"),
                ],
                dashed="/^deadline/",
            ),
            lines(
                "Latency as a share of the deadline",
                "Over all topics, whatever their deadlines: above 1 is late.",
                "percentunit",
                [
                    q(quantile(share, "tidegate_delivery_latency_deadline_ratio", OF_TOPIC), name)
                    for share, name in ((0.5, "half of all"), (0.99, "99 %"), (0.999, "99.9 %"))
                ],
                limits=((1, RED),),
            ),
        ),
    ),
    (
        "Who is about to be",
        (
            lines(
                "Depth over threshold",
                "Of the fullest output queue of each topic on each edge; past 1 its deadline is in danger.",
                "percentunit",
                [
                    q(
                        f"max by (cluster, broker, topic) (tidegate_topic_threshold_used_ratio{{{OF_TOPIC}}})",
                        "{{topic}} on {{broker}}",
                    )
                ],
                limits=((1, RED),),
                link="tidegate-broker",
            ),
            lines(
                "Depth and threshold",
                "What waits in that queue; dashed: what may.",
                "short",
                [
                    q(
                        f"max by (cluster, broker, topic) (tidegate_topic_depth_messages{{{OF_TOPIC}}})",
                        "{{topic}} on {{broker}}",
                    ),
                    q(
                        f"min by (cluster, broker, topic) (tidegate_topic_threshold_messages{{{OF_TOPIC}}})",
                        "may wait: {{topic}} on {{broker}}",
                    ),
                ],
                dashed="/^may wait/",
                link="tidegate-broker",
            ),
            rows(
                "Topics, nearest to their thresholds first",
                "Now.",
                [
                    (
                        f"max by (broker, topic) (tidegate_topic_threshold_used_ratio{{{OF_TOPIC}}})",
                        "used",
                        "percentunit",
                    ),
                    (f"max by (broker, topic) (tidegate_topic_depth_messages{{{OF_TOPIC}}})", "waiting", "short"),
                    (f"max by (broker, topic) (tidegate_topic_threshold_messages{{{OF_TOPIC}}})", "may wait", "short"),
                    (f"min by (broker, topic) (tidegate_topic_deadline_seconds{{{OF_TOPIC}}})", "deadline", "s"),
                    (
                        f"sum by (broker, topic) (tidegate_topic_subscriptions_count{{{OF_TOPIC}}})",
                        "subscriptions",
                        "short",
                    ),
                    (
                        f"sum by (broker, topic) (tidegate_topic_enqueued_messages_per_second{{{OF_TOPIC}}})",
                        "in",
                        "cps",
                    ),
                    (
                        f"sum by (broker, topic) (tidegate_topic_drained_messages_per_second{{{OF_TOPIC}}})",
                        "out",
                        "cps",
                    ),
                ],
                by=("topic", "broker"),
                sort="used",
                span=14,
            ),
            shares(
                "How close deliveries come to the deadline",
                "How many deliveries took which share of their deadline.",
                f"sum by (le) (increase(tidegate_delivery_latency_deadline_ratio_bucket{{{OF_TOPIC}}}{RATE}))",
                "percentunit",
                span=10,
            ),
        ),
    ),
)


def deadlines() -> builders.Dashboard:
    """The dashboard."""
    return filled(
        board(
            "tidegate-deadlines",
            "Deadlines",
            "Who is late, and who is about to be: latencies against deadlines, depths against thresholds.",
            "cluster",
            "topic",
        ),
        ROWS,
    )
