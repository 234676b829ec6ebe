"""What every simulated client has around its machine: its control connections, its timers, and the trace.

Invariant: a timer that was set again or cancelled does not fire, and an answer to a request that was made again later
is taken for the answer to the later one: repetitions say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from tidegate._core.moves import Answer, CancelTimer, LeaveHead, PublisherAction, Request, SetTimer, SubscriptionAction
from tidegate_protocol.messages import ControlMessage

from .clocks import Clock

if TYPE_CHECKING:
    from .world import World

ClientAction = SubscriptionAction | PublisherAction


class Validated(Protocol):
    """A machine that can look itself over."""

    def validate(self) -> None: ...


class SimClient:
    """The process of one client. Its kind says what it does with timers, actions and answers of its own."""

    def __init__(self, world: World, identity: str, home: str, random: Random, timer_chance: float = 0.0) -> None:
        self._world = world
        self._kernel = world.kernel
        self._random = random
        self._instant = world.scenario.control.instant
        self._home = home
        self._timer_chance = timer_chance
        """A timer may fire later by up to this share, so that no crowd comes back at once."""
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._request_count = 0
        self._requests: dict[str, str] = {}
        self._heads: dict[str, None] = {}
        """The heads it has a control connection to."""
        self.id = identity
        self.clock = Clock()
        self.incarnation = 0

    def listens_at(self, head: str) -> bool:
        return head in self._heads

    def _fired(self, name: str) -> None:
        raise AssertionError

    def _carry_out(self, action: ClientAction) -> None:
        match action:
            case Answer(to, message):
                if to is not None:
                    self._world.network.reply(self.id, to, message)
            case Request(key, message, head_url):
                self._request(key, message, self._head(head_url))
            case SetTimer(name, after_s):
                self._set_timer(name, after_s)
            case CancelTimer(name):
                self._timers.pop(name, None)
            case LeaveHead(url):
                self._heads.pop(self._head(url), None)
            case _:
                raise AssertionError(f"nobody carries out {action}")

    def _stepped(self, what: str, actions: Sequence[ClientAction], *machines: Validated) -> None:
        """A machine has taken a step: do what it orders."""
        if self._world.validate_every_step:
            for machine in machines:
                machine.validate()
        names = [type(action).__name__ for action in actions]
        self._world.record.event(self._kernel.now, f"client {self.id} {what} {names}")
        for action in actions:
            self._carry_out(action)

    def _request(self, key: str, message: ControlMessage, head: str) -> None:
        self._request_count += 1
        request = str(self._request_count)
        # Only the latest request under a key is of interest: its repetitions say the same.
        for old in [old for old, other in self._requests.items() if other == key][:-1]:
            del self._requests[old]
        self._requests[request] = key
        self._world.network.request(self.id, head, message, request)

    def _head(self, url: str) -> str:
        return self._world.head_at(url) if url else self._home

    def _set_timer(self, name: str, after_s: float) -> None:
        self._timer_count += 1
        self._timers[name] = self._timer_count
        late = 1.0 + self._random.random() * self._timer_chance if self._timer_chance else 1.0
        self._kernel.after(self.clock.true_duration_s(after_s) * late, self._fire, (name, self._timer_count))

    def _fire(self, argument: tuple[str, int]) -> None:
        name, token = argument
        if self._timers.get(name) == token:
            del self._timers[name]
            self._fired(name)
