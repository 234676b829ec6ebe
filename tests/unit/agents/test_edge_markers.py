"""Marker keys bound to the output queues of an edge, and queues in migration."""

from __future__ import annotations

from dataclasses import replace

from tests.support.agents_driver import of, replies, subscription
from tests.support.edge_driver import (
    AT_ONCE,
    EdgeDriver,
)
from tidegate_agents.load.metrics import SubscriptionSample
from tidegate_agents.machine import (
    Action,
    ActionFailed,
    BindMarker,
    DeclareOutput,
    MarkerBound,
    OutputDeclared,
    OutputDeleted,
    TimerFired,
    UnbindMarker,
)
from tidegate_protocol.balancing import markers
from tidegate_protocol.balancing.markers import MarkerBind
from tidegate_protocol.balancing.sessions import (
    SessionPhase,
)
from tidegate_protocol.messages import (
    LoadState,
    OutputPrepare,
    OutputReady,
    OutputRemove,
    Refusal,
    RefusalReason,
    Subscription,
)


def prepare(driver: EdgeDriver, asked: Subscription, marker: str | None) -> list[Action]:
    return driver.tell(OutputPrepare(subscription=asked, marker=marker))


def test_an_output_for_a_migration_is_ready_once_its_marker_is_bound() -> None:
    driver = EdgeDriver()
    key = "tidegate.marker.m1.*"
    assert of(prepare(driver, subscription(), key), DeclareOutput)
    actions = driver.give(OutputDeclared(subscription()))
    assert of(actions, BindMarker) == [BindMarker("s", 0, key)]
    assert not replies(actions, OutputReady)
    # Asked again meanwhile: declared and bound again, answered together.
    prepare(driver, subscription(), key)
    assert not replies(driver.give(OutputDeclared(subscription())), OutputReady)
    assert len(replies(driver.give(MarkerBound("s", 0, key)), OutputReady)) == 2


def test_a_marker_is_bound_to_the_old_queue_on_request_and_taken_back_in_the_end() -> None:
    driver = EdgeDriver("e", [subscription()])
    request = MarkerBind(subscriber="s", number=0, key="tidegate.marker.m1.*")
    assert of(driver.tell(request), BindMarker)
    assert driver.tell(request) == []
    bound = replies(driver.give(MarkerBound("s", 0, request.key)), markers.MarkerReady)
    assert [answer.key for answer in bound] == [request.key] * 2
    driver.now += 59.0
    assert not of(driver.give(TimerFired("hello")), UnbindMarker)
    driver.now += 1.0
    assert of(driver.give(TimerFired("hello")), UnbindMarker) == [UnbindMarker("s", 0, request.key)]


def test_a_marker_that_cannot_be_bound_is_refused() -> None:
    driver = EdgeDriver("e", [subscription()])
    unknown = MarkerBind(subscriber="x", number=0, key="tidegate.marker.m1.*")
    assert replies(driver.tell(unknown), Refusal)[0].reason is RefusalReason.UNKNOWN
    request = MarkerBind(subscriber="s", number=0, key="tidegate.marker.m1.*")
    (bind,) = of(driver.tell(request), BindMarker)
    assert replies(driver.give(ActionFailed(bind, "no queue")), Refusal)[0].reason is RefusalReason.FAILED
    driver.tell(request)
    driver.tell(OutputRemove(subscriber="s", number=0))
    gone = driver.give(OutputDeleted("s", 0))
    assert replies(gone, Refusal)[0].reason is RefusalReason.UNKNOWN


def test_a_queue_in_migration_is_not_judged_until_its_session_ended() -> None:
    driver = EdgeDriver("e", [subscription()], balancing=replace(AT_ONCE, slow_subscriber_samples_needed=99))
    driver.tell(MarkerBind(subscriber="s", number=0, key="tidegate.marker.m1.*"))
    driver.notice("x~1~1", SessionPhase.STARTED, "x")
    deep = SubscriptionSample("out.s.0", "a", 100, 100, 500, 0, 0.0, 100)
    for _ in range(3):
        driver.sample([deep])
    assert driver.agent.detector.assessment.migrating == 1
    assert driver.agent.detector.assessment.state is LoadState.LOW
    assert driver.agent.detector.broker.capacity.uplink_bytes_per_s is None
    driver.notice("x~1~1", SessionPhase.ENDED, "x")
    driver.sample([deep])
    assert driver.agent.detector.assessment.state is LoadState.OVERLOAD


def test_a_queue_that_came_without_a_session_is_judged_when_its_migration_must_be_over() -> None:
    driver = EdgeDriver("e", [subscription()])
    driver.tell(MarkerBind(subscriber="s", number=0, key="tidegate.marker.m1.*"))
    driver.now += driver.agent.config.balancing.migration_timeout_s - 0.1
    driver.give(TimerFired("hello"))
    assert driver.agent.migrating == {"out.s.0"}
    driver.now += 0.1
    assert not of(driver.give(TimerFired("hello")), UnbindMarker)
    assert not driver.agent.migrating
