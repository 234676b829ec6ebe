"""Load states: seed 000 Table III on its thresholds, and the reasons given."""

from __future__ import annotations

import pytest

from tidegate_agents.load.metrics import Metric, Role
from tidegate_agents.load.states import LoadState, assess
from tidegate_agents.load.threshold import paper_depth
from tidegate_agents.policy.interface import QueueLoad
from tidegate_protocol.decisions import LoadReason

IDLE = {Metric.UPLINK: 0.1, Metric.DOWNLINK: 0.1, Metric.MATCHING: 0.1}
# (1 − 0.5) s · 100/s: fifty messages may wait.
FIFTY = paper_depth(1.0, 100, 100, 0.5)


QUEUE_CONFIRMED = {Metric.QUEUE_DEPTH: 2}


def queue(name: str, depth: float, *, migrating: bool = False) -> QueueLoad:
    return QueueLoad(name, "s", 0, "t", 1.0, depth=depth, migrating=migrating)


@pytest.mark.parametrize(
    ("role", "metric", "value", "state"),
    [
        (Role.HEAD, Metric.UPLINK, 0.89, LoadState.LOW),
        (Role.HEAD, Metric.UPLINK, 0.90, LoadState.HIGH),
        (Role.HEAD, Metric.UPLINK, 0.95, LoadState.HIGH),
        (Role.HEAD, Metric.UPLINK, 0.951, LoadState.OVERLOAD),
        (Role.HEAD, Metric.DOWNLINK, 0.96, LoadState.OVERLOAD),
        (Role.EDGE, Metric.DOWNLINK, 0.93, LoadState.HIGH),
        (Role.EDGE, Metric.DOWNLINK, 0.96, LoadState.OVERLOAD),
        (Role.EDGE, Metric.MATCHING, 0.96, LoadState.OVERLOAD),
        (Role.EDGE, Metric.UPLINK, 0.89, LoadState.LOW),
        # An edge's uplink alone never makes an overload, however much it is offered.
        (Role.EDGE, Metric.UPLINK, 1.50, LoadState.HIGH),
    ],
)
def test_table_iii(role: Role, metric: Metric, value: float, state: LoadState) -> None:
    values = {Metric.UPLINK: 0.5, Metric.DOWNLINK: 0.5} | {metric: value}
    assessment = assess(role, values)
    assert assessment.state is state
    assert [finding.metric for finding in assessment.findings] == ([] if state is LoadState.LOW else [metric])


def test_one_metric_in_overload_is_enough_and_all_that_reach_a_threshold_are_named() -> None:
    assessment = assess(Role.EDGE, {Metric.UPLINK: 1.07, Metric.DOWNLINK: 0.97, Metric.MATCHING: 0.2})
    assert assessment.state is LoadState.OVERLOAD
    assert assessment.overloaded_metrics == (Metric.DOWNLINK,)
    decision = assessment.decision("b1")
    assert (decision.broker, decision.state, decision.reason) == ("b1", LoadState.OVERLOAD, LoadReason.DOWNLINK)
    assert [(found.metric, found.value, found.threshold) for found in decision.findings] == [
        (Metric.DOWNLINK, 0.97, 0.95),
        (Metric.UPLINK, 1.07, 0.90),
    ]
    assert decision.others == 1


def test_a_queue_depth_overload_names_the_subscription() -> None:
    queues = [(queue("calm.0", 49), FIFTY), (queue("late.0", 51), FIFTY), (queue("later.0", 90), FIFTY)]
    assessment = assess(Role.EDGE, IDLE, queues)
    assert assessment.state is LoadState.OVERLOAD
    assert assessment.overloaded_queues == {"late.0", "later.0"}
    assert assessment.overloads[0].queue == "later.0"
    decision = assessment.decision("b1")
    assert (decision.findings[0].queue, decision.others) == ("later.0", 1)


def test_a_queue_exactly_at_its_threshold_is_in_time() -> None:
    # Equation 1 of seed 000 says "less than or equal".
    assert assess(Role.EDGE, IDLE, [(queue("s.0", 50), FIFTY)]).state is LoadState.LOW


def test_queues_that_wait_in_time_leave_a_broker_low() -> None:
    assert assess(Role.EDGE, IDLE, [(queue("s.0", 40), FIFTY)]).state is LoadState.LOW


def test_queues_in_migration_are_left_out() -> None:
    assessment = assess(Role.EDGE, IDLE, [(queue("s.0", 1000, migrating=True), FIFTY)])
    assert assessment.state is LoadState.LOW
    assert assessment.migrating == 1


def test_infeasible_deadlines_are_named_and_not_balanced_for() -> None:
    infeasible = paper_depth(0.0, 100, 100, 0.5)
    assessment = assess(Role.EDGE, IDLE, [(queue("s.0", 1000), infeasible)])
    assert assessment.state is LoadState.LOW
    assert assessment.infeasible == ("s.0",)
    assert assessment.decision("b1").infeasible == ("s.0",)


def test_unknown_capacities_are_named_and_not_judged() -> None:
    assessment = assess(Role.EDGE, {Metric.UPLINK: None, Metric.DOWNLINK: 0.92, Metric.MATCHING: None})
    assert assessment.state is LoadState.HIGH
    assert assessment.unknown == (Metric.MATCHING, Metric.UPLINK)


def test_one_sample_is_no_overload_where_two_are_asked_for() -> None:
    deep = [(queue("s.0", 80), FIFTY)]
    first = assess(Role.EDGE, IDLE, deep, samples_needed=QUEUE_CONFIRMED)
    assert first.state is LoadState.HIGH
    (found,) = first.decision("b1").findings
    assert (found.samples, found.samples_needed) == (1, 2)
    second = assess(Role.EDGE, IDLE, deep, above=first.above, samples_needed=QUEUE_CONFIRMED)
    assert second.state is LoadState.OVERLOAD
    third = assess(Role.EDGE, IDLE, deep, above=second.above, samples_needed=QUEUE_CONFIRMED)
    assert third.state is LoadState.OVERLOAD
    assert third.above == second.above


def test_confirmation_must_be_consecutive_and_of_the_same_queue() -> None:
    deep, other = [(queue("s.0", 80), FIFTY)], [(queue("other.0", 80), FIFTY)]
    first = assess(Role.EDGE, IDLE, deep, samples_needed=QUEUE_CONFIRMED)
    switched = assess(Role.EDGE, IDLE, other, above=first.above, samples_needed=QUEUE_CONFIRMED)
    assert switched.state is LoadState.HIGH
    calm = assess(Role.EDGE, IDLE, [(queue("s.0", 1), FIFTY)], above=first.above, samples_needed=QUEUE_CONFIRMED)
    assert calm.state is LoadState.LOW
    again = assess(Role.EDGE, IDLE, deep, above=calm.above, samples_needed=QUEUE_CONFIRMED)
    assert again.state is LoadState.HIGH


def test_confirmation_of_one_metric_does_not_delay_another() -> None:
    values = IDLE | {Metric.DOWNLINK: 0.99}
    assert assess(Role.EDGE, values, samples_needed=QUEUE_CONFIRMED).state is LoadState.OVERLOAD
