"""What the machine was doing during a run: processor time of the parts, of everything, and what was taken away.

Reads /proc only; where there is none (another system), there is nothing to tell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STEAL: Final = 7
_FREE: Final = (1, 3, 4)
"""Niced, idle, waiting for a disk: whatever runs at a lower priority steps aside."""


@dataclass(frozen=True, slots=True)
class MachineState:
    """Processor time so far, in seconds."""

    parts_s: dict[str, float] = field(default_factory=dict)
    busy_s: float = 0.0
    idle_s: float = 0.0
    steal_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineUse:
    """What a stretch of time took."""

    cpu_shares: dict[str, float]
    """By part: 1.0 is one core."""
    busy_share: float
    """Of all cores together, by everybody on this machine at usual priority."""
    steal_share: float
    """Of all cores together, what the host took away."""


def look(pids: Mapping[str, list[int]]) -> MachineState:
    """Processor time of the parts (each may be several processes) and of the machine."""
    parts = {name: sum(process_s(pid) for pid in found) for name, found in pids.items()}
    try:
        words = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return MachineState(parts)
    ticks = [int(word) / _TICKS_PER_S for word in words[:8]]
    idle_s = sum(ticks[at] for at in _FREE)
    return MachineState(parts, sum(ticks) - idle_s - ticks[_STEAL], idle_s, ticks[_STEAL])


def use(before: MachineState, after: MachineState, elapsed_s: float) -> MachineUse:
    """What happened between two looks."""
    busy_s, idle_s = after.busy_s - before.busy_s, after.idle_s - before.idle_s
    steal_s = after.steal_s - before.steal_s
    total_s = busy_s + idle_s + steal_s
    return MachineUse(
        {name: (spent - before.parts_s.get(name, 0.0)) / elapsed_s for name, spent in after.parts_s.items()},
        busy_s / total_s if total_s else 0.0,
        steal_s / total_s if total_s else 0.0,
    )


def process_s(pid: int) -> float:
    """Processor time of one process so far; 0 if it has ended."""
    try:
        # The name, in parentheses, may hold anything; what follows it does not.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
