"""`tidegate resume`: balancing on again."""

from __future__ import annotations

from ..pausing import pause_command

command = pause_command("resume", paused=False, help_text="Switch load balancing on again in the cluster of this head.")
