"""At rest everything is where it belongs: every client on one edge, one queue for each, no route too many or too few.

Also at rest: nothing is under way in any machine, and no machine's memory has grown with what happened rather than
with what there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import inf
from typing import TYPE_CHECKING, Final

from tidegate_agents.machine import Action, BindMarker, Event, SendClient
from tidegate_protocol.balancing import MigrateOrder
from tidegate_protocol.topics import covers
from tidegate_simulator.scenario import EVERYBODY, FaultKind, SubscriberSpec

from . import view
from .base import Checker
from .sessions import DRIFT_MAX, SLACK_S
from .view import Tree

if TYPE_CHECKING:
    from tidegate_simulator.world import World

MEMORY_BASE: Final = 300
MEMORY_PER_CLIENT: Final = 60
MEMORY_PER_BROKER: Final = 60
"""How many entries a machine may hold, in all its tables together, story aside. About three times what is usual: a
table that is never cleared passes it in a schedule in which much happens."""
_UNHEARD: Final = frozenset({FaultKind.CRASH, FaultKind.FREEZE, FaultKind.EDGE_DOWN, FaultKind.CONTROL})
"""What keeps an edge from hearing what it is told."""
_NOT_COUNTED: Final = frozenset({"story", "config", "_config"})
"""The story has a bound of its own; a configuration is given, not grown."""


class OnePlaceEach(Checker):
    """Every client is attached to one queue, and there is no other queue of its; links carry what is needed."""

    name = "not-at-rest"

    def __init__(self) -> None:
        super().__init__()
        self._sent_abroad: dict[str, tuple[str, float]] = {}
        """Per subscriber the head that last ordered it to another cluster, and when."""
        self._bound_s: dict[tuple[str, str], float] = {}
        """Per edge and marker key when it was last bound: an edge takes it back some time later, not at once."""
        self._taken_s: dict[str, float] = {}
        """Per slow subscriber when its application last took something."""

    def started(self, world: World) -> None:
        super().started(world)
        config = world.scenario.balancing
        self._slow = {spec.name for spec in world.scenario.subscribers if spec.takes_per_s is not None}
        self._marker_s = max(config.session_timeout_s, 2.0 * config.migration_timeout_s) * (1.0 + DRIFT_MAX) + SLACK_S

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case SendClient(message=MigrateOrder(head=head, subscriber=subscriber)) if head != broker:
                    self._sent_abroad[subscriber] = (broker, now)
                case BindMarker(key=key):
                    self._bound_s[broker, key] = now

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        if subscriber in self._slow:
            self._taken_s[subscriber] = now

    def ended(self, world: World, now: float) -> None:
        busy: set[str] = set()
        for spec in world.scenario.subscribers:
            if self._is_busy(world, spec, now):
                busy.add(spec.pattern)
            elif spec.leaves_s is None:
                self._present(world, spec.name, now)
            elif view.said_goodbye(world, spec.name) and not self._forgotten_abroad(world, spec):
                self._gone(world, spec, now)
        self._routes(world, busy, now)

    def _is_busy(self, world: World, spec: SubscriberSpec, now: float) -> bool:
        """Whether a slow application has, or had until lately, to do with what an edge that was away left for it."""
        if spec.takes_per_s is None:
            return False
        taken_s = self._taken_s.get(spec.name, -inf)
        return now - taken_s < world.scenario.settle_s or bool(view.waiting_for(world, spec.name))

    def _forgotten_abroad(self, world: World, spec: SubscriberSpec) -> bool:
        """Whether it left in the middle of a move to another cluster whose head had crashed meanwhile: to that head
        it said goodbye for its old place, and nobody is left who could say anything about the new one. It expires.
        """
        head, ordered_s = self._sent_abroad.get(spec.name, ("", 0.0))
        return any(
            fault.kind is FaultKind.CRASH and fault.target == head and ordered_s <= fault.at_s <= (spec.leaves_s or 0.0)
            for fault in world.scenario.faults
        )

    def _gone(self, world: World, spec: SubscriberSpec, now: float) -> None:
        queues = [place for place in view.queues_of(world, spec.name) if not _forgotten_away(world, spec, place[0])]
        if queues:
            self.report(now, f"{spec.name} has left, but has the queues {queues}", "orphan")

    def _present(self, world: World, subscriber: str, now: float) -> None:
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
        markers = [
            key
            for edge, key in view.markers_of(world, subscriber)
            if edge not in forgetful and now - self._bound_s.get((edge, key), 0.0) > self._marker_s
        ]
        if markers:
            self.report(now, f"{subscriber} still has the markers {markers} bound", "leftover")

    def _routes(self, world: World, busy: AbstractSet[str], now: float) -> None:
        """Whether links carry what is needed. What `busy` subscribers have left just now may still be bound."""
        tree = Tree(world.scenario)
        for head in sorted(tree.neighbours):
            routes = view.routes(world, head)
            for target in sorted({*tree.neighbours[head], *tree.edges_of(head), *routes}):
                needed = needed_behind(world, tree, head, target)
                bound = set(routes.get(target, ()))
                if bound not in (maximal(needed), maximal(needed | busy)):
                    text = f"{head} forwards {sorted(bound)} to {target}, needed are {sorted(maximal(needed))}"
                    self.report(now, text, "wrong-routes")


def _forgotten_away(world: World, spec: SubscriberSpec, edge: str) -> bool:
    """Whether it left while this edge was away, or could hardly be spoken to, where a queue of its waited for removal,
    and the head crashed before that was over: only the head knew, and its client is not there to be asked. The queue
    expires.
    """
    (head,) = [one.head for one in world.scenario.edges if one.name == edge]
    left_s = until_s = spec.leaves_s or 0.0
    for fault in sorted(world.scenario.faults, key=lambda fault: fault.at_s):
        over_s = fault.until_s
        if fault.kind not in _UNHEARD or fault.target not in (edge, EVERYBODY) or over_s is None:
            continue
        if fault.at_s - SLACK_S <= until_s <= over_s + SLACK_S:  # one such fault may follow another
            until_s = over_s + SLACK_S
    crashes = [f.at_s for f in world.scenario.faults if f.kind is FaultKind.CRASH and f.target == head]
    return any(left_s <= crash_s <= until_s for crash_s in crashes if until_s > left_s)


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
