"""One broker in depth: its load, its topics and queues, its process."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from ..panels import ACTIVITIES, RED, STATES, UP, Rows, board, filled, lines, number, q, rows, states
from ..queries import ACTIVITY, OF_BROKER, RATE, STATE, selected

ROWS: Rows = (
    (
        "Now",
        (
            number(
                "Process",
                "Whether Prometheus can scrape it.",
                "short",
                f'max(up{{{OF_BROKER}, job="tidegate"}})',
                words=UP,
            ),
            number(
                "State",
                "As it reports itself.",
                "short",
                selected(STATE, OF_BROKER),
                words=STATES,
            ),
            number(
                "Balancing",
                "What it does at the moment; heads: nothing to show.",
                "short",
                selected(ACTIVITY, OF_BROKER),
                words=ACTIVITIES,
            ),
            number(
                "Subscriptions",
                "Output queues it keeps.",
                "short",
                f"max(tidegate_subscriptions_count{{{OF_BROKER}}})",
            ),
            number(
                "Oldest message",
                "How long it has waited.",
                "s",
                f"max(tidegate_broker_oldest_message_seconds{{{OF_BROKER}}})",
                decimals=2,
            ),
            number(
                "Version",
                "Of the process.",
                "short",
                f"max by (version) (tidegate_build_info{{{OF_BROKER}}})",
                legend="{{version}}",
            ),
            states("State", "Over time.", q(selected(STATE, OF_BROKER), "state"), STATES, span=12, height=5),
            states(
                "Sessions",
                "Over time.",
                q(selected(ACTIVITY, OF_BROKER), "balancing"),
                ACTIVITIES,
                span=12,
                height=5,
            ),
        ),
    ),
    (
        "Load",
        (
            lines(
                "Utilization",
                "Offered of each capacity; dashed: the thresholds it is judged by.",
                "percentunit",
                [
                    q(f"max by (resource) (tidegate_broker_offered_utilization_ratio{{{OF_BROKER}}})", "{{resource}}"),
                    q(
                        f"max by (resource, bound) (tidegate_broker_threshold_utilization_ratio{{{OF_BROKER}}})",
                        "threshold of {{resource}}: {{bound}}",
                    ),
                ],
                dashed="/^threshold/",
                limits=((1, RED),),
            ),
            lines(
                "Uplink",
                "What it is asked for, what it carried, and what it can; dashed: capacity, configured or learned.",
                "Bps",
                [
                    q(f"max(tidegate_broker_offered_bytes_per_second{{{OF_BROKER}}})", "offered"),
                    q(f"max(tidegate_broker_used_bytes_per_second{{{OF_BROKER}}})", "used"),
                    q(f"max(tidegate_broker_uplink_capacity_bytes_per_second{{{OF_BROKER}}})", "capacity"),
                ],
                dashed="/^capacity/",
            ),
            lines(
                "Bytes in",
                "What comes in, on the wire.",
                "Bps",
                [q(f"max(tidegate_broker_in_bytes_per_second{{{OF_BROKER}}})", "in")],
                span=6,
            ),
            lines(
                "Messages in",
                "What comes in.",
                "cps",
                [q(f"max(tidegate_broker_in_messages_per_second{{{OF_BROKER}}})", "in")],
                span=6,
            ),
            lines(
                "Subscriptions in trouble",
                "Past their threshold, infeasible, or of subscribers that are too slow.",
                "short",
                [
                    q(f"max(tidegate_subscriptions_past_threshold_count{{{OF_BROKER}}})", "past threshold"),
                    q(f"max(tidegate_subscriptions_infeasible_count{{{OF_BROKER}}})", "infeasible"),
                    q(f"max(tidegate_subscriptions_slow_count{{{OF_BROKER}}})", "slow subscriber"),
                ],
            ),
        ),
    ),
    (
        "Topics and queues",
        (
            lines(
                "Depth and threshold by topic",
                "Of the fullest queue of each; dashed: what may wait.",
                "short",
                [
                    q(f"max by (topic) (tidegate_topic_depth_messages{{{OF_BROKER}}})", "{{topic}}"),
                    q(f"max by (topic) (tidegate_topic_threshold_messages{{{OF_BROKER}}})", "may wait: {{topic}}"),
                ],
                dashed="/^may wait/",
            ),
            lines(
                "In and out by topic",
                "What is enqueued; dashed: what subscribers take.",
                "cps",
                [
                    q(f"sum by (topic) (tidegate_topic_enqueued_messages_per_second{{{OF_BROKER}}})", "{{topic}}"),
                    q(f"sum by (topic) (tidegate_topic_drained_messages_per_second{{{OF_BROKER}}})", "out: {{topic}}"),
                ],
                dashed="/^out/",
            ),
            rows(
                "Output queues with most waiting",
                "Now; at most `output_series_max` of them.",
                [
                    (f"topk(50, tidegate_output_depth_messages{{{OF_BROKER}}})", "waiting", "short"),
                    (f"tidegate_output_threshold_messages{{{OF_BROKER}}}", "may wait", "short"),
                    (f"tidegate_output_enqueued_messages_per_second{{{OF_BROKER}}}", "in", "cps"),
                    (f"tidegate_output_drained_messages_per_second{{{OF_BROKER}}}", "out", "cps"),
                    (f"tidegate_output_round_trip_seconds{{{OF_BROKER}}}", "round trip", "s"),
                    (f"tidegate_output_message_bytes{{{OF_BROKER}}}", "message", "bytes"),
                ],
                by=("queue",),
                sort="waiting",
            ),
        ),
    ),
    (
        "The process",
        (
            lines(
                "Control messages",
                "Sent and received by kind; load reports (PIE) are pie-local and pie-global.",
                "cps",
                [
                    q(
                        f"sum by (kind) (rate(tidegate_control_received_messages_total{{{OF_BROKER}}}{RATE})) > 0",
                        "received: {{kind}}",
                    ),
                    q(
                        f"sum by (kind) (rate(tidegate_control_sent_messages_total{{{OF_BROKER}}}{RATE})) > 0",
                        "sent: {{kind}}",
                    ),
                ],
                dashed="/^sent/",
            ),
            lines(
                "What went wrong",
                "Control messages dropped or not sent, refusals, actions repeated or refused, records lost, bugs.",
                "cps",
                [
                    q(
                        f"sum by (reason) (rate(tidegate_control_malformed_messages_total{{{OF_BROKER}}}{RATE})) > 0",
                        "malformed: {{reason}}",
                    ),
                    q(
                        f"sum by (reason) (rate(tidegate_control_unsent_messages_total{{{OF_BROKER}}}{RATE})) > 0",
                        "not sent: {{reason}}",
                    ),
                    q(
                        f"sum by (reason) (rate(tidegate_requests_refused_total{{{OF_BROKER}}}{RATE})) > 0",
                        "refused: {{reason}}",
                    ),
                    q(f"sum(rate(tidegate_actions_retried_total{{{OF_BROKER}}}{RATE}))", "actions repeated"),
                    q(
                        f"sum by (action) (rate(tidegate_actions_failed_total{{{OF_BROKER}}}{RATE})) > 0",
                        "action refused: {{action}}",
                    ),
                    q(f"sum(rate(tidegate_telemetry_dropped_records_total{{{OF_BROKER}}}{RATE}))", "telemetry dropped"),
                    q(f"sum(rate(tidegate_sensing_failures_total{{{OF_BROKER}}}{RATE}))", "samples missing"),
                    q(f"sum(rate(tidegate_agent_errors_total{{{OF_BROKER}}}{RATE}))", "bugs"),
                ],
            ),
            lines(
                "Connections",
                "Whether each is open, and how often it was opened again.",
                "short",
                [
                    q(f"max by (connection) (tidegate_connection_up{{{OF_BROKER}}})", "{{connection}}"),
                    q(
                        f"sum by (connection) (increase(tidegate_connection_reopened_total{{{OF_BROKER}}}{RATE})) > 0",
                        "opened again: {{connection}}",
                    ),
                ],
                span=8,
            ),
            lines(
                "Telemetry",
                "Records written and lost, and those that wait.",
                "short",
                [
                    q(
                        f"sum(rate(tidegate_telemetry_written_records_total{{{OF_BROKER}}}{RATE}))",
                        "written per second",
                    ),
                    q(
                        f"sum(rate(tidegate_telemetry_dropped_records_total{{{OF_BROKER}}}{RATE}))",
                        "dropped per second",
                    ),
                    q(f"max(tidegate_telemetry_buffered_records{{{OF_BROKER}}})", "waiting"),
                ],
                span=8,
            ),
            lines(
                "Time",
                "How late the event loop wakes up, how long a sample and a scrape take.",
                "s",
                [
                    q(f"max(tidegate_event_loop_lag_seconds{{{OF_BROKER}}})", "event loop lag"),
                    q(
                        f"""sum(rate(tidegate_sensing_seconds_sum{{{OF_BROKER}}}{RATE}))
                            / sum(rate(tidegate_sensing_seconds_count{{{OF_BROKER}}}{RATE}))""",
                        "a sample",
                    ),
                    q(f'max(scrape_duration_seconds{{{OF_BROKER}, job="tidegate"}})', "a scrape"),
                ],
                span=8,
            ),
            lines(
                "Processor",
                "Of the process, in cores; of that, for sensing.",
                "short",
                [
                    q(f'sum(rate(process_cpu_seconds_total{{{OF_BROKER}, job="tidegate"}}{RATE}))', "process"),
                    q(f"sum(rate(tidegate_sensing_cpu_seconds_total{{{OF_BROKER}}}{RATE}))", "sensing"),
                ],
                span=8,
            ),
            lines(
                "Memory",
                "Resident, of the process.",
                "bytes",
                [q(f'max(process_resident_memory_bytes{{{OF_BROKER}, job="tidegate"}})', "resident")],
                span=8,
            ),
            lines(
                "Series",
                "That its /metrics has: bounded by topic_series_max and output_series_max.",
                "short",
                [q(f'max(scrape_samples_scraped{{{OF_BROKER}, job="tidegate"}})', "series")],
                span=8,
            ),
        ),
    ),
)


def broker() -> builders.Dashboard:
    """The dashboard."""
    return filled(
        board(
            "tidegate-broker",
            "Broker",
            "One broker in depth: its load, its topics and queues, its process.",
            "cluster",
            "broker",
        ),
        ROWS,
    )
