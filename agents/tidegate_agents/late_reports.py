"""What a client reports about a migration that its head does not know: believed, as far as it does no harm.

A head that was restarted in the middle of a migration has lost it; its client has not. What always holds: a place is
given to the client only if we know it to be the client's, and removed only if nobody was told to use it; while another
migration of the same client is under way, only its coming to where that one takes it from is believed.
"""

from __future__ import annotations

from tidegate_protocol.balancing import MigrateCancel, MigrationReport, MigrationStage

from .context import HeadContext
from .machine import Decision, SendClient
from .registry import Key, key_of
from .removals import Removals

Place = tuple[str, Key]


def believe(context: HeadContext, removals: Removals, message: MigrationReport, leaving: Place | None) -> None:
    """Draw the conclusions from a report. `leaving` is the place that another migration takes the client from."""
    here: Place = (message.edge, (message.subscriber, message.number))
    other = _other_place(message)
    there = other if other is not None and other != here and _is_its(context, other, message) else None
    match message.stage:
        case MigrationStage.MOVED:
            # Whoever led that move, and whatever we know of its place yet: the client has been moved and rests.
            rest_s = context.config.balancing.cooldown_s
            context.cooldowns.rest((message.subscriber, message.pattern), context.now + rest_s)
            if leaving in (None, here) and _is_its(context, here, message) and removals.keep(*here):
                _moved(context, removals, message, here, there)
        case MigrationStage.STAYED | MigrationStage.UNKNOWN:
            if (
                there is not None
                and leaving is None
                and there not in context.granted
                and there not in context.abandoned
            ):
                removals.discard(*there)
        case MigrationStage.ORDERED | MigrationStage.ATTACHED:
            # It waits for markers that nobody will send. Its own time-out would end that too, only later.
            cancel = MigrateCancel(migration=message.migration, subscriber=message.subscriber, pattern=message.pattern)
            context.do(SendClient(message.subscriber, cancel))


def _moved(
    context: HeadContext, removals: Removals, message: MigrationReport, here: Place, there: Place | None
) -> None:
    for edge, other in context.registry.find(message.subscriber, message.pattern):
        context.granted.discard((edge, key_of(other)))
    context.abandoned.discard(here)
    context.granted.add(here)
    if there is not None and message.unsettled:
        context.abandoned.add(there)
    elif there is not None:
        removals.discard(*there)
    context.decide(Decision("move-believed", message.subscriber, f"it says that it moved to {message.edge}"))


def _other_place(message: MigrationReport) -> Place | None:
    if message.other_edge is None or message.other_number is None:
        return None
    return message.other_edge, (message.subscriber, message.other_number)


def _is_its(context: HeadContext, place: Place, message: MigrationReport) -> bool:
    """Whether we know this place as one of the client's."""
    known = context.registry.get(*place)
    return known is not None and known.pattern == message.pattern and place not in context.reserved
