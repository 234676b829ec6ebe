"""Simulated brokers: an agent, the data plane it orders about, and what a runtime does between the two.

The agents are those of production. A broker's process may crash (what it knew, its timers and the orders it had not
carried out are gone; its data plane goes on) and start again as a new incarnation that finds what is bound and
declared; it may freeze and go on with its state, having missed what was sent to it meanwhile.

Invariant: samples are taken every period; everything in a sample is seen at one moment, and rates are taken where
messages are enqueued.

No rule of load management is in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidegate_agents.edge.agent import EdgeAgent
from tidegate_agents.head.agent import HeadAgent
from tidegate_agents.head.publishers.credibility import Believed, Claim, believed
from tidegate_agents.load.metrics import AccountSample, BrokerSample, PublisherSample, Role, SubscriptionSample
from tidegate_agents.machine import (
    Action,
    EdgeSampled,
    Event,
    FenceArrived,
    HeadSampled,
    OutputsListed,
    Started,
)
from tidegate_protocol.decisions import Decision
from tidegate_protocol.messages import Capacity

from .driver import Driver, perform_on_edge, perform_on_head
from .plane_edge import EdgePlane, OutputQueue
from .plane_head import HeadPlane

if TYPE_CHECKING:
    from .world import World

PLANE_ACTION_S: Final = (0.001, 0.005)
"""How long RabbitMQ takes for an order of the agent, between these."""
LIE_MESSAGES_PER_S: Final = 1e6
LIE_BYTES: Final = 1e6
LIE_ROUND_TRIP_S: Final = 60.0
LISTING_PERIODS: Final = 5
"""Every so many periods an edge's process looks at what its RabbitMQ holds, like the runtime of production."""


class SimBroker(Driver):
    """The process of one broker; the two kinds differ in their planes and samples."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.kernel, world.network, name)
        self._world = world
        self._random = world.kernel.stream(f"broker {name}")
        self._instant = world.scenario.control.instant
        self._period_s = world.scenario.balancing.period_s
        self._phase_s = 0.0 if self._instant else self._random.random() * self._period_s
        self._sampled_s = 0.0
        self._next_sample = 0
        self.steps = 0

    # The process

    def start(self) -> None:
        """Start the process, with nothing known but what the data plane holds."""
        if self.up:
            return
        self.incarnation += 1
        self.agent = self._make_agent()
        self.up, self.frozen = True, False
        self._plane_free_s = self._sampled_s = self._kernel.now
        self._reset_counters()
        self.post(self._found())
        self._plan_sample(self._period_s, self._phase_s)

    def kill(self) -> None:
        """End the process at once."""
        self.up = self.frozen = False
        self._timers.clear()
        self._held.clear()

    def freeze(self) -> None:
        self.frozen = self.up

    def unfreeze(self) -> None:
        """Go on where it stopped: timers that became due fire now."""
        if not self.frozen:
            return
        self.frozen = False
        held, self._held = self._held, []
        for step, argument in held:
            step(argument)

    def _handle(self, event: Event) -> list[Action]:
        actions = super()._handle(event)
        self.steps += 1
        if self._world.validate_every_step and self.steps % self._world.agents_validated_every == 0:
            self.agent.validate()
        self._world.stepped(self.name, event, actions, self._kernel.now)
        return actions

    def _order_takes_s(self) -> float:
        return 0.0 if self._instant else self._random.uniform(*PLANE_ACTION_S)

    def _decided(self, decision: Decision) -> None:
        self._world.decided(self.name, decision, self._kernel.now)

    def _disconnect_publisher(self, publisher: str) -> None:
        self._world.disconnect_publisher(self.name, publisher)

    # Samples

    def _sample_soon(self, after_s: float) -> None:
        self._plan_sample(after_s)

    def _plan_sample(self, after_s: float, phase_s: float = 0.0) -> None:
        """The next sample is taken then, and not when it was to be taken before."""
        self._next_sample += 1
        self._kernel.after(self.clock.true_duration_s(after_s) + phase_s, self._sample_step, self._next_sample)

    def _sample_step(self, number: int) -> None:
        if not self.up or number != self._next_sample:
            return
        self._plan_sample(self._period_s)
        if not self.frozen:
            elapsed_s = self._kernel.now - self._sampled_s
            self._sampled_s = self._kernel.now
            self._sample(elapsed_s * self.clock.rate)

    # What the two kinds do differently

    def _make_agent(self) -> HeadAgent | EdgeAgent:
        raise AssertionError

    def _found(self) -> Started:
        """What the process finds in its RabbitMQ when it starts."""
        raise AssertionError

    def _reset_counters(self) -> None:
        raise AssertionError

    def _sample(self, elapsed_s: float) -> None:
        raise AssertionError


class SimHead(SimBroker):
    """A head with its HMA."""

    agent: HeadAgent

    def __init__(self, world: World, name: str, plane: HeadPlane, capacity: Capacity) -> None:
        super().__init__(world, name)
        self.plane = plane
        self._capacity = capacity
        plane.fence_arrived = self._fence_arrived

    def _make_agent(self) -> HeadAgent:
        return HeadAgent(self._world.head_config(self.name, self.incarnation))

    def _found(self) -> Started:
        # Simulated publishers name their accounts from the start.
        return Started(routes=self.plane.adopted(), accounts_allowed=True)

    def _reset_counters(self) -> None:
        plane = self.plane
        plane.messages_in, plane.bytes_in, plane.bytes_offered = 0, 0.0, 0.0
        plane.publishers.clear()

    def _fence_arrived(self, key: str) -> None:
        self._kernel.at(self._kernel.now, self._fence_step, (key, self.incarnation))

    def _fence_step(self, argument: tuple[str, int]) -> None:
        key, incarnation = argument
        if not self._postponed(incarnation, self._fence_step, argument):
            self.post(FenceArrived(key))

    def _perform(self, action: Action) -> Event | None:
        return perform_on_head(self.plane, action)

    def _sample(self, elapsed_s: float) -> None:
        plane = self.plane
        found = self._believed(self._reported(elapsed_s), plane.messages_in / elapsed_s)
        sample = HeadSampled(
            BrokerSample(
                self.name,
                Role.HEAD,
                bytes_in_per_s=plane.bytes_in / elapsed_s,
                bytes_offered_per_s=plane.bytes_offered / elapsed_s,
                messages_in_per_s=plane.messages_in / elapsed_s,
                capacity=self._capacity,
            ),
            found.samples,
            self._neighbour_round_trips(),
            untrue=found.untrue,
        )
        self._reset_counters()
        self._world.head_sampled(self.name, sample, self._kernel.now)
        self.post(sample)

    def _reported(self, elapsed_s: float) -> tuple[PublisherSample, ...]:
        return tuple(
            PublisherSample(
                publisher,
                topic,
                count.messages / elapsed_s,
                count.bytes / count.messages,
                2 * self._world.delay_s(publisher, self.name),
            )
            for (publisher, topic), count in sorted(self.plane.publishers.items())
        )

    def _believed(self, honest: tuple[PublisherSample, ...], published_per_s: float) -> Believed:
        """What counts where a publisher of this head lies; every publisher has an account of its own."""
        liars = self._world.liars
        lies = [
            Claim(name, PublisherSample(publisher, liars[name], LIE_MESSAGES_PER_S, LIE_BYTES, LIE_ROUND_TRIP_S))
            for publisher in sorted({one.publisher for one in honest})
            if (name := publisher.partition("~")[0]) in liars
        ]
        if not lies:
            return Believed(honest)
        measured: dict[str, AccountSample] = {}
        for one in honest:
            name = one.publisher.partition("~")[0]
            before = measured.get(name, AccountSample(name))
            rate, size = before.published_per_s + one.messages_per_s, one.messages_per_s * one.message_bytes
            measured[name] = AccountSample(name, rate, before.bytes_per_s + size, published_per_s=rate)
        claims = [Claim(one.publisher.partition("~")[0], one) for one in honest]
        return believed([*claims, *lies], measured, published_per_s)

    def _neighbour_round_trips(self) -> Mapping[str, float]:
        return {
            neighbour: 2 * self._world.delay_s(self.name, neighbour)
            for neighbour in sorted(self._world.head_specs[self.name].neighbours)
        }


class SimEdge(SimBroker):
    """An edge with its EMA."""

    agent: EdgeAgent

    def __init__(self, world: World, name: str, plane: EdgePlane, capacity: Capacity) -> None:
        super().__init__(world, name)
        self.plane = plane
        spec = world.edge_specs[name]
        self._capacity = capacity
        self._round_trip_s = 2 * spec.client_delay_s
        self._head_round_trip_s = 2 * spec.head_delay_s
        self._before: dict[OutputQueue, tuple[int, float, int]] = {}
        """The counters of each queue at the last sample; one that was deleted and made anew is another."""
        self._samples = 0
        self._on_line: dict[str, int] = {}
        """What of each queue is sent and has not left yet; looked at only where that is known at once."""

    def _make_agent(self) -> EdgeAgent:
        return EdgeAgent(self._world.edge_config(self.name, self.incarnation))

    def _found(self) -> Started:
        return Started(outputs=self.plane.listed())

    def _reset_counters(self) -> None:
        self._look()
        self.plane.messages_in, self.plane.bytes_in = 0, 0.0
        self._before = {queue: self._counters(queue) for queue in self.plane.queues.values()}

    def _perform(self, action: Action) -> Event | None:
        return perform_on_edge(self.plane, action)

    def _look(self) -> None:
        self.plane.settle()
        if self._instant:
            self._on_line = self.plane.on_line()

    def _sample(self, elapsed_s: float) -> None:
        plane = self.plane
        self._look()
        before = self._before
        subscriptions = tuple(
            self._subscription_sample(queue, before.get(queue, (0, 0.0, 0)), elapsed_s)
            for _, queue in sorted(plane.queues.items())
        )
        broker = BrokerSample(
            self.name,
            Role.EDGE,
            bytes_in_per_s=plane.bytes_in / elapsed_s,
            bytes_offered_per_s=sum(one.offered_bytes_per_s for one in subscriptions),
            messages_in_per_s=plane.messages_in / elapsed_s,
            capacity=self._capacity,
        )
        self._reset_counters()
        sample = EdgeSampled(broker, subscriptions, self._head_round_trip_s)
        self._world.edge_sampled(self.name, sample, self._kernel.now)
        self.post(sample)
        self._samples += 1
        if self._samples % LISTING_PERIODS == 0:
            plane.expire()
            self.post(OutputsListed(plane.listed()))

    def _subscription_sample(
        self, queue: OutputQueue, before: tuple[int, float, int], elapsed_s: float
    ) -> SubscriptionSample:
        enqueued, bytes_enqueued = queue.enqueued - before[0], queue.bytes_enqueued - before[1]
        if enqueued:
            message_bytes = bytes_enqueued / enqueued
        else:
            message_bytes = queue.bytes_enqueued / queue.enqueued if queue.enqueued else 0.0
        drain_per_s = (self._drained(queue) - before[2]) / elapsed_s
        unacknowledged: float = len(queue.unacked)
        if self._instant:
            # Seed 000 sees what waits and what leaves at once, so that what is in flight is what a steady drain has.
            unacknowledged = self._on_line.get(queue.name, 0) + drain_per_s * self._round_trip_s
        return SubscriptionSample(
            name=queue.name,
            pattern=queue.subscription.pattern,
            enqueue_per_s=enqueued / elapsed_s,
            drain_per_s=drain_per_s,
            ready=len(queue.ready),
            unacknowledged=unacknowledged,
            round_trip_s=self._round_trip_s,
            message_bytes=message_bytes,
            attached=queue.consumer is not None,
        )

    def _counters(self, queue: OutputQueue) -> tuple[int, float, int]:
        return queue.enqueued, queue.bytes_enqueued, self._drained(queue)

    def _drained(self, queue: OutputQueue) -> int:
        """What has been acknowledged, or, where that takes no time, what has left the edge."""
        if not self._instant:
            return queue.acked
        return queue.enqueued - len(queue.ready) - self._on_line.get(queue.name, 0)
