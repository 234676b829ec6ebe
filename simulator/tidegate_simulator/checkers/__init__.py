"""What must hold in every run, one checker per rule."""

from __future__ import annotations

from .base import Checker as Checker, Violation as Violation
from .deliveries import Deliveries
from .promises import PredictionsKept, PromisesCounted
from .rest import BoundedMemory, OnePlaceEach
from .sessions import NoOscillation, SessionsEnd


def all_checkers() -> tuple[Checker, ...]:
    """New ones, for one run."""
    return (
        Deliveries(),
        SessionsEnd(),
        NoOscillation(),
        PredictionsKept(),
        PromisesCounted(),
        OnePlaceEach(),
        BoundedMemory(),
    )
