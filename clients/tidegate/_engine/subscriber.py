"""The subscriber's engine: its subscriptions, the connections they share, and the orders of the heads.

`subscription` does the work of each subscription. The engine runs on any runtime; the two clients are thin layers over
it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tidegate_protocol.messages import (
    ControlMessage,
    Refusal,
    SubscribeRequest,
    UnsubscribeReply,
    UnsubscribeRequest,
)
from tidegate_protocol.parts import RefusalReason

from .._core.config import Address, Backoff, Limits, Timeouts
from .._core.errors import InvalidValue, Refused, TidegateError
from .._core.inbox import Inbox
from .._core.moves import Ordered
from .control import ReplyTo
from .data import DataConnections
from .heads import Heads
from .runtime import Runtime
from .subscriber_news import SubscriberNews
from .subscription import SubscriptionEngine

logger = logging.getLogger(__name__)

__all__ = ["SubscriberEngine", "SubscriptionEngine"]


def _nothing() -> None:
    """Where a release needs no more than the changes it consists of."""


class SubscriberEngine:
    """Runs one subscriber: control connections, data connections, and any number of subscriptions."""

    def __init__(
        self,
        runtime: Runtime,
        address: Address,
        name: str,
        limits: Limits,
        timeouts: Timeouts,
        backoff: Backoff,
        telemetry: bool = True,
    ) -> None:
        """`telemetry`: whether to report to the heads what was received, if they want to know."""
        self.runtime = runtime
        self.address = address
        self.name = name
        self.limits = limits
        self.timeouts = timeouts
        self.backoff = backoff
        connection_name = f"tidegate subscriber {name}"
        self.heads = Heads(runtime, address, name, connection_name, timeouts, backoff, self._ordered)
        self.data = DataConnections(runtime, connection_name, timeouts)
        # Later runs of a subscriber of this name have larger numbers.
        run = time.time_ns() // 1_000_000
        self._news = SubscriberNews(runtime, name, run, self.heads, timeouts) if telemetry else None
        self._subscriptions: list[SubscriptionEngine] = []

    async def start(self) -> None:
        """Connect to the head, so that a wrong address or password shows now and not at the first
        subscription.
        """
        await self.heads.open()

    async def subscribe(
        self,
        request: SubscribeRequest,
        inbox: Inbox,
        on_change: Callable[[], None],
        on_release: Callable[[], None] = _nothing,
    ) -> SubscriptionEngine:
        same = [other for other in self._subscriptions if other.request.pattern == request.pattern]
        if any(not other.ended for other in same):
            problem = "is subscribed to by this subscriber already"
            raise InvalidValue("pattern", request.pattern, problem, "use that subscription, or end it first")
        subscription = SubscriptionEngine(self, request, inbox, on_change, on_release)
        # Before it starts, so that close() ends it even if no caller waits for its start any more.
        self._subscriptions = [other for other in self._subscriptions if other not in same] + [subscription]
        try:
            await subscription.start()
        except BaseException:
            # It stays among the subscriptions: a queue may have been made, and close() removes it.
            subscription.give_up()
            raise
        if self._news is not None:
            self._news.join(subscription)
        return subscription

    async def unsubscribe(self, subscription: SubscriptionEngine) -> None:
        """Stop, and have the queue removed. If that fails it may be tried again, and close() does."""
        await subscription.stop()
        if self._news is not None:
            self._news.leave(subscription)
        await subscription.late_answer()
        place = subscription.place
        if place is not None:
            pattern = subscription.request.pattern
            request = UnsubscribeRequest(subscriber=self.name, number=place.number, pattern=pattern)
            await self._give_back(request, subscription.head_url)
        self.heads.forget(subscription)
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    async def close(self, unsubscribe: bool) -> None:
        """Stop everything; an anonymous subscriber leaves nothing behind."""
        for subscription in list(self._subscriptions):
            try:
                if unsubscribe:
                    await self.unsubscribe(subscription)
                else:
                    await subscription.stop()
            except TidegateError as error:
                # The queue expires by itself; a client that wants to go must not be kept.
                logger.warning("%s: cannot unsubscribe; its queue stays until it expires: %s", subscription, error)
        self._subscriptions.clear()
        if self._news is not None:
            await self._news.close()
        await self.data.close()
        await self.heads.close()

    async def _give_back(self, request: UnsubscribeRequest, head_url: str) -> None:
        """A head that is silent is not waited for; one that is busy with this very subscription is."""
        until = self.runtime.now() + self.timeouts.request_s
        while True:
            try:
                await self.heads.control(head_url).request(request, UnsubscribeReply, self.timeouts.attempt_s)
                return
            except Refused as error:
                if error.retry_after_s is None or self.runtime.now() + error.retry_after_s >= until:
                    raise
                await self.runtime.signal().wait(error.retry_after_s)

    def _ordered(self, head: str, message: ControlMessage, reply_to: ReplyTo | None) -> None:
        """An order goes to the subscription whose pattern it names, if that belongs to the head that gave it."""
        pattern = getattr(message, "pattern", None)
        found = [one for one in self._subscriptions if one.request.pattern == pattern]
        if found:
            if self.heads.belongs(head, found[-1]):
                found[-1].handle(Ordered(message, reply_to))
        elif reply_to is not None:
            text = f"no subscription here that {message.kind} could be meant for"
            reply_to.control.answer(reply_to, Refusal(reason=RefusalReason.UNKNOWN, message=text))
