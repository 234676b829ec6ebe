"""What a broker process counts, on a registry that is passed in. Names and labels are public; labels are
bounded.

The vocabulary of every label is fixed by the protocol (kinds, reasons) or by the configuration (link targets,
connections), never by what a client sends.
"""

from __future__ import annotations

from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge

LOAD_REPORTS = ("pie-local", "pie-global")
"""Kinds of control messages that are counted from 0, so that their absence shows."""
LINK_STATES = ("running", "starting", "terminated", "missing")


def distribution_version() -> str:
    """The version of the installed distribution."""
    try:
        return metadata.version("tidegate")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


class BrokerMetrics:
    """All metrics of one process."""

    def __init__(self, registry: CollectorRegistry, role: str, name: str, cluster: str) -> None:
        self.registry = registry
        self.build = Gauge(
            "tidegate_build_info",
            "Version of this process, and which broker it is",
            ["version", "role", "broker", "cluster"],
            registry=registry,
        )
        self.build.labels(distribution_version(), role, name, cluster).set(1)
        self.agent_errors = Counter("tidegate_agent_errors", "Events the agent failed on: bugs", registry=registry)
        self.loop_lag = Gauge(
            "tidegate_event_loop_lag_seconds", "How late the last periodic wake-up came", registry=registry
        )
        self._forwarded_seen: dict[str, int] = {}
        self._add_control(registry)
        self._add_data_plane(registry)

    def _add_control(self, registry: CollectorRegistry) -> None:
        self.received = Counter(
            "tidegate_control_received_messages", "Control messages received", ["kind"], registry=registry
        )
        self.sent = Counter("tidegate_control_sent_messages", "Control messages sent", ["kind"], registry=registry)
        self.malformed = Counter(
            "tidegate_control_malformed_messages", "Control messages dropped", ["reason"], registry=registry
        )
        self.unsent = Counter(
            "tidegate_control_unsent_messages",
            "Control messages not sent: no connection, nobody there, or too many under way",
            ["reason"],
            registry=registry,
        )
        for kind in LOAD_REPORTS:
            self.received.labels(kind)
            self.sent.labels(kind)
        self.refused = Counter(
            "tidegate_requests_refused", "Requests answered with a refusal", ["reason"], registry=registry
        )
        self.ruled_accounts = Gauge(
            "tidegate_rules_accounts_count",
            "Accounts in the rules that this broker goes by; 0 without rules",
            registry=registry,
        )
        self.rules_up = Gauge(
            "tidegate_rules_up",
            "Whether the file of the rules can be read (1); if not (0), those from before hold",
            registry=registry,
        )
        self.rules_up.set(1)
        self.reconnects = Counter(
            "tidegate_connection_reopened", "Connections opened again", ["connection"], registry=registry
        )
        self.connected = Gauge(
            "tidegate_connection_up",
            "Whether a connection is open (1) or not (0)",
            ["connection"],
            registry=registry,
        )

    def _add_data_plane(self, registry: CollectorRegistry) -> None:
        self.subscriptions = Gauge("tidegate_subscriptions_count", "Output queues kept by this edge", registry=registry)
        self.routes = Gauge(
            "tidegate_routes_count",
            "Patterns bound on links, by kind of link",
            ["link_kind"],
            registry=registry,
        )
        self.link_state = Gauge(
            "tidegate_link_state_info",
            "1 for the state a link's shovel is in",
            ["target", "state"],
            registry=registry,
        )
        self.link_waiting = Gauge(
            "tidegate_link_waiting_messages", "Messages waiting on a link", ["target"], registry=registry
        )
        self.link_forwarded = Counter(
            "tidegate_link_forwarded_messages",
            "Messages a link's target has confirmed",
            ["target"],
            registry=registry,
        )
        self.actions_failed = Counter(
            "tidegate_actions_failed", "Data-plane actions refused by RabbitMQ", ["action"], registry=registry
        )
        self.actions_retried = Counter(
            "tidegate_actions_retried",
            "Data-plane actions repeated after a failure that may pass",
            registry=registry,
        )

    def observe_link(self, target: str, state: str, waiting: int, forwarded: int) -> None:
        """Take over what RabbitMQ says about a link; its counter restarts with RabbitMQ, ours does not."""
        known = state if state in LINK_STATES else "missing"
        for candidate in LINK_STATES:
            self.link_state.labels(target, candidate).set(candidate == known)
        self.link_waiting.labels(target).set(waiting)
        seen = self._forwarded_seen.get(target, 0)
        self.link_forwarded.labels(target).inc(forwarded - seen if forwarded >= seen else forwarded)
        self._forwarded_seen[target] = forwarded

    def forget_link(self, target: str) -> None:
        """A link is gone; so are its series."""
        if self._forwarded_seen.pop(target, None) is None:
            return
        for state in LINK_STATES:
            self.link_state.remove(target, state)
        self.link_waiting.remove(target)
        self.link_forwarded.remove(target)

    @property
    def links(self) -> list[str]:
        """Targets of the links observed so far."""
        return sorted(self._forwarded_seen)
