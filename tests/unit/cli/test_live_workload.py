"""What lean clients do and when, and what is made of what they wrote down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate_experiments.burst.result import placement
from tidegate_experiments.burst.scenario import EwsOptions, scenario, topics_of
from tidegate_experiments.lean.codec import delivery_overhead
from tidegate_experiments.lean.subscriber import FOREIGN, MoveSeen, PlaceSeen, PublisherNumbers
from tidegate_experiments.live.brokers_said import decisions, parse
from tidegate_experiments.live.course import Course, recorded
from tidegate_experiments.live.journal import Delivery, Journal, Publication, read_deliveries, read_publications
from tidegate_experiments.live.machine import MachineUse, look, use
from tidegate_experiments.live.topology import topology_of
from tidegate_experiments.live.verdict import Lags, lags, problems
from tidegate_experiments.live.worker import LiveAssignment, plain_options, read_options
from tidegate_experiments.live.workload import CONFIRM_BYTES, INCARNATION, body_bytes, due_times_s, stream_of
from tidegate_protocol.decisions import MigrationEnded, MoveOutcome, PlanOutcome, SessionPlan, to_plain
from tidegate_protocol.ids import publisher_id
from tidegate_protocol.names import DELIVER_EXCHANGE
from tidegate_simulator.observer import Observer
from tidegate_simulator.world import World

OPTIONS = EwsOptions(policy="none", scale=0.25, instant=False)
BEGAN_US = 1_753_000_000_000_000
QUIET = Lags(0.001, 0.004, 0.01, 0.01, 0.02)
CALM = MachineUse({"rabbitmq": 0.8}, 0.7, 0.0)


class Published(Observer):
    """When each publisher of a simulated run published."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        self.times.setdefault(publisher, []).append(now)


def test_lean_publishers_publish_when_simulated_ones_do() -> None:
    wanted = scenario(replace(OPTIONS, scale=0.1, duration_s=12.0, burst_at_s=5.0))
    observer = Published()
    World(wanted, observers=(observer,)).run()
    for spec in wanted.publishers:
        assert list(due_times_s(spec, wanted.duration_s)) == pytest.approx(observer.times[spec.name])


def test_a_burst_doubles_the_rate() -> None:
    wanted = scenario(OPTIONS)
    spec = next(one for one in wanted.publishers if one.topic == "t8")
    times = list(due_times_s(spec, 90.0))
    assert sum(at_s < 30.0 for at_s in times) == pytest.approx(30 * 12.5, abs=1)
    assert sum(at_s >= 30.0 for at_s in times) == pytest.approx(60 * 25.0, abs=1)


def test_deliveries_have_the_papers_sizes_on_the_wire() -> None:
    sizes = {topic.name: topic.message_bytes for topic in topics_of(OPTIONS)}
    for spec in scenario(OPTIONS).publishers:
        for sequence in (0, 99, 2_250):
            overhead = delivery_overhead(DELIVER_EXCHANGE, spec.topic, f"{stream_of(spec)}:{sequence}")
            body = body_bytes(spec, publisher_id(spec.name, INCARNATION), sequence, 4)
            assert body + overhead == round(sizes[spec.topic] - CONFIRM_BYTES / 4)


def test_the_cluster_is_that_of_table_v() -> None:
    (cluster,) = topology_of(scenario(OPTIONS)).cluster
    assert {edge.name: edge.uplink_bytes_per_s for edge in cluster.edge} == {
        "b0": 203_125.0,
        "b1": 250_000.0,
        "b2": 156_250.0,
        "b3": 250_000.0,
    }
    assert {(edge.link_delay_s, edge.client_delay_s) for edge in cluster.edge} == {(0.1, 0.2)}
    assert (cluster.head.name, cluster.head.client_delay_s) == ("bh", 0.2)


def test_options_reach_the_workers() -> None:
    options = replace(OPTIONS, random=True, seed=7, burst_factor=3.0, burst_at_s=20.0)
    task = LiveAssignment("subscribers", plain_options(options), (), ("t1-s1",), "amqp://a", "amqp://b", "/nowhere")
    read = LiveAssignment.from_json(task.to_json())
    assert read == task
    assert read_options(read.options) == options


def test_streams_of_any_incarnation_are_known() -> None:
    numbers = PublisherNumbers(["t1-p1", "t2-p1"])
    assert numbers["t2-p1~1:t2"] == numbers["t2-p1~9zzz:t2"] == 1
    assert numbers["foreign~1:t2"] == numbers["theirs"] == FOREIGN


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    late, early = Journal(), Journal()
    late.delivered(55, 39, 2_249, BEGAN_US, BEGAN_US + 310_000, False)
    early.delivered(3, 0, 0, BEGAN_US - 1, BEGAN_US + 300_000, True)
    early.published(39, 7, BEGAN_US, BEGAN_US + 12)
    late.write(tmp_path, "a")
    early.write(tmp_path, "b")
    first, second = read_deliveries(tmp_path)
    assert first == Delivery(3, 0, 0, BEGAN_US - 1, BEGAN_US + 300_000, 1)
    assert second == Delivery(55, 39, 2_249, BEGAN_US, BEGAN_US + 310_000, 0)
    assert read_publications(tmp_path) == [Publication(39, 7, BEGAN_US, BEGAN_US + 12)]


def course_of(latencies_s: list[float], moves: list[MoveSeen] | None = None) -> Course:
    """Topic 6 has one publisher and one subscriber; it publishes once per second from the third on."""
    wanted = scenario(replace(OPTIONS, duration_s=20.0, burst_at_s=19.0))
    publisher = next(number for number, spec in enumerate(wanted.publishers) if spec.topic == "t6")
    subscriber = next(number for number, spec in enumerate(wanted.subscribers) if spec.pattern == "t6")
    times = [BEGAN_US + 7_000_000 + 1_000_000 * number for number in range(len(latencies_s))]
    return Course(
        wanted,
        BEGAN_US,
        [Publication(publisher, number, at_us, at_us) for number, at_us in enumerate(times)],
        [
            Delivery(subscriber, publisher, number, at_us, at_us + round(1e6 * latencies_s[number]), 0)
            for number, at_us in enumerate(times)
        ],
        [PlaceSeen(BEGAN_US + 6_500_000, "t6-s1", "b0")],
        moves or [],
        [],
        [],
        0,
    )


def test_deliveries_are_judged_by_the_whole_way() -> None:
    recorder = recorded(course_of([0.31, 1.29, 1.31, 0.31]))
    assert (recorder.deliveries, recorder.lost, recorder.duplicates) == (4, 0, 0)
    assert dict(recorder.late) == {"t6": 1}
    assert recorder.first_late_s == {"t6": 9.0}
    assert placement(recorder, 20.0)["b0"] == [6]
    assert recorder.data_messages == 4 + 4 + 4


def test_the_line_of_an_uplink_is_no_fault_of_the_machine() -> None:
    """Ten copies leave one after another; the last of them is not late, unless it takes longer than that."""
    course = course_of([0.3] * 5)
    edge = next(one for one in course.scenario.edges if one.name == "b0")
    one = course.deliveries[-1]
    takes_s = course.scenario.publishers[one.publisher].message_bytes / (edge.uplink_bytes_per_s or 1.0)
    course.deliveries[-1:] = [one._replace(arrived_us=one.arrived_us + round(1e6 * n * takes_s)) for n in range(1, 11)]
    assert lags(course, {}).added_p99_s == pytest.approx(0.0, abs=1e-5)
    last = course.deliveries[-1]
    course.deliveries[-1] = last._replace(arrived_us=last.arrived_us + 200_000)
    assert lags(course, {}).added_p99_s == pytest.approx(0.2, abs=1e-5)


def test_what_two_edges_carry_twice_while_somebody_moves_is_no_fault_of_the_machine() -> None:
    move = MoveSeen(BEGAN_US + 14_000_000, "t5-s1", "t5", "b3", "b0", "m~1")
    latencies_s = [0.3] * 4 + [0.5, 0.5]
    assert lags(course_of(latencies_s), {}).added_p99_s == pytest.approx(0.2, abs=1e-2)
    assert lags(course_of(latencies_s, [move]), {}).added_p99_s == pytest.approx(0.0, abs=1e-2)
    elsewhere = replace(move, target="b1")
    assert lags(course_of(latencies_s, [elsewhere]), {}).added_p99_s == pytest.approx(0.2, abs=1e-2)


def test_what_waits_is_what_has_crossed_the_link_and_not_left() -> None:
    recorder = recorded(course_of([0.31, 3.0, 0.31]))
    depths = {row.at_s: row.topics["t6"].depth for row in recorder.samples if row.edge == "b0" and row.topics}
    # Published at 8 s, there at 8.1 s, gone at 10.8 s.
    assert [depths[float(second)] for second in (8, 9, 10, 11)] == [0.0, 1.0, 1.0, 0.0]
    offered = {row.at_s: row.utilization for row in recorder.samples if row.edge == "b0"}
    assert offered[8.0] == pytest.approx(400 / 203_125)


def test_a_loss_is_seen() -> None:
    course = course_of([0.31, 0.31, 0.31])
    del course.deliveries[1]
    assert recorded(course).lost == 1


def test_a_subscriber_is_owed_everything_from_its_grant_on() -> None:
    course = course_of([0.31] * 6)
    del course.deliveries[:2]
    assert recorded(course).lost == 2, "the first that came is the third that was published after the grant"
    course.places[0] = replace(course.places[0], at_us=BEGAN_US + 8_500_000)
    course = replace(course, _where={})
    assert recorded(course).lost == 0, "granted between the second and the third"
    course = replace(course, deliveries=[], _where={})
    assert recorded(course).lost == 4


def test_moves_belong_to_their_session(tmp_path: Path) -> None:
    lines = [
        {"time": "2025-07-20T08:26:52.500Z", "message": "no decision"},
        {
            "time": "2025-07-20T08:26:51.250Z",
            "record": to_plain(SessionPlan("b0", PlanOutcome.RELIEVED, 1, 0, session="b0~1")),
        },
        {
            "time": "2025-07-20T08:26:52.750Z",
            "record": to_plain(MigrationEnded("m1", "t6-s1", "t6", "b0", "b2", MoveOutcome.MOVED, session="b0~1")),
        },
    ]
    (tmp_path / "bh.log").write_text("\n".join(["not JSON", *(json.dumps(line) for line in lines)]))
    began_us = 1_753_000_000_000_000
    rows = decisions(tmp_path, ["bh", "missing"], began_us)
    assert [(row.broker, round(row.at_s, 3), row.decision.kind) for row in rows] == [
        ("bh", 11.25, "session-plan"),
        ("bh", 12.75, "migration-ended"),
    ]
    course = course_of([0.31] * 10, [MoveSeen(began_us + 12_700_000, "t6-s1", "t6", "b0", "b2", "m1")])
    course.decisions.extend(rows)
    recorder = recorded(course)
    assert recorder.planned == {"b0~1"}
    (moved,) = recorder.moved
    assert (moved.topic, moved.source, moved.target, moved.session, moved.subscribers) == ("t6", "b0", "b2", "b0~1", 1)


def test_metrics_of_brokers_are_read() -> None:
    text = (
        "# HELP tidegate_output_depth_messages Messages that wait\n"
        'tidegate_output_depth_messages{queue="out.t8-s1.0"} 12.5\n'
        'tidegate_output_threshold_messages{queue="out.t8-s1.0"} 31.0\n'
        "tidegate_broker_offered_bytes_per_second 262000.0\n"
        'tidegate_control_sent_messages_total{kind="edge-hello"} 7.0\n'
        'tidegate_control_sent_messages_total{kind="pie-local"} 3.0\n'
    )
    reading = parse("b1", text, 5)
    assert (reading.depths, reading.thresholds) == ({"t8-s1": 12.5}, {"t8-s1": 31.0})
    assert (reading.offered_bytes_per_s, reading.control_sent) == (262_000.0, 10)


@pytest.mark.parametrize(
    ("lags", "machine", "told"),
    [
        (replace(QUIET, publish_p999_s=0.2), CALM, "the load generator lagged"),
        (QUIET, replace(CALM, steal_share=0.1), "the host took away 10.0%"),
        (QUIET, replace(CALM, busy_share=0.99), "busy"),
        (replace(QUIET, added_p99_s=0.5), CALM, "uplinks with room"),
    ],
)
def test_a_run_that_measured_the_machine_says_so(lags: Lags, machine: MachineUse, told: str) -> None:
    (reason,) = problems(lags, machine, 0, [], [], [])
    assert told in reason


def test_a_quiet_run_is_valid() -> None:
    assert problems(QUIET, CALM, 0, [], [], []) == ()


def test_the_machine_can_be_looked_at() -> None:
    used = use(look({"init": [1]}), look({"init": [1]}), 1.0)
    assert 0.0 <= used.steal_share <= 1.0
    assert used.cpu_shares["init"] >= 0.0
