"""What is counted of the quarantine and of links that were helped. Labels are names of brokers and members of enums."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from tidegate_protocol.decisions import RelayOutcome, SetAsideReason


class QuarantineMetrics:
    """Metrics of one head."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.set_aside = Counter(
            "tidegate_quarantine_set_aside_messages",
            "Messages that the far end of a link refused and that were set aside",
            ["target", "reason"],
            registry=registry,
        )
        self.set_aside_bytes = Counter(
            "tidegate_quarantine_set_aside_bytes", "Bytes of their bodies", ["target"], registry=registry
        )
        self.waiting = Gauge("tidegate_quarantine_waiting_messages", "Messages in the quarantine", registry=registry)
        self.relayed = Counter(
            "tidegate_link_relayed",
            "Times a head carried the messages of a link itself because the link made no progress",
            ["outcome"],
            registry=registry,
        )
        self._expected: set[str] = set()
        for outcome in RelayOutcome:
            self.relayed.labels(outcome.value)

    def expect(self, target: str) -> None:
        """Count a link's messages from 0, so that the first one shows as an increase."""
        if target in self._expected:
            return
        self._expected.add(target)
        self.set_aside_bytes.labels(target)
        for reason in SetAsideReason:
            self.set_aside.labels(target, reason.value)
