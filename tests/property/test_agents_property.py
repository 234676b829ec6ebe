"""The agents on random trees, under random schedules and faults, against the brute-force truth."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings, strategies as st

from tests.support.agents_network import Call, Faults, Network, maximal
from tidegate_agents.head.registry import Registry
from tidegate_agents.kit.subscriptions import RegistryDigest, registry_digest
from tidegate_agents.topics.covering import CoveringSet
from tidegate_agents.topics.routes import RouteTable
from tidegate_protocol.messages import SubscribeReply, Subscription
from tidegate_protocol.topics import ANY_WORDS_MAX

WORDS = st.sampled_from(["a", "b", "*", "#"])
PATTERNS = st.lists(WORDS, min_size=1, max_size=3).map(".".join)
LEGAL = PATTERNS.filter(lambda pattern: pattern.count("#") <= ANY_WORDS_MAX)
"""What a client may subscribe to. Covering sets and routes are right for other patterns too."""
SETTLE_S = 40.0


@given(st.lists(st.tuples(st.booleans(), PATTERNS), max_size=30))
def test_covering_set_equals_brute_force(operations: list[tuple[bool, str]]) -> None:
    covering = CoveringSet()
    counts: dict[str, int] = {}
    reported: set[str] = set()
    for add, pattern in operations:
        if add:
            change = covering.add(pattern)
            counts[pattern] = counts.get(pattern, 0) + 1
        elif counts.get(pattern):
            change = covering.remove(pattern)
            counts[pattern] -= 1
        else:
            continue
        covering.validate()
        present = {p for p, count in counts.items() if count}
        assert set(change.left) <= reported
        assert not set(change.entered) & reported
        reported = (reported - set(change.left)) | set(change.entered)
        assert covering.maximal == maximal(present) == reported


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["e1", "e2", "n1", "n2"]), PATTERNS), max_size=30))
def test_route_table_equals_brute_force(operations: list[tuple[bool, str, str]]) -> None:
    routes = RouteTable(["n1", "n2"])
    needs: dict[str, list[str]] = {"e1": [], "e2": [], "n1": [], "n2": []}
    bound: dict[str, set[str]] = {name: set() for name in needs}
    for add, target, pattern in operations:
        if add:
            routes.need(target, pattern)
            needs[target].append(pattern)
        elif pattern in needs[target]:
            routes.release(target, pattern)
            needs[target].remove(pattern)
        routes.validate()
        for change in routes.take_changes():
            bound[change.target] = (bound[change.target] | set(change.add)) - set(change.remove)
    for target, patterns in needs.items():
        assert bound[target] == maximal(set(patterns))
    for name in ("n1", "n2"):
        others = {p for target, patterns in needs.items() if target != name for p in patterns}
        assert routes.offers[name].patterns.maximal == maximal(others)


SUBSCRIPTIONS = st.builds(
    Subscription,
    subscriber=st.sampled_from(["s", "t"]),
    number=st.integers(0, 4),
    pattern=LEGAL,
    deadline_us=st.sampled_from([1, 2]),
    expires_s=st.just(600),
)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["e1", "e2"]), SUBSCRIPTIONS), max_size=30))
def test_registry_indexes_and_digests_stay_right(operations: list[tuple[bool, str, Subscription]]) -> None:
    registry = Registry()
    registry.edge("e1")
    registry.edge("e2")
    truth: dict[tuple[str, str, int], Subscription] = {}
    for add, edge, subscription in operations:
        key = (edge, subscription.subscriber, subscription.number)
        if add:
            assert registry.add(edge, subscription) == truth.get(key)
            truth[key] = subscription
        else:
            assert registry.remove(edge, *key[1:]) == truth.pop(key, None)
        registry.validate()
        assert {(e, s.subscriber, s.number): s for e, s in registry} == truth
        used = {number for _, subscriber, number in truth if subscriber == "s"}
        assert registry.next_number("s") not in used


@given(st.lists(SUBSCRIPTIONS, unique=True), st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_the_order(subscriptions: list[Subscription], random: object) -> None:
    digest = RegistryDigest(subscriptions)
    assert digest.text == registry_digest(reversed(subscriptions))
    for subscription in subscriptions:
        digest.remove(subscription)
    assert digest.text == registry_digest([])


@dataclass(frozen=True)
class Step:
    """What a user, or fate, does next."""

    kind: str
    which: int
    pattern: str
    after_s: float


STEPS = st.builds(
    Step,
    kind=st.sampled_from(["subscribe"] * 5 + ["unsubscribe"] * 2 + ["stop", "start"]),
    which=st.integers(0, 1_000),
    pattern=LEGAL,
    after_s=st.sampled_from([0.0, 0.01, 0.3, 2.0]),
)


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Heads h0… in a random tree, one or two edges each."""
    count = draw(st.integers(1, 4))
    neighbours: dict[str, list[str]] = {f"h{i}": [] for i in range(count)}
    for i in range(1, count):
        parent = draw(st.integers(0, i - 1))
        neighbours[f"h{i}"].append(f"h{parent}")
        neighbours[f"h{parent}"].append(f"h{i}")
    edges = {f"{head}e{j}": head for head in neighbours for j in range(draw(st.integers(1, 2)))}
    return {head: tuple(names) for head, names in neighbours.items()}, edges


def play(network: Network, steps: list[Step], restarts: bool) -> dict[tuple[str, str], Call]:
    """Carry out the steps; return each subscriber's last call per pattern."""
    heads = sorted(network.tree)
    latest: dict[tuple[str, str], Call] = {}
    for step in steps:
        network.run(step.after_s)
        if step.kind == "subscribe":
            subscriber = f"s{step.which % 5}"
            head = heads[step.which % 5 % len(heads)]
            latest[subscriber, step.pattern] = network.subscribe(head, subscriber, step.pattern)
        elif step.kind == "unsubscribe":
            granted = [call for call in latest.values() if isinstance(call.answer, SubscribeReply)]
            if granted:
                call = granted[step.which % len(granted)]
                assert isinstance(call.answer, SubscribeReply)
                subscription = call.answer.subscription
                ending = network.unsubscribe(call.head, subscription.subscriber, subscription.number)
                latest.pop((subscription.subscriber, subscription.pattern), None)
                if not restarts:
                    # Else the next request of the same client might overtake this one.
                    network.run_until(lambda ending=ending: ending.answer is not None)  # type: ignore[misc]
        elif restarts:
            name = sorted(network.nodes)[step.which % len(network.nodes)]
            network.stop(name) if step.kind == "stop" else network.start(name)
    return latest


def settle(network: Network) -> None:
    """No more faults, everybody back, time to agree."""
    network.faults = Faults()
    for name in sorted(network.nodes):
        network.start(name)
    network.run(SETTLE_S)
    assert [call.message for call in network.calls if call.answer is None] == []


def clear(network: Network) -> None:
    """Unsubscribe from all there is."""
    for edge, head in sorted(network.edges.items()):
        for subscriber, number in sorted(network.nodes[edge].outputs):
            network.unsubscribe(head, subscriber, number)
    network.run(SETTLE_S)
    for head in network.tree:
        left = {target: bound for target, bound in network.nodes[head].bindings.items() if bound}
        assert left == {}


@settings(max_examples=25)
@given(st.integers(0, 2**32), trees(), st.lists(STEPS, max_size=25))
def test_without_faults_every_grant_is_live_and_kept(
    seed: int, shape: tuple[dict[str, tuple[str, ...]], dict[str, str]], steps: list[Step]
) -> None:
    network = Network(seed, *shape)
    network.run(3.0)
    latest = play(network, steps, restarts=False)
    settle(network)
    network.check_bindings()
    for (subscriber, pattern), call in latest.items():
        assert isinstance(call.answer, SubscribeReply)
        assert call.answer.awaiting == ()
        outputs = network.nodes[call.answer.edge].outputs
        held = [s for s in outputs.values() if (s.subscriber, s.pattern) == (subscriber, pattern)]
        assert held == [call.answer.subscription]
    everything = [s for edge in network.edges for s in network.nodes[edge].outputs.values()]
    assert len(everything) == len(latest)
    clear(network)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    trees(),
    st.lists(STEPS, max_size=25),
    st.sampled_from([Faults(0.05, 0.05, 0.1), Faults(0.3, 0.2, 1.5), Faults(0.0, 0.3, 3.0)]),
)
def test_under_faults_routes_agree_with_subscriptions_in_the_end(
    seed: int,
    shape: tuple[dict[str, tuple[str, ...]], dict[str, str]],
    steps: list[Step],
    faults: Faults,
) -> None:
    network = Network(seed, *shape, faults=faults)
    network.run(1.0)
    play(network, steps, restarts=True)
    settle(network)
    network.check_bindings()
    clear(network)
