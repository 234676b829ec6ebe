"""`tidegate head`: the process of a head broker."""

from __future__ import annotations

from tidegate_brokers.config import HeadConfig
from tidegate_brokers.head import run_head

from ..options import broker_command

command = broker_command("head", HeadConfig, run_head, "Run the process of a head broker, in the foreground.")
