"""At rest everything is where it belongs: every client on one edge, one queue for each, no route too many or too few.

Also at rest: nothing is under way in any machine, and no machine's memory has grown with what happened rather than
with what there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from tidegate_agents.machine import Action, Event, SendClient
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.topics import covers
from tidegate_simulator.scenario import FaultKind, SubscriberSpec

from . import view
from .base import Checker
from .sessions import SLACK_S
from .view import Tree

if TYPE_CHECKING:
    from tidegate_simulator.world import World

MEMORY_BASE: Final = 300
MEMORY_PER_CLIENT: Final = 60
MEMORY_PER_BROKER: Final = 60
"""How many entries a machine may hold, in all its tables together, story aside. About three times what is usual: a
table that is never cleared passes it in a schedule in which much happens."""
_NOT_COUNTED: Final = frozenset({"story", "_log", "config", "_config"})
"""The story and the log of plain messages have bounds of their own; a configuration is given, not grown."""


class OnePlaceEach(Checker):
    """Every client is attached to one queue, and there is no other queue of its; links carry what is needed."""

    name = "not-at-rest"

    def __init__(self) -> None:
        super().__init__()
        self._sent_abroad: dict[str, tuple[str, float]] = {}
        """Per subscriber the head that last ordered it to another cluster, and when."""

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case SendClient(message=MigrateOrder(head=head, subscriber=subscriber)) if head != broker:
                    self._sent_abroad[subscriber] = (broker, now)

    def ended(self, world: World, now: float) -> None:
        for spec in world.scenario.subscribers:
            if spec.leaves_s is not None:
                self._left(world, spec, spec.leaves_s, now)
            elif spec.takes_per_s is None or not view.waiting_for(world, spec.name):
                # A slow application may still have to do with what an edge that was away left for it.
                self._present(world, spec, now)
        self._routes(world, now)

    def _left(self, world: World, spec: SubscriberSpec, left_s: float, now: float) -> None:
        if not view.said_goodbye(world, spec.name):
            return
        head, ordered_s = self._sent_abroad.get(spec.name, ("", 0.0))
        if _crashed(world, head, ordered_s, left_s):
            # It left in the middle of a move to another cluster, after the head that led the move had crashed. It said
            # goodbye to that head for its old place, and nobody is left who knows of the new one. That one expires.
            return
        queues = [place for place in view.queues_of(world, spec.name) if not _forgotten(world, place[0], left_s)]
        if queues:
            self.report(now, f"{spec.name} has left, but has the queues {queues}", "orphan")

    def _present(self, world: World, spec: SubscriberSpec, now: float) -> None:
        subscriber = spec.name
        queues = view.queues_of(world, subscriber)
        attached = view.attached(world, subscriber)
        if len(queues) != 1:
            self.report(now, f"{subscriber} has {len(queues)} queues: {queues}", "orphan" if queues else "no-queue")
        if len(attached) != 1:
            self.report(now, f"{subscriber} is attached to {len(attached)} queues: {attached}", "not-attached")
        elif attached != queues:
            self.report(now, f"{subscriber} is attached to {attached}, its queues are {queues}", "orphan")
        # An edge that crashed has forgotten what it bound. Nothing will ever match such a key again, and the binding
        # goes with the queue.
        forgetful = {f.target for f in world.scenario.faults if f.kind in (FaultKind.CRASH, FaultKind.EDGE_DOWN)}
        markers = [key for edge, key in view.markers_of(world, subscriber) if edge not in forgetful]
        # A slow application may have ended its last move just now; the edge takes the marker back a little later.
        if markers and spec.takes_per_s is None:
            self.report(now, f"{subscriber} still has the markers {markers} bound", "leftover")

    def _routes(self, world: World, now: float) -> None:
        """Whether links carry what is needed, and no more."""
        tree = Tree(world.scenario)
        for head in sorted(tree.neighbours):
            routes = view.routes(world, head)
            for target in sorted({*tree.neighbours[head], *tree.edges_of(head), *routes}):
                needed = maximal(needed_behind(world, tree, head, target))
                bound = set(routes.get(target, ()))
                if bound != needed:
                    text = f"{head} forwards {sorted(bound)} to {target}, needed are {sorted(needed)}"
                    self.report(now, text, "wrong-routes")


def _crashed(world: World, broker: str, since_s: float, until_s: float) -> bool:
    crashes = [fault.at_s for fault in world.scenario.faults if (fault.kind, fault.target) == (FaultKind.CRASH, broker)]
    return any(since_s <= at_s <= until_s for at_s in crashes)


def _forgotten(world: World, edge: str, left_s: float) -> bool:
    """Whether a subscriber left while this edge was down, where a queue of its waited for removal, and the head crashed
    before the edge was back: only the head knew, and its client is not there to be asked. The queue expires.
    """
    (head,) = [one.head for one in world.scenario.edges if one.name == edge]
    down = [f for f in world.scenario.faults if (f.kind, f.target) == (FaultKind.EDGE_DOWN, edge)]
    return any(
        fault.until_s is not None
        and fault.at_s <= left_s <= fault.until_s
        and _crashed(world, head, left_s, fault.until_s + SLACK_S)
        for fault in down
    )


def needed_behind(world: World, tree: Tree, head: str, target: str) -> set[str]:
    """The patterns of all queues behind the link from `head` to `target`, by brute force."""
    if target in tree.edges:
        return view.patterns_on(world, target)
    found: set[str] = set()
    for edge in tree.edges_of(target):
        found |= view.patterns_on(world, edge)
    for neighbour in tree.neighbours[target]:
        if neighbour != head:
            found |= needed_behind(world, tree, target, neighbour)
    return found


def maximal(patterns: AbstractSet[str]) -> set[str]:
    """The covering set by brute force; of equivalent patterns the smallest."""
    return {p for p in patterns if not any(covers(q, p) and (q < p or not covers(p, q)) for q in patterns if q != p)}


class BoundedMemory(Checker):
    """What a machine remembers is bounded by what there is."""

    name = "memory"

    def ended(self, world: World, now: float) -> None:
        scenario = world.scenario
        clients = len(scenario.subscribers) + len(scenario.publishers)
        brokers = len(scenario.heads) + len(scenario.edges)
        most = MEMORY_BASE + MEMORY_PER_CLIENT * clients + MEMORY_PER_BROKER * brokers
        for name, machine in sorted(view.machines(world).items()):
            count = entries(machine)
            if count > most:
                self.report(now, f"{name} remembers {count} entries, more than {most}")


def entries(machine: object) -> int:
    """How many entries all tables reachable from a machine hold."""
    seen: set[int] = set()
    to_visit: list[object] = [machine]
    count = 0
    while to_visit:
        one = to_visit.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            count += len(one)
            to_visit += one.values()
        elif isinstance(one, list | set | frozenset | deque | tuple):
            count += len(one)
            to_visit += one
        elif type(one).__module__.startswith(("tidegate_agents", "tidegate.")):
            to_visit += (value for name, value in _fields(one) if name not in _NOT_COUNTED)
    return count


def _fields(one: object) -> list[tuple[str, object]]:
    names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    found = [(name, getattr(one, name)) for name in names if hasattr(one, name)]
    return found + list(getattr(one, "__dict__", {}).items())
