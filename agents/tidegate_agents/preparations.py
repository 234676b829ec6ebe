"""Places made ready for a client that does not use them yet: a queue on an edge, its routes live.

Used by migrations inside a cluster, and for subscriptions that come from another one. What always holds:

- a place is *reserved* from `start` until its owner says `taken` or `given_up`, whatever happens in between; so long it
  is in the registry, its routes are bound, and no registry page changes it;
- `done` is called once, with what is ready or with what went wrong; a failed preparation still wants `given_up`;
- a place given up is removed from its edge, even if the edge never confirmed it: it may have made it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate_protocol.messages import ControlMessage, OutputPrepare, OutputReady, Refusal, Subscription
from tidegate_protocol.names import output_queue

from .config import ATTEMPTS_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .edges import Edges
from .neighbours import Neighbours
from .registry import Key, key_of
from .removals import Removals
from .waits import Wait

PART = "output"


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a preparation went. `problem` is empty if the place is ready."""

    edge: str
    subscription: Subscription
    problem: str = ""
    awaiting: tuple[str, ...] = ()
    """Heads that had not confirmed their routes in time; empty unless `everywhere` was asked for."""

    @property
    def queue(self) -> str:
        return output_queue(*key_of(self.subscription))


Done = Callable[[str, Prepared], None]
"""Called with the subject and how it went."""


@dataclass(slots=True)
class _Preparation:
    edge: str
    subscription: Subscription
    marker: str | None
    done: Done
    attempts: int = 0
    request_id: str = ""
    ready: bool = False
    awaiting: tuple[str, ...] | None = None
    told: bool = False
    """Whether `done` was called."""

    @property
    def place(self) -> tuple[str, Key]:
        return self.edge, key_of(self.subscription)

    def outcome(self, problem: str = "", awaiting: tuple[str, ...] = ()) -> Prepared:
        return Prepared(self.edge, self.subscription, problem, awaiting)


class Preparations:
    """The places reserved, by subject: the id of the migration that wants them."""

    def __init__(self, context: HeadContext, edges: Edges, removals: Removals, neighbours: Neighbours) -> None:
        self._context = context
        self._edges = edges
        self._removals = removals
        self._neighbours = neighbours
        self._pending: dict[str, _Preparation] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_request(PART, self._answered, self._undeliverable)
        dispatch.on_timer(PART, self._timed_out)
        dispatch.on_wait(PART, self._routes_live, self._routes_failed)
        dispatch.checks.append(self.validate)

    def __contains__(self, subject: str) -> bool:
        return subject in self._pending

    def place(self, subject: str) -> tuple[str, Key]:
        """Where this subject's place is. It must have been started and not been ended."""
        return self._pending[subject].place

    def start(
        self,
        subject: str,
        edge: str,
        terms: Subscription,
        marker: str | None,
        done: Done,
        *,
        everywhere: bool = False,
    ) -> None:
        """Make a place for `terms` on `edge`, under a new number, with `marker` bound to it.

        `everywhere` waits for the neighbours' routes as well. Inside a cluster that is not needed: as long as the old
        place is there, they send us what matches anyway.
        """
        assert subject not in self._pending, f"{subject} is being prepared already"
        context = self._context
        number = self._edges.number_for(terms.subscriber)
        subscription = terms.model_copy(update={"number": number})
        preparation = _Preparation(edge, subscription, marker, done)
        unfit = self._edges.unfit(edge, terms.pattern)
        if unfit is not None:
            done(subject, Prepared(edge, subscription, unfit))
            return
        self._pending[subject] = preparation
        self._removals.keep(*preparation.place)
        context.enter(edge, subscription)
        context.reserved.add(preparation.place)
        context.begin(*preparation.place)
        self._ask(subject, preparation)
        key = f"{PART} {subject}"
        if everywhere:
            self._neighbours.open_wait(key, edge, context.config.routes_wait_s)
        else:
            context.flush_routes()
            context.waits.open(Wait(key, context.now, changes=context.outstanding(edge)))

    def taken(self, subject: str) -> None:
        """The client uses the place from now on."""
        preparation = self._close(subject)
        if preparation is not None and self._context.registry.get(*preparation.place) is not None:
            self._context.granted.add(preparation.place)
            terms = preparation.subscription
            self._context.departures.forget((terms.subscriber, terms.pattern))

    def given_up(self, subject: str) -> None:
        """Nobody will use the place."""
        preparation = self._close(subject)
        if preparation is not None:
            self._removals.discard(*preparation.place)

    def _close(self, subject: str) -> _Preparation | None:
        preparation = self._pending.pop(subject, None)
        if preparation is None:
            return None
        context = self._context
        context.reserved.discard(preparation.place)
        context.end(*preparation.place)
        self._quiet(subject, preparation)
        return preparation

    def _quiet(self, subject: str, preparation: _Preparation) -> None:
        self._context.drop_request(preparation.request_id)
        self._context.waits.close(f"{PART} {subject}")
        self._context.cancel_timer(f"{PART} {subject}")
        self._context.cancel_timer(f"wait {PART} {subject}")

    # The edge's side

    def _ask(self, subject: str, preparation: _Preparation) -> None:
        preparation.attempts += 1
        message = OutputPrepare(subscription=preparation.subscription, marker=preparation.marker)
        preparation.request_id = self._context.request(preparation.edge, message, PART, subject)
        self._context.set_timer(f"{PART} {subject}", self._context.config.reply_timeout_s)

    def _answered(self, subject: str, message: ControlMessage) -> None:
        preparation = self._pending.get(subject)
        if preparation is None or preparation.told:
            return
        if isinstance(message, OutputReady) and message.subscription == preparation.subscription:
            preparation.ready = True
            config = self._context.config
            self._context.set_timer(f"{PART} {subject}", config.routes_wait_s + config.reply_timeout_s)
            self._tell_if_ready(subject)
            return
        text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
        self._fail(subject, f"{preparation.edge}: {text}")

    def _undeliverable(self, subject: str) -> None:
        preparation = self._pending.get(subject)
        if preparation is not None:
            self._edges.lost(preparation.edge)
            self._fail(subject, f"{preparation.edge}: its process is not there")

    def _timed_out(self, subject: str) -> None:
        preparation = self._pending.get(subject)
        if preparation is None or preparation.told:
            return
        self._context.drop_request(preparation.request_id)
        if preparation.ready:
            self._fail(subject, f"the route to {preparation.edge} was not live in time")
        elif preparation.attempts < ATTEMPTS_MAX:
            self._ask(subject, preparation)
        else:
            self._fail(subject, f"{preparation.edge} does not answer")

    # The routes' side

    def _routes_live(self, subject: str, awaiting: set[str]) -> None:
        if subject in self._pending:
            self._pending[subject].awaiting = tuple(sorted(awaiting))
            self._tell_if_ready(subject)

    def _routes_failed(self, subject: str, problem: str) -> None:
        if subject in self._pending:
            self._fail(subject, f"the route could not be bound: {problem}")

    # The end

    def _tell_if_ready(self, subject: str) -> None:
        preparation = self._pending[subject]
        if preparation.ready and preparation.awaiting is not None and not preparation.told:
            self._tell(subject, preparation, preparation.outcome(awaiting=preparation.awaiting))

    def _fail(self, subject: str, problem: str) -> None:
        preparation = self._pending[subject]
        if not preparation.told:
            self._tell(subject, preparation, preparation.outcome(problem))

    def _tell(self, subject: str, preparation: _Preparation, how: Prepared) -> None:
        preparation.told = True
        self._quiet(subject, preparation)
        preparation.done(subject, how)

    def validate(self) -> None:
        """Raise AssertionError if a reserved place is not what it should be."""
        context = self._context
        reserved = {preparation.place for preparation in self._pending.values()}
        assert len(reserved) == len(self._pending), "two preparations of one place"
        assert context.reserved <= reserved, "a reserved place that nobody wants"
        for place in reserved:
            assert place[1] in context.busy[place[0]], f"{place} is reserved but not busy"
