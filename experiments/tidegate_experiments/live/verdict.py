"""Whether a live run says something about the system, or only about the machine it ran on.

A run is valid if the load generator published when it should have, the machine was there all the time, and messages
of an edge whose uplink was offered clearly less than it carries took no longer than the links and the line of that
uplink: also an uplink with room carries the copies of one publication, and of those that come at the same moment, one
after another. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from .course import Course
from .machine import MachineUse

PUBLISH_LAG_S_MAX: Final = 0.05
"""Of 999 publications in a thousand."""
STEAL_SHARE_MAX: Final = 0.02
BUSY_SHARE_MAX: Final = 0.97
ADDED_TYPICAL_S_MAX: Final = 0.06
"""What half of the deliveries may take beyond links and line, where an uplink had room."""
ADDED_S_MAX: Final = 0.1
"""What 99 in a hundred may."""
ROOM_UTILIZATION: Final = 0.9
"""An uplink that was offered less than this, over `ROOM_S` seconds, had room."""
ROOM_S: Final = 5
SETTLING_S: Final = 3
"""For so many seconds after a topic has registered, what is new there may take longer; and so long before and after a
move, what goes out of the two edges: they both carry what the subscriber takes once."""


@dataclass(frozen=True, slots=True)
class Lags:
    """How far apart what should have happened and what did."""

    publish_p50_s: float
    publish_p999_s: float
    publish_max_s: float
    added_p50_s: float
    added_p99_s: float
    """Latency beyond the links and the line of the uplink, of deliveries from uplinks with room."""


def lags(course: Course, utilizations: dict[tuple[str, int], float]) -> Lags:
    """Measure a run."""
    late = sorted((row.published_us - row.due_us) / 1e6 for row in course.publications)
    added = sorted(_added_s(course, utilizations))
    return Lags(
        _quantile(late, 0.5),
        _quantile(late, 0.999),
        late[-1] if late else 0.0,
        _quantile(added, 0.5),
        _quantile(added, 0.99),
    )


def not_there_yet(course: Course, at_s: float) -> list[str]:
    """The subscribers that were to be there by then and had no place."""
    expected = [one for one in course.scenario.subscribers if one.joins_s < at_s]
    return [one.name for one in expected if course.edge_of(one.name, at_s) is None]


def problems(
    found: Lags, machine: MachineUse, refused: int, behind: list[str], losses: list[str], missing: list[str]
) -> tuple[str, ...]:
    """Why a run does not count; empty if it does. `missing`: who had no place when the burst came."""
    reasons: list[str] = []
    if missing:
        reasons.append(
            f"{len(missing)} subscribers had no place yet when the burst came, the first of them {missing[0]}: "
            "let the burst come later (--burst-at)"
        )
    if found.publish_p999_s > PUBLISH_LAG_S_MAX:
        reasons.append(
            f"the load generator lagged: one publication in a thousand was over {found.publish_p999_s:.3f} s late "
            f"(at most {PUBLISH_LAG_S_MAX:g} s)"
        )
    if machine.steal_share > STEAL_SHARE_MAX:
        reasons.append(
            f"the host took away {machine.steal_share:.1%} of the processors (at most {STEAL_SHARE_MAX:.0%})"
        )
    if machine.busy_share > BUSY_SHARE_MAX:
        reasons.append(
            f"the processors were busy for {machine.busy_share:.1%} of the time (at most {BUSY_SHARE_MAX:.0%})"
        )
    if found.added_p50_s > ADDED_TYPICAL_S_MAX:
        reasons.append(
            f"messages on uplinks with room took {found.added_p50_s:.3f} s longer than links and line do "
            f"(every other one; at most {ADDED_TYPICAL_S_MAX:g} s)"
        )
    if found.added_p99_s > ADDED_S_MAX:
        reasons.append(
            f"messages on uplinks with room took up to {found.added_p99_s:.3f} s longer than links and line do "
            f"(99 in 100; at most {ADDED_S_MAX:g} s)"
        )
    if behind:
        reasons.append(
            f"{len(behind)} subscribers had not got everything when the run ended, the first of them {behind[0]}: "
            "what they lack counts as lost"
        )
    if refused:
        reasons.append(f"RabbitMQ refused {refused} publications")
    if losses:
        reasons.append(f"{len(losses)} connections of subscribers were lost, the first by: {losses[0]}")
    return tuple(reasons)


def _added_s(course: Course, utilizations: dict[tuple[str, int], float]) -> list[float]:
    scenario = course.scenario
    edges = {edge.name: edge for edge in scenario.edges}
    free_s: dict[str, float] = defaultdict(float)
    """When the uplink of each edge has carried what came before."""
    moved: dict[str, list[float]] = defaultdict(list)
    for move in course.moves:
        for side in (move.source, move.target):
            moved[side].append(course.seconds(move.at_us))
    with_room = _with_room(course, utilizations)
    added: list[float] = []
    for row in sorted(course.deliveries, key=lambda row: row.arrived_us):
        subscriber = scenario.subscribers[row.subscriber]
        arrived_s, published_s = course.seconds(row.arrived_us), course.seconds(row.published_us)
        edge = course.edge_of(subscriber.name, arrived_s)
        if edge is None:
            continue
        width, size = edges[edge].uplink_bytes_per_s, scenario.publishers[row.publisher].message_bytes
        begins_s = max(published_s + edges[edge].head_delay_s, free_s[edge])
        free_s[edge] = leaves_s = begins_s + (size / width if width else 0.0)
        if published_s < subscriber.joins_s + SETTLING_S:
            continue
        if any(abs(arrived_s - at_s) < SETTLING_S for at_s in moved[edge]):
            continue
        if (edge, int(arrived_s)) in with_room:
            added.append(arrived_s - leaves_s - edges[edge].client_delay_s)
    return added


def _with_room(course: Course, utilizations: dict[tuple[str, int], float]) -> set[tuple[str, int]]:
    """Edges and seconds in which, and for some seconds before, the uplink was offered less than it carries."""
    found: set[tuple[str, int]] = set()
    for edge in course.scenario.edges:
        overloaded_until = -1
        backlog = 0.0
        for second in range(int(course.scenario.duration_s) + 1):
            share = utilizations.get((edge.name, second), 0.0)
            # What was offered beyond the bandwidth has to be worked off before there is room again.
            backlog = max(backlog + share - 1.0, 0.0)
            if share >= ROOM_UTILIZATION or backlog > 0.0:
                overloaded_until = second + ROOM_S
            if second > overloaded_until:
                found.add((edge.name, second))
    return found


def _quantile(values: list[float], share: float) -> float:
    return values[min(int(share * len(values)), len(values) - 1)] if values else 0.0
