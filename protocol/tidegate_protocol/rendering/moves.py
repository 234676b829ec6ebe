"""Decisions about moves of subscribers and about places in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..decisions import (
    AcceptanceEnded,
    AcceptEndUnheard,
    CollectionEnded,
    CollectionOutcome,
    Decision,
    DepartureLearned,
    GuestsUnheard,
    GuestsUnheardReason,
    MigrationEnded,
    MoveBelieved,
    MoveOutcome,
    OutputListed,
    OutputOutcome,
    PlaceAbandoned,
    Placed,
    PlacementReason,
    PlaceSettled,
    Removed,
    SentAfter,
)
from .clauses import rejected, why_not, why_stayed, with_detail
from .said import Said
from .words import counted, listed, subscription

PLACED: Final[Mapping[PlacementReason, str]] = {
    PlacementReason.ONLY_EDGE: "because there is no other edge",
    PlacementReason.SAME_PATTERN: "because others with that pattern are there",
    PlacementReason.APART_FROM_CORRELATED: "because topics that rise together with it, by an insight, are on others",
    PlacementReason.MOST_CAPACITY_LEFT: "because it had the most capacity left",
    PlacementReason.NEAR_TIE_FASTER: "because it had about the most capacity left, and is faster than its equals",
    PlacementReason.FEWEST_SUBSCRIPTIONS: "because it had the fewest subscriptions, capacities being unknown",
    PlacementReason.ENTRY_BROKER: "because that is where it asked",
    PlacementReason.BY_LOT: "because the lot fell on it",
    PlacementReason.NO_EDGE: "because no edge can take it",
}
COLLECTIONS: Final[Mapping[CollectionOutcome, str]] = {
    CollectionOutcome.COLLECTED: "",
    CollectionOutcome.CLIENT_ABSENT: "its client is not there",
    CollectionOutcome.CLIENT_REFUSED: "its client could not collect it",
    CollectionOutcome.NOT_BOUND: "its marker could not be bound",
    CollectionOutcome.NOT_TAKEN: "its application has not taken yet what was collected",
    CollectionOutcome.RABBITMQ_REFUSED: "its marker could not be published",
    CollectionOutcome.TIME_OUT: "it was not collected in time",
}


def client(subscriber: str, pattern: str) -> str:
    return f"{subscriber} (subscribed to {pattern})"


def migration(one: MigrationEnded) -> Said:
    what = f"{'was moved' if one.moved else 'was not moved'} from {one.source} to {one.target}"
    why = "" if one.moved else why_stayed(one)
    return Said(client(one.subscriber, one.pattern), what, why)


def acceptance(one: AcceptanceEnded) -> Said:
    came = one.outcome in (MoveOutcome.MOVED, MoveOutcome.END_UNHEARD)
    what = f"{'came' if came else 'did not come'} from {one.head} to {one.edge}"
    why = "" if one.outcome is MoveOutcome.MOVED else why_not(one)
    return Said(client(one.subscriber, one.pattern), what, why)


def end_unheard(one: AcceptEndUnheard) -> Said:
    return Said(one.head, "does not answer", f"it was told {one.attempts} times how migration {one.session} ended")


def believed(one: MoveBelieved) -> Said:
    return Said(client(one.subscriber, one.pattern), "is believed to have moved", f"it says that it is at {one.edge}")


def departure(one: DepartureLearned) -> Said:
    what = "is known to be in another cluster"
    return Said(client(one.subscriber, one.pattern), what, f"{one.head} says that it is at {one.edge}")


def sent_after(one: SentAfter) -> Said:
    why = f"it was moved there and asks where it was before; its edge is {one.edge}"
    return Said(client(one.subscriber, one.pattern), f"is sent to {one.head}", why)


def guests(one: GuestsUnheard) -> Said:
    if one.reason is GuestsUnheardReason.NO_URL:
        why = f"publisher_url is not configured, and {counted(one.count, 'client')} can't be sent to this head"
    else:
        why = f"it was told {one.count} times and does not answer"
    return Said(one.head, "does not know which of its clients are here", why)


def placed(one: Placed) -> Said:
    if not one.edge:
        why = listed(map(rejected, one.rejected)) or "no edge has been heard of yet"
        return Said(client(one.subscriber, one.pattern), "finds no edge", why)
    return Said(f"subscriptions to {one.pattern}", f"go to {one.edge}", PLACED[one.reason])


def settled(one: PlaceSettled) -> Said:
    return Said(client(one.subscriber, one.pattern), "says which place it uses", f"{one.edge}, not {listed(one.left)}")


def abandoned(one: PlaceAbandoned) -> Said:
    why = f"{one.edge} is away, and its client can't reach it"
    return Said(client(one.subscriber, one.pattern), "was given another place", why)


def removed(one: Removed) -> Said:
    return Said(f"queue {one.number} of {one.subscriber}", f"was deleted by {one.edge}")


def collection(one: CollectionEnded) -> Said:
    if one.outcome is CollectionOutcome.COLLECTED:
        return Said(client(one.subscriber, one.pattern), f"has collected what it left on {one.edge}")
    why = with_detail(COLLECTIONS[one.outcome], one.detail)
    return Said(client(one.subscriber, one.pattern), f"has not collected what it left on {one.edge}", why)


def output(one: OutputListed) -> Said:
    if one.outcome is OutputOutcome.ADOPTED:
        return Said(subscription(one.queue), "is taken over", "RabbitMQ lists its queue")
    return Said(subscription(one.queue), "is gone", "RabbitMQ lists its queue no more: expired, or deleted")


RENDERINGS: Final[Mapping[type[Decision], Callable[[Any], Said]]] = {
    MigrationEnded: migration,
    AcceptanceEnded: acceptance,
    AcceptEndUnheard: end_unheard,
    MoveBelieved: believed,
    DepartureLearned: departure,
    SentAfter: sent_after,
    GuestsUnheard: guests,
    Placed: placed,
    PlaceSettled: settled,
    PlaceAbandoned: abandoned,
    Removed: removed,
    CollectionEnded: collection,
    OutputListed: output,
}
