"""Decisions, their reasons, and what came of them."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from ..panels import ACTIVITIES, GREEN, RED, YELLOW, YES_IS_BAD, Rows, board, filled, lines, number, q, states
from ..queries import ACTIVITY, IN_CLUSTER, RATE, recent, selected

HOUR = f"{{{IN_CLUSTER}}}[1h]"

ROWS: Rows = (
    (
        "The last hour",
        (
            number(
                "Sessions",
                "Begun in the last hour.",
                "short",
                f"sum(increase(tidegate_sessions_started_total{HOUR}))",
                decimals=0,
            ),
            number(
                "Unnecessary sessions",
                "Begun although no deadline was in danger and no threshold passed.",
                "short",
                f'sum(increase(tidegate_sessions_started_total{{{IN_CLUSTER}, necessary="no"}}[1h])) or vector(0)',
                steps=((None, GREEN), (1, YELLOW)),
                decimals=0,
            ),
            number(
                "Clients moved",
                "In the last hour.",
                "short",
                f'sum(increase(tidegate_migrations_ended_total{{{IN_CLUSTER}, outcome="moved"}}[1h]))',
                decimals=0,
            ),
            number(
                "Moved back",
                "Clients that were back within ten minutes where they came from: oscillation.",
                "short",
                f"sum(increase(tidegate_migrations_returned_total{HOUR}))",
                steps=((None, GREEN), (1, YELLOW), (3, RED)),
                decimals=0,
            ),
            number(
                "Pause at a move, 99 %",
                "The longest pause in delivery that subscribers noticed.",
                "s",
                recent(0.99, "tidegate_migration_gap_seconds", IN_CLUSTER, "1h"),
                decimals=2,
            ),
            number(
                "Paused",
                "Whether an operator has switched balancing off.",
                "short",
                f"max(tidegate_balancing_paused_info{{{IN_CLUSTER}}})",
                words=YES_IS_BAD,
            ),
        ),
    ),
    (
        "Sessions",
        (
            states(
                "Who is in a session",
                "Over time.",
                q(selected(ACTIVITY, IN_CLUSTER), "{{broker}}"),
                ACTIVITIES,
            ),
            lines(
                "Sessions begun",
                "By broker.",
                "short",
                [
                    q(
                        f"""sum by (broker, clients) (
                            increase(tidegate_sessions_started_total{{{IN_CLUSTER}}}{RATE})) > 0""",
                        "{{broker}}: {{clients}}",
                    )
                ],
                bars=True,
                stacked=True,
                span=8,
            ),
            lines(
                "Sessions ended",
                "By outcome and reason.",
                "short",
                [
                    q(
                        f"sum by (outcome, reason) (increase(tidegate_sessions_ended_total{{{IN_CLUSTER}}}{RATE})) > 0",
                        "{{outcome}}: {{reason}}",
                    )
                ],
                bars=True,
                stacked=True,
                span=8,
            ),
            lines(
                "How long a session takes",
                "Of those that moved somebody; dashed: what each edge expects (t_LB).",
                "s",
                [
                    q(recent(0.5, "tidegate_session_duration_seconds", IN_CLUSTER, "5m"), "half of them"),
                    q(recent(0.95, "tidegate_session_duration_seconds", IN_CLUSTER, "5m"), "95 %"),
                    q(f"max by (broker) (tidegate_session_expected_seconds{{{IN_CLUSTER}}})", "expected by {{broker}}"),
                ],
                dashed="/^expected/",
                span=8,
            ),
        ),
    ),
    (
        "Moves",
        (
            lines(
                "Moves ended",
                "By outcome and reason.",
                "short",
                [
                    q(
                        f"""sum by (clients, outcome, reason) (
                            increase(tidegate_migrations_ended_total{{{IN_CLUSTER}}}{RATE})) > 0""",
                        "{{clients}} {{outcome}}: {{reason}}",
                    )
                ],
                bars=True,
                stacked=True,
                span=8,
            ),
            lines(
                "How long a move takes",
                "From the order to the client until its end, over five minutes.",
                "s",
                [
                    q(recent(share, "tidegate_migration_duration_seconds", IN_CLUSTER, "5m"), name)
                    for share, name in ((0.5, "half of them"), (0.95, "95 %"))
                ],
                span=8,
            ),
            lines(
                "The pause a subscriber notices",
                "Over five minutes.",
                "s",
                [
                    q(recent(share, "tidegate_migration_gap_seconds", IN_CLUSTER, "5m"), name)
                    for share, name in ((0.5, "half of them"), (0.99, "99 %"))
                ],
                span=8,
            ),
            lines(
                "Moved back within ten minutes",
                "Oscillation: more than two in ten minutes raise an alert.",
                "short",
                [
                    q(
                        f"sum by (cluster) (increase(tidegate_migrations_returned_total{{{IN_CLUSTER}}}[10m]))",
                        "{{cluster}}",
                    )
                ],
                limits=((2, RED),),
                span=12,
            ),
            lines(
                "Held back during moves",
                "Messages that came by the new edge too early and waited for their turn.",
                "short",
                [
                    q(
                        f"sum by (cluster) (increase(tidegate_migration_held_messages_total{{{IN_CLUSTER}}}{RATE}))",
                        "{{cluster}}",
                    )
                ],
                bars=True,
                span=12,
            ),
        ),
    ),
    (
        "Predictions and decisions",
        (
            lines(
                "How wrong predictions were",
                "Utilization of the source after a session against what was predicted; nine of ten "
                "were better than this. Over an hour.",
                "percentunit",
                [q(recent(0.9, "tidegate_prediction_error_ratio", IN_CLUSTER, "1h", "le, resource"), "{{resource}}")],
                limits=((0.1, YELLOW),),
            ),
            lines(
                "The last prediction",
                "Measured minus predicted, by source: above 0 more stayed than was expected.",
                "percentunit",
                [
                    q(
                        f"max by (broker, resource) (tidegate_prediction_last_error_ratio{{{IN_CLUSTER}}})",
                        "{{broker}}: {{resource}}",
                    )
                ],
                least=None,
                limits=((0.1, YELLOW),),
            ),
            lines(
                "Decisions",
                "By kind.",
                "short",
                [
                    q(
                        f"sum by (decision) (increase(tidegate_decisions_total{{{IN_CLUSTER}}}{RATE})) > 0",
                        "{{decision}}",
                    )
                ],
                bars=True,
                stacked=True,
            ),
            lines(
                "Why nobody was moved",
                "Sessions that failed, were refused, or not even begun, by reason.",
                "short",
                [
                    q(
                        f"""sum by (broker, decision, reason) (increase(tidegate_decisions_total{{{IN_CLUSTER},
                            decision=~"session-(failed|refused|not-started)|drain-waits"}}{RATE})) > 0""",
                        "{{broker}} {{decision}}: {{reason}}",
                    )
                ],
                bars=True,
                stacked=True,
            ),
            lines(
                "Load reports",
                "PIE messages that brokers sent and received: what candidates are known by.",
                "cps",
                [
                    q(
                        f"""sum by (broker) (
                            rate(tidegate_control_sent_messages_total{{{IN_CLUSTER}, kind=~"pie-.*"}}{RATE}))""",
                        "sent by {{broker}}",
                    ),
                    q(
                        f"""sum by (broker) (
                            rate(tidegate_control_received_messages_total{{{IN_CLUSTER}, kind=~"pie-.*"}}{RATE}))""",
                        "received by {{broker}}",
                    ),
                ],
                dashed="/^received/",
            ),
            lines(
                "States that were passed",
                "Changes of load state by the metric that made them.",
                "short",
                [
                    q(
                        f"""sum by (broker, reason) (
                            increase(tidegate_decisions_total{{{IN_CLUSTER}, decision="load-state"}}{RATE})) > 0""",
                        "{{broker}}: {{reason}}",
                    )
                ],
                bars=True,
                stacked=True,
            ),
        ),
    ),
)


def balancer() -> builders.Dashboard:
    """The dashboard."""
    return filled(
        board(
            "tidegate-balancer",
            "Balancer",
            "Decisions, reasons, refusals, predictions and what came of them, oscillation.",
            "cluster",
        ),
        ROWS,
    )
