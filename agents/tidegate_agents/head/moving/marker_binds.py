"""Having the markers of a migration reach a queue that exists: an edge is asked until it says that the key is bound.

Invariant: every binding asked for is answered once, with success or with what went wrong, or is stopped by the part
that asked. Binding the same key again does no harm, so a request may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate_protocol.balancing.markers import MarkerBind, MarkerReady
from tidegate_protocol.decisions import WhyNot

from ...kit.answers import why_not
from ...kit.calls import Answer, Calls
from ...kit.dispatch import Dispatch
from ...kit.subscriptions import Key
from ..context import HeadContext

PART = "marker"

Done = Callable[[str, WhyNot | None], None]
"""Called with the subject, and with the problem or None."""


class MarkerBinds:
    """The bindings asked for, by subject: the id of a migration."""

    def __init__(self, context: HeadContext) -> None:
        self._calls = Calls(context, PART, context.config.reply_timeout_s, self._heard)
        self._pending: dict[str, tuple[str, Done]] = {}

    def register(self, dispatch: Dispatch) -> None:
        self._calls.register(dispatch)

    def start(self, subject: str, edge: str, key: Key, pattern: str, done: Done) -> None:
        """Have messages matching `pattern` reach the output queue `key` on `edge`."""
        self._pending[subject] = (edge, done)
        self._calls.ask(subject, edge, MarkerBind(subscriber=key[0], number=key[1], key=pattern))

    def stop(self, subject: str) -> None:
        """The part that asked has lost interest."""
        self._pending.pop(subject, None)
        self._calls.close(subject)

    def _heard(self, subject: str, answer: Answer) -> None:
        edge, done = self._pending[subject]
        self.stop(subject)
        done(subject, None if isinstance(answer, MarkerReady) else why_not(edge, answer))
