"""What the parts of an edge's agent share: its outbox and the moment, its configuration, and whether it takes load."""

from __future__ import annotations

from ..config import EdgeConfig
from ..kit.outbox import Outbox


class EdgeContext(Outbox):
    """Shared state of one edge's agent."""

    def __init__(self, config: EdgeConfig) -> None:
        super().__init__(config.edge, config.incarnation)
        self.config = config
        self.stopping = False
        self.draining = config.draining
        self.paused = False
        self.pause_version = 0
        """Whether an operator has switched balancing off in this cluster; what has the higher version holds."""
        self.rules = config.rules
        """What accounts may publish and subscribe; None: everything."""
        self.alarms: tuple[str, ...] = ()
        """Those of this broker's RabbitMQ that are raised."""
