"""`tidegate pause`: balancing off."""

from __future__ import annotations

from ..pausing import pause_command

command = pause_command(
    "pause",
    paused=True,
    help_text="""Switch load balancing off in the cluster of this head: no session begins any more.

Sessions under way end as usual, and `tidegate drain` still works. The head and its edges keep it, so that any of them
may be restarted. Everything else goes on: load is watched, new subscriptions are placed. `tidegate plan` shows what
would be moved.""",
)
