"""What the agents of a head and of an edge share: the outbox, whether the process stops, alarms, and the pause.

A pause of balancing has a version, and the higher version holds: an operator tells a head, a head its edges, and edges
tell a head that has restarted.
"""

from __future__ import annotations

from tidegate_protocol.decisions import AlarmOutcome, AlarmsChanged

from .outbox import Outbox


class BrokerContext(Outbox):
    """Shared state of one agent."""

    def __init__(self, broker: str, incarnation: int) -> None:
        super().__init__(broker, incarnation)
        self.broker = broker
        self.stopping = False
        self.paused = False
        """Whether an operator has switched balancing off in this cluster."""
        self.pause_version = 0
        self.alarms: tuple[str, ...] = ()
        """The alarms of this broker's RabbitMQ that are raised."""

    def hear_pause(self, paused: bool, version: int) -> None:
        """Another broker of the cluster says whether balancing is paused."""
        if version > self.pause_version:
            self.paused, self.pause_version = paused, version

    def see_alarms(self, raised: tuple[str, ...]) -> None:
        """These alarms are raised now. While one is, nothing gets through the links to this broker."""
        if set(self.alarms) != set(raised):
            self.decide(AlarmsChanged(self.broker, AlarmOutcome.RAISED if raised else AlarmOutcome.OVER, raised))
        self.alarms = raised
