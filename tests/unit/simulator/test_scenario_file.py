"""Scenarios as JSON: what is read is what was written, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate_agents.config import BalancingConfig
from tidegate_simulator import kernel
from tidegate_simulator.errors import ScenarioError
from tidegate_simulator.runner import run_scenario
from tidegate_simulator.scenario import Fault, FaultKind, HeadSpec, PublisherSpec, RateChange
from tidegate_simulator.scenario_check import problems
from tidegate_simulator.scenario_file import FILE_BYTES_MAX, read, read_file, write
from tidegate_simulator.swarm import random_scenario

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "two-clusters.json"


def small() -> dict[str, Any]:
    return {
        "name": "small",
        "seed": 1,
        "duration_s": 20,
        "heads": [{"name": "h0"}],
        "edges": [{"name": "e0", "head": "h0", "uplink_bytes_per_s": 10_000}],
        "publishers": [
            {"name": "p0", "head": "h0", "topic": "a", "messages_per_s": 2, "message_bytes": 100, "arrivals": "poisson"}
        ],
        "subscribers": [{"name": "s0", "head": "h0", "pattern": "a", "deadline_s": 1}],
        "faults": [{"at_s": 5, "kind": "crash", "target": "h0", "until_s": 6}],
        "balancing": {"policy": "none", "period_s": 2},
    }


@pytest.mark.parametrize("seed", range(30))
def test_what_is_written_is_read(seed: int) -> None:
    scenario = random_scenario(seed)
    assert read(write(scenario)) == scenario


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small()))
    scenario = read_file(path)
    assert scenario.faults == (Fault(5.0, FaultKind.CRASH, "h0", 6.0),)
    assert scenario.balancing.period_s == 2.0
    assert scenario.balancing.retry_s == 5.0
    assert isinstance(scenario.duration_s, float)


def clock(**how: float) -> dict[str, Any]:
    return {"at_s": 5, "kind": "clock", "target": "e0", **how}


def changed(path: str, value: object) -> str:
    whole: Any = small()
    part = whole
    *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    for word in way:
        part = part[word]
    part[last] = value
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colour", "red", "scenario.colour is unknown; known are balancing"),
        ("edges.0.uplink", 5, "scenario.edges[0].uplink is unknown; known are capacity_known"),
        ("balancing.polcy", "none", "scenario.balancing.polcy is unknown"),
        ("seed", "seven", 'scenario.seed is "seven"; write a whole number'),
        ("seed", 1.5, "scenario.seed is 1.5; write a whole number"),
        ("seed", True, "scenario.seed is true; write a whole number"),
        ("duration_s", None, "scenario.duration_s is null; write a number"),
        ("duration_s", 10**400, "scenario.duration_s is too large"),
        ("heads", {}, "scenario.heads is {}; write a list"),
        ("heads.0", "h0", 'scenario.heads[0] is "h0"; write an object'),
        ("publishers.0.arrivals", "often", "known are regular, poisson"),
        ("faults.0.kind", "meteor", 'scenario.faults[0].kind is "meteor"; known are crash, freeze'),
        ("heads", [], "there is no head"),
        ("heads", [{"name": "h0"}, {"name": "h1"}], "head h1 is not connected to h0"),
        ("heads", [{"name": "h0", "neighbours": ["h1"]}], "h1, which is not there"),
        (
            "heads",
            [{"name": "h0", "neighbours": ["h1"]}, {"name": "h1"}],
            "which does not name it back",
        ),
        ("heads", [{"name": "h0", "neighbours": ["h0"]}], "is its own neighbour"),
        ("edges.0.head", "h9", "edge e0 belongs to head h9, which is not there"),
        ("edges.0.name", "h0", "the name h0 is used twice"),
        ("edges.0.name", "e 0", "e 0"),
        ("edges.0.uplink_bytes_per_s", 0, "uplink_bytes_per_s of e0 is 0"),
        ("edges.0.head_delay_s", -1, "head_delay_s of e0 is -1.0, below 0"),
        ("publishers.0.head", "e0", "p0 uses head e0, which is not there"),
        ("publishers.0.topic", "a.#", "p0: "),
        ("publishers.0.stops_s", 0, "stops_s of p0 is 0"),
        ("subscribers.0.pattern", "a..b", "s0: "),
        ("subscribers.0.leaves_s", -0.5, "below 0"),
        ("faults.0.target", "e7", "fault crash at 5 s hits e7: there is no such broker"),
        ("faults.0.target", "", "hits nobody"),
        ("faults.0.until_s", 3, "ends before it begins"),
        ("faults.0.until_s", None, "has no end: say until_s"),
        ("faults.0.until_s", 25, "is not over at duration_s = 20"),
        ("faults.0.loss", 1.5, "loss is a probability"),
        ("balancing.policy", "luck", "luck"),
        ("balancing.period_s", 0, "period_s of balancing is 0: use 0.01 up to 604800"),
        ("balancing.retry_s", -1, "retry_s of balancing is -1.0, below 0: use 0.01 up to"),
        ("balancing.retry_s", math.nan, "retry_s of balancing is nan: write a finite number"),
        ("balancing.retry_max_s", 0, "retry_max_s of balancing is 0: use"),
        ("balancing.retry_max_s", 1, "retry_max_s of balancing is 1: use at least retry_s = 5"),
        ("balancing.migrations_max", -1, "migrations_max of balancing is -1, below 0: use more than 0"),
        ("balancing.margin", 1, "margin of balancing is 1.0: use 0 up to 0.99"),
        ("balancing.seed", -1, "seed of balancing is -1, below 0"),
        ("publishers.0.changes", [{"at_s": -5, "factor": 1}], "at_s of changes[0] of p0 is -5.0, below 0"),
        ("publishers.0.changes", [{"at_s": 5, "factor": -2}], "factor of changes[0] of p0 is -2.0, below 0"),
        ("publishers.0.changes", [{"at_s": 5, "factor": math.nan}], "factor of changes[0] of p0 is nan"),
        ("publishers.0.changes", [{"at_s": 5, "factor": math.inf}], "factor of changes[0] of p0 is inf"),
        ("publishers.0.messages_per_s", 1e9, "use fewer messages_per_s, smaller factors or a shorter duration_s"),
        ("publishers.0.starts_s", 20, "starts_s of p0 is 20: use less than duration_s = 20"),
        ("subscribers.0.deadline_s", 1e-9, "deadline_s of s0 is 1e-09: use 1e-06 up to 86400"),
        ("subscribers.0.deadline_s", 1e12, "deadline_s of s0 is 1000000000000.0: use 1e-06 up to 86400"),
        ("subscribers.0.joins_s", 20, "joins_s of s0 is 20: use less than duration_s = 20"),
        ("edges.0.joins_s", 1e5, "joins_s of e0 is 100000: use less than duration_s = 20"),
        ("edges.0.joins_s", 1e6, "joins_s of e0 is 1000000.0: use 0 up to 604800"),
        ("faults.0", clock(drift=-1), "drift of faults[0] is -1.0: use -0.5 up to 1"),
        ("faults.0", clock(amount=-1e12), "amount of faults[0] is -1000000000000.0: use -3600 up to 3600"),
        ("faults.0", clock(amount=-60), "the clock would stand still until 65 s, too long for a run of 20 s"),
        ("duration_s", 1e9, "duration_s of small is 1000000000.0: use more than 0 up to 604800"),
        ("seed", -5, "seed of small is -5, below 0: use 0 up to 9223372036854775807"),
        ("seed", 1 << 63, "seed of small is 9223372036854775808: use 0 up to 9223372036854775807"),
        ("seed", 10**900, "…: use 0 up to 9223372036854775807"),
        ("insights", [{"at_s": 5, "head": "h0", "made_at_s": 1e305}], "has a time that is too large"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: object, message: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        read(changed(path, value))
    assert message in str(raised.value)


def test_every_number_of_balancing_is_checked() -> None:
    for field in dataclasses.fields(BalancingConfig):
        if field.type in ("int", "float", "float | None"):
            for value in (-1, -math.inf, math.nan) if field.type != "int" else (-1,):
                with pytest.raises(ScenarioError, match=f"{field.name} of balancing is"):
                    read(changed(f"balancing.{field.name}", value))


def test_all_that_is_wrong_is_named_at_once() -> None:
    whole = small() | {"duration_s": -1, "balancing": {"period_s": 0, "migrations_max": 0}}
    with pytest.raises(ScenarioError) as raised:
        read(json.dumps(whole))
    for name in ("duration_s of small", "period_s of balancing", "migrations_max of balancing"):
        assert name in str(raised.value)


def test_a_number_with_thousands_of_digits_is_named() -> None:
    text = json.dumps(small())
    with pytest.raises(ScenarioError, match=r"scenario\.seed is Infinity; write a whole number"):
        read(text.replace('"seed": 1', f'"seed": {"9" * 5_000}'))
    with pytest.raises(ScenarioError, match="duration_s of small is inf: write a finite number"):
        read(text.replace('"duration_s": 20', f'"duration_s": {"9" * 5_000}'))


def test_a_mark_of_the_byte_order_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "marked.json"
    path.write_text(json.dumps(small()), encoding="utf-8-sig")
    assert read_file(path) == read(json.dumps(small()))


def test_the_example_runs_and_has_a_move() -> None:
    result = run_scenario(read_file(EXAMPLE))
    assert not result.failed, result.problems
    assert result.counts["moves"] > 0


def test_a_run_without_end_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "STEPS_MAX", 100)
    result = run_scenario(read(json.dumps(small())))
    assert result.failed
    assert not result.error
    assert result.problems[-1].startswith("no end (seed 1): more than 100 steps, at ")


def test_what_has_no_default_must_be_there() -> None:
    whole = small()
    del whole["seed"]
    with pytest.raises(ScenarioError, match=r"scenario\.seed is missing"):
        read(json.dumps(whole))


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="is not JSON"):
        read(text)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="can't be read"):
        read_file(tmp_path / "nowhere.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="is not UTF-8 text"):
        read_file(tmp_path / "binary")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(ScenarioError, match="use at most"):
        read_file(tmp_path / "large")


def test_a_circle_of_heads_is_impossible() -> None:
    names = ("h0", "h1", "h2")
    heads = tuple(HeadSpec(name, tuple(other for other in names if other != name)) for name in names)
    scenario = dataclasses.replace(random_scenario(1), heads=heads)
    assert "the heads form a circle; they have to form a tree" in list(problems(scenario))


def disordered(publisher: PublisherSpec) -> PublisherSpec:
    return dataclasses.replace(publisher, changes=(RateChange(5.0, 2.0), RateChange(4.0, 1.0)))


def backward(publisher: PublisherSpec) -> PublisherSpec:
    return dataclasses.replace(publisher, starts_s=5.0, stops_s=4.0)


@pytest.mark.parametrize(
    ("change", "problem"), [(disordered, "are not in the order of time"), (backward, "stops before it starts")]
)
def test_impossible_publishers(change: Callable[[PublisherSpec], PublisherSpec], problem: str) -> None:
    scenario = random_scenario(1)
    scenario = dataclasses.replace(scenario, publishers=tuple(change(one) for one in scenario.publishers))
    assert any(problem in found for found in problems(scenario))


@pytest.mark.parametrize("seed", range(200))
def test_the_swarm_draws_nothing_impossible(seed: int) -> None:
    assert list(problems(random_scenario(seed))) == [], f"seed {seed}"
