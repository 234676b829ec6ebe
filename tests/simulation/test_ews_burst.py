"""The early-warning burst of seeds 000 and 001 §V, compared with what the papers report."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tests.support import ews as paper
from tidegate_agents.load.threshold import ThresholdKind
from tidegate_experiments.burst import scenario as ews
from tidegate_experiments.burst.figures import in_danger
from tidegate_experiments.burst.files import write_run
from tidegate_experiments.burst.recorder import Recorder, SampleRow, TopicRow
from tidegate_experiments.burst.result import requested_sessions
from tidegate_experiments.burst.run import EwsRun, run_ews
from tidegate_experiments.burst.scenario import EwsOptions
from tidegate_protocol.decisions import SessionRequested
from tidegate_protocol.names import OUTPUT_PREFIX


@cache
def _run(options: EwsOptions) -> EwsRun:
    """Each run is made once for all tests that look at it."""
    return run_ews(options)


def run_of(policy: str, threshold: ThresholdKind = ThresholdKind.PAPER, instant: bool = True) -> EwsRun:
    """The runs whose numbers the papers give in full; the others with half the messages."""
    scale = 1.0 if policy.startswith("peer") and threshold is ThresholdKind.PAPER else 0.5
    return _run(EwsOptions(policy=policy, threshold=threshold, instant=instant, scale=scale))


RUNS = [
    ("peer-wd", ThresholdKind.PAPER, True),
    ("peer-wd", ThresholdKind.PROJECTED, True),
    ("peer-wd", ThresholdKind.PROJECTED, False),
    ("peer", ThresholdKind.PAPER, True),
    ("none", ThresholdKind.PAPER, True),
]


@pytest.mark.parametrize(("policy", "threshold", "instant"), RUNS)
def test_nothing_is_lost_doubled_or_disordered(policy: str, threshold: ThresholdKind, instant: bool) -> None:
    result = run_of(policy, threshold, instant).result
    assert (result.lost, result.duplicates, result.out_of_order) == (0, 0, 0)
    # What Table VI makes from the moment a topic is registered on, but for what its registering takes.
    made = sum(
        result.scale
        * paper.TOPICS[topic].subscribers
        * (paper.rate(topic, burst=False) * (30 - topic) + paper.rate(topic, burst=True) * (result.duration_s - 30))
        for topic in paper.TOPICS
    )
    assert 0.99 * made <= result.deliveries <= 1.01 * made


def test_the_papers_run() -> None:
    """Seed 000 §V: topic 8 is in danger at 34 s, topic 1 moves from b1 to b0, the backlog is gone at 62 s."""
    result = run_of("peer-wd").result
    assert result.placement == paper.PLACED
    assert result.first_session_s == pytest.approx(34, abs=1)
    assert result.sessions == 1
    assert [(move.topic, move.source, move.target, move.subscribers) for move in result.moves] == [(1, "b1", "b0", 8)]
    assert result.migrations == 8
    assert result.backlog_cleared_s == pytest.approx(62, abs=2)
    assert result.late == 0
    assert result.unnecessary_sessions == 0
    assert result.control_overhead <= 0.005
    assert result.backlogged
    assert result.published == result.asked == pytest.approx(234_000, abs=10)
    assert result.valid


def test_a_burst_too_large_for_the_head_is_not_what_was_asked_for() -> None:
    """The head carries 20 Mbps in: a fifteenfold burst of seven topics asks for more than twice that."""
    result = run_ews(EwsOptions(policy="none", burst_factor=15.0, burst_at_s=1.0, duration_s=8.0)).result
    assert result.published < 0.9 * result.asked
    assert not result.valid
    assert "use a lower burst factor" in result.invalid_because[0]


def test_progress_goes_on_while_what_waits_is_drained() -> None:
    steps: list[tuple[int, int]] = []
    options = EwsOptions(duration_s=4.0, burst_at_s=2.0, scale=0.05)
    run_ews(options, progress=lambda *step: steps.append(step))
    assert steps[-1] == (64, 64)
    assert any(4 < done < 64 for done, _ in steps)


def test_the_figure_is_of_the_topic_in_danger_on_the_edge_where_it_was() -> None:
    assert in_danger(run_of("peer-wd").recorder, ews.BURST_S) == ("t8", "b1")
    recorder = Recorder()
    for at_s in (29.0, 31.0, 32.0):
        # b1 looks at whole seconds, the others a quarter later: whoever looks last is not meant.
        recorder.samples.append(
            SampleRow(at_s, "b1", 0.9, {"t8": TopicRow(1.0, 40.0, 1), "t3": TopicRow(39.0, 40.0, 2)})
        )
        recorder.samples.append(SampleRow(at_s + 0.25, "b0", 1.1, {"t8": TopicRow(44.0, 40.0, 6)}))
    assert in_danger(recorder, 30.0) == ("t8", "b0")
    # A threshold in the middle of a step does not count.
    recorder.samples.append(SampleRow(33.0, "b1", 0.9, {"t3": TopicRow(39.0, -90.0, 2)}))
    recorder.samples.append(SampleRow(34.0, "b1", 0.9, {"t3": TopicRow(3.0, 90.0, 2)}))
    assert in_danger(recorder, 30.0) == ("t8", "b0")
    assert in_danger(recorder, 60.0) is None


def test_it_was_topic_8_that_was_in_danger() -> None:
    (session,) = requested_sessions(run_of("peer-wd").recorder)
    assert session.broker == "b1"
    assert isinstance(session.decision, SessionRequested)
    assert session.decision.danger is not None
    assert session.decision.danger.queue == session.decision.cause.queue
    assert session.decision.danger.queue.startswith(f"{OUTPUT_PREFIX}t8-s")


@pytest.mark.parametrize("instant", [True, False])
def test_the_projected_threshold_keeps_all_deadlines_too(instant: bool) -> None:
    result = run_of("peer-wd", ThresholdKind.PROJECTED, instant).result
    assert result.placement == paper.PLACED
    assert result.late == 0
    assert result.unnecessary_sessions == 0
    assert result.sessions == 1
    assert {(move.topic, move.source, move.target) for move in result.moves} == {(1, "b1", "b0")}


def test_peer_balances_more_than_once_and_without_need() -> None:
    """Seed 000 §V: as deadlines are ignored, unnecessary balancing takes place, and again to repair it."""
    result = run_of("peer").result
    assert result.sessions_after_burst >= 2
    assert result.unnecessary_after_burst >= 1


def test_without_balancing_topic_8_is_late() -> None:
    """The wait on b1 grows by 0.07 s per second, and topic 8 has 0.8 s."""
    result = run_of("none").result
    assert result.placement == paper.PLACED
    assert result.sessions == result.migrations == 0
    assert result.first_late_by_topic_s[8] == pytest.approx(41, abs=1)
    assert result.first_late_s == result.first_late_by_topic_s[8], "nothing else is late before it"


def test_depths_follow_the_fluid_worked_out_by_hand() -> None:
    scale = run_of("none").result.scale
    rows = [row for row in run_of("none").recorder.samples if row.edge == "b1" and 32 <= row.at_s <= 60]
    assert len(rows) >= 28
    for row in rows:
        assert row.utilization == pytest.approx(1.07, abs=0.02)
        # What is published at 30 s arrives 0.1 s later.
        expected = scale * paper.depth_at("b1", 8, row.at_s - 0.1)
        assert row.topics["t8"].depth == pytest.approx(expected, abs=max(5.0, 0.05 * expected)), row.at_s


def test_the_same_options_give_the_same_run() -> None:
    options = EwsOptions(duration_s=36, scale=0.2)
    assert run_ews(options).result.trace_hash == run_ews(options).result.trace_hash


def test_random_workloads_keep_to_the_papers_ranges() -> None:
    drawn = [ews.random_topics(seed) for seed in range(1, 6)]
    assert drawn[0] == ews.random_topics(1)
    assert len(set(drawn)) == 5
    capacity = sum(paper.bandwidth(edge) for edge in paper.EDGES)
    for topics in drawn:
        assert [topic.number for topic in topics] == list(range(1, 16))
        assert all(1 <= topic.publishers <= 5 and 1 <= topic.subscribers <= 8 for topic in topics)
        assert all(200 <= topic.message_bytes <= 1000 for topic in topics)
        assert all(0.9 <= topic.deadline_s <= 1.8 for topic in topics[:10])
        assert all(30 <= topic.deadline_s <= 100 for topic in topics[10:])
        assert 0.5 < sum(topic.bytes_per_s for topic in topics) / capacity < 0.75


def test_the_table_is_the_papers() -> None:
    assert {
        topic.number: (topic.publishers, topic.subscribers, topic.deadline_s, topic.message_bytes)
        for topic in ews.TABLE
    } == {
        number: (topic.publishers, topic.subscribers, topic.deadline_s, topic.message_bytes)
        for number, topic in paper.TOPICS.items()
    }
    assert dict(ews.EDGES) == paper.EDGES
    assert tuple(topic.number for topic in ews.TABLE if topic.bursts) == paper.BURSTING


def test_everything_is_written_down(tmp_path: Path) -> None:
    run = run_of("peer-wd")
    assert "peer-wd, paper threshold, instant control, the papers' workload" in run.result.description
    files = {path.name: path for path in write_run(run, tmp_path / "new" / "folder")}
    assert files.keys() == {
        "result.json",
        "samples.csv",
        "decisions.jsonl",
        "uplink-utilization.png",
        "queue-depth.png",
    }
    assert json.loads(files["result.json"].read_text())["moves"][0]["from"] == "b1"
    header, *rows = files["samples.csv"].read_text().splitlines()
    assert header == "at_s,edge,uplink_utilization,topic,subscribers,depth,threshold"
    assert len(rows) > 15 * 60
    decisions = [json.loads(line) for line in files["decisions.jsonl"].read_text().splitlines()]
    assert "session-requested" in {decision["kind"] for decision in decisions}
    assert all(files[name].read_bytes().startswith(b"\x89PNG") for name in files if name.endswith(".png"))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"policy": "best"}, "none, peer, peer-wd, random"),
        ({"seed": -1}, "below 0"),
        ({"burst_factor": float("nan")}, "burst factor"),
        ({"burst_factor": 0.5}, "burst factor"),
        ({"duration_s": 0.0}, "duration"),
        ({"scale": 0.0}, "scale"),
        ({"duration_s": 30.0}, "the burst would come at 30 s"),
        ({"burst_at_s": 90.0}, "use a duration above 90"),
    ],
)
def test_impossible_options_are_named(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        EwsOptions(**wrong)  # type: ignore[arg-type]
