"""Puts together the parts of a head that watch load and publishers, and enters them in the dispatch.

| part | what |
| --- | --- |
| `paths`, `publishers` | who publishes what, how much, how far away |
| `defence` | publishers that flood |
| `head_load` | the load of this head, reports of edges and of other clusters |
| `publisher_moves`, `publisher_arrivals` | publishers given away and taken |
| `remote`, `remote_candidates`, `acceptances`, `marker_flood` | subscriptions moved to and from other clusters |

Holds no rule of its own; only the order in which one sample is looked at: rates, floods, load.
"""

from __future__ import annotations

from typing import Protocol

from tidegate_protocol.balancing import (
    Candidate,
    FenceSeen,
    HeadLoadRequest,
    PieGlobal,
    PieLocal,
    PublishedTopics,
    PublisherExpect,
    PublisherMoveReport,
)
from tidegate_protocol.messages import PublisherHello

from .acceptances import Acceptances, BusyEdges, Vacating
from .context import HeadContext
from .defence import Defence
from .dispatch import Dispatch
from .head_load import HeadLoads
from .machine import FenceArrived, HeadSampled, PublishMarker
from .marker_flood import MarkerFlood
from .migration_steps import Progress
from .neighbours import Neighbours
from .paths import Paths
from .preparations import Preparations
from .publisher_arrivals import PublisherArrivals
from .publisher_moves import ROUTES_PART, PublisherMoves
from .publishers import Publishers
from .remote import RemoteSteps
from .remote_candidates import RemoteCandidates
from .removals import Removals


class SessionsSeam(BusyEdges, Protocol):
    """What these parts ask of, and tell, whoever leads the sessions of the cluster."""

    def remote_answered(self, session: str, candidates: tuple[Candidate, ...]) -> None: ...


class MigrationsSeam(Progress, Vacating, Protocol):
    """The same of whoever leads the migrations."""


class LoadParts:
    """Load, publishers and other clusters, as one head sees them."""

    def __init__(
        self,
        context: HeadContext,
        neighbours: Neighbours,
        preparations: Preparations,
        removals: Removals,
        migrations: MigrationsSeam,
        sessions: SessionsSeam,
    ) -> None:
        self.paths = Paths(context)
        self.publishers = Publishers(context, self.paths)
        self.defence = Defence(context, self.publishers)
        self.loads = HeadLoads(context)
        self.moves = PublisherMoves(context, neighbours, self.publishers, lambda name: name in self.defence)
        self.arrivals = PublisherArrivals(context, self.loads.why_not_take, self.moves.rest)
        self.loads.use(self.moves, self.arrivals)
        self.flood = MarkerFlood(context)
        self.steps = RemoteSteps(context, neighbours, removals, self.flood, migrations)
        self.candidates = RemoteCandidates(context, self.loads.cluster_states, sessions.remote_answered)
        self.acceptances = Acceptances(context, preparations, removals, self.loads, self.paths, sessions, migrations)
        context.expected = self.publishers.expected
        context.late_report = self.steps.late_report
        context.guest_in_doubt = self.acceptances.guest_in_doubt

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(HeadSampled, self._sampled)
        dispatch.on_event(FenceArrived, self.arrivals.fence_arrived)
        dispatch.on_message(PieLocal, lambda message, _: self.loads.edge_reported(message))
        dispatch.on_message(PieGlobal, lambda message, _: self.loads.cluster_reported(message))
        dispatch.on_message(PublishedTopics, lambda message, _: self.paths.told(message))
        dispatch.on_message(HeadLoadRequest, self.loads.load_asked)
        dispatch.on_message(PublisherExpect, self.arrivals.expect)
        dispatch.on_message(PublisherMoveReport, self.moves.reported)
        dispatch.on_message(FenceSeen, self.moves.fence_seen)
        dispatch.on_request("head-load", self.moves.load_answered, self.moves.load_undeliverable)
        dispatch.on_request("publisher-move", self.moves.answered, self.moves.undeliverable)
        dispatch.on_request("fence-seen", self.arrivals.answered, self.arrivals.undeliverable)
        dispatch.on_timer("publisher-session", self.moves.session_timed_out)
        dispatch.on_timer("publisher-move", self.moves.timed_out)
        dispatch.on_timer("arrival", self.arrivals.timed_out)
        dispatch.on_wait(ROUTES_PART, self.moves.routes_live)
        dispatch.on_failure(PublishMarker, self._marker_failed)
        for part in (self.flood, self.steps, self.candidates, self.acceptances):
            part.register(dispatch)
        dispatch.ticks += [self.paths.tick, self.loads.tick, self.steps.tick]
        dispatch.stops.append(self.moves.stop)
        for checked in (self.paths, self.publishers, self.defence, self.loads, self.moves, self.arrivals):
            dispatch.checks.append(checked.validate)

    def _sampled(self, event: HeadSampled) -> None:
        self.publishers.sampled(event)
        self.defence.sampled(event.publishers, event.unheard)
        self.loads.sampled(event)

    def _marker_failed(self, action: PublishMarker, problem: str) -> None:
        self.flood.publishing_failed(action.key, problem)
        self.moves.fence_failed(action.key, problem)

    # Publishers come and go by the head's own rules

    def publisher_heard(self, message: PublisherHello) -> None:
        self.publishers.hello(message)

    def publisher_gone(self, publisher: str) -> None:
        self.publishers.gone(publisher)
