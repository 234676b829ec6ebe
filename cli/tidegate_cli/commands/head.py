"""`tidegate head`: the process of a head broker."""

from __future__ import annotations

from tidegate_brokers.head import run_head
from tidegate_brokers.settings.options import HeadConfig

from ..broker_command import broker_command

command = broker_command("head", HeadConfig, run_head, "Run the process of a head broker, in the foreground.")
