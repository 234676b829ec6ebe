"""Places made ready for a client that does not use them yet: a queue on an edge, its routes live.

Used by migrations inside a cluster, and for subscriptions that come from another one. Invariants:

- a place is *reserved* from `start` until its owner says `taken` or `given_up`, whatever happens in between; so long it
  is in the registry, its routes are bound, and no registry page changes it;
- `done` is called once, with what is ready or with what went wrong; a failed preparation still wants `given_up`;
- a place given up is removed from its edge, even if the edge never confirmed it: it may have made it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate_protocol.decisions import MoveOutcome, WhyNot
from tidegate_protocol.messages import OutputPrepare, OutputReady, Subscription
from tidegate_protocol.names import output_queue

from ...kit.answers import why_not
from ...kit.calls import Answer, Calls, Silence
from ...kit.dispatch import Dispatch
from ...kit.subscriptions import key_of
from ...topics.waits import Wait
from ..context import HeadContext
from ..edges import Edges
from ..neighbours import Neighbours
from ..registry import Place, place_of
from .ledger import RESERVED, Operation
from .removals import Removals

PART = "output"


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a preparation went. `problem` is None if the place is ready."""

    edge: str
    subscription: Subscription
    problem: WhyNot | None = None
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
    done: Done
    ready: bool = False
    awaiting: tuple[str, ...] | None = None
    told: bool = False
    """Whether `done` was called."""

    @property
    def place(self) -> Place:
        return place_of(self.edge, self.subscription)

    def outcome(self, problem: WhyNot | None = None, awaiting: tuple[str, ...] = ()) -> Prepared:
        return Prepared(self.edge, self.subscription, problem, awaiting)


class Preparations:
    """The places reserved, by subject: the id of the migration that wants them."""

    def __init__(self, context: HeadContext, edges: Edges, removals: Removals, neighbours: Neighbours) -> None:
        self._context = context
        self._edges = edges
        self._removals = removals
        self._neighbours = neighbours
        self._calls = Calls(context, PART, context.config.reply_timeout_s, self._heard)
        self._pending: dict[str, _Preparation] = {}

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)
        dispatch.on_wait(PART, self._routes_live, self._routes_failed)
        dispatch.checks.append(self.validate)

    def __contains__(self, subject: str) -> bool:
        return subject in self._pending

    def place(self, subject: str) -> Place:
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
        preparation = _Preparation(edge, subscription, done)
        unfit = self._edges.unfit(edge, terms.pattern)
        if unfit is not None:
            done(subject, Prepared(edge, subscription, WhyNot(MoveOutcome.UNFIT, (edge,), unfit=unfit)))
            return
        self._pending[subject] = preparation
        context.ledger.reserve(edge, subscription)
        context.ledger.begin(Operation.PREPARATION, preparation.place)
        self._calls.ask(subject, edge, OutputPrepare(subscription=subscription, marker=marker))
        key = f"{PART} {subject}"
        if everywhere:
            self._neighbours.open_wait(key, edge, context.config.routes_wait_s)
        else:
            context.bindings.flush()
            context.waits.open(Wait(key, context.now, changes=context.bindings.outstanding(edge)))

    def taken(self, subject: str) -> None:
        """The client uses the place from now on."""
        preparation = self._close(subject)
        if preparation is not None and self._context.ledger.state(preparation.place) is RESERVED:
            self._context.ledger.use(preparation.place)

    def given_up(self, subject: str) -> None:
        """Nobody will use the place."""
        preparation = self._close(subject)
        if preparation is not None:
            self._removals.discard(preparation.place)

    def _close(self, subject: str) -> _Preparation | None:
        preparation = self._pending.pop(subject, None)
        if preparation is None:
            return None
        self._context.ledger.end(Operation.PREPARATION, preparation.place)
        self._quiet(subject)
        return preparation

    def _quiet(self, subject: str) -> None:
        self._calls.close(subject)
        self._context.close_wait(f"{PART} {subject}")

    # The edge's side

    def _heard(self, subject: str, answer: Answer) -> None:
        preparation, config = self._pending[subject], self._context.config
        if isinstance(answer, OutputReady) and answer.subscription == preparation.subscription:
            preparation.ready = True
            self._calls.wait(subject, config.routes_wait_s + config.reply_timeout_s)
            self._tell_if_ready(subject)
        elif preparation.ready:
            self._fail(subject, WhyNot(MoveOutcome.NO_ROUTE, (preparation.edge,)))
        else:
            if answer is Silence.ABSENT:
                self._edges.lost(preparation.edge)
            self._fail(subject, why_not(preparation.edge, answer))

    # The routes' side

    def _routes_live(self, subject: str, awaiting: set[str]) -> None:
        if subject in self._pending:
            self._pending[subject].awaiting = tuple(sorted(awaiting))
            self._tell_if_ready(subject)

    def _routes_failed(self, subject: str, problem: str) -> None:
        if subject in self._pending:
            self._fail(subject, WhyNot(MoveOutcome.RABBITMQ_REFUSED, (self._pending[subject].edge,), problem))

    # The end

    def _tell_if_ready(self, subject: str) -> None:
        preparation = self._pending[subject]
        if preparation.ready and preparation.awaiting is not None and not preparation.told:
            self._tell(subject, preparation, preparation.outcome(awaiting=preparation.awaiting))

    def _fail(self, subject: str, problem: WhyNot) -> None:
        preparation = self._pending[subject]
        if not preparation.told:
            self._tell(subject, preparation, preparation.outcome(problem))

    def _tell(self, subject: str, preparation: _Preparation, how: Prepared) -> None:
        preparation.told = True
        self._quiet(subject)
        preparation.done(subject, how)

    def validate(self) -> None:
        """Raise AssertionError if a reserved place is not what it should be."""
        ledger = self._context.ledger
        wanted = {preparation.place for preparation in self._pending.values()}
        assert len(wanted) == len(self._pending), "two preparations of one place"
        assert set(ledger.all_in(RESERVED)) <= wanted, "a reserved place that nobody wants"
        assert all(ledger.runs(Operation.PREPARATION, place) for place in wanted)
