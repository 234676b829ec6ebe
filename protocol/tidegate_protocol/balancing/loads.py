"""Load reports (PIE): what a broker and a cluster say of their load, and the load that moves are estimated from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..parts import Capacity, LoadState, Message, Name, Part, Period, Rate, Value


class MetricReport(Part):
    value: Value
    low: Value | None = None
    high: Value | None = None


class PieLocal(Message):
    """The load of one broker, for the brokers of its cluster."""

    kind: Literal["pie-local"] = "pie-local"
    broker: Name
    cluster: Name
    state: LoadState
    busy: bool = False
    """In a session, or waiting for one to show: not to be asked to take load."""
    metrics: dict[str, MetricReport] = Field(default_factory=dict)
    period_s: Period


class PieGlobal(Message):
    """The load of one cluster, for its neighbours: the mean of each metric over the brokers that can take load."""

    kind: Literal["pie-global"] = "pie-global"
    cluster: Name
    head: Name
    state: LoadState
    metrics: dict[str, MetricReport] = Field(default_factory=dict)
    period_s: Period


class BrokerLoad(Part):
    """Everything the effect of a move is estimated from: the load in absolute numbers, and what carries it."""

    broker: Name
    state: LoadState
    busy: bool = False
    bytes_in_per_s: Rate
    bytes_offered_per_s: Rate
    messages_in_per_s: Rate
    capacity: Capacity = Capacity()


LoadMessage = PieLocal | PieGlobal
"""The part of the union `messages.ControlMessage` that this module defines."""
