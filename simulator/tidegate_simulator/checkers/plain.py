"""How messages of plain AMQP publishers are judged, which a client knows by nothing but their content.

A stream whose contents never repeat is judged by its ids, which only the checker sees. Of a stream whose contents
repeat after n messages nobody can tell one copy from another, so it is judged as the application sees it: contents have
to come in turn, and each delivery that has the content whose turn it is counts as the next message.

The client promises this for moves. It cannot know a repetition that is not a move's (`tidegate._core.overlap`). So
nothing doubled or out of order is reported of a message that RabbitMQ delivers again as it was not acknowledged, nor of
a stream and a subscriber once a link or an edge was cut, the publisher lost its connection, or something was collected.
Nothing lost is excused by that, unless contents repeat. Moves between clusters promise nothing doubled only where
contents do not repeat; and a move may cost one message of a stream whose contents repeat, where a copy comes so close
to the marker that the client takes it for one that raced with it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from tidegate_agents.machine import Action, DisconnectPublisher, SendClient
from tidegate_protocol.balancing.migrations import MigrateOrder
from tidegate_protocol.balancing.places import CollectOrder
from tidegate_simulator.scenario import FaultKind

from . import view

if TYPE_CHECKING:
    from tidegate_simulator.world import World


class PlainStreams:
    """The streams of all plain publishers, and what excuses a repetition."""

    def __init__(self, world: World) -> None:
        self._world = world
        plain = [spec for spec in world.scenario.publishers if spec.contents is not None]
        self._contents = {f"{spec.name}:{spec.topic}": spec.contents or 0 for spec in plain}
        self._due: dict[tuple[str, int, str], int] = {}
        """Per subscriber, life and stream the sequence whose turn it is."""
        self._cut_s: dict[str, float] = {}
        """Per publisher since when repetitions may come; under the empty name: of every publisher."""
        self._abroad: set[str] = set()
        """Subscribers that were ordered to another cluster."""
        self._moves: dict[str, set[str]] = {}
        """Per subscriber the moves that were ordered."""
        self._gone: set[str] = set()
        """Publishers that a head has disconnected, and subscribers that were told to collect."""
        for fault in world.scenario.faults:
            if fault.kind in (FaultKind.LINK_DOWN, FaultKind.EDGE_DOWN):
                self._since("", fault.at_s)
            elif fault.kind is FaultKind.PUBLISHER_CUT:
                self._since(fault.target, fault.at_s)

    def _since(self, publisher: str, at_s: float) -> None:
        self._cut_s[publisher] = min(at_s, self._cut_s.get(publisher, inf))

    def stepped(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendClient(client=client, message=CollectOrder()):
                    self._gone.add(client)
                case SendClient(client=client, message=MigrateOrder(migration=migration, heads=heads)):
                    self._moves.setdefault(client, set()).add(migration)
                    if len(heads) > 1:
                        self._abroad.add(client)
                case DisconnectPublisher(publisher=publisher):
                    self._gone.add(publisher.partition("~")[0])

    def knows(self, stream: str) -> bool:
        return stream in self._contents

    def repeats(self, stream: str) -> bool:
        return bool(self._contents.get(stream))

    def excused(self, subscriber: str, stream: str, now: float, message_id: str = "") -> bool:
        """Whether a repetition of a stream, or of one message of it, proves nothing."""
        publisher = stream.partition(":")[0]
        if not self._gone.isdisjoint((subscriber, publisher)):
            return True
        if any(self._cut_s.get(name, inf) <= now for name in ("", publisher)):
            return True
        if not self.repeats(stream):
            return view.was_redelivered(self._world, subscriber, message_id)
        # Nobody can say of which message a content that repeats is a repetition.
        unclear = view.dropped(self._world, subscriber) | view.redelivered(self._world, subscriber)
        return subscriber in self._abroad or bool(unclear)

    def raced(self, subscriber: str, stream: str, missing: int) -> bool:
        """Whether as few are missing of a stream whose contents repeat as moves may have cost."""
        return self.repeats(stream) and missing <= len(self._moves.get(subscriber, ()))

    def counted(self, subscriber: str, life: int, stream: str, sequence: int, owed: bool) -> int:
        """As which message of its stream a delivery counts."""
        contents = self._contents[stream]
        if not owed or not contents:
            return sequence
        key = (subscriber, life, stream)
        due = self._due.get(key, sequence)
        if (due - sequence) % contents:
            due = sequence
        self._due[key] = due + 1
        return due
