"""What goes wrong in a run, and when: the faults of a scenario brought about, and ended.

Each kind of fault is one pair of steps, its beginning and its end. Decides nothing about what brokers and clients make
of it. The operator, who drains edges and publishes insights, is here too: asking again until he is answered that an
edge is drained is all he does; an insight that gets lost is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_agents.machine import ReplyAddress
from tidegate_protocol.balancing.drains import DrainReply, DrainRequest
from tidegate_protocol.messages import ControlMessage

from .insights import insight_message
from .scenario import Fault, FaultKind, InsightSpec

if TYPE_CHECKING:
    from .world import World

OPERATOR: Final = "operator"
OPERATOR_PATIENCE_S: Final = 2.0
OPERATOR_ATTEMPTS_MAX: Final = 100
LINK_FAULT: Final = "link-down"
EDGE_FAULT: Final = "edge-down"


class Faults:
    """Brings about the faults of a scenario."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._operator = Operator(world)
        world.network.enter_client(OPERATOR, self._operator)
        self._down: dict[tuple[FaultKind, str], int] = {}
        """How many faults of one kind hit one target at the moment: the last one that ends ends it."""

    def schedule(self) -> None:
        for fault in self._world.scenario.faults:
            self._world.kernel.at(fault.at_s, self._begin, fault)
            if fault.until_s is not None and fault.kind not in (FaultKind.CLOCK, FaultKind.PUBLISHER_CUT):
                self._world.kernel.at(fault.until_s, self._end, fault)

        for number, insight in enumerate(self._world.scenario.insights):
            self._world.kernel.at(insight.at_s, self._publish, (number, insight))

    def _publish(self, argument: tuple[int, InsightSpec]) -> None:
        number, spec = argument
        message = insight_message(spec, self._world.head_config(spec.head, 0).cluster)
        self._world.network.request(OPERATOR, spec.head, message, f"insight {number}")

    def _begin(self, fault: Fault) -> None:
        world, name = self._world, fault.target
        self._note(fault, "begins")
        lasting = fault.until_s is not None
        key = (fault.kind, name)
        self._down[key] = self._down.get(key, 0) + 1
        match fault.kind:
            case FaultKind.CRASH:
                world.brokers[name].kill()
            case FaultKind.FREEZE:
                world.brokers[name].freeze()
            case FaultKind.EDGE_DOWN:
                world.brokers[name].kill()
                world.stop_links(name, EDGE_FAULT)
                world.edges[name].plane.go_down()
            case FaultKind.LINK_DOWN:
                world.stop_links(name, LINK_FAULT)
            case FaultKind.CONTROL:
                world.network.start_fault(fault)
            case FaultKind.CLOCK:
                world.clock_of(name).disturb(world.now, fault.amount, fault.drift)
            case FaultKind.CLIENT_CRASH:
                world.subscribers[name].crash()
            case FaultKind.CLIENT_CUT:
                world.subscribers[name].cut(lasting)
            case FaultKind.PUBLISHER_CUT:
                world.publishers[name].cut(fault.until_s)
            case FaultKind.DRAIN:
                self._operator.drain(name, True)

    def _end(self, fault: Fault) -> None:
        world, name = self._world, fault.target
        self._note(fault, "ends")
        key = (fault.kind, name)
        self._down[key] -= 1
        match fault.kind:
            case FaultKind.CONTROL:
                world.network.end_fault(fault)
                return
            case FaultKind.CLIENT_CUT:
                world.subscribers[name].mend()
                return
            case FaultKind.CLIENT_CRASH:
                if not self._down[key]:
                    world.subscribers[name].start()
                return
        if self._down[key]:
            return
        match fault.kind:
            case FaultKind.FREEZE:
                world.brokers[name].unfreeze()
            case FaultKind.LINK_DOWN:
                world.start_links(name, LINK_FAULT)
            case FaultKind.DRAIN:
                self._operator.drain(name, False)
            case FaultKind.EDGE_DOWN:
                world.edges[name].plane.go_up()
                world.start_links(name, EDGE_FAULT)
                self._restart(name)
            case FaultKind.CRASH:
                self._restart(name)

    def _restart(self, name: str) -> None:
        """A process comes back when nothing keeps it down any more; an edge not before it joins."""
        edge = self._world.edge_specs.get(name)
        if not self.keeps_down(name) and (edge is None or edge.joins_s <= self._world.now):
            self._world.brokers[name].start()

    def keeps_down(self, name: str) -> bool:
        """Whether a broker can't be started at the moment."""
        return any(self._down.get((kind, name)) for kind in (FaultKind.CRASH, FaultKind.EDGE_DOWN))

    def _note(self, fault: Fault, what: str) -> None:
        self._world.record.event(self._world.now, f"fault {fault.kind} {fault.target} {what}")


class Operator:
    """Asks a head to drain an edge, or to use it again, until it is answered; and once more if an answer shows that an
    older request has overtaken the last one.
    """

    incarnation = 1

    def __init__(self, world: World) -> None:
        self._world = world
        self._wanted: dict[str, bool] = {}
        self._answered: set[str] = set()
        """Edges whose head has agreed to what is wanted of them."""
        self._asked: dict[str, str] = {}
        self._count = 0

    def drain(self, edge: str, draining: bool) -> None:
        self._wanted[edge] = draining
        self._answered.discard(edge)
        self._ask((edge, draining, 0))

    def _ask(self, argument: tuple[str, bool, int]) -> None:
        edge, draining, attempts = argument
        done = edge in self._answered or self._wanted[edge] is not draining
        if done or attempts >= OPERATOR_ATTEMPTS_MAX:
            return
        self._count += 1
        self._asked[str(self._count)] = edge
        head = self._world.edge_specs[edge].head
        request = DrainRequest(edge=edge, draining=draining)
        self._world.network.request(OPERATOR, head, request, str(self._count))
        self._world.kernel.after(OPERATOR_PATIENCE_S, self._ask, (edge, draining, attempts + 1))

    def listens_at(self, head: str) -> bool:
        return False

    def ordered(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None:
        raise AssertionError("nobody orders an operator about")

    def answered(self, request: str, message: ControlMessage) -> None:
        edge = self._asked.pop(request, None)
        if edge is None or not isinstance(message, DrainReply):
            return
        if message.draining is self._wanted[edge]:
            self._answered.add(edge)
        elif edge in self._answered:
            self.drain(edge, self._wanted[edge])
