"""Scenarios as JSON: what is read is what was written, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate_simulator.errors import ScenarioError
from tidegate_simulator.scenario import Fault, FaultKind, HeadSpec, PublisherSpec, RateChange
from tidegate_simulator.scenario_check import problems
from tidegate_simulator.scenario_file import FILE_BYTES_MAX, read, read_file, write
from tidegate_simulator.swarm import random_scenario


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
    ],
)
def test_what_is_wrong_is_named(path: str, value: object, message: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        read(changed(path, value))
    assert message in str(raised.value)


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
