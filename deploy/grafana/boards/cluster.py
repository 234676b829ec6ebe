"""The cluster at one look: states, utilizations, placement, links, sessions and moves on a time line."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from ..panels import (
    ACTIVITIES,
    GREEN,
    RED,
    STATES,
    YELLOW,
    YES_IS_BAD,
    Rows,
    board,
    filled,
    lines,
    number,
    q,
    rows,
    states,
)
from ..queries import ACTIVITY, IN_CLUSTER, RATE, STATE, selected

ROWS: Rows = (
    (
        "Now",
        (
            number(
                "Edges heard of",
                "By their heads.",
                "short",
                f"sum(tidegate_edge_up{{{IN_CLUSTER}}})",
            ),
            number(
                "Links that do not run",
                "Shovels of heads that are not running.",
                "short",
                f'count(tidegate_link_state_info{{{IN_CLUSTER}, state="running"}} == 0) or vector(0)',
                steps=((None, GREEN), (1, RED)),
            ),
            number(
                "Subscriptions",
                "On all edges.",
                "short",
                f"sum(tidegate_subscriptions_count{{{IN_CLUSTER}}})",
            ),
            number(
                "Publishers",
                "That reported lately.",
                "short",
                f"sum(tidegate_publishers_count{{{IN_CLUSTER}}})",
            ),
            number(
                "Messages in",
                "Published to heads, per second.",
                "cps",
                f'sum(tidegate_broker_in_messages_per_second{{{IN_CLUSTER}, role="head"}})',
                decimals=0,
            ),
            number(
                "Balancing paused",
                "Whether an operator has switched it off.",
                "short",
                f"max(tidegate_balancing_paused_info{{{IN_CLUSTER}}})",
                words=YES_IS_BAD,
            ),
        ),
    ),
    (
        "Who is in which state, and what is done about it",
        (
            states(
                "Load states",
                "LOW takes load, OVERLOAD gives some away, HIGH does neither, N/A takes no part.",
                q(selected(STATE, IN_CLUSTER), "{{broker}}"),
                STATES,
            ),
            states(
                "Sessions",
                "Who gives load away, who takes some, who waits until it shows.",
                q(selected(ACTIVITY, IN_CLUSTER), "{{broker}}"),
                ACTIVITIES,
            ),
            lines(
                "Moves",
                "Clients moved, or left where they were, per scrape.",
                "short",
                [
                    q(
                        f"sum by (outcome, clients) (increase(tidegate_migrations_ended_total{{{IN_CLUSTER}}}{RATE}))",
                        "{{clients}} {{outcome}}",
                    )
                ],
                bars=True,
                stacked=True,
            ),
            lines(
                "Placement",
                "Subscriptions by edge.",
                "short",
                [
                    q(
                        f'sum by (cluster, broker) (tidegate_subscriptions_count{{{IN_CLUSTER}, role="edge"}})',
                        "{{broker}}",
                    )
                ],
                stacked=True,
                link="tidegate-broker",
            ),
        ),
    ),
    (
        "Load",
        (
            *(
                lines(
                    f"Offered {resource}",
                    f"What is asked of the {resource}, as a share of what it can do.",
                    "percentunit",
                    [
                        q(
                            f"""max by (cluster, broker) (
                   tidegate_broker_offered_utilization_ratio{{{IN_CLUSTER}, resource="{resource}"}})""",
                            "{{broker}}",
                        )
                    ],
                    limits=((0.9, YELLOW), (high, RED)),
                    link="tidegate-broker",
                )
                for resource, high in (("uplink", 1.0), ("downlink", 0.95), ("matching", 0.95))
            ),
            lines(
                "Used uplink",
                "What subscribers acknowledged, as a share of what the uplink carries.",
                "percentunit",
                [
                    q(
                        f"""max by (cluster, broker) (
                            tidegate_broker_used_utilization_ratio{{{IN_CLUSTER}, resource="uplink"}})""",
                        "{{broker}}",
                    )
                ],
                limits=((1, RED),),
                link="tidegate-broker",
            ),
        ),
    ),
    (
        "Links",
        (
            lines(
                "Waiting on links",
                "Messages at a head that have not reached the other side.",
                "short",
                [
                    q(
                        f"sum by (broker, target) (tidegate_link_waiting_messages{{{IN_CLUSTER}}})",
                        "{{broker}} to {{target}}",
                    )
                ],
                span=8,
            ),
            lines(
                "Forwarded",
                "Messages that the other side has confirmed.",
                "cps",
                [
                    q(
                        f"sum by (broker, target) (rate(tidegate_link_forwarded_messages_total{{{IN_CLUSTER}}}{RATE}))",
                        "{{broker}} to {{target}}",
                    )
                ],
                span=8,
            ),
            lines(
                "Round trips",
                "Of probes between the processes of brokers.",
                "s",
                [
                    q(
                        f"max by (broker, target) (tidegate_link_round_trip_seconds{{{IN_CLUSTER}}})",
                        "{{broker}} to {{target}}",
                    )
                ],
                span=8,
            ),
            rows(
                "Alerts that fire",
                "What to do about each: docs/operations.md.",
                [
                    (
                        """count by (alertname, severity, cluster, broker, topic) (
                            ALERTS{alertname=~"Tidegate.*", alertstate="firing"})""",
                        "firing",
                        "short",
                    )
                ],
                by=("alertname", "severity", "cluster", "broker", "topic"),
                sort="severity",
            ),
        ),
    ),
)


def cluster() -> builders.Dashboard:
    """The dashboard."""
    return filled(
        board(
            "tidegate-cluster",
            "Cluster",
            "States, utilizations, placement, links; sessions and moves on a time line.",
            "cluster",
        ),
        ROWS,
    )
