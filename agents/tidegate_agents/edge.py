"""EMA, the agent of an edge: the machine that an edge's process runs.

It puts three parts together: the overlay manager (EOM), which owns the output queues on its RabbitMQ and does what
the head asks; the load detector (ELD, `detector`); and the edge's side of sessions (`balancing`). It tells its head
every period that it is there, and the cluster how loaded it is. What always holds:

- an output counts as there once RabbitMQ has confirmed it, and no longer once RabbitMQ has confirmed that it
  is gone; what is there is followed by the detector, and nothing else is;
- preparing and removing may be repeated at will: repetitions are answered together;
- an output for a migration is ready once its marker key is bound as well;
- RabbitMQ knows best. What its listing shows twice in a row and we don't know is adopted; what it lacks twice
  in a row is gone (a queue expires when its subscriber stays away too long). Once is not enough: a listing
  may be older than a change that is already confirmed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import Final

from tidegate_protocol.balancing import (
    DrainNotice,
    DrainReply,
    LoadRequest,
    MarkerBind,
    PatternPaths,
    PieLocal,
    SessionNotice,
)
from tidegate_protocol.insight import EdgeInsight
from tidegate_protocol.messages import (
    ALARMS_MAX,
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
from tidegate_protocol.operations import InspectRequest, RehearseRequest

from .balancing import SESSION_TIMER, EdgeBalancing
from .config import REPLIES_JOINED_MAX, EdgeConfig
from .detector import Detector
from .edge_context import EdgeContext
from .edge_insights import EdgeInsights
from .edge_markers import EdgeMarkers
from .machine import (
    Action,
    ActionFailed,
    AlarmsSeen,
    Announce,
    BindMarker,
    Decision,
    DeclareOutput,
    DeleteOutput,
    EdgeSampled,
    Event,
    MarkerBound,
    MessageReceived,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    ReplyAddress,
    ReplyReceived,
    SampleSoon,
    Send,
    ServerSeen,
    SetTimer,
    Started,
    StopRequested,
    TimerFired,
    Undeliverable,
)
from .operations_edge import EdgeOperations
from .pie import PiePublisher, PieTable, pie_report
from .policies import policy_named
from .registry import RegistryDigest, key_of, registry_digest

HELLO_TIMER = "hello"
HELLOS_MAX: Final = 30
"""How many hellos may wait for their answers. With one a second that is longer than control messages live."""
SOON_SHARE_MIN: Final = 0.35
SOON_SHARE_MAX: Final = 0.75
"""Of a period: how soon a sample that left something open is followed by another one."""
SOON_MESSAGES: Final = 22.0
"""So many should come for a queue meanwhile: a rate is as good as what was counted."""


class EdgeAgent:
    """The agent of one edge: `handle(event, now)` says what is to be done."""

    def __init__(self, config: EdgeConfig) -> None:
        self.config = config
        self.head_heard_s: float | None = None
        """When the head last answered; None if it never did."""
        self.ignored = 0
        balancing = config.balancing
        self._context = EdgeContext(config)
        policy = policy_named(balancing.policy, balancing.seed)
        self.detector = Detector(config.edge, balancing, config.capacity, policy)
        self._insights = EdgeInsights(self._context, self.detector)
        self.peers = PieTable(config.edge, config.cluster)
        self._pie = PiePublisher()
        self._markers = EdgeMarkers(self._context)
        self.balancing = EdgeBalancing(self._context, self.detector, policy, self.peers, self._markers.settle)
        self._operations = EdgeOperations(self._context, self.detector, self.balancing, policy, self.peers)
        self._period_s = config.period_s
        self._outputs: dict[str, Subscription] = {}
        self._sorted: list[str] = []
        self._digest = RegistryDigest()
        self._declaring: dict[str, tuple[Subscription, list[ReplyAddress]]] = {}
        self._marker_wanted: dict[str, str] = {}
        """Of the queues being declared: the marker key to be bound once they are there."""
        self._deleting: dict[str, list[ReplyAddress]] = {}
        self._doubted: dict[str, Subscription | None] = {}
        self._hellos: deque[str] = deque(maxlen=HELLOS_MAX)
        """The latest ones: an answer to one before them says nothing new."""
        self._server_there = True
        self._closer = False
        """Whether the next sample is one that was asked for."""

    @property
    def outputs(self) -> tuple[Subscription, ...]:
        """The subscriptions whose queues are there, in the order of the queues' names."""
        return tuple(self._outputs[name] for name in self._sorted)

    @property
    def migrating(self) -> frozenset[str]:
        """The queues in migration: what a client holds back meanwhile looks like backlog."""
        return self._markers.migrating

    @property
    def story(self) -> deque[Decision]:
        """The latest decisions."""
        return self._context.story

    @property
    def draining(self) -> bool:
        return self._context.draining

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        self._context.now = now
        match event:
            case Started():
                for subscription in event.outputs:
                    self._put(subscription)
                self._hello()
            case EdgeSampled():
                self._sampled(event)
            case MessageReceived(message, reply_to):
                self._receive(message, reply_to)
            case ReplyReceived(request_id, message):
                self._answered(request_id, message)
            case TimerFired(name):
                self._timer(name)
            case OutputDeclared(subscription):
                self._declared(subscription)
            case OutputDeleted(subscriber, number):
                self._drop(output_queue(subscriber, number))
                waiting = self._deleting.pop(output_queue(subscriber, number), [])
                self._context.reply(waiting, self._removed(subscriber, number))
            case MarkerBound(subscriber, number, key):
                self._markers.bound(subscriber, number, key)
            case OutputsListed(outputs):
                self._listed(outputs)
            case ActionFailed(action, problem):
                self._failed(action, problem)
            case AlarmsSeen(raised):
                self._operations.alarms_seen(raised)
                self._hello()
            case ServerSeen(there):
                self._server_there = there
                self._hello()
            case StopRequested():
                self._context.stopping = True
                self._context.do(Send(self.config.head, EdgeGoodbye(edge=self.config.edge)))
            case Undeliverable(request_id):
                # A hello that reached nobody needs no answer: the next one will show when the head is back.
                self.balancing.undeliverable(request_id)
            case _:
                self.ignored += 1
        return self._context.take_actions()

    def _timer(self, name: str) -> None:
        if name == HELLO_TIMER:
            try:
                self._markers.expire()
            finally:
                self._hello()  # also sets the next timer: an edge that fails once must not be silent for ever
        elif name == SESSION_TIMER:
            self.balancing.timed_out()
        else:
            self.ignored += 1

    # Load

    def _sampled(self, event: EdgeSampled) -> None:
        if self._context.stopping:
            return
        self._insights.apply()
        judgement = self.detector.sampled(event, self._markers.migrating)
        for decision in judgement.decisions:
            self._context.decide(decision)
        for action in judgement.actions:
            self._context.do(action)
        self.balancing.judged()
        self._look_closer()
        report = pie_report(
            self.detector.broker,
            self.config.cluster,
            self.balancing.reported_state,
            busy=self.balancing.busy,
            period_s=self.config.balancing.period_s,
        )
        if self._pie.published(report):
            self._context.do(Announce(report))

    def _look_closer(self) -> None:
        """What this sample has not quite shown, the next one will: it need not be a whole period later. Once: what is
        still open then is no burst, but noise. Not for those who act on a single sample, as the papers do.
        """
        doubting = self.config.balancing.queue_samples_needed > 1
        self._closer = doubting and self.detector.undecided and not self._closer
        if self._closer:
            period_s, rate = self.config.balancing.period_s, self.detector.typical_rate
            counting_s = SOON_MESSAGES / rate if rate > 0.0 else period_s
            wait_s = min(max(counting_s, SOON_SHARE_MIN * period_s), SOON_SHARE_MAX * period_s)
            self._context.do(SampleSoon(wait_s))

    # Hello

    def drain(self, draining: bool = True) -> None:
        """Take no new subscription from now on, or take some again. The next hello tells the head."""
        self._context.draining = draining

    def _hello(self) -> None:
        if self._context.stopping:
            return
        if self._server_there:
            self._hellos.append(self._context.request(self._greeting()))
        # Otherwise silent: without its RabbitMQ it gets nobody, and those who can't reach it are placed elsewhere.
        self._context.do(SetTimer(HELLO_TIMER, self._period_s))

    def _greeting(self) -> EdgeHello:
        config = self.config
        return EdgeHello(
            edge=config.edge,
            cluster=config.cluster,
            client_url=config.client_url,
            link_url=config.link_url,
            capacity=config.capacity,
            registry_count=self._digest.count,
            registry_digest=self._digest.text,
            draining=self.draining,
            paused=self._context.paused,
            pause_version=self._context.pause_version,
            alarms=self._context.alarms[:ALARMS_MAX],
        )

    def _answered(self, request_id: str, message: ControlMessage) -> None:
        if request_id not in self._hellos:
            self.balancing.answered(request_id, message)
            return
        # Not only the last one: the way there and back may be longer than a period. Earlier ones have been overtaken.
        while self._hellos[0] != request_id:
            self._hellos.popleft()
        self.head_heard_s = self._context.now
        if isinstance(message, EdgeWelcome):
            self._period_s = message.period_s
            self.balancing.welcomed(message.incarnation)
            if message.pause_version > self._context.pause_version:
                self._context.paused, self._context.pause_version = message.paused, message.pause_version
        elif isinstance(message, Refusal):
            self._context.decide(Decision("hello-refused", self.config.edge, message.message))

    # What the head asks for

    def _receive(self, message: ControlMessage, reply_to: ReplyAddress | None) -> None:
        match message:
            case OutputPrepare():
                self._prepare(message, reply_to)
            case OutputRemove():
                self._remove(message, reply_to)
            case RegistryRequest():
                self._context.reply([reply_to], self._page(message.after))
            case PieLocal():
                self.peers.heard(message, self._context.now)
            case PatternPaths():
                self.detector.learn_paths(message.paths)
            case EdgeInsight():
                self._insights.told(message)
            case LoadRequest():
                self.balancing.load_requested(message, reply_to)
            case SessionNotice():
                self.balancing.noticed(message)
            case MarkerBind():
                if output_queue(message.subscriber, message.number) in self._outputs:
                    self._markers.requested(message, reply_to)
                else:
                    self._context.refuse([reply_to], RefusalReason.UNKNOWN, "there is no such output queue")
            case InspectRequest():
                self._operations.inspect(message, reply_to)
            case RehearseRequest():
                self._operations.rehearse(message, reply_to)
            case DrainNotice():
                self.drain(message.draining)
                left = DrainReply(edge=self.config.edge, draining=self.draining, left=len(self._outputs))
                self._context.reply([reply_to], left)
            case _:
                self.ignored += 1
                self._context.refuse([reply_to], RefusalReason.INVALID, f"an edge takes no {message.kind}")

    def _prepare(self, message: OutputPrepare, reply_to: ReplyAddress | None) -> None:
        subscription = message.subscription
        queue = output_queue(*key_of(subscription))
        known = self._outputs.get(queue)
        new = known is None and queue not in self._declaring
        if known is not None and known.pattern != subscription.pattern and queue not in self._deleting:
            self._context.refuse([reply_to], RefusalReason.CONFLICT, f"{queue} is bound to {known.pattern}")
        elif new and (self.draining or self._context.stopping):
            self._context.refuse([reply_to], RefusalReason.NOT_READY, "this edge takes no new subscriptions")
        elif new and len(self._outputs) + len(self._declaring) >= self.config.outputs_max:
            self._context.refuse(
                [reply_to], RefusalReason.LIMIT, f"outputs_max = {self.config.outputs_max} queues are here"
            )
        elif new and len(self._declaring) >= self.config.pending_max:
            self._context.refuse(
                [reply_to], RefusalReason.LIMIT, f"pending_max = {self.config.pending_max} are under way"
            )
        else:
            # Declared even if it is known: it may have expired since the last listing, and declaring is
            # idempotent.
            before, replies = self._declaring.get(queue, (None, []))
            joined = [*replies, *([reply_to] if reply_to else [])][-REPLIES_JOINED_MAX:]
            self._declaring[queue] = (subscription, joined)
            self._doubted.pop(queue, None)
            if message.marker is not None:
                self._marker_wanted[queue] = message.marker
            if before != subscription or queue in self._deleting:
                self._context.do(DeclareOutput(subscription))

    def _remove(self, message: OutputRemove, reply_to: ReplyAddress | None) -> None:
        queue = output_queue(message.subscriber, message.number)
        known = self._declaring[queue][0] if queue in self._declaring else self._outputs.get(queue)
        if known is None:
            self._context.reply([reply_to], self._removed(message.subscriber, message.number))
            return
        first = queue not in self._deleting or queue in self._declaring
        replies = self._deleting.setdefault(queue, [])
        if reply_to is not None:
            self._deleting[queue] = [*replies, reply_to][-REPLIES_JOINED_MAX:]
        self._doubted.pop(queue, None)
        if first:
            self._context.do(DeleteOutput(known))

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
            marker = self._marker_wanted.pop(queue, None)
            ready = OutputReady(subscription=subscription, queue=queue)
            if marker is None:
                self._context.reply(replies, ready)
            else:
                self._markers.bind(*key_of(subscription), marker, [(address, ready) for address in replies])

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
                self._context.decide(Decision("output-adopted", queue, "RabbitMQ lists it"))
            else:
                # The head learns it from the digest of the next hello: a message of its own could overtake the
                # answer to a later request for the same queue, and unbind what is in use again.
                self._drop(queue)
                self._context.decide(Decision("output-gone", queue, "RabbitMQ lists it no more: expired, or deleted"))
        self._doubted = doubted

    def _failed(self, action: Action, problem: str) -> None:
        self._context.decide(Decision("action-failed", type(action).__name__, problem))
        if isinstance(action, DeclareOutput):
            queue = output_queue(*key_of(action.subscription))
            wanted, replies = self._declaring.get(queue, (None, []))
            if wanted == action.subscription:
                del self._declaring[queue]
                self._marker_wanted.pop(queue, None)
                self._context.refuse(replies, RefusalReason.FAILED, f"{queue} could not be declared: {problem}")
        elif isinstance(action, DeleteOutput):
            queue = output_queue(*key_of(action.subscription))
            self._context.refuse(
                self._deleting.pop(queue, []),
                RefusalReason.FAILED,
                f"{queue} could not be deleted: {problem}",
            )
        elif isinstance(action, BindMarker):
            self._markers.failed(action, problem)

    # Helpers

    def _put(self, subscription: Subscription) -> None:
        queue = output_queue(*key_of(subscription))
        if queue in self._outputs:
            self._digest.remove(self._outputs[queue])
        else:
            insort(self._sorted, queue)
        self._outputs[queue] = subscription
        self._digest.add(subscription)
        self.detector.track(subscription)

    def _drop(self, queue: str) -> Subscription | None:
        subscription = self._outputs.pop(queue, None)
        if subscription is not None:
            self._digest.remove(subscription)
            self._sorted.remove(queue)
            self.detector.forget(queue)
            self._markers.forget(queue)
        return subscription

    def _removed(self, subscriber: str, number: int) -> OutputRemoved:
        return OutputRemoved(edge=self.config.edge, subscriber=subscriber, number=number)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant. Called after every step in tests."""
        assert self._sorted == sorted(self._outputs), "the order of the queues' names"
        assert self._digest.text == registry_digest(self._outputs.values()), "the digest"
        assert self._digest.count == len(self._outputs), "the count"
        for queue, subscription in self._outputs.items():
            assert queue == output_queue(*key_of(subscription)), queue
        for queue, (subscription, _) in self._declaring.items():
            assert queue == output_queue(*key_of(subscription)), queue
        assert self._marker_wanted.keys() <= self._declaring.keys(), "a marker for a queue that nobody declares"
        self.detector.validate(self._outputs)
        self._insights.validate()
        self.peers.validate()
        self._markers.validate()
        self.balancing.validate()
        self._context.validate()
