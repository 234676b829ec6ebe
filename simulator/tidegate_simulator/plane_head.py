"""The data plane of a simulated head: what its RabbitMQ would hold and do.

Publications come in through the publish exchange, those of a neighbouring head through an ingress exchange of its
own. Both are bound to the link queues by the patterns that the agent ordered, an ingress to every link but the one
that leads back. All of it outlives the head's process.

    publishers, neighbours → downlink (FIFO) → exchange → link queues → `links`

Decides nothing: which links and routes there are is the agent's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate_protocol.topics import matches

from .kernel import Kernel
from .links import Link, Message, Pipe
from .trace import Trace, pack_data

ROUTED_TOPICS_MAX: Final = 50_000
"""Topics whose targets are remembered; beyond it the memory starts anew."""
NOT_ENSURED: Final = "no shovel"

LinkMaker = Callable[[str, Pipe], Link]
"""Makes the link to a target over the head's uplink."""


class PublisherCount:
    """What one publisher sent on one topic since the last sample."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0.0


class HeadPlane:
    """Exchanges, routes, links, watched fences, and the counters that samples are made of."""

    def __init__(
        self,
        kernel: Kernel,
        trace: Trace,
        number: int,
        uplink_bytes_per_s: float | None,
        downlink_bytes_per_s: float | None,
        make_link: LinkMaker,
        make_marker: Callable[[str], Message],
    ) -> None:
        self._kernel = kernel
        self._record = trace.extend
        self._number = number
        self._uplink = Pipe(uplink_bytes_per_s)
        self._downlink = Pipe(downlink_bytes_per_s)
        self._make_link = make_link
        self._make_marker = make_marker
        self._routed: dict[str | None, dict[str, tuple[Link, ...]]] = {}
        """Per origin (None: a publisher) and topic the links that a message goes to."""
        self._fences: dict[tuple[str, str], None] = {}
        self.routes: dict[str, set[str]] = {}
        self.links: dict[str, Link] = {}
        self._dropped: dict[str, Link] = {}
        self.fence_arrived: Callable[[str], None] = _ignore
        self.messages_in = 0
        self.bytes_in = 0.0
        self.bytes_offered = 0.0
        self.publishers: dict[tuple[str, str], PublisherCount] = {}
        self.unrouted = 0

    # Messages

    def publish(self, publisher: str, message: Message) -> float:
        """A publisher's message has arrived over its connection. Returns when it will have been routed."""
        count = self.publishers.get((publisher, message.topic))
        if count is None:
            count = self.publishers[publisher, message.topic] = PublisherCount()
        count.messages += 1
        count.bytes += message.size_bytes
        return self._take(message, None)

    def forwarded(self, neighbour: str, message: Message) -> None:
        """A message has come over the link from a neighbouring head."""
        if message.id is None and (neighbour, message.topic) in self._fences:
            self.fence_arrived(message.topic)
        self._take(message, neighbour)

    def _take(self, message: Message, origin: str | None) -> float:
        self.messages_in += 1
        self.bytes_in += message.size_bytes
        kernel = self._kernel
        if not self._downlink.seconds_per_byte:
            self._route(message, origin)
            return kernel.now
        routed_s = self._downlink.through(kernel.now, message.size_bytes)
        kernel.at(routed_s, self._route_step, (message, origin))
        return routed_s

    def _route_step(self, argument: tuple[Message, str | None]) -> None:
        self._route(*argument)

    def _route(self, message: Message, origin: str | None) -> None:
        routed = self._routed.get(origin)
        links = routed.get(message.topic) if routed is not None else None
        if links is None:
            links = self._links_for(message.topic, origin)
        self._record(pack_data(b"h", self._kernel.now, self._number, message.index))
        if not links:
            self.unrouted += 1
            return
        self.bytes_offered += message.size_bytes * len(links)
        for link in links:
            link.send(message)

    def _links_for(self, topic: str, origin: str | None) -> tuple[Link, ...]:
        routed = self._routed.setdefault(origin, {})
        if len(routed) >= ROUTED_TOPICS_MAX:
            routed.clear()
        targets = [
            target
            for target in sorted(self.routes)
            if target != origin and any(matches(pattern, topic) for pattern in self.routes[target])
        ]
        routed[topic] = links = tuple(self.links[target] for target in targets)
        return links

    def publish_marker(self, key: str, targets: tuple[str, ...]) -> None:
        """Send to `targets`, or, without any, where the routes lead, behind all that was routed before."""
        message = self._make_marker(key)
        routed = {target: self._link(target) for target in targets}
        if not targets:
            routed = {link.target: link for link in self._links_for(message.topic, None)}
        self._record(pack_data(b"m", self._kernel.now, self._number, message.index))
        for target in sorted(routed):
            routed[target].send(message)

    # What the agent orders

    def ensure_link(self, target: str) -> None:
        self._link(target).start(NOT_ENSURED)
        self.routes.setdefault(target, set())

    def drop_link(self, target: str) -> None:
        """Unbind everything; what still waits is carried on until the queue is empty."""
        self.routes.pop(target, None)
        link = self.links.pop(target, None)
        if link is not None and not link.empty:
            self._dropped[target] = link
        self._routed.clear()

    def change_routes(self, target: str, add: tuple[str, ...], remove: tuple[str, ...]) -> None:
        self._link(target)
        patterns = self.routes.setdefault(target, set())
        patterns.update(add)
        patterns.difference_update(remove)
        self._routed.clear()

    @property
    def coming_in(self) -> bool:
        """Whether something is still on its way through the downlink."""
        return self._downlink.free_s > self._kernel.now

    def watch_fence(self, neighbour: str, key: str) -> None:
        self._fences[neighbour, key] = None

    def unwatch_fence(self, neighbour: str, key: str) -> None:
        self._fences.pop((neighbour, key), None)

    def adopted(self) -> dict[str, frozenset[str]]:
        """What a process that starts finds bound."""
        return {target: frozenset(self.routes[target]) for target in sorted(self.routes)}

    def _link(self, target: str) -> Link:
        link = self.links.get(target)
        if link is None:
            link = self._dropped.pop(target, None)
            if link is None:
                link = self._make_link(target, self._uplink)
                link.stop(NOT_ENSURED)
            self.links[target] = link
            self.routes.setdefault(target, set())
            self._routed.clear()
        return link


def _ignore(key: str) -> None:
    """Until somebody watches."""
