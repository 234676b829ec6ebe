"""Publishers moved between two heads while messages are lost, doubled and late: both sides and a publisher."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.overloaded_head import overloaded
from tests.support.parts_driver import PartsDriver
from tidegate_agents.machine import (
    Action,
    CancelTimer,
    FenceArrived,
    MessageReceived,
    PublishMarker,
    Reply,
    Send,
    SendClient,
    SetTimer,
    WatchFence,
)
from tidegate_protocol.balancing.publishers import (
    FenceSeen,
    HeadLoadRequest,
    PublisherExpect,
    PublisherMoveOrder,
    PublisherMoveReport,
    PublisherResume,
    PublisherStage,
)
from tidegate_protocol.messages import ControlMessage


class _Publisher:
    """Publishes at one head at a time; pauses and resumes as told, and counts where it may publish."""

    def __init__(self) -> None:
        self.stage: PublisherStage | None = None
        self.move = ""
        self.resumed_after_fence: list[bool] = []

    def told(self, message: ControlMessage, fence_seen: bool) -> PublisherMoveReport | None:
        if isinstance(message, PublisherMoveOrder):
            if self.move != message.move:
                self.move, self.stage = message.move, PublisherStage.PAUSED
        elif isinstance(message, PublisherResume):
            if self.move == message.move and self.stage is PublisherStage.PAUSED:
                self.stage = PublisherStage.MOVED if message.moved else PublisherStage.STAYED
                self.resumed_after_fence.append(fence_seen or not message.moved)
            elif self.move != message.move:
                return PublisherMoveReport(move=message.move, publisher="remote~1", stage=PublisherStage.STAYED)
        if self.stage is None:
            return None
        return PublisherMoveReport(move=self.move, publisher="remote~1", stage=self.stage)


class _Lossy:
    """The old head `h`, the new head `n` and a publisher, with messages lost, doubled and late."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self.old, actions = overloaded()
        self.new = PartsDriver("h", head="n")
        self.new.sample(bytes_out=100.0)
        self.publisher = _Publisher()
        self.loss = random.choice([0.0, 0.1, 0.3, 0.6])
        self.fence_seen = False
        self._drivers = {"h": self.old, "n": self.new}
        self._now, self._count = self.old.now, 0
        self._queue: list[tuple[float, int, str, Action]] = []
        self._timers: dict[tuple[str, str], float] = {}
        self._watched: set[str] = set()
        self._carry("h", actions)

    def _carry(self, name: str, actions: list[Action]) -> None:
        random, loss = self._random, self.loss
        for action in actions:
            self._count += 1
            if isinstance(action, SetTimer):
                self._timers[name, action.name] = self._now + action.after_s
            elif isinstance(action, CancelTimer):
                self._timers.pop((name, action.name), None)
            elif isinstance(action, Send | SendClient | PublishMarker):
                copies = 0 if random.random() < loss else 1 + (random.random() < loss / 2)
                if isinstance(action, PublishMarker):
                    copies = 1  # the data plane loses nothing
                delay_s = 3.0 if loss else 1.0
                for _ in range(copies):
                    self._queue.append((self._now + random.uniform(0.0, delay_s), self._count, name, action))

    def _deliver(self, name: str, action: Action) -> None:
        if isinstance(action, PublishMarker):
            if action.key in self._watched:
                self.fence_seen = True
                self._carry("n", self.new.give(FenceArrived(action.key)))
            return
        assert isinstance(action, Send | SendClient)
        if isinstance(action, SendClient):
            reply: ControlMessage | None = self.publisher.told(action.message, self.fence_seen)
        else:
            if action.to not in self._drivers:
                return
            takes = isinstance(action.message, HeadLoadRequest | PublisherExpect | FenceSeen)
            result = self._drivers[action.to].tell(action.message) if takes else []
            self._watched.update(a.key for a in result if isinstance(a, WatchFence))
            self._carry(action.to, result)
            reply = next((a.message for a in result if isinstance(a, Reply)), None)
        if reply is not None and action.request_id is not None and self._random.random() >= self.loss:
            self._carry(name, self._drivers[name].answer(action, reply))

    def step(self) -> None:
        """Half a second passes."""
        now = self._now = self.old.now = self.new.now = self._now + 0.5
        due = sorted((item for item in self._queue if item[0] <= now), key=lambda item: item[:2])
        self._queue = [item for item in self._queue if item[0] > now]
        for _, _, name, action in due:
            self._deliver(name, action)
        for (name, timer), at in sorted(self._timers.items()):
            if at <= now and timer.split()[0] in {"publisher-move", "publisher-session", "arrival"}:
                del self._timers[name, timer]
                self._carry(name, self._drivers[name].fire(timer))
        publisher = self.publisher
        if publisher.stage is not None and self._random.random() < 0.2 and self._random.random() >= self.loss:
            stage = PublisherMoveReport(move=publisher.move, publisher="remote~1", stage=publisher.stage)
            self._carry("h", self.old.give(MessageReceived(stage)))


@pytest.mark.parametrize("seed", range(60))
def test_under_lost_doubled_and_late_messages_the_order_is_kept_and_the_session_ends(seed: int) -> None:
    print(f"seed {seed}")
    world = _Lossy(seed)
    for _ in range(400):
        world.step()
    publisher = world.publisher
    assert all(publisher.resumed_after_fence)
    assert world.old.parts.moves._session is None
    assert not world.new.parts.arrivals._arrivals
    if publisher.stage is PublisherStage.MOVED:
        assert world.fence_seen
    if world.loss == 0.0:
        assert publisher.stage is PublisherStage.MOVED
