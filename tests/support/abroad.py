"""What tests of subscriptions between clusters have in common: the move of one client from e1 to f1 of head n."""

from __future__ import annotations

from tests.support.agents_driver import sent, subscription
from tidegate_agents.head.moving.steps import Move
from tidegate_agents.machine import Action, Send
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import (
    PlannedMove,
)
from tidegate_protocol.messages import (
    LoadState,
)

LOAD = PlannedMove(subscriber="s", number=0, target="f1", bytes_in_per_s=50.0, bytes_out_per_s=50.0)
ID = "h~7~m1"


def move(number: int = 1) -> Move:
    return Move(f"h~7~m{number}", "session", "e1", subscription(), "f1", "n", LOAD)


def one(actions: list[Action], kind: type, to: str | None = None) -> Send:
    (found,) = sent(actions, kind, to)
    return found


def broker(name: str, state: LoadState = LoadState.LOW, busy: bool = False) -> BrokerLoad:
    return BrokerLoad(
        broker=name, state=state, busy=busy, bytes_in_per_s=10.0, bytes_offered_per_s=10.0, messages_in_per_s=1.0
    )
