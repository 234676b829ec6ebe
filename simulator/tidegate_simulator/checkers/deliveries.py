"""Nothing lost, nothing doubled, nothing out of order.

A message is *owed* to a subscription if it was published after the head granted the subscription (a grant means that
the routes are live) and before the subscription ended. Only what is owed is judged for loss and order: of what was
published earlier a subscriber may get some, by luck, and in an order that nobody promised.

A *life* of a client goes from its start to its crash. What a client without memory gets again, because its
predecessor had not acknowledged it, it can't know to be a repetition; so doubles and order are judged within a life.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate._collector import PATIENCE_SHARE
from tidegate_agents.machine import Action, Event, MessageReceived, Reply, SendClient
from tidegate_protocol.balancing import CollectOrder
from tidegate_protocol.messages import SubscribeReply, SubscribeRequest
from tidegate_protocol.topics import matches
from tidegate_simulator.scenario import FaultKind, SubscriberSpec

from . import view
from .base import Checker
from .view import Tree

if TYPE_CHECKING:
    from tidegate_simulator.world import World

NAMED_MAX = 5
"""How many messages a violation names."""


@dataclass(slots=True)
class Owed:
    """What one subscription is owed, as known so far."""

    spec: SubscriberSpec
    crashes_s: list[float]
    granted: bool = False
    unconfirmed: frozenset[str] = frozenset()
    """Heads whose routes were not confirmed when it was granted."""
    replaced: bool = False
    """Whether something may be waiting elsewhere: it gave an unreachable edge up, or was told to collect."""
    edge: str = ""
    replaced_s: float = float("-inf")
    """When it was last given another edge instead."""
    first: dict[str, int] = field(default_factory=dict)
    """Per stream (publisher and topic) the first sequence that it must get."""
    end: dict[str, int] = field(default_factory=dict)
    """Per stream the first sequence after its end, for a subscriber that left."""

    def life(self, now: float) -> int:
        return bisect_right(self.crashes_s, now)

    def includes(self, stream: str, sequence: int) -> bool:
        return stream in self.first and self.first[stream] <= sequence < self.end.get(stream, sequence + 1)


@dataclass(frozen=True, slots=True)
class Collection:
    """An order to collect what waits elsewhere."""

    id: str
    ordered_s: float
    patience_s: float


class Deliveries(Checker):
    """Follows who is owed what, and what each application gets."""

    name = "deliveries"

    def __init__(self) -> None:
        super().__init__()
        self._owed: dict[str, Owed] = {}
        self._streams: dict[str, tuple[int, tuple[Owed, ...]]] = {}
        """Per stream how many messages were published (sequences have no gaps), and whose pattern matches."""
        self._lives: dict[str, dict[str, int]] = {}
        """Per subscriber the messages it got, with the life in which it got them last."""
        self._last: dict[tuple[str, int, str], int] = {}
        """Per subscriber, life and stream the highest sequence that came in order."""
        self._came_s: dict[tuple[str, int, str], float] = {}
        """The same: when something last came through the queue in use."""
        self._collections: dict[str, Collection] = {}
        """Per subscriber the last one that was ordered."""
        self._impatient: set[tuple[str, int, str]] = set()
        """Where something was collected before what precedes it had come, after the time that is waited for that."""

    def started(self, world: World) -> None:
        super().started(world)
        self._world = world
        self._tree = Tree(world.scenario)
        faults = world.scenario.faults
        for spec in world.scenario.subscribers:
            crashes = [f.at_s for f in faults if f.kind is FaultKind.CLIENT_CRASH and f.target == spec.name]
            self._owed[spec.name] = Owed(spec, sorted(crashes))
            self._lives[spec.name] = {}

    # Owed

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        if isinstance(event, MessageReceived) and isinstance(event.message, SubscribeRequest):
            self._owed[event.message.subscriber].replaced |= event.message.unreachable is not None
        for action in actions:
            if isinstance(action, Reply) and isinstance(action.message, SubscribeReply):
                self._granted(broker, action.message, now)
            elif isinstance(action, SendClient) and isinstance(action.message, CollectOrder):
                self._owed[action.client].replaced = True
                self._collect(action.client, action.message, now)

    def _collect(self, subscriber: str, order: CollectOrder, now: float) -> None:
        known = self._collections.get(subscriber)
        if known is None or known.id != order.migration:
            self._collections[subscriber] = Collection(order.migration, now, PATIENCE_SHARE * order.timeout_us / 1e6)

    def _granted(self, head: str, reply: SubscribeReply, now: float) -> None:
        owed = self._owed[reply.subscription.subscriber]
        if owed.replaced and reply.edge != owed.edge:
            owed.replaced_s = now
        owed.edge = reply.edge
        if not owed.granted:
            owed.granted = True
            owed.unconfirmed = self._tree.behind(head, reply.awaiting)

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        stream, sequence = stream_of(message_id)
        if stream in self._streams:
            wanted = self._streams[stream][1]
        else:
            wanted = tuple(owed for _, owed in sorted(self._owed.items()) if matches(owed.spec.pattern, topic))
        self._streams[stream] = (sequence + 1, wanted)
        for owed in wanted:
            left = owed.spec.leaves_s is not None and now >= owed.spec.leaves_s
            if stream in owed.first:
                if left:
                    owed.end.setdefault(stream, sequence)
            elif owed.granted and not left and self._covered(owed, publisher):
                owed.first[stream] = sequence

    def _covered(self, owed: Owed, publisher: str) -> bool:
        """Whether the grant holds for what this publisher sends.

        A grant that named heads as unconfirmed promised nothing about them yet; it does from the moment the routes are
        there, and from then on for good.
        """
        head = view.head_of(self._world, publisher)
        return head not in owed.unconfirmed or view.route_exists(self._world, self._tree, head, owed.spec)

    # Doubled, out of order

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        owed, had = self._owed[subscriber], self._lives[subscriber]
        life, before = owed.life(now), had.get(message_id)
        had[message_id] = life
        if before == life:
            self.report(now, f"{subscriber} got {message_id} twice", "doubled")
        # What was collected from an edge that had been away may come after newer ones, which came by another way
        # meanwhile; but nothing older may come after it. Nobody can promise the order of what an earlier life of the
        # client had got already (RabbitMQ puts it back into the queue, where it may meet repetitions that a cut link
        # made); nor of what a limit on the queue had dropped, if a publisher or a link that was cut sends it again;
        # nor, for the same reason, of what waits to be collected: a repetition comes through the new queue.
        stream, sequence = stream_of(message_id)
        if before is not None or not owed.includes(stream, sequence) or published_s < owed.replaced_s:
            return
        if view.was_dropped(self._world, subscriber, message_id):
            return
        key = (subscriber, life, stream)
        last = self._last.get(key, -1)
        if collected and self._gave_up_waiting(key, sequence > last + 1, now):
            return
        if not collected:
            self._came_s[key] = now
        if sequence < last and not collected:
            self.report(now, f"{subscriber} got {message_id} after {stream}:{last}", "out-of-order")
        self._last[key] = max(last, sequence)

    def _gave_up_waiting(self, key: tuple[str, int, str], ahead: bool, now: float) -> bool:
        """Whether what is collected comes though something before it may come later. A client waits for that, but not
        for ever if the queue in use brings nothing (docs/sdk.md); then nobody promises an order.
        """
        collection = self._collections.get(key[0])
        if ahead and collection is not None:
            stalled_s = now - max(self._came_s.get(key, 0.0), collection.ordered_s)
            if stalled_s >= collection.patience_s:
                self._impatient.add(key)
        return key in self._impatient

    # Lost

    def ended(self, world: World, now: float) -> None:
        for subscriber, owed in sorted(self._owed.items()):
            # What a limit on the queue of a subscriber that is too slow cost it, the agent gave up on purpose.
            had = self._lives[subscriber].keys() | view.dropped(world, subscriber) | self._waiting(owed)
            for stream, first in sorted(owed.first.items()):
                ids = (f"{stream}:{sequence}" for sequence in range(first, self._end(owed, stream)))
                missing = [identity for identity in ids if identity not in had]
                if missing:
                    named = ", ".join(missing[:NAMED_MAX])
                    self.report(now, f"{subscriber} never got {len(missing)} of {stream}: {named}", "lost")

    def _end(self, owed: Owed, stream: str) -> int:
        """The first sequence that is not owed any more.

        Who leaves gives up what is still waiting or on its way. So of such a subscriber only holes are judged: what is
        missing although something newer of the same stream came in order. Not even those if it had something to
        collect: what waits there is fetched later, if there is a later.
        """
        if owed.spec.leaves_s is None:
            return self._streams[stream][0]
        if owed.replaced:
            return 0
        lives = range(len(owed.crashes_s) + 1)
        newest = max(self._last.get((owed.spec.name, life, stream), -1) for life in lives)
        return min(newest + 1, owed.end.get(stream, newest + 1))

    def _waiting(self, owed: Owed) -> frozenset[str]:
        """What waits for an application that takes less per second than it is sent, in its queue or its client. It is
        late, but not lost. Everybody else has had the time to get everything.
        """
        return frozenset() if owed.spec.takes_per_s is None else view.waiting_for(self._world, owed.spec.name)


def stream_of(message_id: str) -> tuple[str, int]:
    """Publisher and topic as one text, and the sequence."""
    stream, _, digits = message_id.rpartition(":")
    return stream, int(digits)
