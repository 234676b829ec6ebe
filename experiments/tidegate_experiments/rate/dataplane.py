"""What agents order on the data plane, carried out in rate mode: routes, output queues, marker keys, markers.

Everything is done at the moment at which it is ordered, after what led to it. Invariants: what changes for an edge, be
it a rate or a queue, wakes it first; a marker goes to all queues that its key is bound to, and waits there as long as
anything else that arrives at the same moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import output_queue

from .planes import EdgePlane

if TYPE_CHECKING:
    from .brokers import Broker
    from .world import FlowWorld


class HeadFlows:
    """The data plane of a head. Links have no shovels here, and fences concern no flow."""

    def __init__(self, data: DataPlane, head: Broker) -> None:
        self._data = data
        self._head = head

    def change_routes(self, target: str, add: tuple[str, ...], remove: tuple[str, ...]) -> None:
        self._data.change_routes(self._head, target, add, remove)

    def publish_marker(self, key: str, targets: tuple[str, ...]) -> None:
        self._data.publish_marker(self._head, key)

    def ensure_link(self, target: str) -> None:
        pass

    def drop_link(self, target: str) -> None:
        pass

    def watch_fence(self, neighbour: str, key: str) -> None:
        pass

    def unwatch_fence(self, neighbour: str, key: str) -> None:
        pass


class EdgeFlows:
    """The data plane of an edge. A limit on a queue concerns no flow."""

    def __init__(self, data: DataPlane, edge: Broker) -> None:
        self._data = data
        self._edge = edge

    def declare(self, subscription: Subscription) -> None:
        self._edge.wake()
        self._edge.plane.touch()
        self._data.add_queue(self._edge, subscription)

    def delete(self, name: str) -> None:
        self._edge.wake()
        self._edge.plane.touch()
        self._data.remove_queue(self._edge, name)

    def bind_marker(self, name: str, key: str) -> bool:
        self._data.bind((self._edge.name, name), key)
        return True

    def unbind_marker(self, name: str, key: str) -> None:
        self._data.unbind((self._edge.name, name), key)

    def limit(self, name: str, messages_max: int | None) -> None:
        pass


class DataPlane:
    """What flows where, and the marker keys bound to the queues of all edges."""

    def __init__(self, world: FlowWorld) -> None:
        self._world = world
        self._kernel = world.kernel
        self._sources = world.sources
        self._reach = world.reach
        self._ways_s: dict[tuple[str, str], float] = {}
        self._markers: dict[str, dict[tuple[str, str], None]] = {}
        """Marker keys: the edges and queues they are bound to."""
        self._keys: dict[tuple[str, str], set[str]] = {}
        """The other way round."""

    # Routes

    def change_routes(self, head: Broker, target: str, add: tuple[str, ...], remove: tuple[str, ...]) -> None:
        for topic, edge in sorted(self._reach.change(head.name, target, add, remove)):
            broker = self._world.brokers[edge]
            for pattern in broker.plane.uplink.patterns:
                if topic in self._sources.topics_of(pattern):
                    self._inflow_changes((broker, pattern))
        if head.head is not None:
            head.head.routes_changed()

    def _inflow_changes(self, argument: tuple[Broker, str]) -> None:
        broker, pattern = argument
        uplink = broker.plane.uplink
        if uplink.of_pattern(pattern):
            broker.wake()
            uplink.set_rate(pattern, *self._inflow(broker.plane, pattern), self._kernel.now)
            broker.plane.touch()

    def _inflow(self, plane: EdgePlane, pattern: str) -> tuple[float, float]:
        name = plane.spec.name
        arriving = (s for s in self._sources.of_pattern(pattern) if self._reach.reaches(s.topic, s.head, name))
        inflow = self._sources.inflow(arriving, plane.spec, self._kernel.now)
        return inflow.per_s, inflow.message_bytes

    # Output queues, and the marker keys bound to them

    def add_queue(self, broker: Broker, subscription: Subscription) -> None:
        """An output queue is there; what arrives for it changes when its sources do."""
        uplink, pattern, now = broker.plane.uplink, subscription.pattern, self._kernel.now
        groups = uplink.of_pattern(pattern)
        if groups:
            per_s, message_bytes = groups[0].per_s, groups[0].message_bytes
        else:
            per_s, message_bytes = self._inflow(broker.plane, pattern)
            for at_s in self._sources.changes_s(pattern, broker.plane.spec, now):
                self._kernel.at(at_s, self._inflow_changes, (broker, pattern))
        queue = output_queue(subscription.subscriber, subscription.number)
        allowed_s = subscription.deadline_us / 1e6 - self._way_s(broker, pattern)
        uplink.add(queue, pattern, allowed_s, per_s, message_bytes, now)

    def _way_s(self, broker: Broker, pattern: str) -> float:
        """From the farthest publisher to a subscriber of this edge, if nothing waits."""
        key = (broker.name, pattern)
        if key not in self._ways_s:
            spec = broker.plane.spec
            self._ways_s[key] = self._sources.worst_way_s(pattern, spec) + spec.client_delay_s
        return self._ways_s[key]

    def remove_queue(self, broker: Broker, queue: str) -> None:
        broker.plane.uplink.remove(queue, self._kernel.now)
        for key in sorted(self._keys.get((broker.name, queue), ())):
            self.unbind((broker.name, queue), key)

    def bind(self, at: tuple[str, str], key: str) -> None:
        """Bind a marker key to a queue of an edge."""
        self._markers.setdefault(key, {})[at] = None
        self._keys.setdefault(at, set()).add(key)

    def unbind(self, at: tuple[str, str], key: str) -> None:
        keys = self._keys.get(at, set())
        if key not in keys:
            return
        keys.discard(key)
        del self._markers[key][at]
        if not keys:
            del self._keys[at]
        if not self._markers[key]:
            del self._markers[key]

    # Markers

    def publish_marker(self, head: Broker, key: str) -> None:
        pattern = f"{key.rpartition('.')[0]}.*"
        for edge, _ in sorted(self._markers.get(pattern, ())):
            broker = self._world.brokers[edge]
            way_s = self._sources.distances.delay_s(head.name, edge)
            self._kernel.after(way_s, self._marker_waits, (pattern, broker, head.name))

    def _marker_waits(self, argument: tuple[str, Broker, str]) -> None:
        pattern, broker, head = argument
        takes_s = broker.plane.uplink.wait_s(self._kernel.now) + broker.plane.spec.client_delay_s
        self._kernel.after(takes_s, self._marker_arrives, (pattern, broker.name, head))

    def _marker_arrives(self, argument: tuple[str, str, str]) -> None:
        self._world.clients.marker(*argument)
