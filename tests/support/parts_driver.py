"""Drives the parts of a head that watch load and publishers, without the rest of the head."""

from __future__ import annotations

from typing import TypeVar

from tests.support.agents_driver import M, of
from tests.support.decisions import recorded as decisions
from tidegate_agents.config import BalancingConfig, HeadConfig, NeighbourConfig
from tidegate_agents.head.abroad.arriving import Acceptances
from tidegate_agents.head.abroad.candidates import RemoteCandidates
from tidegate_agents.head.abroad.endings import Endings
from tidegate_agents.head.abroad.guests import Guests
from tidegate_agents.head.abroad.leaving import RemoteSteps
from tidegate_agents.head.abroad.room import Room
from tidegate_agents.head.context import HeadContext
from tidegate_agents.head.edges import Edges
from tidegate_agents.head.load import HeadLoads
from tidegate_agents.head.moving.marker_flood import MarkerFlood
from tidegate_agents.head.moving.steps import NewPlace
from tidegate_agents.head.neighbours import Neighbours
from tidegate_agents.head.places.knowledge import Knowledge
from tidegate_agents.head.places.preparations import Preparations
from tidegate_agents.head.places.removals import Removals
from tidegate_agents.head.publishers.arriving import PublisherArrivals
from tidegate_agents.head.publishers.defence import Defence
from tidegate_agents.head.publishers.leaving import PublisherMoves
from tidegate_agents.head.publishers.paths import Paths
from tidegate_agents.head.publishers.streams import Publishers
from tidegate_agents.kit.dispatch import Dispatch, Silence
from tidegate_agents.kit.subscriptions import Key
from tidegate_agents.load.metrics import BrokerSample, PublisherSample, Role
from tidegate_agents.machine import (
    Action,
    ActionFailed,
    ChangeRoutes,
    Event,
    HeadSampled,
    MessageReceived,
    PublishMarker,
    Reply,
    ReplyAddress,
    ReplyReceived,
    RoutesChanged,
    Send,
    SendClient,
    TimerFired,
    Undeliverable,
)
from tidegate_protocol.balancing.sessions import Candidate
from tidegate_protocol.decisions import Rejected, Rejection
from tidegate_protocol.messages import Capacity, ControlMessage, PublisherHello, RoutesAccepted, RoutesUpdate

R = TypeVar("R", bound=ControlMessage)


class Heard:
    """What the steps of migrations told."""

    def __init__(self) -> None:
        self.places: dict[str, NewPlace] = {}
        self.problems: dict[str, str] = {}
        self.moving: set[tuple[str, Key]] = set()
        """Places from which clients are being moved."""

    def prepared(self, migration: str, place: NewPlace) -> None:
        self.places[migration] = place

    def failed(self, migration: str, why: str) -> None:
        self.problems[migration] = why

    def vacate(self, place: tuple[str, Key], why: str) -> bool:
        return place not in self.moving


class SessionsStub:
    """Who is in a session, and what other clusters could take."""

    def __init__(self) -> None:
        self.edges: dict[str, str] = {}
        self.candidates: dict[str, tuple[Candidate, ...]] = {}

    def busy(self, edge: str) -> Rejected | None:
        return Rejected(edge, Rejection.IN_SESSION, other=self.edges[edge]) if edge in self.edges else None

    def reserve(self, edge: str, session: str) -> None:
        assert edge not in self.edges
        self.edges[edge] = session

    def release(self, edge: str, session: str) -> None:
        assert self.edges.pop(edge) == session

    def remote_answered(self, session: str, candidates: tuple[Candidate, ...]) -> None:
        assert session not in self.candidates, "answered twice"
        self.candidates[session] = candidates


class LoadParts:
    """The parts of a head that watch load and publishers."""

    def __init__(self, context: HeadContext, neighbours: Neighbours) -> None:
        self.paths = Paths(context)
        self.publishers = Publishers(context, self.paths)
        self.defence = Defence(context, self.publishers)
        self.moves = PublisherMoves(context, neighbours, self.publishers, self.defence)
        self.arrivals = PublisherArrivals(context, self.moves)
        self.loads = HeadLoads(context, self.moves, self.arrivals)
        self.all = (self.publishers, self.paths, self.defence, self.loads, self.moves, self.arrivals)


class PartsDriver:
    """The load parts of a head `h` in cluster `c`, with neighbours that confirm every route at once."""

    def __init__(
        self,
        *neighbours: str,
        head: str = "h",
        balancing: BalancingConfig | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        config = HeadConfig(
            head,
            f"cluster-{head}",
            7,
            tuple(NeighbourConfig(name, f"amqp://{name}") for name in neighbours),
            publisher_url=f"amqp://{head}:1",
            balancing=balancing or BalancingConfig(),
            capacity=capacity or Capacity(uplink_bytes_per_s=1_000.0, downlink_bytes_per_s=1_000.0),
        )
        self.context = context = HeadContext(config)
        self.neighbours = Neighbours(context)
        self.removals = Removals(context)
        self.knowledge = knowledge = Knowledge(context, self.neighbours)
        self.edges = Edges(context, self.removals, knowledge)
        self.preparations = Preparations(context, self.edges, self.removals, self.neighbours)
        self.heard = Heard()
        self.sessions = SessionsStub()
        self.parts = parts = LoadParts(context, self.neighbours)
        self.flood = MarkerFlood(context)
        self.steps = RemoteSteps(context, knowledge, self.neighbours, self.removals, self.flood)
        self.candidates = RemoteCandidates(context, parts.loads)
        guests = Guests(context, knowledge)
        self.room = Room(context, parts.loads, parts.paths, self.sessions)
        self.endings = Endings(context, self.removals, self.heard, guests)
        self.acceptances = Acceptances(context, knowledge, self.preparations, self.sessions, guests, self.endings)
        self.dispatch = Dispatch()
        self.preparations.register(self.dispatch)
        for part in (self.removals, *self.parts.all, self.flood, self.steps, self.candidates):
            part.register(self.dispatch)
        for part in (self.room, self.endings, self.acceptances):
            part.register(self.dispatch)
        self.now = 100.0
        self.silent: set[str] = set()
        """Neighbours that confirm no routes."""
        self._requests = 0

    def edge(self, name: str, capacity: Capacity | None = None) -> None:
        """An edge that is alive and settled."""
        record = self.context.registry.edge(name)
        record.alive = record.settled = True
        record.client_url = f"amqp://{name}:1"
        record.heard_s = self.now
        record.capacity = capacity or Capacity()

    def give(self, event: Event) -> list[Action]:
        context, dispatch = self.context, self.dispatch
        context.now = self.now
        match event:
            case MessageReceived(message, reply_to):
                assert dispatch.message(message, reply_to), message.kind
            case ReplyReceived(request_id, message):
                part, subject = context.requests.pop(request_id, ("", ""))
                dispatch.answer(part, subject, message)
            case Undeliverable(request_id):
                dispatch.answer(*context.requests.pop(request_id, ("", "")), Silence.ABSENT)
            case TimerFired("tick"):
                for tick in dispatch.ticks:
                    tick()
            case TimerFired(name) if name.startswith("wait "):
                context.waits.expired(name.removeprefix("wait "))
            case TimerFired(name):
                assert dispatch.timer(name), name
            case ActionFailed(action, problem):
                dispatch.failure(action, problem)
            case RoutesChanged(change_id):
                context.bindings.done(change_id)
            case _:
                assert dispatch.event(event)
        return self._settle()

    def do(self, *calls: object) -> list[Action]:
        """The actions of what a test has called directly."""
        return self._settle()

    def _settle(self) -> list[Action]:
        """Bind every route and have the neighbours confirm it, until nothing is left to do."""
        context = self.context
        done: list[Action] = []
        while True:
            for found in context.take_found():
                self.dispatch.event(found)
            for wait in context.waits.take_finished():
                self.dispatch.wait_live(wait.key, wait.awaiting)
            context.bindings.flush()
            self.neighbours.pump()
            actions = context.take_actions()
            done += actions
            if not actions:
                break
            for change in of(actions, ChangeRoutes):
                context.bindings.done(change.change_id)
            for send in of(actions, Send):
                if isinstance(send.message, RoutesUpdate) and send.to not in self.silent and send.request_id:
                    context.requests.pop(send.request_id)
                    accepted = RoutesAccepted(head=send.to, version=send.message.version)
                    self.neighbours.answered(send.to, accepted)
        self.validate()
        return done

    def validate(self) -> None:
        self.context.validate()
        for check in self.dispatch.checks:
            check()

    def tell(self, message: ControlMessage) -> list[Action]:
        """A message whose sender wants an answer."""
        self._requests += 1
        return self.give(MessageReceived(message, ReplyAddress("peer", str(self._requests))))

    def answer(self, request: Send | SendClient, message: ControlMessage) -> list[Action]:
        assert request.request_id is not None
        return self.give(ReplyReceived(request.request_id, message))

    def lose(self, request: Send | SendClient) -> list[Action]:
        assert request.request_id is not None
        return self.give(Undeliverable(request.request_id))

    def fire(self, name: str, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        return self.give(TimerFired(name))

    def tick(self, seconds: float = 1.0) -> list[Action]:
        return self.fire("tick", seconds)

    def hello(self, publisher: str, *topics: str, round_trip_s: float = 0.0) -> list[Action]:
        self.context.now = self.now
        round_trip_us = round(round_trip_s * 1e6)
        hello = PublisherHello(publisher=publisher, topics=topics, round_trip_us=round_trip_us)
        self.parts.publishers.on_hello(hello, None)
        self.context.registry.publisher_heard(publisher, self.now + 1_000.0)
        return self._settle()

    def sample(
        self,
        *publishers: PublisherSample,
        bytes_in: float = 0.0,
        bytes_out: float = 0.0,
        after_s: float = 1.0,
        round_trips: dict[str, float] | None = None,
    ) -> list[Action]:
        self.now += after_s
        broker = BrokerSample(self.context.config.head, Role.HEAD, bytes_in, bytes_out, 10.0)
        return self.give(HeadSampled(broker, publishers, round_trips or {}))


def clients(actions: list[Action], kind: type[ControlMessage]) -> list[SendClient]:
    return [a for a in actions if isinstance(a, SendClient) and isinstance(a.message, kind)]


def messages(actions: list[Action], kind: type[R]) -> list[R]:
    """What was sent, whether to brokers or to clients."""
    return [a.message for a in actions if isinstance(a, Send | SendClient) and isinstance(a.message, kind)]


def answers(actions: list[Action], kind: type[R]) -> list[R]:
    return [a.message for a in actions if isinstance(a, Reply) and isinstance(a.message, kind)]


def markers(actions: list[Action]) -> list[PublishMarker]:
    return of(actions, PublishMarker)


__all__ = ["M", "PartsDriver", "answers", "clients", "decisions", "markers", "messages", "of"]
