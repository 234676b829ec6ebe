"""The order of judging: what a running subscription does with each delivery, for every kind of client.

    arrived → marker? → machine.admit → take, keep back or drop → machine.progress

A driver says how a delivery is taken (judged as new or repeated, and handed over) and how it is dropped (acknowledged
without the application). The engine of the SDK, the simulated clients and the lean clients are drivers.

Invariants:

- every delivery goes through `machine.admit`. A driver that knows the answer (`Admission.PASS`) may skip the call;
- the machine hears of every delivery that was not simply passed, after it was taken or dropped (`progress`);
- deliveries that were kept back are taken in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from .hold import Admission
from .migration import SubscriptionMachine
from .moves import MarkerArrived, Release, parse_marker

Delivery = TypeVar("Delivery")


class Intake(Generic[Delivery]):
    """Deliveries of one subscription, from its consumers to its application."""

    def __init__(
        self,
        machine: SubscriptionMachine,
        take: Callable[[Delivery, bool], None],
        drop: Callable[[Delivery], None],
        on_marker: Callable[[MarkerArrived], None],
        progress: Callable[[], None],
    ) -> None:
        """`take` gets a delivery and whether it was collected from an edge that had been away."""
        self.held = 0
        """How many deliveries were kept back."""
        self._machine = machine
        self._take = take
        self._drop = drop
        self._on_marker = on_marker
        self._progress = progress

    def arrived(
        self, slot: int, topic: str, identity: str | None, delivery: Delivery, content: bytes | None = None
    ) -> None:
        """A delivery has come through `slot`. `content` is the fingerprint of a plain message."""
        if parse_marker(topic) is not None:
            self._drop(delivery)
            self._on_marker(MarkerArrived(slot, topic))
        else:
            self.admitted(self._machine.admit(slot, identity, delivery, content), delivery)

    def admitted(self, admission: Admission, delivery: Delivery) -> None:
        """Do with a delivery what the machine said of it."""
        if admission is Admission.STRAY:
            return
        if admission is Admission.HELD:
            self.held += 1
        elif admission is Admission.SURPLUS:
            self._drop(delivery)
        else:
            self._take(delivery, admission is Admission.COLLECTED)
        if admission is not Admission.PASS:
            self._progress()

    def release(self, order: Release) -> None:
        """Take what was kept back, in its order; drop what the old queue had brought."""
        for item in order.items:
            self._take(item.payload, item.collected)
        for item in order.surplus:
            self._drop(item.payload)
