"""Nothing lost, nothing doubled, nothing out of order.

A message is *owed* to a subscription if it was published after the head granted the subscription (a grant means that
the routes are live) and before the subscription ended. Only what is owed is judged for loss and order: of what was
published earlier a subscriber may get some, by luck, and in an order that nobody promised.

What is lost, doubled or out of order says the judge (`tidegate_simulator.judging`); what is owed and what is excused is
decided here. A *life* of a client goes from its start to its crash.

A hostile publisher, which uses the ids of others, is owed nothing; those others are owed what they always are. Messages
of plain publishers carry no ids for the client to go by; `plain` says how they are judged.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate_agents.machine import Action, Event, MessageReceived, Reply, SendClient
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_protocol.messages import SubscribeReply, SubscribeRequest
from tidegate_protocol.topics import matches
from tidegate_simulator.judging import NAMED_MAX, Judge, Wrong, stream_of
from tidegate_simulator.scenario import FaultKind, SubscriberSpec

from . import view
from .base import Checker
from .patience import Patience
from .plain import PlainStreams
from .view import Tree

if TYPE_CHECKING:
    from tidegate_simulator.world import World


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


class Deliveries(Checker):
    """Follows who is owed what, and what each application gets."""

    name = "deliveries"

    def __init__(self) -> None:
        super().__init__()
        self._owed: dict[str, Owed] = {}
        self._streams: dict[str, tuple[int, tuple[Owed, ...]]] = {}
        """Per stream how many messages were published (sequences have no gaps), and whose pattern matches."""
        self._came: dict[str, Judge] = {}
        """Per subscriber everything it got."""
        self._in_turn: dict[str, Judge] = {}
        """Per subscriber that of it whose order is promised."""
        self._patience = Patience()

    def started(self, world: World) -> None:
        super().started(world)
        self._world = world
        self._tree = Tree(world.scenario)
        self._plain = PlainStreams(world)
        self._hostile = {one.name for one in world.scenario.publishers if one.claims is not None}
        faults = world.scenario.faults
        for spec in world.scenario.subscribers:
            crashes = [f.at_s for f in faults if f.kind is FaultKind.CLIENT_CRASH and f.target == spec.name]
            self._owed[spec.name] = Owed(spec, sorted(crashes))
            self._came[spec.name], self._in_turn[spec.name] = Judge(), Judge()

    # Owed

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        self._plain.stepped(actions)
        if isinstance(event, MessageReceived) and isinstance(event.message, SubscribeRequest):
            self._owed[event.message.subscriber].replaced |= event.message.unreachable is not None
        for action in actions:
            if isinstance(action, Reply) and isinstance(action.message, SubscribeReply):
                self._granted(broker, action.message, now)
            elif isinstance(action, SendClient) and isinstance(action.message, CollectOrder):
                self._owed[action.client].replaced = True
                self._patience.ordered(action.client, action.message, now)

    def _granted(self, head: str, reply: SubscribeReply, now: float) -> None:
        owed = self._owed[reply.subscription.subscriber]
        if owed.replaced and reply.edge != owed.edge:
            owed.replaced_s = now
        owed.edge = reply.edge
        if not owed.granted:
            owed.granted = True
            owed.unconfirmed = self._tree.behind(head, reply.awaiting)

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        if publisher in self._hostile:
            return
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
        owed, came, in_turn = self._owed[subscriber], self._came[subscriber], self._in_turn[subscriber]
        stream, sequence = stream_of(message_id)
        if self._hostile and stream.partition("~")[0] in self._hostile:
            return
        excused = False
        if self._plain.knows(stream):
            includes = owed.includes(stream, sequence)
            sequence = self._plain.counted(subscriber, owed.life(now), stream, sequence, includes)
            excused = self._plain.excused(subscriber, stream, now, message_id)
            message_id = f"{stream}:{sequence}"
            if includes and sequence >= self._streams[stream][0] and not excused:
                self.report(now, f"{subscriber} got more of {stream} than were published", Wrong.DOUBLED)
        life, before = owed.life(now), came.came(stream, sequence)
        if came.take(stream, sequence, life=life) is Wrong.DOUBLED and not excused:
            self.report(now, f"{subscriber} got {message_id} twice", Wrong.DOUBLED)
        # What was collected from an edge that had been away may come after newer ones, which came by another way
        # meanwhile; but nothing older may come after it, unless its client has waited for that in vain. Nobody can
        # promise the order of what an earlier life of the client had got already (RabbitMQ puts it back into the queue,
        # where it may meet repetitions that a cut link made); nor of what a limit on the queue had dropped, if a
        # publisher or a link that was cut sends it again; nor, for the same reason, of what waits to be collected: a
        # repetition comes through the new queue.
        if before or not owed.includes(stream, sequence) or published_s < owed.replaced_s or excused:
            return
        if view.was_dropped(self._world, subscriber, message_id):
            return
        key = (subscriber, life, stream)
        if not collected:
            self._patience.came(key, now)
        elif self._patience.is_over(key, sequence > in_turn.following(stream, life), now):
            return
        if in_turn.take(stream, sequence, life=life, collected=collected) is Wrong.OUT_OF_ORDER:
            following = in_turn.following(stream, life)
            self.report(now, f"{subscriber} got {message_id} after {stream}:{following - 1}", Wrong.OUT_OF_ORDER)

    # Lost

    def ended(self, world: World, now: float) -> None:
        for subscriber, owed in sorted(self._owed.items()):
            # What a limit on the queue of a subscriber that is too slow cost it, the agent gave up on purpose.
            excused = view.dropped(world, subscriber) | self._waiting(owed)
            for stream, first in sorted(owed.first.items()):
                if self._plain.repeats(stream) and self._plain.excused(subscriber, stream, now):
                    continue
                lost = self._came[subscriber].lost(stream, self._end(owed, stream), first)
                ids = (f"{stream}:{sequence}" for sequence in lost)
                missing = [identity for identity in ids if identity not in excused]
                if missing and not self._plain.raced(subscriber, stream, len(missing)):
                    named = ", ".join(missing[:NAMED_MAX])
                    self.report(now, f"{subscriber} never got {len(missing)} of {stream}: {named}", Wrong.LOST)

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
        following = self._in_turn[owed.spec.name].following(stream)
        return min(following, owed.end.get(stream, following))

    def _waiting(self, owed: Owed) -> frozenset[str]:
        """What waits for an application that takes less per second than it is sent, in its queue or its client. It is
        late, but not lost. Everybody else has had the time to get everything.
        """
        return frozenset() if owed.spec.takes_per_s is None else view.waiting_for(self._world, owed.spec.name)
