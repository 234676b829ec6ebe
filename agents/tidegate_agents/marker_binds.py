"""Having the markers of a migration reach a queue that exists: an edge is asked until it says that the key is bound.

What always holds: every binding asked for is answered once, with success or with what went wrong, or stopped by whoever
asked. Binding the same key again does no harm, so a request may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate_protocol.balancing import MarkerBind, MarkerBound
from tidegate_protocol.messages import ControlMessage, Refusal

from .config import ATTEMPTS_MAX
from .context import HeadContext
from .dispatch import Dispatch
from .registry import Key

PART = "marker"

Done = Callable[[str, str | None], None]
"""Called with the subject, and with the problem or None."""


@dataclass(slots=True)
class _Binding:
    edge: str
    message: MarkerBind
    done: Done
    attempts: int = 0
    request_id: str = ""


class MarkerBinds:
    """The bindings asked for, by subject: the id of a migration."""

    def __init__(self, context: HeadContext) -> None:
        self._context = context
        self._pending: dict[str, _Binding] = {}

    def register(self, dispatch: Dispatch) -> None:
        dispatch.on_request(PART, self._answered, self._undeliverable)
        dispatch.on_timer(PART, self._timed_out)

    def start(self, subject: str, edge: str, key: Key, pattern: str, done: Done) -> None:
        """Have messages matching `pattern` reach the output queue `key` on `edge`."""
        self.stop(subject)
        binding = _Binding(edge, MarkerBind(subscriber=key[0], number=key[1], key=pattern), done)
        self._pending[subject] = binding
        self._ask(subject, binding)

    def stop(self, subject: str) -> None:
        """Whoever asked has lost interest."""
        binding = self._pending.pop(subject, None)
        if binding is not None:
            self._context.drop_request(binding.request_id)
            self._context.cancel_timer(f"{PART} {subject}")

    def _ask(self, subject: str, binding: _Binding) -> None:
        binding.attempts += 1
        binding.request_id = self._context.request(binding.edge, binding.message, PART, subject)
        self._context.set_timer(f"{PART} {subject}", self._context.config.reply_timeout_s)

    def _answered(self, subject: str, message: ControlMessage) -> None:
        binding = self._pending.get(subject)
        if binding is None:
            return
        if isinstance(message, MarkerBound):
            self._finish(subject, None)
        else:
            text = message.message if isinstance(message, Refusal) else f"answered with {message.kind}"
            self._finish(subject, f"{binding.edge}: {text}")

    def _undeliverable(self, subject: str) -> None:
        if subject in self._pending:
            self._finish(subject, f"{self._pending[subject].edge}: its process is not there")

    def _timed_out(self, subject: str) -> None:
        binding = self._pending.get(subject)
        if binding is None:
            return
        self._context.drop_request(binding.request_id)
        if binding.attempts < ATTEMPTS_MAX:
            self._ask(subject, binding)
        else:
            self._finish(subject, f"{binding.edge} does not answer")

    def _finish(self, subject: str, problem: str | None) -> None:
        done = self._pending[subject].done
        self.stop(subject)
        done(subject, problem)
