"""The steps of a migration that depend on its target, for a target in the same cluster.

The new queue is made by one of our own edges, and one marker, our own, goes down the links to both edges: everything
that reaches the cluster passes this head, wherever it was published, so that the marker follows it on both.
"""

from __future__ import annotations

from functools import partial

from tidegate_protocol.names import marker_key

from ...machine import PublishMarker
from ..context import HeadContext
from ..places.preparations import Preparations, Prepared
from .steps import Move, NewPlace, Progress


class LocalSteps:
    """Steps inside one cluster."""

    def __init__(self, context: HeadContext, preparations: Preparations) -> None:
        self._context = context
        self._preparations = preparations

    def prepare(self, move: Move, progress: Progress) -> None:
        done = partial(self._prepared, progress)
        self._preparations.start(move.id, move.target, move.subscription, move.marker, done)

    def _prepared(self, progress: Progress, migration: str, how: Prepared) -> None:
        if how.problem is not None:
            progress.failed(migration, how.problem)
            return
        head = self._context.config.head
        place = NewPlace(
            edge=how.edge,
            number=how.subscription.number,
            url=self._context.registry.edges[how.edge].client_url,
            queue=how.queue,
            head=head,
            heads=(head,),
        )
        progress.prepared(migration, place)

    def publish_markers(self, move: Move, place: NewPlace) -> None:
        key = marker_key(move.id, self._context.config.head)
        self._context.do(PublishMarker(key, tuple(sorted({move.source, place.edge}))))

    def end(self, move: Move, moved: bool) -> None:
        if moved:
            self._preparations.taken(move.id)
        else:
            self._preparations.given_up(move.id)
