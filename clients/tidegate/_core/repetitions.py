"""The plain messages that the new queue repeats after a move, and how long they are waited for."""

from __future__ import annotations

from typing import Final

from .attachment import Actions
from .moves import CancelTimer, SetTimer
from .overlap import OVERLAP_S, Overlap

OVERLAP: Final = "overlap"


class Repetitions:
    """The repetitions of one move at most: the next move begins anew."""

    def __init__(self) -> None:
        self._overlap: Overlap | None = None

    @property
    def due(self) -> bool:
        return self._overlap is not None

    def begin(self, overlap: Overlap) -> Actions:
        """The move has succeeded."""
        ended = self.end()
        if not overlap:
            return ended
        self._overlap = overlap
        return [*ended, SetTimer(OVERLAP, OVERLAP_S)]

    def take(self, content: bytes | None) -> bool:
        """Whether a delivery of the queue in use repeats what the one before it brought."""
        return content is not None and self._overlap is not None and self._overlap.take(content)

    def end_if_complete(self) -> Actions:
        return [] if self._overlap else self.end()

    def end(self) -> Actions:
        """All was repeated, or will not be any more."""
        if self._overlap is None:
            return []
        self._overlap = None
        return [CancelTimer(OVERLAP)]
