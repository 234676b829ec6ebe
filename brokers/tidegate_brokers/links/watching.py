"""Which links make no progress, from what RabbitMQ says of their shovels and queues. Pure; time is an argument.

Two signs, because shovels fail in two ways:

- a shovel that RabbitMQ at the far end has sent away with a refusal begins again with the same message, for ever: it is
  seen to have ended with a reason, again and again;
- a shovel whose channel was closed for another reason than the one it knows (3.10: anything but 406) stays *running*
  and does nothing: messages wait, and for a long time none of them is acknowledged.

What a shovel that can't connect says is no refusal: a far end that is away is no reason to act.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

REFUSED: Final = re.compile(
    r"PRECONDITION_FAILED|ACCESS_REFUSED|NOT_FOUND|FRAME_ERROR|SYNTAX_ERROR|UNEXPECTED_FRAME|INTERNAL_ERROR|"
    r"needed a restart"
)
"""What RabbitMQ says when it closes a channel or a connection; the last one is the shovel's own word for it."""
REFUSALS_NEEDED: Final = 2
"""Looks at which a shovel was seen refused, until it counts."""
FORGIVEN_S: Final = 10.0
"""A shovel that has not been seen refused for so long starts with a clean record."""
STILL_S: Final = 20.0
"""How long messages may wait at a shovel that runs without one of them being acknowledged. Statistics of queues are up
to 5 s old."""
RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 300.0
"""Between two attempts to help a link that could not be helped: twice as long each time, up to this."""


@dataclass(slots=True)
class _Watched:
    running: bool = False
    refusals: int = 0
    refused_s: float = 0.0
    forwarded: int = -1
    still_since_s: float | None = None
    failures: int = 0
    not_before_s: float = 0.0


@dataclass(slots=True)
class LinkWatch:
    """What was seen of each link."""

    _links: dict[str, _Watched] = field(default_factory=dict)

    def saw_shovel(self, target: str, state: str, reason: str, now: float) -> None:
        """A look at the shovel of a link."""
        watched = self._links.setdefault(target, _Watched())
        watched.running = state == "running"
        if now - watched.refused_s > FORGIVEN_S:
            watched.refusals = 0
        if not watched.running and REFUSED.search(reason):
            watched.refusals += 1
            watched.refused_s = now

    def saw_queue(self, target: str, waiting: int, forwarded: int, now: float) -> None:
        """A look at the queue of a link: what waits, and how many were ever acknowledged."""
        watched = self._links.setdefault(target, _Watched())
        if not waiting or forwarded != watched.forwarded or watched.still_since_s is None:
            watched.forwarded = forwarded
            watched.still_since_s = now if waiting else None

    def stuck(self, target: str, now: float) -> bool:
        """Whether a link needs help, and may be helped now."""
        watched = self._links.get(target)
        if watched is None or now < watched.not_before_s:
            return False
        still = watched.running and watched.still_since_s is not None and now - watched.still_since_s >= STILL_S
        return still or watched.refusals >= REFUSALS_NEEDED

    def helped(self, target: str, success: bool, now: float) -> None:
        """Help has ended; without success the next one waits."""
        failures = 0 if success else self._links.setdefault(target, _Watched()).failures + 1
        wait_s = 0.0 if success else min(RETRY_FIRST_S * 2.0 ** min(failures - 1, 10), RETRY_MAX_S)
        self._links[target] = _Watched(failures=failures, not_before_s=now + wait_s)

    def keep_only(self, targets: set[str]) -> None:
        """Forget links that are gone."""
        for gone in self._links.keys() - targets:
            del self._links[gone]
