"""EOM, the overlay manager of an edge: the machine that an edge's process runs.

It owns the output queues on its RabbitMQ, tells its head every period that it is there, and does what the
head asks: prepare an output queue, remove one, list them. What always holds:

- an output counts as there once RabbitMQ has confirmed it, and no longer once RabbitMQ has confirmed that it
  is gone;
- preparing and removing may be repeated at will: repetitions are answered together;
- RabbitMQ knows best. What its listing shows twice in a row and we don't know is adopted; what it lacks twice
  in a row is gone (a queue expires when its subscriber stays away too long). Once is not enough: a listing
  may be older than a change that is already confirmed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

from tidegate_protocol.messages import (
    REGISTRY_PAGE_MAX,
    ControlMessage,
    EdgeGoodbye,
    EdgeHello,
    EdgeWelcome,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    OutputRemoved,
    Refusal,
    RefusalReason,
    RegistryPage,
    RegistryRequest,
    Subscription,
)
from tidegate_protocol.names import output_queue

from .config import REPLIES_JOINED_MAX, STORY_LENGTH_MAX, EdgeConfig
from .machine import (
    Action,
    ActionFailed,
    Decision,
    DeclareOutput,
    DeleteOutput,
    Event,
    MessageReceived,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    Record,
    Reply,
    ReplyAddress,
    ReplyReceived,
    Send,
    SetTimer,
    Started,
    StopRequested,
    TimerFired,
    Undeliverable,
)
from .registry import RegistryDigest, key_of, registry_digest

HELLO_TIMER = "hello"


class EdgeAgent:
    """The agent of one edge: `handle(event, now)` says what is to be done."""

    def __init__(self, config: EdgeConfig) -> None:
        self.config = config
        self.draining = config.draining
        self.head_heard_s: float | None = None
        """When the head last answered; None if it never did."""
        self.story: deque[Decision] = deque(maxlen=STORY_LENGTH_MAX)
        self.ignored = 0
        self._period_s = config.period_s
        self._stopping = False
        self._outputs: dict[str, Subscription] = {}
        self._sorted: list[str] = []
        self._digest = RegistryDigest()
        self._declaring: dict[str, tuple[Subscription, list[ReplyAddress]]] = {}
        self._deleting: dict[str, list[ReplyAddress]] = {}
        self._doubted: dict[str, Subscription | None] = {}
        self._hello_id: str | None = None
        self._last_request = 0
        self._out: list[Action] = []

    @property
    def outputs(self) -> tuple[Subscription, ...]:
        """The subscriptions whose queues are there, in the order of the queues' names."""
        return tuple(self._outputs[name] for name in self._sorted)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        match event:
            case Started():
                for subscription in event.outputs:
                    self._put(subscription)
                self._hello()
            case MessageReceived(message, reply_to):
                self._receive(message, reply_to)
            case ReplyReceived(request_id, message):
                self._answered(request_id, message, now)
            case TimerFired():
                self._hello()
            case OutputDeclared(subscription):
                self._declared(subscription)
            case OutputDeleted(subscriber, number):
                self._drop(output_queue(subscriber, number))
                waiting = self._deleting.pop(output_queue(subscriber, number), [])
                self._reply(waiting, self._removed(subscriber, number))
            case OutputsListed(outputs):
                self._listed(outputs)
            case ActionFailed(action, problem):
                self._failed(action, problem)
            case StopRequested():
                self._stopping = True
                self._out.append(Send(self.config.head, EdgeGoodbye(edge=self.config.edge)))
            case Undeliverable():
                pass  # the head is not there; the next hello will show when it is back
            case _:
                self.ignored += 1
        actions, self._out = self._out, []
        return actions

    # Hello

    def drain(self, draining: bool = True) -> None:
        """Take no new subscription from now on, or take some again. The next hello tells the head."""
        self.draining = draining

    def _hello(self) -> None:
        if self._stopping:
            return
        config = self.config
        self._last_request += 1
        self._hello_id = f"{config.edge}~{config.incarnation}~{self._last_request}"
        hello = EdgeHello(
            edge=config.edge,
            cluster=config.cluster,
            client_url=config.client_url,
            link_url=config.link_url,
            capacity=config.capacity,
            registry_count=self._digest.count,
            registry_digest=self._digest.text,
            draining=self.draining,
        )
        self._out.append(Send(config.head, hello, self._hello_id))
        self._out.append(SetTimer(HELLO_TIMER, self._period_s))

    def _answered(self, request_id: str, message: ControlMessage, now: float) -> None:
        if request_id != self._hello_id:
            return
        self.head_heard_s = now
        if isinstance(message, EdgeWelcome):
            self._period_s = message.period_s
        elif isinstance(message, Refusal):
            self._decide(Decision("hello-refused", self.config.edge, message.message))

    # What the head asks for

    def _receive(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None:
        match message:
            case OutputPrepare():
                self._prepare(message.subscription, reply_to)
            case OutputRemove():
                self._remove(message, reply_to)
            case RegistryRequest():
                self._reply([reply_to], self._page(message.after))
            case _:
                self.ignored += 1
                self._refuse([reply_to], RefusalReason.INVALID, f"an edge takes no {message.kind}")

    def _prepare(self, subscription: Subscription, reply_to: ReplyAddress | None) -> None:
        queue = output_queue(*key_of(subscription))
        known = self._outputs.get(queue)
        new = known is None and queue not in self._declaring
        if known is not None and known.pattern != subscription.pattern and queue not in self._deleting:
            self._refuse([reply_to], RefusalReason.CONFLICT, f"{queue} is bound to {known.pattern}")
        elif new and (self.draining or self._stopping):
            self._refuse([reply_to], RefusalReason.NOT_READY, "this edge takes no new subscriptions")
        elif new and len(self._outputs) + len(self._declaring) >= self.config.outputs_max:
            self._refuse([reply_to], RefusalReason.LIMIT, f"outputs_max = {self.config.outputs_max} queues are here")
        elif new and len(self._declaring) >= self.config.pending_max:
            self._refuse([reply_to], RefusalReason.LIMIT, f"pending_max = {self.config.pending_max} are under way")
        else:
            # Declared even if it is known: it may have expired since the last listing, and declaring is
            # idempotent.
            before, replies = self._declaring.get(queue, (None, []))
            joined = [*replies, *([reply_to] if reply_to else [])][-REPLIES_JOINED_MAX:]
            self._declaring[queue] = (subscription, joined)
            self._doubted.pop(queue, None)
            if before != subscription or queue in self._deleting:
                self._out.append(DeclareOutput(subscription))

    def _remove(self, message: OutputRemove, reply_to: ReplyAddress | None) -> None:
        queue = output_queue(message.subscriber, message.number)
        known = self._declaring[queue][0] if queue in self._declaring else self._outputs.get(queue)
        if known is None:
            self._reply([reply_to], self._removed(message.subscriber, message.number))
            return
        first = queue not in self._deleting or queue in self._declaring
        replies = self._deleting.setdefault(queue, [])
        if reply_to is not None:
            self._deleting[queue] = [*replies, reply_to][-REPLIES_JOINED_MAX:]
        self._doubted.pop(queue, None)
        if first:
            self._out.append(DeleteOutput(known))

    def _page(self, after: str | None) -> RegistryPage:
        start = bisect_right(self._sorted, after) if after is not None else 0
        names = self._sorted[start : start + REGISTRY_PAGE_MAX]
        return RegistryPage(
            edge=self.config.edge,
            digest=self._digest.text,
            subscriptions=tuple(self._outputs[name] for name in names),
            after=names[-1] if start + REGISTRY_PAGE_MAX < len(self._sorted) else None,
        )

    # What RabbitMQ says

    def _declared(self, subscription: Subscription) -> None:
        queue = output_queue(*key_of(subscription))
        self._put(subscription)
        wanted, replies = self._declaring.get(queue, (None, []))
        if wanted == subscription:
            del self._declaring[queue]
            self._reply(replies, OutputReady(subscription=subscription, queue=queue))

    def _listed(self, outputs: tuple[Subscription, ...]) -> None:
        listed = {output_queue(*key_of(subscription)): subscription for subscription in outputs}
        busy = self._declaring.keys() | self._deleting.keys()
        doubted: dict[str, Subscription | None] = {}
        for queue in sorted((listed.keys() | self._outputs.keys()) - busy):
            seen = listed.get(queue)
            if seen == self._outputs.get(queue):
                continue
            if queue not in self._doubted or self._doubted[queue] != seen:
                doubted[queue] = seen
            elif seen is not None:
                self._put(seen)
                self._decide(Decision("output-adopted", queue, "RabbitMQ lists it"))
            else:
                # The head learns it from the digest of the next hello: a message of its own could overtake the
                # answer to a later request for the same queue, and unbind what is in use again.
                self._drop(queue)
                self._decide(Decision("output-gone", queue, "RabbitMQ lists it no more: expired, or deleted"))
        self._doubted = doubted

    def _failed(self, action: Action, problem: str) -> None:
        self._decide(Decision("action-failed", type(action).__name__, problem))
        if isinstance(action, DeclareOutput):
            queue = output_queue(*key_of(action.subscription))
            wanted, replies = self._declaring.get(queue, (None, []))
            if wanted == action.subscription:
                del self._declaring[queue]
                self._refuse(replies, RefusalReason.FAILED, f"{queue} could not be declared: {problem}")
        elif isinstance(action, DeleteOutput):
            queue = output_queue(*key_of(action.subscription))
            self._refuse(
                self._deleting.pop(queue, []),
                RefusalReason.FAILED,
                f"{queue} could not be deleted: {problem}",
            )

    # Helpers

    def _put(self, subscription: Subscription) -> None:
        queue = output_queue(*key_of(subscription))
        if queue in self._outputs:
            self._digest.remove(self._outputs[queue])
        else:
            insort(self._sorted, queue)
        self._outputs[queue] = subscription
        self._digest.add(subscription)

    def _drop(self, queue: str) -> Subscription | None:
        subscription = self._outputs.pop(queue, None)
        if subscription is not None:
            self._digest.remove(subscription)
            self._sorted.remove(queue)
        return subscription

    def _removed(self, subscriber: str, number: int) -> OutputRemoved:
        return OutputRemoved(edge=self.config.edge, subscriber=subscriber, number=number)

    def _reply(self, replies: list[ReplyAddress] | list[ReplyAddress | None], message: ControlMessage) -> None:
        self._out.extend(Reply(reply_to, message) for reply_to in replies if reply_to is not None)

    def _refuse(
        self, replies: list[ReplyAddress] | list[ReplyAddress | None], reason: RefusalReason, text: str
    ) -> None:
        self._reply(replies, Refusal(reason=reason, message=text[:1_000]))

    def _decide(self, decision: Decision) -> None:
        self.story.append(decision)
        self._out.append(Record(decision))

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant. Called after every step in tests."""
        assert self._sorted == sorted(self._outputs), "the order of the queues' names"
        assert self._digest.text == registry_digest(self._outputs.values()), "the digest"
        assert self._digest.count == len(self._outputs), "the count"
        for queue, subscription in self._outputs.items():
            assert queue == output_queue(*key_of(subscription)), queue
        for queue, (subscription, _) in self._declaring.items():
            assert queue == output_queue(*key_of(subscription)), queue
        assert not self._out, "actions left behind"
