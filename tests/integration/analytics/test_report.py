"""The report from a lake and from an experiment: numbers known before, and clear words where there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests.support.telemetry_maker import START_US, RawStream, digest, header, load, move, reports_of_counts
from tidegate_analytics import lake
from tidegate_analytics.errors import LakeEmpty, LakeMissing
from tidegate_analytics.report.gather import Choice, correlations, gather
from tidegate_analytics.report.material import US, Span
from tidegate_analytics.runner import wait
from tidegate_cli.commands import analytics, experiment
from tidegate_cli.exit_codes import ExitCode
from tidegate_protocol import telemetry as t
from tidegate_protocol.names import TELEMETRY_FILE
from tidegate_protocol.parts import LoadState

SESSION = "edge-1~1~1"


def quiet(step: str, done: int, total: int) -> None:
    """Nobody looks."""


def queue(depth: float, subscriber: str = "siren", *, migrating: bool = False) -> t.QueueThreshold:
    return t.QueueThreshold(
        queue=f"out.{subscriber}.1", subscriber=subscriber, pattern="quake.#", deadline_us=1_500_000,
        allowed_wait_us=1_000_000, depth=depth, threshold=20.0, enqueue_per_s=1, drain_per_s=1,
        enqueue_predicted_per_s=1, drain_predicted_per_s=1, migrating=migrating,
    )  # fmt: skip


def story() -> list[t.TelemetryRecord]:
    """Two minutes: edge-1 is overloaded from 30 s to 60 s, a session moves two of three, some messages are late."""
    told: list[t.TelemetryRecord] = []
    for at in range(120):
        hot = 30 <= at < 60
        state = LoadState.OVERLOAD if hot else LoadState.LOW
        told += [load(at, "edge-1", 1.1 if hot else 0.5, state=state), load(at, "edge-2", 0.3), load(at, "edge-3")]
    for at in range(0, 120, 10):
        queues = (queue(30.0 if at == 40 else 2.0), queue(99.0, "other", migrating=True))
        told.append(t.Thresholds(**header(at, "edge-1"), session_us=500_000, subscriptions=2, queues=queues))
        late = at == 50
        latencies = [2_000_000] * 5 + [1_000] * 15 if late else [1_000] * 20
        told.append(digest(at, latencies, number=at // 10 + 1))
        told.append(digest(at, [500_000] * 10, subscriber="lamp", pattern="tide.#", number=at // 10 + 1))
    began = {"session": SESSION, "source": "edge-1", "clients": t.Moved.SUBSCRIBERS}
    told += [
        t.SessionBegan(**header(40, "edge-1"), **began, policy="peer-wd", necessary=True),
        t.Prediction(
            **header(41, "edge-1"), **began, moves=3,
            effects=(t.Effect(broker="edge-1", metric="uplink", before=1.1, after=0.8),),
        ),
        move(42, "a", "edge-1", "edge-2"),
        move(42, "b", "edge-1", "edge-2"),
        move(43, "c", "edge-1", "edge-2", moved=False),
        t.SessionEnded(**header(44, "edge-1"), **began, moved=2, failed=1, duration_us=4_000_000),
        t.Outcome(
            **header(50, "edge-1"), session=SESSION, after_us=6_000_000, bytes_offered_per_s=1.0,
            metrics=(t.Measured(metric="uplink", measured=0.85),),
        ),
        t.SessionBegan(**header(100, "edge-2"), session="edge-2~1~1", source="edge-2", clients=t.Moved.SUBSCRIBERS,
                       policy="peer-wd", necessary=False),
    ]  # fmt: skip
    return told


def write_file(records: list[t.TelemetryRecord], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TELEMETRY_FILE).write_bytes(b"".join(t.encode(one) + b"\n" for one in records) + b"no record\n")
    return str(folder)


def test_material_is_exact_from_a_lake_and_from_a_file(spark: SparkSession, tmp_path: Path) -> None:
    stream = RawStream(tmp_path / "raw")
    stream.add(spark, [*map(t.encode, story()), b"no record"])
    wait(lake.start(stream.read(spark), str(tmp_path / "lake")))
    found = gather(lake.open_lake(spark, str(tmp_path / "lake")), Choice(), quiet)
    totals = found.totals
    assert (totals.records, totals.refused, totals.edges) == (len(story()), 1, 3)
    assert (totals.subscriptions, totals.topics, totals.received, totals.late) == (2, 2, 12 * 30, 5)
    assert (totals.sessions, totals.sessions_moving, totals.unnecessary) == (2, 1, 1)
    assert (totals.moves, totals.moves_failed, totals.returns) == (2, 1, 0)
    assert {one.broker: one.highest.uplink for one in found.loads} == pytest.approx({"edge-1": 1.1, "edge-2": 0.3})
    edge = next(one for one in found.loads if one.broker == "edge-1")
    assert edge.share_of("OVERLOAD") == pytest.approx(30 / 120)
    (nearest,) = found.queues
    assert (nearest.subscriber, nearest.nearest) == ("siren", 1.5), "what is moving is left out"
    assert [(one.pattern, one.received, one.late) for one in found.topics] == [("quake.#", 240, 5), ("tide.#", 120, 0)]
    (late,) = [point for point in found.topics[0].points if point.late]
    assert (late.received, late.late) == (20, 5)
    assert late.p99_us == pytest.approx(2_000_000, rel=0.02)
    assert [(one.moved, one.failed, one.necessary) for one in found.sessions] == [(2, 1, True), (0, 0, False)]
    assert found.sessions[0].ended_us == START_US + 44_000_000
    assert [(one.source, one.target, one.moved, one.failed) for one in found.moves] == [("edge-1", "edge-2", 2, 1)]
    (right,) = found.predictions
    assert (right.predicted, right.measured, right.side) == (0.8, 0.85, "source")
    assert [round(one.error_absolute_mean or 0, 6) for one in found.errors] == [0.05]
    assert found.correlations is None, "nobody published"

    # From a file, and only a part of the time, in which nothing was late and nobody asked for anything.
    file = lake.open_lake(spark, write_file(story(), tmp_path / "out"))
    start = datetime.fromtimestamp(START_US / 1e6, UTC)
    calm = gather(file, Choice(start + timedelta(seconds=60), start + timedelta(seconds=90)), quiet)
    assert (calm.totals.late, calm.totals.sessions, calm.totals.received) == (0, 0, 3 * 30)
    assert (calm.totals.refused, len(calm.loads), len(calm.topics)) == (1, 2, 2)
    with pytest.raises(LakeEmpty, match="--since"):
        gather(file, Choice(start + timedelta(days=1)), quiet)
    with pytest.raises(LakeMissing):
        lake.open_lake(spark, str(tmp_path / "nowhere"))


def test_topics_that_rise_together_are_in_the_heat_map(spark: SparkSession, tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(7)
    base = rng.poisson(600, (6, 120)).astype(float)
    bursts = (rng.random(120) < 0.25) * 600.0
    base[1] += bursts
    base[4] += bursts
    names = [f"topic.{number}" for number in range(6)]
    file = lake.open_lake(spark, write_file(list(reports_of_counts(base, names)), tmp_path / "out"))
    found = correlations(file.read, Span(START_US, START_US + 7_200 * US, 60, 60))
    assert found is not None
    assert found.told == {("topic.1", "topic.4")}
    row = dict(zip(found.topics, found.coefficients[found.topics.index("topic.1")], strict=True))
    assert (row["topic.4"] or 0) > 0.8
    assert abs(row["topic.2"] or 0) < 0.4


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in this process and on its Spark."""
    monkeypatch.setattr(analytics, "start", lambda master: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    return lambda *arguments: CliRunner().invoke(analytics.command, list(arguments))


def test_an_experiment_is_read_as_a_lake(command: Callable[..., Result], tmp_path: Path) -> None:
    """What the report counts is what the experiment counted."""
    out = tmp_path / "out"
    ran = CliRunner().invoke(
        experiment.command,
        ["ews-burst", "--scale", "0.05", "--duration", "50", "--burst-at", "20", "--policy", "peer", "--out", str(out),
         "--json"],
    )  # fmt: skip
    assert ran.exit_code == ExitCode.OK, ran.output
    result = json.loads(ran.stdout)
    made = command("report", "--lake", str(out), "--out", str(tmp_path / "report"), "--title", "A & B", "--json")
    assert made.exit_code == ExitCode.OK, made.output + repr(made.exception)
    told = json.loads(made.stdout)
    totals = told["totals"]
    assert totals["received"] == result["deliveries"]
    assert totals["late"] == result["late"]
    assert totals["moves"] == result["migrations"] > 0
    assert totals["sessions"] == result["sessions"] + result["sessions_in_vain"]
    assert totals["subscriptions"] == 56
    assert totals["refused"] == totals["lost"] == 0
    html = Path(told["report"]).read_text()
    assert "<h1>A &amp; B</h1>" in html
    assert html.count("<svg") == 12, "every chart has something to show"
    # Other jobs read it, too.
    ran = command("run", "balance", "--lake", str(out), "--out", str(tmp_path / "tables"), "--json")
    assert ran.exit_code == ExitCode.OK, ran.output + repr(ran.exception)
    assert json.loads(ran.stdout)["tables"]["states"]["rows"] > 0


def test_what_can_not_be_reported_is_refused(command: Callable[..., Result], tmp_path: Path) -> None:
    missing = command("report", "--lake", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert isinstance(missing.exception, LakeMissing)
    turned = command("report", "--lake", "l", "--out", str(tmp_path / "out"), "--since", "2026-02-02T10:00",
                     "--until", "2026-02-02T09:00")  # fmt: skip
    assert "give the earlier one first" in str(turned.exception)
    (tmp_path / "file").write_text("")
    blocked = command("report", "--lake", "l", "--out", str(tmp_path / "file" / "out"))
    assert "can't be written to" in str(blocked.exception)
    assert not list((tmp_path / "out").glob("*"))
