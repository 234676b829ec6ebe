"""Simulated brokers: an agent, the data plane it orders about, and what a runtime does between the two.

The agents are those of production. A broker's process may crash (what it knew, its timers and the orders it had not
carried out are gone; its data plane goes on) and start again as a new incarnation that finds what is bound and
declared; it may freeze and go on with its state, having missed what was sent to it meanwhile. What always holds:

- an agent handles one event at a time, and what it orders is begun in the order given;
- actions on the data plane are done one after another, each taking a moment, and only by the process that ordered
  them;
- samples are taken every period, everything in one seen at one moment, and rates where messages are enqueued.

No rule of load management is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidegate_agents.edge import EdgeAgent
from tidegate_agents.head import HeadAgent
from tidegate_agents.machine import (
    Action,
    ActionFailed,
    Announce,
    BindMarker,
    CancelTimer,
    ChangeRoutes,
    DeclareOutput,
    DeleteOutput,
    DisconnectPublisher,
    DropLink,
    EdgeSampled,
    EnsureLink,
    Event,
    FenceArrived,
    HeadSampled,
    LimitOutput,
    MarkerBound,
    MarkerPublished,
    OutputDeclared,
    OutputDeleted,
    OutputsListed,
    PublishMarker,
    Record,
    Reply,
    RoutesChanged,
    SampleSoon,
    Send,
    SendClient,
    SetTimer,
    Started,
    TimerFired,
    UnbindMarker,
    UnwatchFence,
    WatchFence,
)
from tidegate_agents.metrics import BrokerSample, PublisherSample, Role, SubscriptionSample
from tidegate_protocol.messages import Capacity
from tidegate_protocol.names import output_queue

from .clocks import Clock
from .plane_edge import EdgePlane, OutputQueue
from .plane_head import HeadPlane

if TYPE_CHECKING:
    from .world import World

PLANE_ACTION_S: Final = (0.001, 0.005)
"""How long RabbitMQ takes for an order of the agent, between these."""
LISTING_PERIODS: Final = 5
"""Every so many periods an edge's process looks at what its RabbitMQ holds, like the runtime of production."""
HELD_MAX: Final = 100_000
"""What a frozen process finds when it goes on: timers that are due, orders that were done."""


class SimBroker:
    """The process of one broker; the two kinds differ in their planes and samples."""

    agent: HeadAgent | EdgeAgent

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._kernel = world.kernel
        self._random = world.kernel.stream(f"broker {name}")
        self._instant = world.scenario.control.instant
        self._period_s = world.scenario.balancing.period_s
        self._phase_s = 0.0 if self._instant else self._random.random() * self._period_s
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._plane_free_s = 0.0
        self._held: list[tuple[Callable[[Any], None], Any]] = []
        self._sampled_s = 0.0
        self._next_sample = 0
        self.name = name
        self.clock = Clock()
        self.incarnation = 0
        self.up = False
        self.frozen = False
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

    def _postponed(self, incarnation: int, step: Callable[[Any], None], argument: Any) -> bool:
        """Whether something the process would do now has to wait, or is void."""
        if not self.up or incarnation != self.incarnation:
            return True
        if self.frozen:
            assert len(self._held) < HELD_MAX
            self._held.append((step, argument))
        return self.frozen

    def post(self, event: Event) -> None:
        """Have the agent handle an event, and do what it orders."""
        if not self.up:
            return
        now = self._kernel.now
        actions = self.agent.handle(event, self.clock.read(now))
        self.steps += 1
        if self._world.validate_every_step and self.steps % self._world.agents_validated_every == 0:
            self.agent.validate()
        self._world.stepped(self.name, event, actions, now)
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        network = self._world.network
        match action:
            case Send(to, message, request_id):
                network.send(self, to, message, request_id)
            case SendClient(client, message, request_id):
                network.send_client(self, client, message, request_id)
            case Reply(to=address, message=message):
                network.reply(self.name, address, message)
            case Announce(message):
                network.announce(self, self._world.cluster_of(self.name), message)
            case SetTimer(name, after_s):
                self._set_timer(name, after_s)
            case CancelTimer(name):
                self._timers.pop(name, None)
            case Record(decision):
                self._world.decided(self.name, decision, self._kernel.now)
            case SampleSoon(after_s):
                self._plan_sample(after_s)
            case DisconnectPublisher(publisher, _):
                self._world.disconnect_publisher(self.name, publisher)
            case _:
                self._submit(action)

    # Timers

    def _set_timer(self, name: str, after_s: float) -> None:
        self._timer_count += 1
        self._timers[name] = self._timer_count
        self._kernel.after(self.clock.true_duration_s(after_s), self._fire, (name, self._timer_count, self.incarnation))

    def _fire(self, argument: tuple[str, int, int]) -> None:
        name, token, incarnation = argument
        if self._timers.get(name) != token or self._postponed(incarnation, self._fire, argument):
            return
        del self._timers[name]
        self.post(TimerFired(name))

    # The data plane

    def _submit(self, action: Action) -> None:
        takes_s = 0.0 if self._instant else self._random.uniform(*PLANE_ACTION_S)
        self._plane_free_s = max(self._plane_free_s, self._kernel.now) + takes_s
        self._kernel.at(self._plane_free_s, self._perform_step, (action, self.incarnation))

    def _perform_step(self, argument: tuple[Action, int]) -> None:
        action, incarnation = argument
        if self._postponed(incarnation, self._perform_step, argument):
            return
        done = self._perform(action)
        if done is not None:
            self.post(done)

    # Samples

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

    def _perform(self, action: Action) -> Event | None:
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
        return Started(routes=self.plane.adopted())

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
        plane = self.plane
        match action:
            case EnsureLink(target=target):
                plane.ensure_link(target)
            case DropLink(target):
                plane.drop_link(target)
            case ChangeRoutes(change_id, target, add, remove):
                plane.change_routes(target, add, remove)
                return RoutesChanged(change_id)
            case PublishMarker(key, targets):
                plane.publish_marker(self._world.marker(key), targets)
                return MarkerPublished(key)
            case WatchFence(neighbour, key):
                plane.watch_fence(neighbour, key)
            case UnwatchFence(neighbour, key):
                plane.unwatch_fence(neighbour, key)
            case _:
                raise AssertionError(f"a head has no use for {type(action).__name__}")
        return None

    def _sample(self, elapsed_s: float) -> None:
        plane = self.plane
        sample = HeadSampled(
            BrokerSample(
                self.name,
                Role.HEAD,
                bytes_in_per_s=plane.bytes_in / elapsed_s,
                bytes_offered_per_s=plane.bytes_offered / elapsed_s,
                messages_in_per_s=plane.messages_in / elapsed_s,
                capacity=self._capacity,
            ),
            tuple(
                PublisherSample(
                    publisher,
                    topic,
                    count.messages / elapsed_s,
                    count.bytes / count.messages,
                    self._world.publisher_round_trip_s(publisher, self.name),
                )
                for (publisher, topic), count in sorted(plane.publishers.items())
            ),
            self._neighbour_round_trips(),
        )
        self._reset_counters()
        self._world.head_sampled(self.name, sample, self._kernel.now)
        self.post(sample)

    def _neighbour_round_trips(self) -> Mapping[str, float]:
        return {
            neighbour: 2 * self._world.delay_s(self.name, neighbour)
            for neighbour in sorted(self._world.neighbours_of(self.name))
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
        plane = self.plane
        match action:
            case DeclareOutput(subscription):
                plane.declare(subscription)
                return OutputDeclared(subscription)
            case DeleteOutput(subscription):
                plane.delete(output_queue(subscription.subscriber, subscription.number))
                return OutputDeleted(subscription.subscriber, subscription.number)
            case BindMarker(subscriber, number, key):
                if plane.bind_marker(output_queue(subscriber, number), key):
                    return MarkerBound(subscriber, number, key)
                return ActionFailed(action, "no such queue")
            case UnbindMarker(subscriber, number, key):
                plane.unbind_marker(output_queue(subscriber, number), key)
            case LimitOutput(subscriber, number, messages_max):
                plane.limit(output_queue(subscriber, number), messages_max)
            case _:
                raise AssertionError(f"an edge has no use for {type(action).__name__}")
        return None

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
