"""The results of the scale experiment as JSON, as rows of a table, and as the files that `--out` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .scale import ScaleResult

SCALE_FILES: Final = ("scale.json", "scale.md")
HEADINGS: Final = (
    "edges",
    "subscriptions",
    "agents, per simulated second",
    "control messages/s per edge",
    "sessions",
    "moved",
    "balanced after",
    "backlog gone after",
    "late",
    "processor",
    "wall",
    "memory",
)


def as_json(results: Sequence[ScaleResult], subscriptions_per_edge: int, seed: int) -> dict[str, Any]:
    """All sizes, for a machine."""
    return {
        "experiment": "scale",
        "seed": seed,
        "subscriptions_per_edge": subscriptions_per_edge,
        "wall_s": round(sum(result.wall_s for result in results), 1),
        "sizes": [result.as_dict() for result in results],
    }


def row(result: ScaleResult) -> tuple[str, ...]:
    """One size, a cell for each heading."""
    return (
        f"{result.edges:,}",
        f"{result.subscriptions:,}",
        f"{result.agent_cpu_s_per_s * 1000:.1f} ms",
        f"{result.control_messages_per_edge_per_s:.2f}",
        f"{result.sessions:,}",
        f"{result.migrations:,}",
        _balanced(result),
        "-" if result.settling_s is None else f"{result.settling_s:.0f} s",
        f"{result.late:,}",
        f"{result.cpu_s:.0f} s",
        f"{result.wall_s:.0f} s",
        f"{result.peak_memory_mb / 1000:.2f} GB",
    )


def _balanced(result: ScaleResult) -> str:
    if result.balanced_s is not None:
        return f"{result.balanced_s:.0f} s"
    return "not by the end" if result.sessions_after_burst else "no session"


def as_markdown(results: Sequence[ScaleResult]) -> str:
    """The table for a document."""
    lines = [HEADINGS, tuple("---:" for _ in HEADINGS), *(row(result) for result in results)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def write_scale(answer: dict[str, Any], results: Sequence[ScaleResult], folder: Path) -> tuple[Path, ...]:
    """Numbers and table; returns the files."""
    numbers, table = (folder / name for name in SCALE_FILES)
    numbers.write_text(json.dumps(answer, indent=2) + "\n")
    table.write_text(as_markdown(results))
    return numbers, table
