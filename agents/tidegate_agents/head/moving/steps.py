"""The seam between a migration and the kind of place it leads to: inside the cluster, or in another one.

`migrations` owns the course of a migration: it binds the source's marker, orders and cancels the client, counts time,
decides how it ended, removes the old queue. Whatever depends on *where* the subscription goes is behind `Steps`:

1. `prepare(move, progress)`: get a queue made on the target, its routes live from every head that matters. Answer
   later, once, with `progress.prepared(move.id, place)` or `progress.failed(move.id, why)`;
2. `publish_markers(move, place)`: have the markers of all `place.heads` sent down both paths. May be called again
   (a client that crashed starts over): then they are sent again. Trouble is told with `progress.failed`; success
   needs no telling, the client sees the markers;
3. `end(move, moved)`: called exactly once per `prepare`, in whatever state the preparation is. With `moved` the new
   place is the client's own now; else no client uses it and it is to be removed, whether it was ready or not. If
   another head has to be told, the steps go on telling it by themselves; the migration does not wait for that.

Invariant: calls about one move come in that order; after `end` nothing about that move may be reported;
answers may be given inside the call itself. The old place is no business of the steps, except that a remote one
routes the marker pattern to `move.source` as well.

There are two kinds: `LocalSteps` in `local_steps` and, for other clusters, `RemoteSteps` in `abroad/leaving`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidegate_protocol.balancing.sessions import PlannedMove
from tidegate_protocol.decisions import WhyNot
from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import marker_pattern


@dataclass(frozen=True, slots=True)
class Move:
    """What a migration is to do. Fixed when it begins."""

    id: str
    session: str
    """The session, or the drain, that it belongs to."""
    source: str
    subscription: Subscription
    """As it is on the source; its number is that of the old queue."""
    target: str
    """The edge it goes to."""
    target_head: str
    """The head of that edge: our own name for a move inside the cluster."""
    load: PlannedMove
    """What the target is promised to get."""

    @property
    def marker(self) -> str:
        """The pattern that the markers of all heads for this move match."""
        return marker_pattern(self.id)


@dataclass(frozen=True, slots=True)
class NewPlace:
    """A queue that is ready for the client, and the heads whose markers show that it is complete."""

    edge: str
    number: int
    url: str
    queue: str
    head: str
    heads: tuple[str, ...]
    head_url: str = ""
    """Where its client finds that head; empty where it stays the same."""


class Progress(Protocol):
    """What the steps may tell the migrations."""

    def prepared(self, migration: str, place: NewPlace) -> None: ...

    def failed(self, migration: str, why: WhyNot) -> None: ...


class Steps(Protocol):
    """What differs between a move inside the cluster and one to another cluster."""

    def prepare(self, move: Move, progress: Progress) -> None: ...

    def publish_markers(self, move: Move, place: NewPlace) -> None: ...

    def end(self, move: Move, moved: bool) -> None: ...
