"""Decisions as tests look at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from tidegate_agents.machine import Action, Record
from tidegate_protocol.decisions import Decision, Effect, Rejection
from tidegate_protocol.parts import Metric

Kind = TypeVar("Kind", bound=Decision)


def of_kind(decisions: Iterable[Decision], kind: type[Kind]) -> list[Kind]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def recorded(actions: Iterable[Action], kind: type[Kind]) -> list[Kind]:
    """The decisions of this kind among actions."""
    return of_kind((action.decision for action in actions if isinstance(action, Record)), kind)


def rejections(decision: Any) -> dict[str, Rejection]:
    """Why the alternatives were not taken, by `<name>` or `<name> to <target>`."""
    return {f"{one.name} to {one.target}" if one.target else one.name: one.reason for one in decision.rejected}


def effect(decision: Any, broker: str, metric: Metric = Metric.UPLINK) -> Effect:
    """What a plan predicts for one metric of one broker."""
    (found,) = (one for one in decision.effects if (one.broker, one.metric) == (broker, metric))
    return found
