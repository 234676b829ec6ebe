"""What the parts of an edge's agent share: its configuration, the present moment, its outbox and its story.

What always holds: everything the agent does goes through `do`, in order; every decision is both recorded and kept;
request ids are never used twice by one run. Knows nothing of what the parts do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidegate_protocol.messages import ControlMessage, Refusal, RefusalReason

from .config import STORY_LENGTH_MAX, EdgeConfig
from .machine import Action, Decision, Record, Reply, ReplyAddress, Send
from .operations_story import Chronicle


class EdgeContext:
    """Shared state of one edge's agent."""

    def __init__(self, config: EdgeConfig) -> None:
        self.config = config
        self.story: deque[Decision] = deque(maxlen=STORY_LENGTH_MAX)
        self.chronicle = Chronicle()
        self.now = 0.0
        self.stopping = False
        self.draining = config.draining
        self.paused = False
        self.pause_version = 0
        """Whether an operator has switched balancing off in this cluster; what has the higher version holds."""
        self.alarms: tuple[str, ...] = ()
        """Those of this broker's RabbitMQ that are raised."""
        self._last_request = 0
        self._out: list[Action] = []

    def do(self, action: Action) -> None:
        self._out.append(action)

    def take_actions(self) -> list[Action]:
        actions, self._out = self._out, []
        return actions

    def request(self, message: ControlMessage) -> str:
        """Send a request to the head; returns its id."""
        self._last_request += 1
        request_id = f"{self.config.edge}~{self.config.incarnation}~{self._last_request}"
        self.do(Send(self.config.head, message, request_id))
        return request_id

    def reply(self, to: Iterable[ReplyAddress | None], message: ControlMessage) -> None:
        self._out.extend(Reply(address, message) for address in to if address is not None)

    def refuse(self, to: Iterable[ReplyAddress | None], reason: RefusalReason, text: str) -> None:
        self.reply(to, Refusal(reason=reason, message=text[:1_000]))

    def decide(self, decision: Decision) -> None:
        self.story.append(decision)
        self.chronicle.add(decision, self.now)
        self.do(Record(decision))

    def validate(self) -> None:
        """Raise AssertionError if something that was to be done is left behind."""
        assert not self._out, "actions left behind"
