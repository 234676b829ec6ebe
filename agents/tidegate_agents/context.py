"""What the parts of a head's agent share: its knowledge, its outbox, and the few operations that touch both.

What always holds: registry and routes change together (`enter`, `withdraw`), so a subscription the head knows
is one its links carry; every binding change that was ordered and not yet confirmed is known (`outstanding`).

Of the parts only `allocation` uses the others; `edges`, `removals` and `neighbours` don't know each other.
"""

from __future__ import annotations

from collections import deque

from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason, Subscription

from .config import STORY_LENGTH_MAX, HeadConfig
from .machine import (
    Action,
    CancelTimer,
    ChangeRoutes,
    Decision,
    Record,
    Reply,
    ReplyAddress,
    Send,
    SetTimer,
)
from .registry import Key, Registry, key_of
from .routes import RouteTable
from .waits import Waits


class HeadContext:
    """Shared state of one head's agent."""

    def __init__(self, config: HeadConfig) -> None:
        self.config = config
        self.registry = Registry()
        self.routes = RouteTable(neighbour.name for neighbour in config.neighbours)
        self.waits = Waits()
        self.story: deque[Decision] = deque(maxlen=STORY_LENGTH_MAX)
        self.granted: set[tuple[str, Key]] = set()
        """Subscriptions this run has told a client about, by edge: those win over any other claim."""
        self.now = 0.0
        self.started_s = 0.0
        self.stopping = False
        self.busy: dict[str, dict[Key, int]] = {}
        """Per edge the subscriptions with a request under way: a registry page may be out of date on them."""
        self.touched_s: dict[str, float] = {}
        self.touched: dict[str, set[Key]] = {}
        """Per edge whose registry is being read: what changed since the reading began."""
        self.requests: dict[str, tuple[str, str]] = {}
        self._out: list[Action] = []
        self._last_request = 0
        self._last_change = 0
        self._ordered: dict[int, ChangeRoutes] = {}
        self._latest: dict[str, int] = {}
        self._failed: dict[int, ChangeRoutes] = {}

    # Outbox

    def do(self, action: Action) -> None:
        self._out.append(action)

    def take_actions(self) -> list[Action]:
        actions, self._out = self._out, []
        return actions

    def request(self, to: str, message: ControlMessage, part: str, subject: str) -> str:
        """Send a request; its answer is led to `part`, which asked about `subject`."""
        self._last_request += 1
        request_id = f"{self.config.head}~{self.config.incarnation}~{self._last_request}"
        self.requests[request_id] = (part, subject)
        self.do(Send(to, message, request_id))
        return request_id

    def drop_request(self, request_id: str | None) -> None:
        """An answer to this request is of no interest any more."""
        if request_id is not None:
            self.requests.pop(request_id, None)

    def reply(self, to: ReplyAddress | None, message: ControlMessage) -> None:
        if to is not None:
            self.do(Reply(to, message))

    def refuse(
        self,
        to: ReplyAddress | None,
        reason: RefusalReason,
        message: str,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.reply(to, Refusal(reason=reason, message=message, field=field, retry_after_s=retry_after_s))

    def set_timer(self, name: str, after_s: float) -> None:
        self.do(SetTimer(name, max(after_s, 0.0)))

    def cancel_timer(self, name: str) -> None:
        self.do(CancelTimer(name))

    def decide(self, decision: Decision) -> None:
        self.story.append(decision)
        self.do(Record(decision))

    # Registry and routes together

    def enter(self, edge: str, subscription: Subscription) -> None:
        """The subscription is on `edge`, or is about to be."""
        before = self.registry.add(edge, subscription)
        self.routes.need(edge, subscription.pattern)
        if before is not None:
            self.routes.release(edge, before.pattern)
        self.touch(edge, key_of(subscription))

    def withdraw(self, edge: str, key: Key) -> Subscription | None:
        """The subscription is not on `edge` any more."""
        gone = self.registry.remove(edge, *key)
        if gone is not None:
            self.routes.release(edge, gone.pattern)
        self.granted.discard((edge, key))
        self.touch(edge, key)
        return gone

    def touch(self, edge: str, key: Key) -> None:
        self.touched_s[edge] = self.now
        if edge in self.touched:
            self.touched[edge].add(key)

    def begin(self, edge: str, key: Key) -> None:
        """A request about this subscription is on its way to `edge`."""
        keys = self.busy.setdefault(edge, {})
        keys[key] = keys.get(key, 0) + 1
        self.touch(edge, key)

    def end(self, edge: str, key: Key) -> None:
        keys = self.busy[edge]
        keys[key] -= 1
        if not keys[key]:
            del keys[key]
        if not keys:
            del self.busy[edge]
        self.touch(edge, key)

    # Binding changes

    def flush_routes(self) -> None:
        """Order the binding changes that the routes call for."""
        for change in self.routes.take_changes():
            self._order(ChangeRoutes(self._next_change(), change.target, change.add, change.remove))

    def outstanding(self, target: str) -> set[int]:
        """What to wait for until all bindings ordered on this link are in place: they are made in order."""
        waiting = {number for number, change in self._failed.items() if change.target == target}
        if target in self._latest:
            waiting.add(self._latest[target])
        return waiting

    def change_done(self, number: int) -> None:
        change = self._ordered.pop(number, None)
        if change is None:
            return
        if self._latest.get(change.target) == number:
            del self._latest[change.target]
        self.waits.change_done(number)

    def change_failed(self, failed: ChangeRoutes) -> list[str]:
        """RabbitMQ refused a binding: try again later, under a new number. Returns who waits for it."""
        if self._ordered.pop(failed.change_id, None) is None:
            return []
        if self._latest.get(failed.target) == failed.change_id:
            del self._latest[failed.target]
        again = ChangeRoutes(self._next_change(), failed.target, failed.add, failed.remove)
        self._failed[again.change_id] = again
        self.set_timer(f"rebind {again.change_id}", self.config.reply_timeout_s)
        return self.waits.change_failed(failed.change_id, again.change_id)

    def retry_change(self, number: int) -> None:
        """Order a failed change again, as far as it still agrees with what is needed."""
        change = self._failed.pop(number, None)
        if change is None:
            return
        if change.target not in self.routes.targets:
            self.waits.change_done(number)
            return
        add = tuple(p for p in change.add if self.routes.is_needed(change.target, p))
        kept = self.routes.leftovers(change.target)
        remove = tuple(p for p in change.remove if p not in kept and not self.routes.is_needed(change.target, p))
        self._order(ChangeRoutes(number, change.target, add, remove))

    def _order(self, change: ChangeRoutes) -> None:
        self._ordered[change.change_id] = change
        self._latest[change.target] = change.change_id
        self.do(change)

    def _next_change(self) -> int:
        self._last_change += 1
        return self._last_change

    def validate(self) -> None:
        """Raise AssertionError if the parts of the state disagree."""
        self.registry.validate()
        self.routes.validate()
        self.waits.validate()
        for edge, key in self.granted:
            assert self.registry.get(edge, key) is not None, f"granted {key} is not on {edge}"
        for name, record in self.registry.edges.items():
            for subscription in record.subscriptions.values():
                assert self.routes.is_carried(name, subscription.pattern), f"{subscription} is not carried to {name}"
        for target, number in self._latest.items():
            assert self._ordered[number].target == target
