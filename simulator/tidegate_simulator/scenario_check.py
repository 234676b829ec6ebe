"""What is impossible about a scenario, found before anything runs.

`problems` lists everything it finds rather than the first thing, in the order of the scenario, so that a file is put
right in one go. `check` raises with the same list. Invariant of a scenario that passes: every number is finite and
within a range that has a name here, and a run of it ends. The ranges are generous: they refuse slips of the pen and
what no run could show, not what is merely odd. Knows nothing of how a run is carried out, but for how many steps it may
have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Final

from pydantic import ValidationError

from tidegate_agents.config import BalancingConfig
from tidegate_agents.policy import policy_named
from tidegate_protocol.errors import InvalidValue
from tidegate_protocol.ids import check_name
from tidegate_protocol.messages import DEADLINE_US_MAX
from tidegate_protocol.topics import check_pattern, check_topic

from .errors import ScenarioError
from .insights import insight_message
from .kernel import STEPS_MAX
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

SEED_MAX: Final = (1 << 63) - 1
DURATION_S_MAX: Final = 7 * 24 * 3600.0
"""A week of virtual time."""
DELAY_S_MAX: Final = 3600.0
DEADLINE_S_MIN: Final = 1e-6
"""Deadlines travel as whole microseconds."""
PERIOD_S_MIN: Final = 0.01
"""For whatever is done again and again: a run of shorter ones would do nothing else."""
PER_S_MAX: Final = 1e15
BYTES_MAX: Final = 1e9
FACTOR_MAX: Final = 1e6
COUNT_MAX: Final = 1_000_000_000
ROUND_TRIPS_MAX: Final = 1_000.0
MARGIN_MAX: Final = 0.99
CLOCK_JUMP_S_MAX: Final = 3600.0
"""Less than what makes a head forget its edges (`edge_forget_s`)."""
DRIFT_MIN: Final = -0.5
DRIFT_MAX: Final = 1.0
"""A clock at half the speed, and at twice the speed; at -1 it would stand still."""

_RANGES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "amount": (-CLOCK_JUMP_S_MAX, CLOCK_JUMP_S_MAX),
        "attach_round_trips": (0.0, ROUND_TRIPS_MAX),
        "client_delay_s": (0.0, DELAY_S_MAX),
        "deadline_s": (DEADLINE_S_MIN, DEADLINE_US_MAX / 1e6),
        "delay_max_s": (0.0, DELAY_S_MAX),
        "delay_s": (0.0, DELAY_S_MAX),
        "drift": (DRIFT_MIN, DRIFT_MAX),
        "factor": (0.0, FACTOR_MAX),
        "global_period_s": (PERIOD_S_MIN, DURATION_S_MAX),
        "head_delay_s": (0.0, DELAY_S_MAX),
        "jitter_s": (0.0, DELAY_S_MAX),
        "margin": (0.0, MARGIN_MAX),
        "neighbour_delay_s": (0.0, DELAY_S_MAX),
        "period_s": (PERIOD_S_MIN, DURATION_S_MAX),
        "retry_max_s": (PERIOD_S_MIN, DURATION_S_MAX),
        "retry_s": (PERIOD_S_MIN, DURATION_S_MAX),
        "seed": (0, SEED_MAX),
    }
)
"""From where to where, for fields that need more than what their unit says (`_most`)."""

_MAY_BE_ZERO: Final = frozenset(
    {
        "age_s",
        "amount",
        "at_s",
        "attach_round_trips",
        "client_delay_s",
        "contents",
        "cooldown_s",
        "delay_max_s",
        "delay_s",
        "drift",
        "duplication",
        "error_per_s",
        "factor",
        "head_delay_s",
        "jitter_s",
        "joins_s",
        "level_per_s",
        "loss",
        "made_at_s",
        "margin",
        "neighbour_delay_s",
        "noise_allowance",
        "seed",
        "settle_s",
        "stabilizing_min_s",
        "starts_s",
        "trend_per_s",
    }
)
_MAY_BE_NEGATIVE: Final = frozenset({"amount", "drift", "trend_per_s"})
_SHOWN_MAX: Final = 40


def check(scenario: Scenario, *, all_come: bool = False) -> None:
    """Raise `ScenarioError` with everything that is wrong, if anything is.

    `all_come`: everybody has to be there before the end, as the checkers expect. An experiment may be shorter.
    """
    found = (*problems(scenario), *(_latecomers(scenario) if all_come else ()))
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
    wrong = list(_all_numbers(scenario, brokers_and_clients))
    yield from wrong
    if not wrong:
        yield from _times(scenario)
        yield from _size(scenario)
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


def _all_numbers(
    scenario: Scenario, brokers_and_clients: Iterable[HeadSpec | EdgeSpec | PublisherSpec | SubscriberSpec]
) -> Iterator[str]:
    """What is wrong with single numbers, but for insights: their messages say themselves what they hold."""
    yield from _numbers(scenario.name, scenario)
    for one in brokers_and_clients:
        yield from _numbers(one.name, one)
        if isinstance(one, PublisherSpec):
            for position, change in enumerate(one.changes):
                yield from _numbers(f"changes[{position}] of {one.name}", change)
    for position, fault in enumerate(scenario.faults):
        yield from _numbers(f"faults[{position}]", fault)
    yield from _numbers("control", scenario.control)
    yield from _numbers("balancing", scenario.balancing)


def _numbers(whose: str, one: object, *, bounded: bool = True) -> Iterator[str]:
    assert is_dataclass(one)
    for field in fields(one):
        value = getattr(one, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            problem = _number(field.name, value, bounded)
            if problem is not None:
                yield f"{field.name} of {whose} is {problem}"


def _number(name: str, value: float, bounded: bool) -> str | None:
    """What is wrong with this number in a field of this name, and what would be right."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}: write a finite number"
    least, most = _RANGES.get(name, (0.0, _most(name)))
    if name in _MAY_BE_NEGATIVE and name not in _RANGES:
        least = -math.inf
    if not bounded:
        most = math.inf
    if least <= value <= most and (value != 0 or name in _MAY_BE_ZERO):
        return None
    shown = "0" if value == 0 else str(value)
    if len(shown) > _SHOWN_MAX:
        shown = f"{shown[: _SHOWN_MAX - 1]}…"
    below = ", below 0" if value < 0 and least >= 0 else ""
    start = f"{least:.15g}" if least or name in _MAY_BE_ZERO else "more than 0"
    end = f"{most}" if isinstance(most, int) else f"{most:.15g}"
    return f"{shown}{below}: use {start} up to {end}" if bounded else f"{shown}{below}: use {start} or more"


def _most(name: str) -> float:
    """The bound that follows from the unit, which a name ends in."""
    if name.endswith(("_per_s", "_per_s_max")):
        return PER_S_MAX
    if name.endswith("_s"):
        return DURATION_S_MAX
    return BYTES_MAX if name.endswith("_bytes") else COUNT_MAX


def _times(scenario: Scenario) -> Iterator[str]:
    """What does not fit together among numbers that are possible one by one."""
    end_s = scenario.duration_s
    for position, fault in enumerate(scenario.faults):
        # A clock never goes back: set back, it stands still, and nobody comes to rest by it.
        goes_on_s = fault.at_s - fault.amount / (1.0 + fault.drift)
        if fault.kind is FaultKind.CLOCK and fault.amount < 0 and goes_on_s > end_s + scenario.settle_s / 2:
            yield (
                f"amount of faults[{position}] is {fault.amount:g}: the clock would stand still until {goes_on_s:g} s, "
                f"too long for a run of {end_s:g} s; use one closer to 0"
            )
    yield from _ordered_times(scenario.balancing)


def _latecomers(scenario: Scenario) -> Iterator[str]:
    end_s = scenario.duration_s
    coming: list[EdgeSpec | SubscriberSpec] = [*scenario.edges, *scenario.subscribers]
    for one in coming:
        if one.joins_s >= end_s:
            yield f"joins_s of {one.name} is {one.joins_s:g}: use less than duration_s = {end_s:g}"
    for publisher in scenario.publishers:
        if publisher.starts_s >= end_s:
            yield f"starts_s of {publisher.name} is {publisher.starts_s:g}: use less than duration_s = {end_s:g}"


def _ordered_times(balancing: BalancingConfig) -> Iterator[str]:
    for least, most in (("retry_s", "retry_max_s"), ("stabilizing_min_s", "stabilizing_max_s")):
        least_s, most_s = getattr(balancing, least), getattr(balancing, most)
        if most_s < least_s:
            yield f"{most} of balancing is {most_s:g}: use at least {least} = {least_s:g}"


def _size(scenario: Scenario) -> Iterator[str]:
    """Every message and every period of a broker takes at least one step, and a run has only so many."""
    messages = sum(publisher.messages_due(scenario.duration_s) for publisher in scenario.publishers)
    if messages > STEPS_MAX:
        yield (
            f"the publishers would send {messages:.3g} messages, and a run ends after {STEPS_MAX:,} steps: "
            "use fewer messages_per_s, smaller factors or a shorter duration_s"
        )
    brokers = len(scenario.heads) + len(scenario.edges)
    periods = brokers * scenario.duration_s / scenario.balancing.period_s
    if periods > STEPS_MAX:
        yield (
            f"the brokers would sample {periods:.3g} times, and a run ends after {STEPS_MAX:,} steps: "
            "use a longer period_s or a shorter duration_s"
        )


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
        if client.contents is not None and client.obedient:
            yield f"publisher {client.name} is plain: use obedient = false"
        if client.claims is not None and (client.obedient or client.contents is not None):
            yield f"publisher {client.name} is hostile: use obedient = false, and no contents"
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
    wrong = [problem for part in parts for problem in _numbers(what, part, bounded=False)]
    yield from wrong
    if insight.head not in heads:
        yield f"{what} is for head {insight.head}, which is not there"
    if insight.at_s > duration_s:
        yield f"{what} comes after duration_s = {duration_s:g}"
    if not wrong:
        try:
            insight_message(insight, insight.cluster or insight.head)
        except OverflowError:
            yield f"{what} has a time that is too large: use seconds that fit 64 bits as microseconds"
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
