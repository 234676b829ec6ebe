"""A message is acknowledged when the application is done with it: when its callback has returned, or was handed it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate import AsyncSubscriber, AsyncSubscription, Message, Subscriber, Subscription
from tidegate._core.inbox import Inbox
from tidegate._engine.subscription import SubscriptionEngine
from tidegate._io.threaded import ThreadRuntime

Acks = list[tuple[int, bool]]


class Waiting:
    """An inbox with one message in it, and what would be acknowledged of that."""

    def __init__(self) -> None:
        self.inbox = Inbox(1.0, False, 8, 10)
        self._ledger = self.inbox.open_ledger()
        self.inbox.receive(self._ledger, 1, "t", b"", "p~1:t:0", None, False, 0.0)
        self._state = SimpleNamespace(ended=False, settled=lambda: None, request=SimpleNamespace(pattern="t"))
        self.during: Acks | None = None

    @property
    def engine(self) -> SubscriptionEngine:
        return cast(SubscriptionEngine, self._state)

    @property
    def acknowledged(self) -> Acks:
        return self.inbox.acknowledgements(self._ledger)

    def called(self, message: Message) -> None:
        """The callback: the last thing that happens."""
        self.during = self.acknowledged
        self._state.ended = True

    def failed(self, message: Message) -> None:
        self.called(message)
        raise ValueError("on purpose")


@pytest.mark.parametrize("callback", [Waiting.called, Waiting.failed])
def test_a_callback_that_runs_has_nothing_acknowledged_yet(callback: Any) -> None:
    waiting = Waiting()
    subscription = Subscription(cast(Subscriber, None), cast(ThreadRuntime, None), waiting.inbox, None)
    subscription._start(waiting.engine, lambda message: callback(waiting, message))
    assert subscription._thread is not None
    subscription._thread.join(30.0)
    assert (waiting.during, waiting.acknowledged) == ([], [(1, True)])


@pytest.mark.parametrize("callback", [Waiting.called, Waiting.failed])
async def test_nor_has_one_of_asyncio(callback: Any) -> None:
    waiting = Waiting()
    subscription = AsyncSubscription(cast(AsyncSubscriber, None), waiting.inbox, None)
    subscription._start(waiting.engine, lambda message: callback(waiting, message))
    assert subscription._task is not None
    await subscription._task
    assert (waiting.during, waiting.acknowledged) == ([], [(1, True)])


async def test_without_a_callback_a_message_is_settled_by_its_hand_over() -> None:
    one, other = Waiting(), Waiting()
    blocking = Subscription(cast(Subscriber, None), cast(ThreadRuntime, None), one.inbox, None)
    blocking._start(one.engine, None)
    assert one.acknowledged == []
    assert blocking.get() is not None
    assert one.acknowledged == [(1, True)]
    awaiting = AsyncSubscription(cast(AsyncSubscriber, None), other.inbox, None)
    awaiting._start(other.engine, None)
    assert other.acknowledged == []
    await anext(awaiting)
    assert other.acknowledged == [(1, True)]
