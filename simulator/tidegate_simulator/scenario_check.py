"""What is impossible about a scenario, found before anything runs.

`problems` lists everything it finds rather than the first thing, in the order of the scenario, so that a file is put
right in one go. `check` raises with the same list. Knows nothing of how a run is carried out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Final

from pydantic import ValidationError

from tidegate_agents.policies import policy_named
from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.ids import check_name
from tidegate_protocol.topics import check_pattern, check_topic

from .errors import ScenarioError
from .insights import insight_message
from .scenario import (
    EVERYBODY,
    EdgeSpec,
    Fault,
    FaultKind,
    HeadSpec,
    InsightSpec,
    PublisherSpec,
    Scenario,
    SubscriberSpec,
)

_LASTING: Final = frozenset(FaultKind) - {FaultKind.CLOCK, FaultKind.PUBLISHER_CUT}
"""The faults that go on until something ends them. One without an end would leave nothing to be at rest."""

_MAY_BE_ZERO: Final = frozenset(
    {
        "amount",
        "client_delay_s",
        "delay_s",
        "drift",
        "error_per_s",
        "duplication",
        "factor",
        "head_delay_s",
        "jitter_s",
        "joins_s",
        "level_per_s",
        "loss",
        "made_at_s",
        "neighbour_delay_s",
        "age_s",
        "at_s",
        "attach_round_trips",
        "delay_max_s",
        "settle_s",
        "starts_s",
        "trend_per_s",
    }
)
_MAY_BE_NEGATIVE: Final = frozenset({"amount", "drift", "trend_per_s"})


def check(scenario: Scenario) -> None:
    """Raise `ScenarioError` with everything that is wrong, if anything is."""
    found = tuple(problems(scenario))
    if found:
        raise ScenarioError(f"scenario {scenario.name}", f"is impossible: {'; '.join(found)}", "put that right")


def problems(scenario: Scenario) -> Iterator[str]:
    """Everything that is impossible about a scenario, one sentence each."""
    heads = {head.name: head for head in scenario.heads}
    edges = {edge.name: edge for edge in scenario.edges}
    publishers = {publisher.name for publisher in scenario.publishers}
    subscribers = {subscriber.name for subscriber in scenario.subscribers}
    clients: list[PublisherSpec | SubscriberSpec] = [*scenario.publishers, *scenario.subscribers]
    brokers_and_clients: list[HeadSpec | EdgeSpec | PublisherSpec | SubscriberSpec]
    brokers_and_clients = [*scenario.heads, *scenario.edges, *clients]
    yield from _names([one.name for one in brokers_and_clients])
    yield from _numbers(scenario.name, scenario, ("duration_s", "settle_s"))
    for one in (*brokers_and_clients, *scenario.faults, scenario.control):
        yield from _numbers(getattr(one, "name", type(one).__name__.lower()), one)
    if not heads:
        yield "there is no head"
    else:
        yield from _tree(heads)
    if not edges:
        yield "there is no edge"
    for edge in scenario.edges:
        if edge.head not in heads:
            yield f"edge {edge.name} belongs to head {edge.head}, which is not there"
    for client in clients:
        if client.head not in heads:
            yield f"{client.name} uses head {client.head}, which is not there"
        yield from _client(client)
    targets = MappingProxyType(
        {
            "broker": heads.keys() | edges.keys(),
            "edge": edges.keys(),
            "link": edges.keys() | heads.keys(),
            "client": subscribers,
            "publisher": publishers,
            "any": heads.keys() | edges.keys() | publishers | subscribers | {EVERYBODY},
        }
    )
    for fault in scenario.faults:
        yield from _fault(fault, targets, scenario, heads)
    for insight in scenario.insights:
        yield from _insight(insight, heads.keys(), scenario.duration_s)
    try:
        policy_named(scenario.balancing.policy)
    except ValueError as error:
        yield str(error)


def _names(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"the name {name} is used twice"
        seen.add(name)
        try:
            check_name(name)
        except InvalidValue as error:
            yield str(error)


def _numbers(whose: str, one: object, only: tuple[str, ...] | None = None) -> Iterator[str]:
    assert is_dataclass(one)
    for field in fields(one):
        value = getattr(one, field.name)
        if (only is not None and field.name not in only) or isinstance(value, bool | str):
            continue
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            yield f"{field.name} of {whose} is {value}"
        elif value < 0 and field.name not in _MAY_BE_NEGATIVE:
            yield f"{field.name} of {whose} is {value}, below 0"
        elif value == 0 and field.name not in _MAY_BE_ZERO:
            yield f"{field.name} of {whose} is 0"


def _tree(heads: Mapping[str, HeadSpec]) -> Iterator[str]:
    links = set()
    for head in heads.values():
        for neighbour in head.neighbours:
            if neighbour == head.name:
                yield f"head {head.name} is its own neighbour"
            elif neighbour not in heads:
                yield f"head {head.name} has the neighbour {neighbour}, which is not there"
            elif head.name not in heads[neighbour].neighbours:
                yield f"head {head.name} has the neighbour {neighbour}, which does not name it back"
            else:
                links.add(frozenset((head.name, neighbour)))
    reached = {min(heads)}
    to_visit = [min(heads)]
    while to_visit:
        name = to_visit.pop()
        for other in heads[name].neighbours:
            if other in heads and other not in reached:
                reached.add(other)
                to_visit.append(other)
    if len(reached) < len(heads):
        yield f"head {min(heads.keys() - reached)} is not connected to {min(heads)}"
    elif len(links) > len(heads) - 1:
        yield "the heads form a circle; they have to form a tree"


def _client(client: PublisherSpec | SubscriberSpec) -> Iterator[str]:
    try:
        if isinstance(client, PublisherSpec):
            check_topic(client.topic)
        else:
            check_pattern(client.pattern)
    except InvalidValue as error:
        yield f"{client.name}: {error}"
    if isinstance(client, PublisherSpec):
        if client.stops_s is not None and client.stops_s <= client.starts_s:
            yield f"publisher {client.name} stops before it starts"
        times = [change.at_s for change in client.changes]
        if times != sorted(times):
            yield f"the rate changes of publisher {client.name} are not in the order of time"
    elif client.leaves_s is not None and client.leaves_s <= client.joins_s:
        yield f"subscriber {client.name} leaves before it joins"


def _fault(
    fault: Fault, targets: Mapping[str, Iterable[str]], scenario: Scenario, heads: Mapping[str, HeadSpec]
) -> Iterator[str]:
    what = f"fault {fault.kind} at {fault.at_s:g} s"
    if fault.target not in targets[_TARGETS[fault.kind]]:
        yield f"{what} hits {fault.target or 'nobody'}: there is no such {_TARGETS[fault.kind]}"
    elif fault.kind is FaultKind.LINK_DOWN and fault.target in heads and not heads[fault.target].neighbours:
        yield f"{what} hits {fault.target}: no link leads there"
    if fault.until_s is None:
        if fault.kind in _LASTING:
            yield f"{what} on {fault.target} has no end: say until_s"
    elif fault.until_s < fault.at_s:
        yield f"{what} on {fault.target} ends before it begins"
    if fault.at_s > scenario.duration_s or (fault.until_s or 0.0) > scenario.duration_s:
        yield f"{what} on {fault.target} is not over at duration_s = {scenario.duration_s:g}"
    for name in ("loss", "duplication"):
        if getattr(fault, name) > 1.0:
            yield f"{what}: {name} is a probability, and {getattr(fault, name):g} is above 1"


def _insight(insight: InsightSpec, heads: AbstractSet[str], duration_s: float) -> Iterator[str]:
    what = f"insight at {insight.at_s:g} s"
    parts = (insight, *insight.pairs, *insight.forecasts, *insight.uplinks)
    wrong = [problem for part in parts for problem in _numbers(what, part)]
    yield from wrong
    if insight.head not in heads:
        yield f"{what} is for head {insight.head}, which is not there"
    if insight.at_s > duration_s:
        yield f"{what} comes after duration_s = {duration_s:g}"
    if not wrong:
        try:
            insight_message(insight, insight.cluster or insight.head)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            yield f"{what}: {'.'.join(map(str, first['loc']))}: {first['msg']}"


_TARGETS: Final[Mapping[FaultKind, str]] = MappingProxyType(
    {
        FaultKind.CRASH: "broker",
        FaultKind.FREEZE: "broker",
        FaultKind.EDGE_DOWN: "edge",
        FaultKind.LINK_DOWN: "link",
        FaultKind.CONTROL: "any",
        FaultKind.CLOCK: "any",
        FaultKind.CLIENT_CRASH: "client",
        FaultKind.CLIENT_CUT: "client",
        FaultKind.PUBLISHER_CUT: "publisher",
        FaultKind.DRAIN: "edge",
    }
)
"""Whom each kind can hit. A link is named by where it leads."""
