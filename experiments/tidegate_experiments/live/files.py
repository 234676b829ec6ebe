"""What `--out` writes of a live run besides what it writes of any run.

deliveries.csv     per topic and second: deliveries, how many were late, latencies
sessions.jsonl     one JSON object per session: when and why it was asked for, what it moved, how it ended
harness.json       how the run was measured, and whether it counts
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path

from tidegate_experiments.burst.recorder import Recorder
from tidegate_experiments.burst.result import EwsResult, is_necessary_session, requested_sessions
from tidegate_experiments.burst.scenario import topic_number
from tidegate_protocol.decisions import SessionEnded, SessionRefused
from tidegate_protocol.rendering import why

from .course import Course

_ENDS = (SessionEnded, SessionRefused)


def write_live(course: Course, recorder: Recorder, result: EwsResult, folder: Path) -> tuple[Path, ...]:
    """Everything that only a live run has; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    deliveries, sessions, harness = (folder / name for name in ("deliveries.csv", "sessions.jsonl", "harness.json"))
    _write_deliveries(course, deliveries)
    sessions.write_text("".join(json.dumps(one) + "\n" for one in _sessions(recorder)))
    measured = {"valid": result.valid, "invalid_because": list(result.invalid_because), **result.harness}
    harness.write_text(json.dumps(measured, indent=2) + "\n")
    return deliveries, sessions, harness


def _write_deliveries(course: Course, path: Path) -> None:
    subscribers = course.scenario.subscribers
    latencies: dict[tuple[int, int], list[float]] = defaultdict(list)
    late: dict[tuple[int, int], int] = defaultdict(int)
    for row in course.deliveries:
        subscriber = subscribers[row.subscriber]
        latency_s = (row.arrived_us - row.published_us) / 1e6
        key = int(course.seconds(row.arrived_us)), topic_number(subscriber.pattern)
        latencies[key].append(latency_s)
        late[key] += latency_s > subscriber.deadline_s
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("second", "topic", "deliveries", "late", "latency_p50_s", "latency_p99_s", "latency_max_s"))
        for key, values in sorted(latencies.items()):
            values.sort()
            middle, high = values[len(values) // 2], values[min(int(0.99 * len(values)), len(values) - 1)]
            writer.writerow((*key, len(values), late[key], f"{middle:.4f}", f"{high:.4f}", f"{values[-1]:.4f}"))


def _sessions(recorder: Recorder) -> list[dict[str, object]]:
    ends = {row.decision.session: row for row in reversed(recorder.decisions) if isinstance(row.decision, _ENDS)}
    found: list[dict[str, object]] = []
    for row in requested_sessions(recorder):
        name = row.decision.session
        end = ends.get(name)
        found.append(
            {
                "session": name,
                "source": row.broker,
                "requested_s": round(row.at_s, 3),
                "reason": why(row.decision),
                "necessary": is_necessary_session(row),
                "planned": name in recorder.planned,
                "moves": [
                    {"topic": topic_number(one.topic), "to": one.target, "subscribers": one.subscribers}
                    for one in recorder.moved
                    if one.session == name
                ],
                "ended_s": round(end.at_s, 3) if end is not None else None,
                "outcome": end.decision.label if end is not None else None,
            }
        )
    return found
