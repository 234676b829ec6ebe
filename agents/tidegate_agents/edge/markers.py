"""Marker keys bound to output queues of an edge, for as long as migrations may need them.

A marker key is bound to the old queue of a migration and to the new one, so that what the head sends under it comes
through both, behind everything that was sent before. Invariant: a head that asked for a binding is answered once
RabbitMQ has it, or is refused; every binding is taken back some time later, whatever became of its migration; their
number is bounded.

A queue counts as *migrating* from the moment its marker is asked for until the queue is gone, a session ended here, or
no migration takes that long: what a client holds back meanwhile looks like backlog and is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate_protocol.balancing.markers import MarkerBind, MarkerReady
from tidegate_protocol.messages import ControlMessage
from tidegate_protocol.names import output_queue
from tidegate_protocol.rendering import refusals

from ..config import REPLIES_JOINED_MAX
from ..kit.dispatch import Dispatch
from ..machine import BindMarker, MarkerBound, ReplyAddress, UnbindMarker
from .context import EdgeContext

Waiting = tuple[ReplyAddress | None, ControlMessage]


@dataclass(slots=True)
class _Marker:
    subscriber: str
    number: int
    until_s: float = 0.0
    """The binding."""
    migrating_until_s: float = 0.0
    binding: bool = False
    waiting: list[Waiting] = field(default_factory=list)
    """The answers to give, each with its address, when it is bound."""


class EdgeMarkers:
    """The marker bindings of one edge."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context
        balancing = context.config.balancing
        # Longer than any migration may take, so that no binding is taken back too early.
        self._life_s = max(balancing.session_timeout_s, 2.0 * balancing.migration_timeout_s)
        self._migration_s = balancing.migration_timeout_s
        self._markers: dict[tuple[str, str], _Marker] = {}
        self.migrating: frozenset[str] = frozenset()
        """The queues that are in migration."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(MarkerBound, self.on_bound)
        dispatch.on_failure(BindMarker, self._binding_failed)
        dispatch.checks.append(self.validate)

    def on_bind(self, message: MarkerBind, reply_to: ReplyAddress | None) -> None:
        """The head wants the markers of a migration to reach the old queue too."""
        answer = MarkerReady(subscriber=message.subscriber, number=message.number, key=message.key)
        self.bind(message.subscriber, message.number, message.key, [(reply_to, answer)])

    def bind(self, subscriber: str, number: int, key: str, waiting: Iterable[Waiting]) -> None:
        """Bind a key, again if it was bound before: the queue may have expired and come back since."""
        at = (output_queue(subscriber, number), key)
        marker = self._markers.get(at)
        if marker is None:
            if len(self._markers) >= self._context.config.pending_max:
                full = refusals.limit("pending_max", self._context.config.pending_max)
                self._context.refuse([address for address, _ in waiting], full)
                return
            marker = self._markers[at] = _Marker(subscriber, number)
        marker.until_s = self._context.now + self._life_s
        marker.migrating_until_s = self._context.now + self._migration_s
        marker.waiting = [*marker.waiting, *waiting][-REPLIES_JOINED_MAX:]
        if not marker.binding:
            marker.binding = True
            self._context.do(BindMarker(subscriber, number, key))
        self._count()

    def on_bound(self, event: MarkerBound) -> None:
        """RabbitMQ has the binding."""
        marker = self._markers.get((output_queue(event.subscriber, event.number), event.key))
        if marker is None:
            return
        marker.binding = False
        waiting, marker.waiting = marker.waiting, []
        for address, answer in waiting:
            self._context.reply(address, answer)

    def _binding_failed(self, action: BindMarker, problem: str) -> None:
        at = (output_queue(action.subscriber, action.number), action.key)
        marker = self._markers.pop(at, None)
        if marker is not None:
            addresses = [address for address, _ in marker.waiting]
            self._context.refuse(addresses, refusals.not_bound(at[1], at[0], problem))
        self._count()

    def forget(self, queue: str) -> None:
        """The queue is gone, and its bindings with it."""
        for at in [at for at in self._markers if at[0] == queue]:
            addresses = [address for address, _ in self._markers.pop(at).waiting]
            self._context.refuse(addresses, refusals.no_output(queue))
        self._count()

    def settle(self) -> None:
        """A session ended here: its queues are as they will be. The bindings stay until their time is over."""
        for marker in self._markers.values():
            marker.migrating_until_s = self._context.now
        self._count()

    def expire(self) -> None:
        """Take back the bindings whose time is over, and judge the queues whose migration must be over by now."""
        over = sorted(at for at, marker in self._markers.items() if marker.until_s <= self._context.now)
        for at in over:
            marker = self._markers.pop(at)
            addresses = [address for address, _ in marker.waiting]
            self._context.refuse(addresses, refusals.not_bound_in_time(at[1], at[0]))
            self._context.do(UnbindMarker(marker.subscriber, marker.number, at[1]))
        self._count()

    def _count(self) -> None:
        now = self._context.now
        self.migrating = frozenset(
            queue for (queue, _), marker in self._markers.items() if marker.migrating_until_s > now
        )

    def validate(self) -> None:
        """Raise AssertionError if somebody waits for a binding that nobody makes, or there are too many."""
        assert len(self._markers) <= self._context.config.pending_max
        for at, marker in self._markers.items():
            assert marker.binding or not marker.waiting, f"nobody binds {at}"
            assert at[0] == output_queue(marker.subscriber, marker.number), at
        assert self.migrating <= {queue for queue, _ in self._markers}
