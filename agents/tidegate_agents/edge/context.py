"""What the parts of an edge's agent share: its outbox and the moment, its configuration, and whether it takes load."""

from __future__ import annotations

from ..config import EdgeConfig
from ..kit.broker import BrokerContext


class EdgeContext(BrokerContext):
    """Shared state of one edge's agent."""

    def __init__(self, config: EdgeConfig) -> None:
        super().__init__(config.edge, config.incarnation)
        self.config = config
        self.draining = config.draining
        self.rules = config.rules
        """What accounts may publish and subscribe; None: everything."""
