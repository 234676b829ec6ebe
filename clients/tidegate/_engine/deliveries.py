"""The deliveries of a running subscription, and its acknowledgements.

    deliver → intake → inbox → application → settled → acknowledge in bulk

Invariants:

- what the pattern does not match is dropped before anything else sees it;
- every other delivery goes through the intake, with one exception for speed: while no gap is being measured, deliveries
  of the slot that the machine calls plain go straight to the inbox, because the machine would let them pass;
- an acknowledgement goes to the channel that its delivery came by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._core.gap import GapMeter
from .._core.identity import parse_identity
from .._core.inbox import ACK_DELAY_S, Inbox
from .._core.intake import Intake
from .._core.migration import NO_SLOT, SubscriptionMachine
from .._core.moves import MARKER_START, MarkerArrived, Release
from .._core.overlap import fingerprint
from .data import SlotConsumer
from .runtime import Deliver, Runtime

Delivery = tuple[SlotConsumer, int, str, bytes, str | None, Mapping[str, Any] | None, bool, str | None]
"""A delivery kept back: the consumer that brought it, tag, topic, body, message id, headers, redelivered, account."""


class Deliveries:
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
        self.intake = Intake[Delivery](machine, self._take, self._drop, on_marker, progress)
        self._runtime = runtime
        self._machine = machine
        self._inbox = inbox
        self._consumers = consumers
        self._on_change = on_change
        """Called for each message that was put into the inbox."""
        self._on_release = on_release
        self.gap = GapMeter()
        """Measures the pause in delivery around a move."""
        self._plain = NO_SLOT
        """The slot whose deliveries need no thought."""
        self._wake = runtime.signal()
        self._batch = runtime.signal()
        self._acks_coming = False
        self._stopping = False
        self._ended = False

    def watch(self) -> None:
        """After each step of the machine: deliveries take the short way if nothing moves and nothing is measured."""
        self._plain = NO_SLOT if self.gap.watching else self._machine.plain

    def release(self, order: Release) -> None:
        """Deliver what was kept back, in its order."""
        self.intake.release(order)
        self._on_release()

    # Deliveries

    def receiver(self, consumer: SlotConsumer) -> Deliver:
        """What takes the deliveries of a consumer. Called for every message, so the common case is short."""
        receive, settled, on_change, now = self._inbox.receive, self.settled, self._on_change, self._runtime.now
        slot, ledger, unusual, marker_start = consumer.number, consumer.ledger, self._unusual, MARKER_START
        known, is_stray = self._inbox.topics.known, self._inbox.topics.is_stray

        def deliver(
            tag: int,
            topic: str,
            body: bytes,
            message_id: str | None,
            headers: Mapping[str, Any] | None,
            redelivered: bool,
            account: str | None,
        ) -> None:
            if topic not in known and is_stray(topic):
                # Before anything else looks at it: its id may be made up, too.
                ledger.last = tag
                ledger.settle(tag)
                settled()
            elif slot != self._plain or topic.startswith(marker_start):
                unusual((consumer, tag, topic, body, message_id, headers, redelivered, account))
            elif receive(ledger, tag, topic, body, message_id, headers, redelivered, now(), False, account):
                on_change()
            else:
                settled()

        return deliver

    def _unusual(self, delivery: Delivery) -> None:
        """A delivery while something moves, or a marker."""
        consumer, _, topic, body, message_id, headers, _, account = delivery
        identity = self._inbox.identify(account, message_id, headers)
        plain = parse_identity(identity) is None
        content = fingerprint(topic, body, message_id, headers, account) if plain else None
        self.intake.arrived(consumer.number, topic, identity, delivery, content)
        self.watch()

    def _take(self, delivery: Delivery, collected: bool) -> None:
        """Judge a delivery, and deliver it if it is new."""
        consumer, tag, topic, body, message_id, headers, redelivered, account = delivery
        ledger, now = consumer.ledger, self._runtime.now()
        if self._inbox.receive(ledger, tag, topic, body, message_id, headers, redelivered, now, collected, account):
            if self.gap.watching:
                self.gap.delivered(now)
            self._on_change()
        else:
            self.settled()

    def _drop(self, delivery: Delivery) -> None:
        """A delivery that is not for the application."""
        consumer, tag = delivery[:2]
        consumer.ledger.settle(tag)
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
            # Before looking, so that everything settled from here on wakes us again.
            self._acks_coming = False
            for consumer in list(self._consumers.values()):
                await consumer.acknowledge()
