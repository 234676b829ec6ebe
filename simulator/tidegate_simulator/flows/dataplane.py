"""What agents order on the data plane, carried out in rate mode: routes, output queues, marker keys, markers.

Everything is done at the moment at which it is ordered, after what led to it. What always holds: what changes for an
edge, be it a rate or a queue, wakes it first; a marker goes to all queues that its key is bound to, and waits there as
long as anything else that arrives at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate_agents.machine import (
    Action,
    BindMarker,
    ChangeRoutes,
    DeclareOutput,
    DeleteOutput,
    Event,
    MarkerBound,
    MarkerPublished,
    OutputDeclared,
    OutputDeleted,
    PublishMarker,
    RoutesChanged,
    UnbindMarker,
)
from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import output_queue

from ..kernel import Kernel
from .brokers import Broker
from .clients import Clients
from .planes import EdgePlane, Reach
from .sources import Sources


class DataPlane:
    """The data planes of all brokers, as far as agents order anything there."""

    def __init__(
        self,
        kernel: Kernel,
        sources: Sources,
        reach: Reach,
        brokers: Mapping[str, Broker],
        clients: Clients,
        feed: Callable[[Broker, Event], None],
        wake: Callable[[Broker], None],
    ) -> None:
        self._kernel = kernel
        self._sources = sources
        self._reach = reach
        self._brokers = brokers
        self._clients = clients
        self._feed = feed
        self._wake = wake
        self._ways_s: dict[tuple[str, str], float] = {}
        self._markers: dict[str, dict[tuple[str, str], None]] = {}
        """Marker keys: the edges and queues they are bound to."""
        self._keys: dict[tuple[str, str], set[str]] = {}
        """The other way round."""

    def order(self, broker: Broker, action: Action) -> None:
        """Have an action carried out, after what is under way at this moment."""
        self._kernel.after(0.0, self._carry_out, (broker, action))

    def _carry_out(self, argument: tuple[Broker, Action]) -> None:
        broker, action = argument
        match action:
            case ChangeRoutes():
                self._change_routes(broker, action)
            case PublishMarker(key):
                self._publish_marker(broker, key)
                self._feed(broker, MarkerPublished(key))
            case DeclareOutput(subscription):
                self._wake(broker)
                broker.plane.touch()
                self.add_queue(broker, subscription)
                self._feed(broker, OutputDeclared(subscription))
            case DeleteOutput(subscription):
                self._delete_queue(broker, subscription)
                self._feed(broker, OutputDeleted(subscription.subscriber, subscription.number))
            case BindMarker(subscriber, number, key):
                at = (broker.name, output_queue(subscriber, number))
                self._markers.setdefault(key, {})[at] = None
                self._keys.setdefault(at, set()).add(key)
                self._feed(broker, MarkerBound(subscriber, number, key))
            case UnbindMarker(subscriber, number, key):
                self._unbind((broker.name, output_queue(subscriber, number)), key)
            case _:
                pass  # links have no shovels here; fences, limits and disconnections concern no flow

    # Routes

    def _change_routes(self, head: Broker, change: ChangeRoutes) -> None:
        changed = self._reach.change(head.name, change.target, change.add, change.remove)
        for topic, edge in sorted(changed):
            broker = self._brokers[edge]
            for pattern in broker.plane.uplink.patterns:
                if topic in self._sources.topics_of(pattern):
                    self._inflow_changes((broker, pattern))
        if head.head is not None:
            head.head.routes_changed()
        self._feed(head, RoutesChanged(change.change_id))

    def _inflow_changes(self, argument: tuple[Broker, str]) -> None:
        broker, pattern = argument
        uplink = broker.plane.uplink
        if uplink.of_pattern(pattern):
            self._wake(broker)
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

    def _delete_queue(self, broker: Broker, subscription: Subscription) -> None:
        self._wake(broker)
        broker.plane.touch()
        queue = output_queue(subscription.subscriber, subscription.number)
        broker.plane.uplink.remove(queue, self._kernel.now)
        for key in sorted(self._keys.get((broker.name, queue), ())):
            self._unbind((broker.name, queue), key)

    def _unbind(self, at: tuple[str, str], key: str) -> None:
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

    def _publish_marker(self, head: Broker, key: str) -> None:
        pattern = f"{key.rpartition('.')[0]}.*"
        for edge, _ in sorted(self._markers.get(pattern, ())):
            broker = self._brokers[edge]
            way_s = self._sources.tree.way_s(head.name, broker.head_name) + broker.delay_s
            self._kernel.after(way_s, self._marker_waits, (pattern, broker, head.name))

    def _marker_waits(self, argument: tuple[str, Broker, str]) -> None:
        pattern, broker, head = argument
        takes_s = broker.plane.uplink.wait_s(self._kernel.now) + broker.plane.spec.client_delay_s
        self._kernel.after(takes_s, self._marker_arrives, (pattern, broker.name, head))

    def _marker_arrives(self, argument: tuple[str, str, str]) -> None:
        self._clients.marker(*argument)
