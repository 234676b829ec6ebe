"""What would have happened had nobody been moved: the demo's story, told to the simulator without balancing.

Invariant: the same story gives the same answer, whatever the machine is doing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_simulator.world import World

from . import story


@dataclass(frozen=True, slots=True)
class Unmoved:
    """Deliveries to one audience, and how many of them were late."""

    audience: str
    delivered: int
    late: int


def play_unmoved(burst_at_s: float, total_s: float) -> list[Unmoved]:
    """The deliveries to each audience under the policy `none`."""
    world = World(story.scenario("none", burst_at_s, total_s))
    world.run()
    return [
        Unmoved(
            audience.name,
            sum(world.subscribers[name].delivered for name in audience.names),
            sum(world.subscribers[name].late for name in audience.names),
        )
        for audience in story.AUDIENCES
    ]
