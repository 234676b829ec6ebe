"""What an edge keeps in its RabbitMQ: the exchange that links write to and one output queue per subscription.

The subscription itself is written into the arguments of its binding, so RabbitMQ is the only memory an edge
needs: a process that starts adopts everything from there. Like the head's plane it holds the desired state
and can make a RabbitMQ that has lost everything agree with it. A queue that disappears while the connection
stands has expired or was deleted by somebody: it is given up, not made again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed
from pamqp.common import FieldValue
from pydantic import ValidationError

from tidegate_agents.machine import (
    Action,
    ActionFailed,
    BindMarker,
    DeclareOutput,
    DeleteOutput,
    Event,
    LimitOutput,
    MarkerBound,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    Started,
    UnbindMarker,
)
from tidegate_agents.quotas import AccountQuota, account_named
from tidegate_protocol.messages import Subscription
from tidegate_protocol.names import DELIVER_EXCHANGE, MARKER_PREFIX, OUTPUT_PREFIX, output_queue
from tidegate_protocol.topics import is_pattern

from ..rabbit.management import Json, Management
from .drops import NOTHING_KEPT, DropPlane
from .head import QUEUE_ARGUMENTS, limit_policy, put_policy_if_different
from .sealing import Seal

log = logging.getLogger(__name__)

POLICY: Final = "tidegate-output"
LIMIT_PREFIX: Final = "tidegate-limit "
"""Policies that limit one queue; the name of the queue follows."""
LIMIT_PRIORITY: Final = 10
"""Above that of the policy for all output queues: of several only one holds."""
DEADLINE_ARGUMENT: Final = "tidegate-deadline-us"
EXPIRES_ARGUMENT: Final = "tidegate-expires-s"
ORIGIN_ARGUMENT: Final = "tidegate-origin"
ORIGIN_EDGE_ARGUMENT: Final = "tidegate-origin-edge"
ORIGIN_NUMBER_ARGUMENT: Final = "tidegate-origin-number"


@dataclass(slots=True)
class EdgePlane:
    """Desired state of an edge's RabbitMQ."""

    output_limit_bytes: int
    outputs: dict[str, Subscription] = field(default_factory=dict)
    """By name of the output queue."""
    limits: dict[str, int] = field(default_factory=dict)
    """How many messages may wait in a queue whose subscriber is too slow."""
    seal: Seal = field(default_factory=Seal)
    drops: DropPlane = field(default_factory=lambda: DropPlane(NOTHING_KEPT))
    quotas: Mapping[str, AccountQuota] = field(default_factory=dict)
    """By account: what may wait for each of its subscriptions."""

    async def adopt(self, channel: AbstractChannel, management: Management) -> Started:
        """Take over what a predecessor left. What its crash may have left besides is removed: second bindings, and
        queues that it declared and did not come to bind.

        A pattern that is refused today is unbound: its binding may slow down every publication. What waits in its
        queue stays there for its subscriber until the queue expires; an empty queue is deleted, so that RabbitMQ tells
        the subscriber, which asks its head again and learns the reason.
        """
        for queue, pattern, arguments in await _unservable(management):
            await channel.queue_unbind(queue, DELIVER_EXCHANGE, pattern, arguments=arguments)
            waiting = (await channel.queue_declare(queue, passive=True)).message_count
            if not waiting:
                await channel.queue_delete(queue)
            log.warning(
                "the pattern %r of %s is no longer legal; unbound, its %s waiting messages stay",
                pattern,
                queue,
                waiting,
            )
        await _delete_unbound(channel, management)
        for queue, subscriptions in (await self._list(management)).items():
            self.outputs[queue] = subscriptions[0]
            for surplus in subscriptions[1:]:
                await _unbind(channel, surplus)
        return Started(outputs=tuple(self.outputs[queue] for queue in sorted(self.outputs)))

    async def assert_all(self, channel: AbstractChannel, management: Management) -> None:
        """Make RabbitMQ hold what is desired."""
        await self.drops.assert_all(channel, management)
        await put_policy_if_different(management, POLICY, self._policy())
        await self._assert_limits(management)
        await channel.exchange_declare(DELIVER_EXCHANGE, exchange_type="topic", durable=True)
        present = await self._list(management)
        missing = [queue for queue in sorted(self.outputs) if self.outputs[queue] not in present.get(queue, ())]
        if missing:
            log.info("output queues are missing in RabbitMQ; declaring them again", extra={"missing": len(missing)})
        for queue in missing:
            await self._declare(channel, self.outputs[queue])
        if missing:
            await self.seal.press(channel)

    async def perform(self, channel: AbstractChannel, management: Management, action: Action) -> Event | None:
        """Carry out one action of the agent."""
        match action:
            case DeclareOutput(subscription=subscription):
                queue = output_queue(subscription.subscriber, subscription.number)
                before = self.outputs.get(queue)
                await self._declare(channel, subscription)
                if before is not None and before != subscription:
                    await _unbind(channel, before)
                self.outputs[queue] = subscription
                await self.seal.press(channel)
                return OutputDeclared(subscription)
            case DeleteOutput(subscription=subscription):
                queue = output_queue(subscription.subscriber, subscription.number)
                self.outputs.pop(queue, None)
                deleted = await channel.queue_delete(queue)
                await self._limit(management, queue, None)
                return OutputDeleted(subscription.subscriber, subscription.number, deleted.message_count or 0)
            case BindMarker(subscriber=subscriber, number=number, key=key):
                queue = output_queue(subscriber, number)
                if queue not in self.outputs:
                    # Removed meanwhile. RabbitMQ would refuse, and everything else would wait for the channel after it.
                    return ActionFailed(action, f"{queue} has been removed")
                await channel.queue_bind(queue, DELIVER_EXCHANGE, key)
                await self.seal.press(channel)
                return MarkerBound(subscriber, number, key)
            case UnbindMarker(subscriber=subscriber, number=number, key=key):
                queue = output_queue(subscriber, number)
                if queue in self.outputs:
                    await channel.queue_unbind(queue, DELIVER_EXCHANGE, key)
                return None
            case LimitOutput(subscriber=subscriber, number=number, messages_max=messages_max):
                await self._limit(management, output_queue(subscriber, number), messages_max)
                return None
            case _:
                raise AssertionError(f"an edge has no use for {type(action).__name__}")

    def object_of(self, action: Action) -> str | None:
        """The output queue that an action concerns. Limits are policies, which RabbitMQ changes one at a time."""
        match action:
            case DeclareOutput(subscription=subscription) | DeleteOutput(subscription=subscription):
                return output_queue(subscription.subscriber, subscription.number)
            case BindMarker(subscriber=subscriber, number=number) | UnbindMarker(subscriber=subscriber, number=number):
                return output_queue(subscriber, number)
            case _:
                return None

    # Limits

    async def _limit(self, management: Management, queue: str, messages_max: int | None) -> None:
        """Bound what may wait in one queue, or lift the bound. Beyond it RabbitMQ drops the oldest."""
        if messages_max is not None and queue in self.outputs:
            self.limits[queue] = messages_max
            await put_policy_if_different(management, LIMIT_PREFIX + queue, self._limit_policy(queue))
        elif queue in self.limits:
            # Forgotten only when it is gone: an action that is interrupted in between is tried again.
            await management.delete_policy(LIMIT_PREFIX + queue)
            self.limits.pop(queue, None)

    def _policy(self) -> Json:
        """For all output queues: those of a predecessor, too, whose arguments are as they are."""
        return self.drops.dead_lettering(limit_policy(OUTPUT_PREFIX, self.output_limit_bytes, "drop-head"))

    def _limit_policy(self, queue: str) -> Json:
        everyone = self._policy()
        return everyone | {
            "pattern": f"^{re.escape(queue)}$",
            "priority": LIMIT_PRIORITY,
            "definition": {**everyone["definition"], "max-length": self.limits[queue]},
        }

    async def _assert_limits(self, management: Management) -> None:
        """Have the limits there should be, and none that a predecessor or an expired queue has left."""
        self.limits = {queue: limit for queue, limit in self.limits.items() if queue in self.outputs}
        present = set(await management.policies(LIMIT_PREFIX))
        wanted = {LIMIT_PREFIX + queue: queue for queue in self.limits}
        for name in sorted(present - wanted.keys()):
            await management.delete_policy(name)
        for queue in sorted(self.limits):
            await put_policy_if_different(management, LIMIT_PREFIX + queue, self._limit_policy(queue))

    async def list_outputs(self, channel: AbstractChannel, management: Management) -> OutputsListed:
        """What RabbitMQ holds now. Runs between actions, so a queue that is missing has gone for good."""
        await channel.exchange_declare(DELIVER_EXCHANGE, exchange_type="topic", durable=True)
        present = await self._list(management)
        for queue in sorted(self.outputs.keys() - present.keys()):
            if await _exists(channel, queue):
                log.warning("output queue %s had lost its binding; it is bound again", queue)
                await self._declare(channel, self.outputs[queue])
                await self.seal.press(channel)
            else:
                log.info("output queue %s is gone, expired or deleted; its subscription is forgotten", queue)
                await self._limit(management, queue, None)
                del self.outputs[queue]
        return OutputsListed(tuple(self.outputs[queue] for queue in sorted(self.outputs)))

    async def _declare(self, channel: AbstractChannel, subscription: Subscription) -> None:
        queue = output_queue(subscription.subscriber, subscription.number)
        # A channel of its own, because a refused declaration closes the channel it was made on.
        scratch = await channel.connection.channel(publisher_confirms=False)
        try:
            arguments: dict[str, FieldValue] = {**QUEUE_ARGUMENTS, "x-expires": subscription.expires_s * 1000}
            account = account_named(subscription.subscriber, self.quotas)
            if account is not None:
                # Of this and the limit of the policy for all output queues, RabbitMQ takes the smaller one.
                arguments["x-max-length-bytes"] = self.quotas[account].bytes_per_queue
            await scratch.queue_declare(queue, durable=True, arguments=arguments)
            await scratch.close()
        except ChannelPreconditionFailed:
            # The queue is there with another expiry, or limit, which can't be changed without losing what waits in it.
            log.info("output queue %s exists with another expiry or limit, which it keeps", queue)
        await _bind(channel, queue, subscription)

    async def _list(self, management: Management) -> dict[str, list[Subscription]]:
        found: dict[str, list[Subscription]] = {}
        for item in await management.bindings_from(DELIVER_EXCHANGE):
            subscription = _read(item)
            if subscription is not None:
                found.setdefault(str(item["destination"]), []).append(subscription)
        for subscriptions in found.values():
            subscriptions.sort(key=lambda s: (s.pattern, s.deadline_us, s.expires_s))
        return found


async def _unservable(management: Management) -> list[tuple[str, str, Json]]:
    """Bindings of output queues by patterns that nobody may subscribe to: queue, pattern and arguments."""
    found = []
    for item in await management.bindings_from(DELIVER_EXCHANGE):
        queue, pattern = str(item["destination"]), str(item["routing_key"])
        is_output = item["destination_type"] == "queue" and queue.startswith(OUTPUT_PREFIX)
        arguments = item.get("arguments") or {}
        if is_output and DEADLINE_ARGUMENT in arguments and not is_pattern(pattern):
            found.append((queue, pattern, arguments))
    return found


async def _delete_unbound(channel: AbstractChannel, management: Management) -> None:
    """Delete output queues without a binding.

    A subscription is written into the binding of its queue, so no broker knows of a queue without one: the edge would
    tell its head that it is gone. A queue that holds messages, or that a client consumes, stays until it expires.
    """
    names = await management.queue_names(OUTPUT_PREFIX)
    bound = {str(item["destination"]) for item in await management.bindings_from(DELIVER_EXCHANGE)}
    for queue in sorted(names - bound):
        # A channel of its own, because a refusal closes the channel.
        scratch = await channel.connection.channel(publisher_confirms=False)
        try:
            await scratch.queue_delete(queue, if_unused=True, if_empty=True)
            await scratch.close()
            log.info("output queue %s was never bound; it is deleted", queue)
        except ChannelPreconditionFailed as error:
            log.info("output queue %s is not bound and stays until it expires: %s", queue, error)


async def _exists(channel: AbstractChannel, queue: str) -> bool:
    scratch = await channel.connection.channel(publisher_confirms=False)
    try:
        await scratch.queue_declare(queue, passive=True)
    except ChannelNotFoundEntity:
        return False
    await scratch.close()
    return True


def _arguments(subscription: Subscription) -> dict[str, FieldValue]:
    written = {
        DEADLINE_ARGUMENT: subscription.deadline_us,
        EXPIRES_ARGUMENT: subscription.expires_s,
        ORIGIN_ARGUMENT: subscription.origin,
        ORIGIN_EDGE_ARGUMENT: subscription.origin_edge,
        ORIGIN_NUMBER_ARGUMENT: subscription.origin_number,
    }
    return {name: value for name, value in written.items() if value is not None}


async def _bind(channel: AbstractChannel, queue: str, subscription: Subscription) -> None:
    await channel.queue_bind(queue, DELIVER_EXCHANGE, subscription.pattern, arguments=_arguments(subscription))


async def _unbind(channel: AbstractChannel, subscription: Subscription) -> None:
    queue = output_queue(subscription.subscriber, subscription.number)
    await channel.queue_unbind(queue, DELIVER_EXCHANGE, subscription.pattern, arguments=_arguments(subscription))


def _read(item: Json) -> Subscription | None:
    """The subscription written into a binding; None for a binding that is not ours."""
    destination = str(item["destination"])
    if item["destination_type"] != "queue" or not destination.startswith(OUTPUT_PREFIX):
        return None
    if str(item["routing_key"]).startswith(MARKER_PREFIX):
        return None  # a migration's, taken away when it is over
    subscriber, _, number = destination.removeprefix(OUTPUT_PREFIX).rpartition(".")
    arguments = item.get("arguments") or {}
    try:
        return Subscription(
            subscriber=subscriber,
            number=int(number),
            pattern=str(item["routing_key"]),
            deadline_us=arguments[DEADLINE_ARGUMENT],
            expires_s=arguments[EXPIRES_ARGUMENT],
            origin=arguments.get(ORIGIN_ARGUMENT),
            origin_edge=arguments.get(ORIGIN_EDGE_ARGUMENT),
            origin_number=arguments.get(ORIGIN_NUMBER_ARGUMENT),
        )
    except (KeyError, ValueError, ValidationError) as error:
        log.warning("cannot read the binding of %s as a subscription; ignored: %s", destination, error)
        return None
