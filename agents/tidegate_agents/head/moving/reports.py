"""What clients report, unasked, about migrations and collections, also about those that their head does not know.

A report about a migration that is under way is followed there, one about a collection by `doubts`. A head that was
restarted in the middle of a migration has lost it; its client has not, and is believed as far as that does no harm.
Invariants:

- a report is answered whatever we know about it, unless its client has to repeat it because we can't judge it yet, or
  would forget it in a crash;
- a place is given to the client only if we know it to be the client's, and removed only if nobody was told to use it;
- while another migration of the same client is under way, only its coming to where that one takes it from is believed.
"""

from __future__ import annotations

from tidegate_protocol.balancing.migrations import MigrateCancel, MigrationAck, MigrationReport, MigrationStage
from tidegate_protocol.decisions import MoveBelieved

from ...kit.dispatch import Dispatch
from ...machine import ReplyAddress, SendClient
from ..abroad.leaving import RemoteSteps
from ..context import HeadContext
from ..places.doubts import Doubts
from ..places.knowledge import Knowledge
from ..places.ledger import ABANDONED, NEEDED, RESERVED
from ..places.removals import Removals
from ..registry import Place
from .migrations import Migrations


class Reports:
    """Leads every report to what it is about."""

    def __init__(
        self,
        context: HeadContext,
        removals: Removals,
        knowledge: Knowledge,
        migrations: Migrations,
        doubts: Doubts,
        abroad: RemoteSteps,
    ) -> None:
        self._context = context
        self._removals = removals
        self._knowledge = knowledge
        self._migrations = migrations
        self._doubts = doubts
        self._abroad = abroad

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_message(MigrationReport, self.on_report)

    def on_report(self, message: MigrationReport, reply_to: ReplyAddress | None) -> None:
        """A client says where it is."""
        if self._doubts.reported(message):
            self._context.reply(reply_to, MigrationAck(migration=message.migration))
            return
        if message.migration in self._migrations:
            self._migrations.reported(message)
        elif self._too_early(message):
            return  # it says so again, and by then we know more
        else:
            self._late(message)
        if not self._in_vain(message):
            self._context.reply(reply_to, MigrationAck(migration=message.migration))

    def _too_early(self, message: MigrationReport) -> bool:
        """Whether we have just started and can't tell yet whether the edges it names are ours."""
        return any(self._knowledge.is_unheard(edge) for edge in {message.edge, message.other_edge or message.edge})

    def _in_vain(self, message: MigrationReport) -> bool:
        """Whether we would forget in a crash what we are told: that a client has left our cluster, and a place there
        that is still to be removed, or is on an edge that has not told yet what it holds. It is to say so again. So it
        is if it has still something to take from that place, and if we gave the move up before: then the other head
        takes the new place away, and a client whose move was not confirmed comes back to us.
        """
        registry = self._context.registry
        left, old = message.other_edge or "", _other_place(message)
        if message.stage is not MigrationStage.MOVED or message.edge in registry.edges or left not in registry.edges:
            return False
        if message.unsettled or self._migrations.outcome(message.migration) is False:
            return True
        still_there = self._context.ledger.is_leaving(old) and registry.get(*old) is not None
        return still_there or self._knowledge.is_unread(left)

    # Migrations that are over here, or were never known

    def _late(self, message: MigrationReport) -> None:
        moved = self._migrations.outcome(message.migration)
        client = (message.subscriber, message.pattern)
        leaving = self._migrations.leaving(client)
        if moved and message.stage is MigrationStage.MOVED and not message.unsettled:
            self._caught_up(_other_place(message))
        if moved is None or (message.stage is MigrationStage.MOVED and not moved):
            self._believe(message, leaving)
            if message.stage is MigrationStage.MOVED:
                self._migrations.just_came(client)
        if moved is None and leaving is None and self._context.routes.offers:
            self._abroad.late_report(message)

    def _caught_up(self, old: Place) -> None:
        """The application of a client that had moved before has now taken all that its old queue brought."""
        ledger = self._context.ledger
        if ledger.state(old) is ABANDONED and not ledger.is_busy(old):
            self._removals.discard(old)

    def _believe(self, message: MigrationReport, leaving: Place | None) -> None:
        """Draw the conclusions. `leaving` is the place that another migration takes the client from."""
        context, other = self._context, _other_place(message)
        here: Place = (message.edge, (message.subscriber, message.number))
        there = other if other != here and self._is_its(other, message) else None
        match message.stage:
            case MigrationStage.MOVED:
                # Whichever head led that move, and whatever we know of its place yet: the client was moved and rests.
                rest_s = context.config.balancing.cooldown_s
                context.cooldowns.rest((message.subscriber, message.pattern), context.now + rest_s)
                if leaving in (None, here) and self._is_its(here, message) and context.ledger.keep(here):
                    self._moved(message, here, there)
            case MigrationStage.STAYED | MigrationStage.UNKNOWN:
                if there is not None and leaving is None and context.ledger.state(there) not in NEEDED:
                    self._removals.discard(there)
            case MigrationStage.ORDERED | MigrationStage.ATTACHED:
                # It waits for markers that nobody will send. Its own time-out would end that too, only later.
                subscriber, pattern = message.subscriber, message.pattern
                cancel = MigrateCancel(migration=message.migration, subscriber=subscriber, pattern=pattern)
                context.do(SendClient(subscriber, cancel))

    def _moved(self, message: MigrationReport, here: Place, there: Place | None) -> None:
        ledger = self._context.ledger
        for place in ledger.places((message.subscriber, message.pattern)):
            ledger.doubt(place)
        ledger.use(here)
        if there is not None and message.unsettled:
            ledger.abandon(there)
        elif there is not None:
            self._removals.discard(there)
        self._context.decide(MoveBelieved(message.subscriber, message.pattern, message.edge))

    def _is_its(self, place: Place, message: MigrationReport) -> bool:
        """Whether we know this place as one of the client's."""
        known = self._context.registry.get(*place)
        same = known is not None and known.pattern == message.pattern
        return same and self._context.ledger.state(place) is not RESERVED


def _other_place(message: MigrationReport) -> Place:
    """The place that the client has left, or did not come to. Nobody has the name that stands for none."""
    return message.other_edge or "", (message.subscriber, message.other_number or 0)
