"""At rest everything is where it belongs: every client on one edge, one queue for each, no route too many or too few.

Also at rest: nothing is under way in any machine, and no machine's memory has grown with what happened rather than
with what there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set as AbstractSet
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tidegate_agents.machine import Action, Event, Send, SendClient
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.decisions import Decision, Removed
from tidegate_protocol.messages import OutputRemove
from tidegate_protocol.names import output_queue
from tidegate_protocol.topics import covers
from tidegate_simulator.scenario import EVERYBODY, Fault, FaultKind, SubscriberSpec

from . import view
from .base import Checker
from .sessions import SLACK_S
from .view import Place, Tree

if TYPE_CHECKING:
    from tidegate_simulator.world import World

MEMORY_BASE: Final = 300
MEMORY_PER_CLIENT: Final = 60
MEMORY_PER_BROKER: Final = 60
"""How many entries a machine may hold, in all its tables together, story aside. About three times what is usual: a
table that is never cleared passes it in a schedule in which much happens."""
_DEAF: Final = frozenset({FaultKind.CRASH, FaultKind.FREEZE, FaultKind.EDGE_DOWN})
"""What keeps an edge from hearing what it is told, besides a bad connection."""
_NOT_COUNTED: Final = frozenset({"story", "_log", "config", "_config"})
"""The story and the log of plain messages have bounds of their own; a configuration is given, not grown."""

_LEAVES: Final = (str, float, int, bool, type(None))
"""Most of what is found: it holds nothing."""
_SEQUENCES: Final = (list, set, frozenset, deque, tuple)


class OnePlaceEach(Checker):
    """Every client is attached to one queue, and there is no other queue of its; links carry what is needed."""

    name = "not-at-rest"

    def __init__(self) -> None:
        super().__init__()
        self._sent_abroad: dict[str, tuple[str, float]] = {}
        """Per subscriber the head that last ordered it to another cluster, and when."""
        self._to_remove: dict[Place, list[float]] = {}
        """Per queue when its head ordered it to be deleted, as long as that was not confirmed."""

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case SendClient(message=MigrateOrder(head=head, subscriber=subscriber)) if head != broker:
                    self._sent_abroad[subscriber] = (broker, now)
                case Send(to=edge, message=OutputRemove(subscriber=subscriber, number=number)):
                    self._to_remove.setdefault((edge, output_queue(subscriber, number)), []).append(now)

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        match decision:
            case Removed(subscriber=subscriber, number=number, edge=edge):
                self._to_remove.pop((edge, output_queue(subscriber, number)), None)

    def ended(self, world: World, now: float) -> None:
        for spec in world.scenario.subscribers:
            if spec.leaves_s is not None:
                self._left(world, spec, spec.leaves_s, now)
            elif spec.takes_per_s is None or not view.waiting_for(world, spec.name):
                # A slow application may have had too little time for what waits for it.
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
        queues = [place for place in view.queues_of(world, spec.name) if not self._forgotten(world, place, left_s)]
        if queues:
            self.report(now, f"{spec.name} has left, but has the queues {queues}", "orphan")

    def _forgotten(self, world: World, place: Place, left_s: float) -> bool:
        """Whether this queue was to be deleted, its edge could not hear that, and the head crashed before it could:
        only the head knew, and its client has left and can't be asked. The queue expires.
        """
        edge = place[0]
        (head,) = [one.head for one in world.scenario.edges if one.name == edge]
        orders_s = self._to_remove.get(place, [])
        for crash_s in _crashes_s(world, head):
            if crash_s < left_s or any(ordered_s > crash_s for ordered_s in orders_s):
                continue
            # Where the edge was down when its client left, the head may have known without having said so.
            known_s = [*_orders_of_run(world, head, crash_s, orders_s), *_left_while_down(world, edge, left_s)]
            if known_s and crash_s <= _deaf_until_s(world, head, edge, min(known_s)):
                return True
        return False

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
        if markers:
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


def _crashes_s(world: World, broker: str) -> list[float]:
    faults = world.scenario.faults
    return sorted(fault.at_s for fault in faults if (fault.kind, fault.target) == (FaultKind.CRASH, broker))


def _crashed(world: World, broker: str, since_s: float, until_s: float) -> bool:
    return any(since_s <= at_s <= until_s for at_s in _crashes_s(world, broker))


def _orders_of_run(world: World, head: str, crash_s: float, orders_s: list[float]) -> list[float]:
    """Those of the run of a head that ended with this crash."""
    before_s = max((at_s for at_s in _crashes_s(world, head) if at_s < crash_s), default=0.0)
    return [ordered_s for ordered_s in orders_s if before_s < ordered_s <= crash_s]


def _left_while_down(world: World, edge: str, left_s: float) -> list[float]:
    down = [f for f in world.scenario.faults if (f.kind, f.target) == (FaultKind.EDGE_DOWN, edge)]
    return [left_s] if any(f.until_s is not None and f.at_s <= left_s <= f.until_s for f in down) else []


def _deaf_until_s(world: World, head: str, edge: str, since_s: float) -> float:
    """Until when an edge could not be counted on to hear its head, if it could not at that moment. One fault may follow
    another.
    """
    until_s = since_s
    for fault in sorted(world.scenario.faults, key=lambda fault: fault.at_s):
        over_s = fault.until_s
        if over_s is not None and over_s >= since_s and fault.at_s <= until_s and _is_between(fault, head, edge):
            until_s = max(until_s, over_s + SLACK_S)
    return until_s


def _is_between(fault: Fault, head: str, edge: str) -> bool:
    if fault.kind is FaultKind.CONTROL:
        return fault.target in (head, edge, EVERYBODY)
    return fault.kind in _DEAF and fault.target == edge


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
        if isinstance(one, _LEAVES) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, _SEQUENCES):
            count += len(one)
            to_visit += one
        elif isinstance(one, Mapping):
            count += len(one)
            to_visit += one.values()
        elif type(one).__module__.startswith(("tidegate_agents", "tidegate.")):
            to_visit += _fields(one)
    return count


def _fields(one: object) -> list[object]:
    """The values of all fields of an object that count."""
    kind: Any = type(one)
    found = [getattr(one, name) for name in _slots(kind) if hasattr(one, name)]
    return found + [value for name, value in getattr(one, "__dict__", {}).items() if name not in _NOT_COUNTED]


@cache
def _slots(kind: type) -> tuple[str, ...]:
    names = (name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
    return tuple(name for name in names if name not in _NOT_COUNTED)
