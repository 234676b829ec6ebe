"""`tidegate edge`: the process of an edge broker."""

from __future__ import annotations

from tidegate_brokers.edge import run_edge
from tidegate_brokers.settings.options import EdgeConfig

from ..broker_command import broker_command

command = broker_command("edge", EdgeConfig, run_edge, "Run the process of an edge broker, in the foreground.")
