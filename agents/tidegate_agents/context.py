"""What the parts of a head's agent share: its knowledge, its outbox, and the few operations that touch both.

What always holds: registry and routes change together (`enter`, `withdraw`), so a subscription the head knows
is one its links carry; every binding change that was ordered and not yet confirmed is known (`outstanding`).

What a place may be, besides just known (all three are places in the registry):

- *granted*: this run has told a client to use it, or was told by the client that it does;
- *reserved*: made for a client that does not use it yet. Never handed out, never the reason to remove another place;
- *abandoned*: its client lives elsewhere by now, and may not have got all that waits here.

Parts know each other one way only: `edges`, `removals`, `neighbours` and `insights` nobody; `preparations` those;
`migrations` the preparations; `allocation`, `sessions`, `drains`, `places` and `acceptances` the migrations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from tidegate_protocol.balancing import MigrationReport
from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason, Subscription

from .config import STORY_LENGTH_MAX, HeadConfig
from .cooldowns import Cooldowns
from .departures import Departures
from .machine import (
    Action,
    CancelTimer,
    ChangeRoutes,
    Decision,
    Record,
    Reply,
    ReplyAddress,
    Send,
    SendClient,
    SetTimer,
)
from .operations_story import Chronicle
from .placement import ExpectedLoad
from .promises import Promises
from .registry import Key, Registry, key_of
from .routes import RouteTable
from .waits import Waits

PATIENT_GRACES: Final = 6
"""For how many times `adopt_grace_s` those are waited for that are there and have not told yet what they hold."""
TOLD_MAX: Final = 10_000
"""How many clients' last answers are remembered: an answer crosses with a question within seconds, or not at all."""


class HeadContext:
    """Shared state of one head's agent."""

    def __init__(self, config: HeadConfig) -> None:
        self.config = config
        self.registry = Registry()
        self.routes = RouteTable(neighbour.name for neighbour in config.neighbours)
        self.waits = Waits()
        self.story: deque[Decision] = deque(maxlen=STORY_LENGTH_MAX)
        self.chronicle = Chronicle()
        self.granted: set[tuple[str, Key]] = set()
        """Subscriptions this run has told a client about, by edge: those win over any other claim."""
        self.reserved: set[tuple[str, Key]] = set()
        self.abandoned: set[tuple[str, Key]] = set()
        self.drains: dict[str, bool] = {}
        """Edges that an operator wants drained, or not drained any more, until their hellos agree."""
        self.promises = Promises()
        self.cooldowns = Cooldowns()
        self.departures = Departures()
        self.told_s: dict[tuple[str, str], float] = {}
        """When which client (subscriber and pattern) was last told its place; of the latest `TOLD_MAX`."""
        self.expected: Callable[[], Mapping[str, ExpectedLoad]] = dict
        """What is published per pattern, as far as anybody knows; whoever watches publishers sets this."""
        self.late_report: Callable[[MigrationReport], None] = lambda message: None
        """Told what a client reports about a migration nobody here knows; whoever deals with other clusters sets it."""
        self.guest_came: Callable[[str, float], None] = lambda head, since_s: None
        """Told of each client that has come from another head, and when that head had asked us to take it."""
        self.when_told: Callable[[tuple[str, str]], None] = lambda client: None
        """Told of each client (subscriber and pattern) that asked for its place and is being told."""
        self.guest_in_doubt: Callable[[str, Key], None] = lambda head, key: None
        """Told of each client that has a place here and with the head it came from."""
        self.now = 0.0
        self.started_s = 0.0
        self.stopping = False
        self.paused = False
        self.pause_version = 0
        """Whether an operator has switched balancing off in this cluster; what has the higher version holds."""
        self.alarms: tuple[str, ...] = ()
        """Those of this broker's RabbitMQ that are raised."""
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
        request_id = self._next_request(part, subject)
        self.do(Send(to, message, request_id))
        return request_id

    def send_client(self, client: str, message: ControlMessage, part: str, subject: str) -> str:
        """The same for a client of this head."""
        request_id = self._next_request(part, subject)
        self.do(SendClient(client, message, request_id))
        return request_id

    def _next_request(self, part: str, subject: str) -> str:
        self._last_request += 1
        request_id = f"{self.config.head}~{self.config.incarnation}~{self._last_request}"
        self.requests[request_id] = (part, subject)
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
        self.chronicle.add(decision, self.now)
        self.do(Record(decision))

    def is_new(self, *, patient: bool = False) -> bool:
        """Whether we have just started, so that edges and neighbours may still have to tell what they hold.

        `patient` is for those that are known to be there: their answers will come.
        """
        graces = PATIENT_GRACES if patient else 1
        return self.now - self.started_s < graces * self.config.adopt_grace_s

    def note_told(self, client: tuple[str, str]) -> None:
        """This client is being told its place: what it says of it from before does not count any more."""
        self.told_s.pop(client, None)
        self.told_s[client] = self.now
        self.when_told(client)
        if len(self.told_s) > TOLD_MAX:
            del self.told_s[next(iter(self.told_s))]

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
        for places in (self.granted, self.reserved, self.abandoned):
            places.discard((edge, key))
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
        self.promises.validate()
        self.cooldowns.validate()
        for edge, key in self.granted | self.reserved | self.abandoned:
            assert self.registry.get(edge, key) is not None, f"{key} is spoken for but not on {edge}"
        assert not self.granted & self.reserved, "a place that a client uses is no longer reserved"
        assert not self.granted & self.abandoned, "a place that a client uses is not abandoned"
        for name, record in self.registry.edges.items():
            for subscription in record.subscriptions.values():
                assert self.routes.is_carried(name, subscription.pattern), f"{subscription} is not carried to {name}"
        for target, number in self._latest.items():
            assert self._ordered[number].target == target
