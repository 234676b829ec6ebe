"""What a running subscription does with each delivery, and its acknowledgements.

    deliver → marker? → machine.admit → inbox → application → settled → acknowledge in bulk

What always holds:

- every delivery goes through `machine.admit`, except that those of the slot that the machine calls plain, while no gap
  is being measured, skip the call: their answer is known;
- an acknowledgement goes to the channel that its delivery came by;
- the machine hears of every delivery that was not simply passed, after it was judged (`progress`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ._data import SlotConsumer
from ._gap import GapMeter
from ._hold import Admission
from ._inbox import ACK_DELAY_S, Inbox
from ._migration import NO_SLOT, SubscriptionMachine
from ._moves import MARKER_START, MarkerArrived, Release, parse_marker
from ._runtime import Deliver, Runtime

Delivery = tuple[SlotConsumer, int, str, bytes, str | None, Mapping[str, Any] | None, bool]
"""A delivery kept back: the consumer that brought it, tag, topic, body, message id, headers, redelivered."""


class Intake:
    """Deliveries of one subscription, from its consumers to its inbox."""

    def __init__(
        self,
        runtime: Runtime,
        machine: SubscriptionMachine,
        inbox: Inbox,
        consumers: Mapping[int, SlotConsumer],
        on_change: Callable[[], None],
        on_release: Callable[[], None],
        on_marker: Callable[[MarkerArrived], None],
        progress: Callable[[], None],
    ) -> None:
        self.held = 0
        """How many deliveries were kept back."""
        self._runtime = runtime
        self._machine = machine
        self._inbox = inbox
        self._consumers = consumers
        self._on_change = on_change
        """Called for each message that was put into the inbox."""
        self._on_release = on_release
        self._on_marker = on_marker
        self._progress = progress
        self._gap = GapMeter()
        self._plain = NO_SLOT
        """The slot whose deliveries need no thought."""
        self._wake = runtime.signal()
        self._batch = runtime.signal()
        self._acks_coming = False
        self._stopping = False
        self._ended = False

    @property
    def gap_s(self) -> float:
        """The longest pause in delivery around the last move."""
        return self._gap.gap_s

    @property
    def measures_gap(self) -> bool:
        """Whether a pause that comes now would still count."""
        return self._gap.watching

    # Moves

    def began(self, now: float) -> None:
        """A migration has begun."""
        self._gap.begin(now)

    def moved(self, moved: bool, now: float) -> None:
        """The migration has ended."""
        self._gap.end(moved, now)

    def watch(self) -> None:
        """After each step of the machine: deliveries take the short way if nothing moves and nothing is measured."""
        self._plain = NO_SLOT if self._gap.watching else self._machine.plain

    def release(self, order: Release) -> None:
        """Deliver what was kept back, in its order."""
        for item in order.items:
            self._take(item.payload, item.collected)
        for item in order.surplus:
            consumer, tag = item.payload[:2]
            consumer.ledger.settle(tag)
            self.settled()
        self._on_release()

    # Deliveries

    def receiver(self, consumer: SlotConsumer) -> Deliver:
        """What takes the deliveries of a consumer. Called for every message, so the common case is short."""
        receive, settled, on_change, now = self._inbox.receive, self.settled, self._on_change, self._runtime.now
        slot, ledger, unusual, marker_start = consumer.number, consumer.ledger, self._unusual, MARKER_START

        def deliver(
            tag: int,
            topic: str,
            body: bytes,
            message_id: str | None,
            headers: Mapping[str, Any] | None,
            redelivered: bool,
        ) -> None:
            if slot != self._plain or topic.startswith(marker_start):
                unusual((consumer, tag, topic, body, message_id, headers, redelivered))
            elif receive(ledger, tag, topic, body, message_id, headers, redelivered, now()):
                on_change()
            else:
                settled()

        return deliver

    def _unusual(self, delivery: Delivery) -> None:
        """A delivery while something moves, or a marker."""
        consumer, tag, topic, _, message_id, _, _ = delivery
        if parse_marker(topic) is not None:
            consumer.ledger.settle(tag)
            self.settled()
            self._on_marker(MarkerArrived(consumer.number, topic))
            return
        admission = self._machine.admit(consumer.number, message_id, delivery)
        if admission is Admission.STRAY:
            return
        if admission is Admission.HELD:
            self.held += 1
        else:
            self._take(delivery, admission is Admission.COLLECTED)
        if admission is Admission.PASS:
            self.watch()
        else:
            self._progress()

    def _take(self, delivery: Delivery, collected: bool) -> None:
        """Judge a delivery, and deliver it if it is new."""
        consumer, tag, topic, body, message_id, headers, redelivered = delivery
        now = self._runtime.now()
        if self._inbox.receive(consumer.ledger, tag, topic, body, message_id, headers, redelivered, now, collected):
            if self._gap.watching:
                self._gap.delivered(now)
            self._on_change()
        else:
            self.settled()

    # Acknowledgements

    def settled(self) -> None:
        """Something was put among the settled.

        Cheap, because it is called for every message, from any thread.
        """
        if not self._acks_coming:
            self._acks_coming = True
            self._wake.set()
        elif self._inbox.settled_count % self._inbox.ack_batch == 0:
            self._batch.set()

    def hurry(self) -> None:
        """The subscription ends: wait for no batch any more."""
        self._stopping = True
        self._wake.set()
        self._batch.set()

    def end(self) -> None:
        self._ended = True
        self.hurry()

    async def acknowledge(self) -> None:
        """Send acknowledgements in bulk until the end. What is left then, each consumer sends before it leaves."""
        while not self._ended:
            await self._wake.wait()
            if self._inbox.settled_count < self._inbox.ack_batch and not self._stopping:
                await self._batch.wait(ACK_DELAY_S)
            # Before looking, so that whatever is settled from here on wakes us again.
            self._acks_coming = False
            for consumer in list(self._consumers.values()):
                await consumer.acknowledge()
