"""What is wrong with the links of a head, and who sent what they could not carry.

The runtime helps a link by itself (`tidegate_brokers.links`), because a link that stands still must not wait for an
agent, and tells what it found. Here that becomes decisions, and a bounded memory for the answers to operators: the last
message of each culprit that was set aside, and for each link what is wrong with it now.
"""

from __future__ import annotations

from typing import Final

from tidegate_protocol.decisions import LinkLimitDiffers, LinkRelayed, MessageSetAside, RelayOutcome
from tidegate_protocol.operations import Culprit, Told

from ..kit.chronicle import Dated, told
from ..kit.dispatch import Dispatch
from ..kit.memory import Recent
from ..machine import LinkLimitFits, LinkObserved
from .context import HeadContext

CULPRITS_MAX: Final = 100
CULPRIT_S: Final = 3600.0
"""For how long somebody is named after the last message of theirs that was set aside."""
LINKS_MAX: Final = 1_000
UNKNOWN: Final = "unknown"
"""In place of a name: the message says nothing of its sender."""


class Links:
    """What operators are told about the links of one head."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._culprits: Recent[str, Dated] = Recent(CULPRITS_MAX)
        self._troubled: Recent[tuple[str, str], Dated] = Recent(LINKS_MAX)
        """By link and kind of decision."""

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_event(LinkObserved, self._observed)
        dispatch.on_event(LinkLimitFits, self._fits)
        dispatch.checks.append(self.validate)

    def _observed(self, event: LinkObserved) -> None:
        context, found = self._context, event.found
        context.decide(found)
        dated = Dated(found, context.now)
        match found:
            case MessageSetAside():
                self._culprits[found.account or found.publisher or UNKNOWN] = dated
            case LinkRelayed(target=target, outcome=RelayOutcome.PASSED):
                self._troubled.pop((target, found.kind), None)
            case LinkRelayed(target=target) | LinkLimitDiffers(target=target):
                self._troubled[target, found.kind] = dated

    def _fits(self, event: LinkLimitFits) -> None:
        self._troubled.pop((event.target, LinkLimitDiffers.kind), None)

    @property
    def named(self) -> tuple[str, ...]:
        """The culprits of the last while, in the order of names."""
        self._forget()
        return tuple(sorted(self._culprits))

    def culprits(self) -> list[Culprit]:
        """The same for an operator, with what they sent last."""
        self._forget()
        now, head = self._context.now, self._context.config.head
        return [
            Culprit(
                what=dated.decision.kind,
                client=name,
                broker=head,
                ago_us=round(max(now - dated.at_s, 0.0) * 1e6),
                record=dated.decision,
            )
            for name, dated in sorted(self._culprits.items())
        ]

    def troubled(self) -> list[Told]:
        """What is wrong with links now."""
        head, now = self._context.config.head, self._context.now
        return [told(head, dated, now) for _, dated in sorted(self._troubled.items(), key=lambda item: item[0])]

    def _forget(self) -> None:
        since_s = self._context.now - CULPRIT_S
        self._culprits.forget_while(lambda dated: dated.at_s < since_s)

    def validate(self) -> None:
        """Raise AssertionError if more is kept than may be."""
        self._culprits.validate()
        self._troubled.validate()
