"""EOM, the overlay manager of an edge: it owns the output queues on its RabbitMQ and does what the head asks.

Invariants:

- an output counts as there once RabbitMQ has confirmed it, and no longer once RabbitMQ has confirmed that it
  is gone; the detector follows the outputs that are there, and nothing else;
- preparing and removing may be repeated at will: repetitions are answered together;
- no output is made, adopted or kept that the rules don't allow, whatever the head says: a head may be older, or lie;
- an output for a migration is ready once its marker key is bound as well;
- RabbitMQ knows best. An output that its listing shows twice in a row and we don't know is adopted; an output that it
  lacks twice in a row is gone (a queue expires when its subscriber stays away too long). Once is not enough: a listing
  may be older than a change that is already confirmed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

from tidegate_protocol.balancing.markers import MarkerBind
from tidegate_protocol.decisions import DropReason, OutputListed, OutputOutcome, SubscriptionRevoked
from tidegate_protocol.messages import (
    REGISTRY_PAGE_MAX,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    OutputRemoved,
    RegistryPage,
    RegistryRequest,
    Subscription,
)
from tidegate_protocol.names import output_queue
from tidegate_protocol.rendering import refusals
from tidegate_protocol.rights import may_subscribe

from ..kit.dispatch import Dispatch
from ..kit.outbox import joined
from ..kit.subscriptions import RegistryDigest, key_of, registry_digest
from ..load.detector import Detector
from ..machine import (
    DeclareOutput,
    DeleteOutput,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    ReplyAddress,
)
from .context import EdgeContext
from .drops import EdgeDrops
from .markers import EdgeMarkers


class EdgeOutputs:
    """The output queues of one edge, by their names."""

    def __init__(self, context: EdgeContext, detector: Detector, markers: EdgeMarkers, drops: EdgeDrops) -> None:
        self._context = context
        self._detector = detector
        self._markers = markers
        self._drops = drops
        self._outputs: dict[str, Subscription] = {}
        self._sorted: list[str] = []
        self.digest = RegistryDigest()
        self._declaring: dict[str, tuple[Subscription, list[ReplyAddress]]] = {}
        self._marker_wanted: dict[str, str] = {}
        """Of the queues being declared: the marker key to be bound once they are there."""
        self._deleting: dict[str, list[ReplyAddress]] = {}
        self._doubted: dict[str, Subscription | None] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(OutputPrepare, self.on_prepare)
        dispatch.on_message(OutputRemove, self.on_remove)
        dispatch.on_message(RegistryRequest, self.on_registry_request)
        dispatch.on_message(MarkerBind, self.on_marker_bind)
        dispatch.on_event(OutputDeclared, self.on_declared)
        dispatch.on_event(OutputDeleted, self.on_deleted)
        dispatch.on_event(OutputsListed, self.on_listed)
        dispatch.on_failure(DeclareOutput, self._declaring_failed)
        dispatch.on_failure(DeleteOutput, self._deleting_failed)
        dispatch.checks.append(self.validate)

    def __len__(self) -> int:
        return len(self._outputs)

    def __iter__(self) -> Iterator[Subscription]:
        """The subscriptions whose queues are there, in the order of the queues' names."""
        return (self._outputs[name] for name in self._sorted)

    # What the head asks for

    def on_prepare(self, message: OutputPrepare, reply_to: ReplyAddress | None) -> None:
        subscription = message.subscription
        queue = output_queue(*key_of(subscription))
        known = self._outputs.get(queue)
        new = known is None and queue not in self._declaring
        judgement = may_subscribe(subscription.subscriber, subscription.pattern, self._context.rules)
        if not judgement.allowed:
            self._context.refuse(reply_to, refusals.not_allowed(judgement))
        elif known is not None and known.pattern != subscription.pattern and queue not in self._deleting:
            self._context.refuse(reply_to, refusals.other_pattern(queue, known.pattern))
        elif new and (self._context.draining or self._context.stopping):
            self._context.refuse(reply_to, refusals.takes_nothing_new(self._context.config.edge))
        elif new and len(self._outputs) + len(self._declaring) >= self._context.config.outputs_max:
            self._context.refuse(reply_to, refusals.limit("outputs_max", self._context.config.outputs_max))
        elif new and len(self._declaring) >= self._context.config.pending_max:
            self._context.refuse(reply_to, refusals.limit("pending_max", self._context.config.pending_max))
        else:
            # Declared even if it is known: it may have expired since the last listing, and declaring is
            # idempotent.
            before, replies = self._declaring.get(queue, (None, []))
            self._declaring[queue] = (subscription, joined(replies, reply_to))
            self._doubted.pop(queue, None)
            if message.marker is not None:
                self._marker_wanted[queue] = message.marker
            if before != subscription or queue in self._deleting:
                self._context.do(DeclareOutput(subscription))

    def on_remove(self, message: OutputRemove, reply_to: ReplyAddress | None) -> None:
        queue = output_queue(message.subscriber, message.number)
        known = self._declaring[queue][0] if queue in self._declaring else self._outputs.get(queue)
        if known is None:
            self._context.reply(reply_to, self._removed(message.subscriber, message.number))
            return
        first = queue not in self._deleting or queue in self._declaring
        self._deleting[queue] = joined(self._deleting.get(queue, []), reply_to)
        self._doubted.pop(queue, None)
        if first:
            self._context.do(DeleteOutput(known))

    def on_registry_request(self, message: RegistryRequest, reply_to: ReplyAddress | None) -> None:
        start = bisect_right(self._sorted, message.after) if message.after is not None else 0
        names = self._sorted[start : start + REGISTRY_PAGE_MAX]
        page = RegistryPage(
            edge=self._context.config.edge,
            digest=self.digest.text,
            subscriptions=tuple(self._outputs[name] for name in names),
            after=names[-1] if start + REGISTRY_PAGE_MAX < len(self._sorted) else None,
        )
        self._context.reply(reply_to, page)

    def on_marker_bind(self, message: MarkerBind, reply_to: ReplyAddress | None) -> None:
        queue = output_queue(message.subscriber, message.number)
        if queue in self._outputs:
            self._markers.on_bind(message, reply_to)
        else:
            self._context.refuse(reply_to, refusals.no_output(queue))

    # What RabbitMQ says

    def on_declared(self, event: OutputDeclared) -> None:
        subscription = event.subscription
        queue = output_queue(*key_of(subscription))
        self.put(subscription)
        wanted, replies = self._declaring.get(queue, (None, []))
        if wanted == subscription:
            del self._declaring[queue]
            marker = self._marker_wanted.pop(queue, None)
            ready = OutputReady(subscription=subscription, queue=queue)
            if marker is None:
                self._context.reply(replies, ready)
            else:
                self._markers.bind(*key_of(subscription), marker, [(address, ready) for address in replies])

    def on_deleted(self, event: OutputDeleted) -> None:
        queue = output_queue(event.subscriber, event.number)
        self._drops.lost(queue, DropReason.QUEUE_DELETED, event.waiting)
        self._drop(queue)
        self._context.reply(self._deleting.pop(queue, []), self._removed(event.subscriber, event.number))

    def on_listed(self, event: OutputsListed) -> None:
        listed = {output_queue(*key_of(subscription)): subscription for subscription in event.outputs}
        busy = self._declaring.keys() | self._deleting.keys()
        doubted: dict[str, Subscription | None] = {}
        for queue in sorted((listed.keys() | self._outputs.keys()) - busy):
            seen = listed.get(queue)
            if seen == self._outputs.get(queue):
                continue
            if queue not in self._doubted or self._doubted[queue] != seen:
                doubted[queue] = seen
            elif seen is not None and self._ends(queue, seen):
                continue
            elif seen is not None:
                self.put(seen)
                self._context.decide(OutputListed(queue, OutputOutcome.ADOPTED))
            else:
                # The head learns it from the digest of the next hello: a message of its own could overtake the
                # answer to a later request for the same queue, and unbind what is in use again.
                load = self._detector.queue(queue)
                self._drop(queue)
                self._context.decide(OutputListed(queue, OutputOutcome.GONE))
                self._drops.lost(queue, DropReason.QUEUE_GONE, 0 if load is None else round(load.depth))
        self._doubted = doubted

    def _declaring_failed(self, action: DeclareOutput, problem: str) -> None:
        queue = output_queue(*key_of(action.subscription))
        wanted, replies = self._declaring.get(queue, (None, []))
        if wanted == action.subscription:
            del self._declaring[queue]
            self._marker_wanted.pop(queue, None)
            self._context.refuse(replies, refusals.not_declared(queue, problem))

    def _deleting_failed(self, action: DeleteOutput, problem: str) -> None:
        queue = output_queue(*key_of(action.subscription))
        replies = self._deleting.pop(queue, [])
        self._context.refuse(replies, refusals.not_deleted(queue, problem))

    def revoke(self) -> int:
        """Delete every output that the rules don't allow; say how many. Its head learns it from the next hello, and its
        subscriber from its head.
        """
        wanted = {queue: subscription for queue, (subscription, _) in self._declaring.items()}
        every = {**self._outputs, **wanted}
        return sum(self._ends(queue, every[queue]) for queue in sorted(every))

    def _ends(self, queue: str, subscription: Subscription) -> bool:
        """Whether the rules don't allow this output, which is deleted then."""
        context = self._context
        judgement = may_subscribe(subscription.subscriber, subscription.pattern, context.rules)
        if judgement.allowed or (queue in self._deleting and queue not in self._declaring):
            return False
        _, waiting = self._declaring.pop(queue, (None, []))
        self._marker_wanted.pop(queue, None)
        context.refuse(waiting, refusals.not_allowed(judgement))
        self._deleting.setdefault(queue, [])
        context.do(DeleteOutput(subscription))
        context.decide(
            SubscriptionRevoked(subscription.subscriber, subscription.pattern, context.config.edge, judgement.verdict)
        )
        return True

    def put(self, subscription: Subscription) -> None:
        """The output queue of this subscription is there."""
        queue = output_queue(*key_of(subscription))
        if queue in self._outputs:
            self.digest.remove(self._outputs[queue])
        else:
            insort(self._sorted, queue)
        self._outputs[queue] = subscription
        self.digest.add(subscription)
        self._detector.track(subscription)

    def _drop(self, queue: str) -> None:
        subscription = self._outputs.pop(queue, None)
        if subscription is not None:
            self.digest.remove(subscription)
            self._sorted.remove(queue)
            self._detector.forget(queue)
            self._markers.forget(queue)

    def _removed(self, subscriber: str, number: int) -> OutputRemoved:
        return OutputRemoved(edge=self._context.config.edge, subscriber=subscriber, number=number)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant."""
        assert self._sorted == sorted(self._outputs), "the order of the queues' names"
        assert self.digest.text == registry_digest(self._outputs.values()), "the digest"
        assert self.digest.count == len(self._outputs), "the count"
        for queue, subscription in self._outputs.items():
            assert queue == output_queue(*key_of(subscription)), queue
        for queue, (subscription, _) in self._declaring.items():
            assert queue == output_queue(*key_of(subscription)), queue
        assert self._marker_wanted.keys() <= self._declaring.keys(), "a marker for a queue that nobody declares"
        self._detector.validate(self._outputs)
