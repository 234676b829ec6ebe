"""A subscription's machine as a test drives it: at rest on an edge, with its deduplicator, and what its head says."""

from __future__ import annotations

from typing import Any, TypeVar

from tidegate._core.attachment import SubscriptionTimes
from tidegate._core.delivery import Deduplicator
from tidegate._core.hold import Admission
from tidegate._core.intake import Intake
from tidegate._core.migration import SubscriptionMachine
from tidegate._core.moves import (
    Answer,
    Answered,
    Attach,
    Attached,
    MarkerArrived,
    Opened,
    Ordered,
    Release,
    Request,
    SubscriptionAction,
    SubscriptionEvent,
)
from tidegate._core.overlap import PlainLog
from tidegate_protocol.balancing.migrations import (
    MigrateCancel,
    MigrateOrder,
    MigrationAck,
    MigrationReport,
    MigrationStage,
)
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_protocol.messages import ControlMessage, SubscribeReply, SubscribeRequest, Subscription
from tidegate_protocol.names import marker_key

STAYED, MOVED, UNKNOWN = MigrationStage.STAYED, MigrationStage.MOVED, MigrationStage.UNKNOWN
REQUEST = SubscribeRequest(subscriber="s1", pattern="t.#", deadline_us=1_000_000)
Kind = TypeVar("Kind")


def only(actions: list[SubscriptionAction], kind: type[Kind]) -> Kind:
    found = [action for action in actions if isinstance(action, kind)]
    assert len(found) == 1, actions
    return found[0]


def none_of(actions: list[SubscriptionAction], kind: type[Any]) -> bool:
    return not any(isinstance(action, kind) for action in actions)


def reported(actions: list[SubscriptionAction]) -> MigrationReport:
    message = only(actions, Request).message
    assert isinstance(message, MigrationReport)
    return message


def granted(edge: str = "b0", number: int = 0) -> SubscribeReply:
    subscription = Subscription(subscriber="s1", number=number, pattern="t.#", deadline_us=1, expires_s=600)
    return SubscribeReply(subscription=subscription, edge=edge, url=f"amqp://{edge}", queue=f"out.s1.{number}")


def order(n: int = 1, **changes: Any) -> MigrateOrder:
    fields: dict[str, Any] = {
        "migration": f"h0~1~m{n}",
        "subscriber": "s1",
        "pattern": "t.#",
        "edge_from": "b0",
        "number_from": 0,
        "edge": "b1",
        "number": n,
        "url": "amqp://b1",
        "queue": f"out.s1.{n}",
        "head": "h0",
        "heads": ("h0",),
        "timeout_us": 5_000_000,
    }
    return MigrateOrder(**fields | changes)


def cancel(n: int = 1) -> MigrateCancel:
    return MigrateCancel(migration=f"h0~1~m{n}", subscriber="s1", pattern="t.#")


def collect(n: int = 7, edge: str = "b9", number: int = 5) -> CollectOrder:
    return CollectOrder(
        migration=f"h0~1~m{n}",
        subscriber="s1",
        pattern="t.#",
        edge=edge,
        number=number,
        url=f"amqp://{edge}",
        queue=f"out.s1.{number}",
        heads=("h0",),
        timeout_us=9_000_000,
    )


class Client:
    """A machine with its deduplicator, at rest on b0."""

    def __init__(self, prefetch: int = 100, linger_s: float = 0.0) -> None:
        self.now = 0.0
        self.deduplicator = Deduplicator(100)
        self.log = PlainLog()
        times = SubscriptionTimes(linger_s=linger_s)
        self.machine = SubscriptionMachine(REQUEST, prefetch, self.deduplicator.expected, times, self.log)
        asked = only(self.do(Opened()), Request)
        self.old = only(self.do(Answered(asked.key, granted())), Attach).slot
        self.do(Attached(self.old))
        assert self.machine.at_rest

    def do(self, event: SubscriptionEvent, after_s: float = 0.0) -> list[SubscriptionAction]:
        self.now += after_s
        actions = self.machine.handle(event, self.now)
        self.machine.validate()
        return actions

    def ask(self, message: ControlMessage) -> tuple[Any, list[SubscriptionAction]]:
        actions = self.do(Ordered(message, "head"))
        return only(actions, Answer).message, actions

    def begin(self, **changes: Any) -> int:
        """Order a migration and attach to the new queue; returns its slot."""
        answer, actions = self.ask(order(**changes))
        assert answer.stage is MigrationStage.ORDERED
        slot = only(actions, Attach).slot
        report = self.do(Attached(slot))
        assert reported(report).stage is MigrationStage.ATTACHED
        self.do(Answered(only(report, Request).key, MigrationAck(migration="h0~1~m1")))
        return slot

    def deliver(self, slot: int, message_id: str) -> tuple[Admission, list[SubscriptionAction]]:
        admission = self.machine.admit(slot, message_id, message_id)
        if admission in (Admission.PASS, Admission.WATCHED, Admission.COLLECTED):
            self.deduplicator.judge(message_id, self.now)
        actions = self.machine.progress(self.now) if admission is not Admission.PASS else []
        self.machine.validate()
        return admission, actions

    def mark(self, slot: int, head: str = "h0", n: int = 1) -> list[SubscriptionAction]:
        return self.do(MarkerArrived(slot, marker_key(f"h0~1~m{n}", head)))


class PlainClient(Client):
    """A client whose publishers send plain messages: what reached its application is `handed`."""

    def __init__(self, linger_s: float = 0.0) -> None:
        super().__init__(linger_s=linger_s)
        self.handed: list[str] = []
        self.dropped: list[str] = []
        self.intake = Intake[str](self.machine, self.hand, self.dropped.append, self._marked, self._progress)

    def _marked(self, event: MarkerArrived) -> None:
        self.carry_out(self.do(event))

    def _progress(self) -> None:
        self.carry_out(self.machine.progress(self.now))

    def hand(self, text: str, collected: bool = False) -> None:
        self.handed.append(text)
        if not collected:
            self.log.add(text.encode(), self.now)

    def comes(self, slot: int, *texts: str, pause_s: float = 1.0) -> None:
        for text in texts:
            self.now += pause_s
            self.intake.arrived(slot, "t", None, text, text.encode())

    def marked(self, slot: int, head: str = "h0") -> None:
        self.intake.arrived(slot, marker_key("h0~1~m1", head), None, "a marker")
        assert "a marker" in self.dropped

    def carry_out(self, actions: list[Any]) -> None:
        self.machine.validate()
        for action in actions:
            if isinstance(action, Release):
                self.intake.release(action)
