"""EMA, the agent of an edge: the machine that an edge's process runs.

It puts its parts together and leads every event to the part it concerns: the overlay manager (EOM, `outputs`) with its
`markers`, the load detector (ELD, `detector`), the edge's side of sessions (`session`), what was dropped (`drops`),
answers to operators (`inspect`), and what analytics has learned (`insights`). It tells its head every period that it is
there, and the cluster how loaded it is.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidegate_protocol.balancing.drains import DrainNotice, DrainReply
from tidegate_protocol.balancing.loads import PieLocal
from tidegate_protocol.balancing.paths import PatternPaths
from tidegate_protocol.decisions import ActionRefused, Decision, HelloRefused, RulesTaken
from tidegate_protocol.messages import (
    ALARMS_MAX,
    EdgeGoodbye,
    EdgeHello,
    EdgeWelcome,
    Passing,
    Refusal,
    Subscription,
)
from tidegate_protocol.rendering import refusals

from ..config import EdgeConfig
from ..kit.dispatch import Answer, Dispatch, Silence
from ..load.detector import Detector
from ..load.pie import PiePublisher, PieTable, pie_report
from ..machine import (
    Action,
    ActionFailed,
    AlarmsSeen,
    Announce,
    EdgeSampled,
    Event,
    LinkChecked,
    MessageReceived,
    ReplyAddress,
    RulesSeen,
    SampleSoon,
    Send,
    ServerSeen,
    Started,
)
from ..policy import policy_named
from .context import EdgeContext
from .drops import EdgeDrops
from .greed import Greed
from .insights import EdgeInsights
from .inspect import EdgeOperations
from .markers import EdgeMarkers
from .outputs import EdgeOutputs
from .session import EdgeBalancing

HELLO_PART: Final = "hello"
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
        """Events, and messages of kinds, that are not for an edge."""
        self._context = context = EdgeContext(config)
        self._dispatch = Dispatch()
        policy = policy_named(config.balancing.policy, config.balancing.seed)
        self.detector = Detector(config.edge, config.balancing, config.capacity, policy)
        self._insights = EdgeInsights(context, self.detector)
        self.peers = PieTable(config.edge, config.cluster)
        self._pie = PiePublisher()
        self._markers = EdgeMarkers(context)
        self.drops = EdgeDrops(context)
        self._outputs = EdgeOutputs(context, self.detector, self._markers, self.drops)
        self.balancing = EdgeBalancing(context, self.detector, policy, self.peers, self._markers)
        self._greed = Greed(context, self.detector)
        self._operations = EdgeOperations(context, self.detector, self.balancing, policy, self.drops, self._greed)
        self._period_s = config.period_s
        self._hellos: deque[tuple[int, str]] = deque()
        """The latest ones that are not answered, by number, with their request ids; at most `HELLOS_MAX`."""
        self._last_hello = 0
        self._server_there = True
        self._passes_accounts = config.passes_accounts
        """Whether the account of its link passes on the accounts of publishers; None: not known yet."""
        self._closer = False
        """Whether the next sample is one that was asked for."""
        self._register()

    def _register(self) -> None:
        """Say who takes what."""
        dispatch = self._dispatch
        dispatch.on_event(Started, self._start)
        dispatch.on_event(EdgeSampled, self._sampled)
        dispatch.on_event(AlarmsSeen, self._alarms_seen)
        dispatch.on_event(ServerSeen, self._server_seen)
        dispatch.on_event(RulesSeen, self._rules_seen)
        dispatch.on_event(LinkChecked, self._link_checked)
        dispatch.on_message(PieLocal, self._on_report)
        dispatch.on_message(PatternPaths, self._on_paths)
        dispatch.on_message(DrainNotice, self._on_drain)
        dispatch.on_timer(HELLO_PART, self._period_over)
        dispatch.on_request(HELLO_PART, self._hello_answered)
        dispatch.stops.append(self._stop)
        parts = (
            self._outputs,
            self._markers,
            self._insights,
            self.balancing,
            self._greed,
            self._operations,
            self.drops,
        )
        for part in parts:
            part.register(dispatch)
        dispatch.checks += [self.peers.validate, self._context.validate]

    @property
    def outputs(self) -> tuple[Subscription, ...]:
        """The subscriptions whose queues are there, in the order of the queues' names."""
        return tuple(self._outputs)

    @property
    def migrating(self) -> frozenset[str]:
        """The queues in migration: what a client holds back meanwhile looks like backlog."""
        return self._markers.migrating

    @property
    def story(self) -> list[Decision]:
        """The latest decisions."""
        return self._context.chronicle.decisions

    @property
    def draining(self) -> bool:
        return self._context.draining

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and say what is to be done."""
        context = self._context
        context.now = now
        if isinstance(event, ActionFailed):
            context.decide(ActionRefused(type(event.action).__name__, event.problem))
        if not self._dispatch.lead(event, context.requests):
            self.ignored += 1
            if isinstance(event, MessageReceived):
                context.refuse(event.reply_to, refusals.misdirected(context.config.edge, event.message.kind))
        return context.take_actions()

    def _start(self, event: Started) -> None:
        for subscription in event.outputs:
            self._outputs.put(subscription)
        self._outputs.revoke()
        self._send_hello()

    def _rules_seen(self, event: RulesSeen) -> None:
        self._context.rules = event.rules
        ended = self._outputs.revoke()
        self._context.decide(RulesTaken(self.config.edge, len(event.rules), ended))

    def _alarms_seen(self, event: AlarmsSeen) -> None:
        self._context.see_alarms(event.raised)
        self._send_hello()

    def _server_seen(self, event: ServerSeen) -> None:
        self._server_there = event.there
        self._send_hello()

    def _link_checked(self, event: LinkChecked) -> None:
        if event.passes_accounts is not self._passes_accounts:
            self._passes_accounts = event.passes_accounts
            self._send_hello()

    def _stop(self) -> None:
        self._context.stopping = True
        self._context.do(Send(self.config.head, EdgeGoodbye(edge=self.config.edge)))

    def _period_over(self, _: str) -> None:
        try:
            self._markers.expire()
        finally:
            self._send_hello()  # also sets the next timer: an edge that fails once must not be silent for ever

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
        still open then is no burst, but noise. Not where a single sample is acted on, as the papers do.
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

    def _send_hello(self) -> None:
        context = self._context
        if context.stopping:
            return
        if self._server_there:
            self._last_hello += 1
            number, head = self._last_hello, self.config.head
            self._hellos.append((number, context.request(head, self._greeting(), HELLO_PART, str(number))))
            if len(self._hellos) > HELLOS_MAX:
                context.drop_request(self._hellos.popleft()[1])
        # Otherwise silent: without its RabbitMQ it gets no client, and clients that can't reach it go elsewhere.
        context.set_timer(HELLO_PART, self._period_s)

    def _greeting(self) -> EdgeHello:
        config = self.config
        return EdgeHello(
            edge=config.edge,
            cluster=config.cluster,
            client_url=config.client_url,
            link_url=config.link_url,
            accounts_passed=Passing.of(self._passes_accounts),
            capacity=config.capacity,
            registry_count=self._outputs.digest.count,
            registry_digest=self._outputs.digest.text,
            draining=self.draining,
            paused=self._context.paused,
            pause_version=self._context.pause_version,
            alarms=self._context.alarms[:ALARMS_MAX],
        )

    def _hello_answered(self, number: str, message: Answer) -> None:
        if isinstance(message, Silence):
            return  # it reached nobody: the next one will show when the head is back
        # Not only the last one: the way there and back may be longer than a period. Earlier ones have been overtaken.
        while self._hellos and self._hellos[0][0] <= int(number):
            self._context.drop_request(self._hellos.popleft()[1])
        self.head_heard_s = self._context.now
        if isinstance(message, EdgeWelcome):
            self._period_s = message.period_s
            self.balancing.welcomed(message.incarnation)
            self._context.hear_pause(message.paused, message.pause_version)
        elif isinstance(message, Refusal):
            self._context.decide(HelloRefused(self.config.edge, message.reason, message.message))

    # What others tell

    def _on_report(self, message: PieLocal, _: ReplyAddress | None) -> None:
        self.peers.heard(message, self._context.now)

    def _on_paths(self, message: PatternPaths, _: ReplyAddress | None) -> None:
        self.detector.learn_paths(message.paths)

    def _on_drain(self, message: DrainNotice, reply_to: ReplyAddress | None) -> None:
        self.drain(message.draining)
        left = DrainReply(edge=self.config.edge, draining=self.draining, left=len(self._outputs))
        self._context.reply(reply_to, left)

    def validate(self) -> None:
        """Raise AssertionError if the state breaks an invariant. Called after every step in tests."""
        for check in self._dispatch.checks:
            check()
