"""What `--out` writes: the result, the samples, the decisions and the figures of a run, in formats anyone can read.

    result.json          the result, as `--json` prints it
    samples.csv          per edge and second: uplink utilization, and per topic the depth and the threshold; on a real
                         cluster also what the agents took utilization and depth for
    decisions.jsonl      every decision of every agent, one JSON object per line
    *.png                the figures

A comparison writes `comparison.json`, `comparison.md` and `comparison.png`. Files that are there are replaced.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Final

from tidegate_protocol.decisions import to_plain

from .compare import Comparison, as_json, as_markdown
from .figures import FIGURE_FILES, draw_comparison, draw_run
from .recorder import Recorder
from .run import EwsRun
from .scenario import topic_number

RUN_FILES: Final = ("result.json", "samples.csv", "decisions.jsonl", *FIGURE_FILES)
COMPARISON_FILES: Final = ("comparison.json", "comparison.md", "comparison.png")


def write_run(run: EwsRun, folder: Path) -> tuple[Path, ...]:
    """Everything about one run; returns the files. Figures of an earlier run don't stay beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURE_FILES:
        (folder / name).unlink(missing_ok=True)
    result = folder / "result.json"
    _write_json(result, run.result.as_json())
    return (
        result,
        _write_samples(run.recorder, folder / "samples.csv"),
        _write_decisions(run.recorder, folder / "decisions.jsonl"),
        *draw_run(run, folder),
    )


def write_comparison(comparison: Comparison, folder: Path) -> tuple[Path, ...]:
    """Table, numbers and figure of a comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers, table, figure = (folder / name for name in COMPARISON_FILES)
    _write_json(numbers, as_json(comparison))
    table.write_text(as_markdown(comparison))
    return numbers, table, draw_comparison(comparison, figure)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _write_samples(recorder: Recorder, path: Path) -> Path:
    """What the agents took things for has columns of its own, where that is known apart from what was."""
    sensed = any(row.sensed_utilization is not None for row in recorder.samples)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ("at_s", "edge", "uplink_utilization", "topic", "subscribers", "depth", "threshold")
        writer.writerow((*columns, "sensed_depth", "sensed_utilization") if sensed else columns)
        for row in recorder.samples:
            common = (f"{row.at_s:.3f}", row.edge, f"{row.utilization:.4f}")
            if not row.topics:
                believed = ("", _number(row.sensed_utilization)) if sensed else ()
                writer.writerow((*common, "", 0, "", "", *believed))
            for topic, queues in row.topics.items():
                believed = (_number(queues.sensed_depth), _number(row.sensed_utilization)) if sensed else ()
                depths = (f"{queues.depth:.2f}", _number(queues.threshold))
                writer.writerow((*common, topic_number(topic), queues.subscribers, *depths, *believed))
    return path


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _write_decisions(recorder: Recorder, path: Path) -> Path:
    with path.open("w") as file:
        for row in recorder.decisions:
            plain = {"at_s": round(row.at_s, 3), "broker": row.broker, **to_plain(row.decision)}
            file.write(json.dumps(plain) + "\n")
    return path
