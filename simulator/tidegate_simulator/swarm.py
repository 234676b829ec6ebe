"""Random scenarios by seed: small clusters under loads that overload them, with everything going wrong.

One seed, one scenario, on every machine. A schedule is kept small (about a minute of virtual time, a few messages per
second) so that thousands can be run, and narrow (an uplink carries little more than what it is offered) so that
sessions and migrations really happen. Faults are over at `duration_s`; what is left of the run is for the system to
come to rest, which is when the checkers look.

Only draws; knows neither how a run is carried out nor what is checked in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final, TypeVar

from tidegate_agents.config import BalancingConfig
from tidegate_agents.load.threshold import ThresholdKind

from .scenario import (
    EVERYBODY,
    Arrivals,
    ControlSpec,
    EdgeSpec,
    Fault,
    FaultKind,
    HeadSpec,
    PublisherSpec,
    RateChange,
    Scenario,
    SubscriberSpec,
)
from .swarm_insights import random_insights

T = TypeVar("T")

HEADS_MAX: Final = 3
EDGES_PER_HEAD_MAX: Final = 4
EDGES_MAX: Final = 6
TOPICS_MAX: Final = 6
PUBLISHERS_MAX: Final = 5
SUBSCRIBERS_MAX: Final = 12
FAULTS_MAX: Final = 5
SETTLE_S: Final = 26.0
"""Long enough for every time-out of a session, one after another."""
STORM_SHARE: Final = 0.3
HOSTILE_SHARE: Final = 0.06
LYING_SHARE: Final = 0.1
UPLINK_MIN: Final = 3_000.0
"""Even the largest single message gets through in a fraction of any deadline."""
FAULTS_FROM_S: Final = 4.0
CALM_S: Final = 2.0
"""Faults are over so long before the publishers stop."""


class Load(StrEnum):
    """What the publishers do over time."""

    STEADY = "steady"
    BURST = "burst"
    """Some topics rise and stay."""
    SEESAW = "seesaw"
    """Groups of topics rise in turn: whoever was relieved may soon be the one with room."""
    HOVERING = "hovering"
    """Everything is close to the limit, and noisy."""
    FLOOD = "flood"
    """One publisher sends many times what it should."""


_LOADS: Final = ((Load.STEADY, 1), (Load.BURST, 6), (Load.SEESAW, 5), (Load.HOVERING, 3), (Load.FLOOD, 2))
_POLICIES: Final = (("peer-wd", 17), ("peer", 1), ("random", 1), ("none", 1))
_FAULTS: Final = (
    (FaultKind.CONTROL, 5),
    (FaultKind.CRASH, 4),
    (FaultKind.FREEZE, 2),
    (FaultKind.EDGE_DOWN, 2),
    (FaultKind.LINK_DOWN, 2),
    (FaultKind.CLOCK, 1),
    (FaultKind.CLIENT_CRASH, 3),
    (FaultKind.CLIENT_CUT, 2),
    (FaultKind.PUBLISHER_CUT, 2),
    (FaultKind.DRAIN, 2),
)


_CONTENTS: Final = (0, 0, 1, 3)
"""After how many messages the contents of a plain publisher repeat; 0: never."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is drawn first, because the rest hangs on it."""

    load: Load
    duration_s: float
    bursts_s: tuple[float, ...]
    """When the load rises; faults like to come then."""


def random_scenario(seed: int) -> Scenario:
    """The scenario of this seed."""
    random = Random(seed)
    load = _weighted(random, _LOADS)
    duration_s = round(random.uniform(24.0, 34.0), 1)
    first_s = round(random.uniform(7.5, 10.0), 1)
    bursts_s = tuple(round(first_s + turn * random.uniform(7.0, 9.0), 1) for turn in range(3))
    plan = _Plan(load, duration_s, tuple(at for at in bursts_s if at < duration_s - 6.0) or (first_s,))
    heads, edges = _topology(random)
    publishers = hostile_publishers(seed, plain_publishers(seed, _publishers(random, plan, heads)))
    publishers = lying_publishers(seed, publishers)
    subscribers = _subscribers(random, plan, heads, edges, publishers)
    edges = _capacities(random, plan, edges, publishers, subscribers)
    heads = _head_capacities(random, heads, publishers)
    control = ControlSpec(jitter_s=random.choice((0.0, 0.0, 0.02, 0.1)), attach_round_trips=random.choice((1.0, 3.0)))
    return Scenario(
        name=f"swarm-{seed}",
        seed=seed,
        duration_s=duration_s,
        heads=heads,
        edges=edges,
        publishers=publishers,
        subscribers=subscribers,
        faults=_faults(random, plan, heads, edges, publishers, subscribers),
        control=control,
        balancing=_balancing(random, seed, plan),
        insights=random_insights(seed, heads, edges, publishers, duration_s),
        settle_s=SETTLE_S,
    )


def plain_publishers(seed: int, publishers: tuple[PublisherSpec, ...]) -> tuple[PublisherSpec, ...]:
    """Some of those who know nothing of the control plane send no ids either.

    What is drawn here comes from a randomness of its own, so that the rest of a scenario is the same with and without.
    """
    random = Random(f"plain {seed}")
    share = random.choice((0.0, 1.0))
    drawn = [(publisher, random.random(), random.choice(_CONTENTS)) for publisher in publishers]
    return tuple(
        replace(publisher, contents=contents) if not publisher.obedient and chance < share else publisher
        for publisher, chance, contents in drawn
    )


def hostile_publishers(seed: int, publishers: tuple[PublisherSpec, ...]) -> tuple[PublisherSpec, ...]:
    """In a few schedules one of those who know nothing of the control plane uses the ids of another.

    Drawn by itself, like the plain ones, and nothing else of the scenario changes.
    """
    random = Random(f"hostile {seed}")
    if random.random() >= HOSTILE_SHARE:
        return publishers
    numbered = [publisher for publisher in publishers if publisher.contents is None]
    rivals = [publisher for publisher in numbered if not publisher.obedient]
    if not rivals or len(numbered) < 2:
        return publishers
    rival = random.choice(rivals)
    others = [publisher for publisher in numbered if publisher is not rival]
    # On the same topic it reaches everybody whom its victim reaches.
    victim = random.choice([other for other in others if other.topic == rival.topic] or others)
    return tuple(replace(one, claims=victim.name) if one is rival else one for one in publishers)


def lying_publishers(seed: int, publishers: tuple[PublisherSpec, ...]) -> tuple[PublisherSpec, ...]:
    """In a few schedules one publisher lies to its head about a topic of the others. Drawn by itself as well."""
    random = Random(f"lying {seed}")
    if random.random() >= LYING_SHARE:
        return publishers
    liar = random.choice(publishers)
    topics = sorted({publisher.topic for publisher in publishers} - {liar.topic})
    if not topics:
        return publishers
    topic = random.choice(topics)
    return tuple(replace(one, lies_about=topic) if one is liar else one for one in publishers)


def _weighted(random: Random, choices: tuple[tuple[T, int], ...]) -> T:
    return random.choices([choice for choice, _ in choices], [weight for _, weight in choices])[0]


def _topology(random: Random) -> tuple[tuple[HeadSpec, ...], tuple[EdgeSpec, ...]]:
    """One to three heads, in a chain or a star (with three the same shape, but for who is in the middle)."""
    count = random.choice((1, 1, 1, 2, 2, HEADS_MAX))
    names = [f"h{number}" for number in range(count)]
    middle = random.randrange(count)
    delay_s = round(random.uniform(0.005, 0.1), 3)
    heads = tuple(
        HeadSpec(
            name,
            tuple(other for other in names if other != name and names[middle] in (name, other)),
            neighbour_delay_s=delay_s,
        )
        for name in names
    )
    edges: list[EdgeSpec] = []
    for head in names:
        most = min(EDGES_PER_HEAD_MAX, EDGES_MAX - len(edges) - (count - 1 - names.index(head)))
        wanted = random.choice((1, 2, 2, 3)) if count > 1 else random.choice((1, 2, 3, 3, 3, 4, 4))
        for _ in range(min(wanted, most)):
            joins_s = round(random.uniform(5.0, 20.0), 1) if edges and random.random() < 0.1 else 0.0
            edges.append(
                EdgeSpec(
                    f"e{len(edges)}",
                    head,
                    head_delay_s=round(random.uniform(0.005, 0.1), 3),
                    client_delay_s=round(random.uniform(0.005, 0.2), 3),
                    joins_s=joins_s,
                    capacity_known=random.random() < 0.85,
                )
            )
    return heads, tuple(edges)


def _publishers(random: Random, plan: _Plan, heads: tuple[HeadSpec, ...]) -> tuple[PublisherSpec, ...]:
    topics = [f"t{number}" for number in range(random.randint(3, TOPICS_MAX))]
    publishers = []
    for number in range(max(random.randint(3, PUBLISHERS_MAX), len(topics) - 1)):
        starts_s = round(random.uniform(1.0, 6.0), 1)
        publisher = PublisherSpec(
            name=f"p{number}",
            head=random.choice(heads).name,
            topic=topics[number % len(topics)],
            messages_per_s=round(random.uniform(1.5, 3.5), 2),
            message_bytes=float(random.randint(3, 8) * 100),
            arrivals=random.choice((Arrivals.REGULAR, Arrivals.POISSON)),
            starts_s=starts_s,
            stops_s=round(random.uniform(20.0, plan.duration_s), 1) if random.random() < 0.1 else None,
            delay_s=round(random.uniform(0.0, 0.05), 3),
            obedient=random.random() < 0.7,
        )
        publishers.append(replace(publisher, changes=_changes(random, plan, number)))
    return tuple(publishers)


def _changes(random: Random, plan: _Plan, number: int) -> tuple[RateChange, ...]:
    match plan.load:
        case Load.BURST if random.random() < 0.5:
            back = (RateChange(plan.bursts_s[-1], 1.0),) if len(plan.bursts_s) > 2 and random.random() < 0.4 else ()
            return (RateChange(plan.bursts_s[0], round(random.uniform(1.6, 3.0), 2)), *back)
        case Load.SEESAW:
            factor = round(random.uniform(2.0, 3.5), 2)
            return tuple(
                RateChange(at_s, factor if turn % 2 == number % 2 else 0.6) for turn, at_s in enumerate(plan.bursts_s)
            )
        case Load.HOVERING:
            times = [plan.bursts_s[0] + 4.0 * turn for turn in range(6)]
            return tuple(RateChange(at_s, round(random.uniform(0.85, 1.2), 2)) for at_s in times)
        case Load.FLOOD if number == 0:
            return (RateChange(plan.bursts_s[0], 10.0), RateChange(plan.bursts_s[0] + random.uniform(3.0, 8.0), 1.0))
    return ()


def _subscribers(
    random: Random,
    plan: _Plan,
    heads: tuple[HeadSpec, ...],
    edges: tuple[EdgeSpec, ...],
    publishers: tuple[PublisherSpec, ...],
) -> tuple[SubscriberSpec, ...]:
    topics = sorted({publisher.topic for publisher in publishers})
    homes = sorted({edge.head for edge in edges}) or [heads[0].name]
    subscribers = []
    wanted = random.randint(max(len(topics), SUBSCRIBERS_MAX // 2), SUBSCRIBERS_MAX)
    for number in range(wanted):
        early = random.random() < 0.85
        joins_s = round(random.uniform(0.0, 3.0) if early else random.uniform(6.0, plan.duration_s - 8.0), 1)
        leaves = random.random() < 0.12
        slow = random.random() < 0.05
        subscribers.append(
            SubscriberSpec(
                name=f"s{number}",
                head=random.choice(homes),
                pattern="#" if random.random() < 0.04 else topics[number % len(topics)],
                deadline_s=round(random.choice((0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)), 2),
                joins_s=joins_s,
                leaves_s=round(random.uniform(joins_s + 5.0, plan.duration_s + 3.0), 1) if leaves else None,
                takes_per_s=round(random.uniform(1.0, 4.0), 1) if slow else None,
                prefetch=random.choice((5, 50, 1_000)),
            )
        )
    return tuple(subscribers)


def _peaks(
    plan: _Plan, publishers: tuple[PublisherSpec, ...], subscribers: tuple[SubscriberSpec, ...], head: str
) -> tuple[float, float]:
    """What the subscribers of one cluster ask of its edges at the worst moment, in bytes per second: all of them
    together, and the one that asks for most.
    """
    moments = [0.0, *(change.at_s for publisher in publishers for change in publisher.changes)]
    together = single = 0.0
    for at_s in moments:
        rates = {publisher.name: _rate_at(publisher, at_s) for publisher in publishers if not _floods(plan, publisher)}
        shares = [
            sum(rates.get(p.name, 0.0) * p.message_bytes for p in publishers if subscriber.pattern in (p.topic, "#"))
            for subscriber in subscribers
            if subscriber.head == head
        ]
        together = max(together, sum(shares))
        single = max(single, *shares, 0.0)
    return together, single


def _floods(plan: _Plan, publisher: PublisherSpec) -> bool:
    return plan.load is Load.FLOOD and bool(publisher.changes)


def _rate_at(publisher: PublisherSpec, at_s: float) -> float:
    factors = [1.0, *(change.factor for change in publisher.changes if change.at_s <= at_s)]
    return publisher.messages_per_s * factors[-1]


def _capacities(
    random: Random,
    plan: _Plan,
    edges: tuple[EdgeSpec, ...],
    publishers: tuple[PublisherSpec, ...],
    subscribers: tuple[SubscriberSpec, ...],
) -> tuple[EdgeSpec, ...]:
    """Uplinks that together carry what is asked of them at the worst moment, with so little to spare that single ones
    are overloaded then. Each could carry the largest subscription alone: else no move would help it.
    """
    room = random.uniform(1.15, 1.5)
    sized = []
    for edge in edges:
        siblings = sum(other.head == edge.head for other in edges)
        together, single = _peaks(plan, publishers, subscribers, edge.head)
        coming_in = sum(p.messages_per_s * p.message_bytes for p in publishers)
        matched = sum(p.messages_per_s for p in publishers)
        uplink = max(together * room / siblings * random.uniform(0.85, 1.15), single * 1.3, UPLINK_MIN)
        sized.append(
            replace(
                edge,
                uplink_bytes_per_s=round(uplink),
                downlink_bytes_per_s=round(coming_in * random.uniform(0.7, 1.4)) if random.random() < 0.25 else None,
                matching_per_s=round(matched * random.uniform(0.7, 1.4), 1) if random.random() < 0.15 else None,
            )
        )
    return tuple(sized)


def _head_capacities(
    random: Random, heads: tuple[HeadSpec, ...], publishers: tuple[PublisherSpec, ...]
) -> tuple[HeadSpec, ...]:
    """Now and then a head whose downlink a burst overloads, so that publishers are moved."""
    if len(heads) < 2:
        return heads
    # Whatever is published may have to pass a head, wherever its publisher is.
    everything = sum(publisher.messages_per_s * publisher.message_bytes for publisher in publishers)
    return tuple(
        replace(head, downlink_bytes_per_s=round(everything * random.uniform(1.1, 1.7)) if narrow else None)
        for head in heads
        for narrow in [random.random() < 0.3]
    )


def _balancing(random: Random, seed: int, plan: _Plan) -> BalancingConfig:
    """All waiting times short enough that every one of them can run out, and a second try fits into a schedule."""
    flooding = plan.load is Load.FLOOD
    return BalancingConfig(
        policy=_weighted(random, _POLICIES),
        seed=seed,
        threshold=ThresholdKind.PROJECTED,
        queue_samples_needed=random.choice((1, 1, 2)),
        load_reply_timeout_s=1.0,
        plan_timeout_s=2.0,
        migration_timeout_s=random.choice((5.0, 8.0, 12.0)),
        session_timeout_s=random.choice((6.0, 16.0)),
        stabilizing_min_s=random.choice((1.0, 2.0)),
        stabilizing_max_s=5.0,
        cooldown_s=random.choice((15.0, 20.0, 30.0)),
        retry_s=2.0,
        retry_max_s=8.0,
        edge_away_s=random.choice((4.0, 8.0)),
        publisher_messages_per_s_max=15.0 if flooding else None,
        useless_messages_per_s_max=random.choice((None, 20.0)) if flooding else None,
        flood_samples_needed=2,
        containment_s=10.0,
        slow_subscriber_messages_max=random.choice((20, 200, 10_000)),
    )


def _faults(
    random: Random,
    plan: _Plan,
    heads: tuple[HeadSpec, ...],
    edges: tuple[EdgeSpec, ...],
    publishers: tuple[PublisherSpec, ...],
    subscribers: tuple[SubscriberSpec, ...],
) -> tuple[Fault, ...]:
    found: list[Fault] = []
    if random.random() < STORM_SHARE:
        found.append(_storm(random, plan))
    for _ in range(random.randint(0, FAULTS_MAX)):
        kind = _weighted(random, _FAULTS)
        target = _target(random, kind, heads, edges, publishers, subscribers)
        if target is None or any(fault.target == target and fault.kind is kind for fault in found):
            continue
        at_s = _moment(random, plan)
        until_s = min(at_s + random.uniform(0.5, 12.0), plan.duration_s - CALM_S)
        fault = Fault(round(at_s, 2), kind, target, round(max(until_s, at_s), 2))
        if kind is FaultKind.CONTROL:
            fault = replace(
                fault,
                # Now and then somebody is cut off altogether.
                loss=1.0 if target != EVERYBODY and random.random() < 0.4 else round(random.uniform(0.0, 0.4), 2),
                duplication=round(random.uniform(0.0, 0.3), 2),
                delay_max_s=round(random.choice((0.0, 0.1, 0.5, 2.0)), 2),
            )
        elif kind is FaultKind.CLOCK:
            drift = round(random.uniform(-0.05, 0.05), 3)
            fault = replace(fault, until_s=None, amount=round(random.uniform(-5.0, 5.0), 1), drift=drift)
        found.append(fault)
    return tuple(sorted(found, key=lambda fault: (fault.at_s, fault.kind, fault.target)))


def _storm(random: Random, plan: _Plan) -> Fault:
    """Most control messages of all brokers and clients get lost just when load has to be moved."""
    at_s = min(random.choice(plan.bursts_s) + random.uniform(1.0, 4.0), plan.duration_s - CALM_S - 1.0)
    until_s = min(at_s + random.uniform(6.0, 15.0), plan.duration_s - CALM_S)
    return Fault(
        round(at_s, 2),
        FaultKind.CONTROL,
        EVERYBODY,
        round(until_s, 2),
        loss=round(random.uniform(0.4, 0.75), 2),
        duplication=round(random.uniform(0.0, 0.3), 2),
        delay_max_s=random.choice((0.0, 0.5)),
    )


def _moment(random: Random, plan: _Plan) -> float:
    """Half of the faults come when a session is likely to be under way."""
    latest_s = plan.duration_s - CALM_S - 1.0
    if random.random() < 0.5:
        return min(random.choice(plan.bursts_s) + random.uniform(0.0, 6.0), latest_s)
    return random.uniform(FAULTS_FROM_S, latest_s)


def _target(
    random: Random,
    kind: FaultKind,
    heads: tuple[HeadSpec, ...],
    edges: tuple[EdgeSpec, ...],
    publishers: tuple[PublisherSpec, ...],
    subscribers: tuple[SubscriberSpec, ...],
) -> str | None:
    """Whom a fault hits; None where there is nobody of that kind."""
    brokers = [head.name for head in heads] + [edge.name for edge in edges]
    match kind:
        case FaultKind.CONTROL:
            client = random.choice(subscribers).name
            return random.choice([EVERYBODY, random.choice(brokers), random.choice(brokers), client, client])
        case FaultKind.CRASH | FaultKind.FREEZE | FaultKind.CLOCK:
            return random.choice(brokers)
        case FaultKind.EDGE_DOWN | FaultKind.LINK_DOWN | FaultKind.DRAIN:
            return random.choice(edges).name
        case FaultKind.CLIENT_CRASH | FaultKind.CLIENT_CUT:
            return random.choice(subscribers).name
        case FaultKind.PUBLISHER_CUT:
            return random.choice(publishers).name
