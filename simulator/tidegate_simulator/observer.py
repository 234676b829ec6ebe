"""Who watches a run: checkers, experiments, figures. An observer never changes anything.

The world calls these methods at the moment something happens, in the order in which it happens. `now` is the true
virtual time, whatever the clocks of single brokers say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tidegate_agents.machine import Action, EdgeSampled, Event, HeadSampled, MessageReceived, ReplyReceived
from tidegate_protocol.decisions import Decision

if TYPE_CHECKING:
    from .world import World

HEARD: Final = (MessageReceived, ReplyReceived)
"""The events that bring an agent a message."""


class Observer:
    """Does nothing; observers override what they are interested in."""

    def started(self, world: World) -> None:
        """Before the first step."""

    def published(self, publisher: str, topic: str, message_id: str, now: float) -> None:
        """A publisher's application handed over a message; from now on it must not be lost."""

    def delivered(
        self, subscriber: str, message_id: str, published_s: float, now: float, *, late: bool, collected: bool
    ) -> None:
        """A subscriber's application got a message. `collected`: from an edge that had been away."""

    def stepped(self, broker: str, event: Event, actions: list[Action], now: float) -> None:
        """An agent handled an event."""

    def decided(self, broker: str, decision: Decision, now: float) -> None:
        """An agent recorded a decision."""

    def edge_sampled(self, edge: str, sample: EdgeSampled, now: float) -> None:
        """An edge's agent is about to get this sample."""

    def head_sampled(self, head: str, sample: HeadSampled, now: float) -> None:
        """A head's agent is about to get this sample."""

    def control_sent(self, sender: str, receiver: str, kind: str, now: float) -> None:
        """A control message was sent."""

    def ended(self, world: World, now: float) -> None:
        """After the last step."""


def overriders(observers: Iterable[Observer], method: str) -> tuple[Callable[..., None], ...]:
    """This method of the observers that are interested: what happens a million times is told to nobody else."""
    interested = [one for one in observers if getattr(type(one), method) is not getattr(Observer, method)]
    return tuple(getattr(one, method) for one in interested)
