"""An edge as the target of a session: what it tells of its load, and when it is busy."""

from __future__ import annotations

from dataclasses import replace

from tests.support.agents_driver import of, replies, subscription
from tests.support.edge_driver import (
    AT_ONCE,
    EdgeDriver,
)
from tidegate_agents.load.metrics import SubscriptionSample
from tidegate_agents.machine import (
    Announce,
)
from tidegate_protocol import decisions as d
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_protocol.balancing.sessions import (
    LoadReply,
    LoadRequest,
    SessionPhase,
)
from tidegate_protocol.messages import (
    LoadState,
)
from tidegate_protocol.parts import Capacity


def target() -> EdgeDriver:
    driver = EdgeDriver("e", [subscription()], balancing=replace(AT_ONCE, session_timeout_s=60.0))
    calm(driver)
    return driver


def calm(driver: EdgeDriver, seconds: int = 1) -> None:
    for _ in range(seconds):
        driver.sample([SubscriptionSample("out.s.0", "a", 10, 10, 0, 4, 0.4, 100)])


def load_of(driver: EdgeDriver) -> BrokerLoad:
    (reply,) = replies(driver.tell(LoadRequest(session="x~1~1")), LoadReply)
    assert reply.session == "x~1~1"
    return reply.load


def test_an_edge_whose_uplink_has_room_can_help_whatever_waits_there() -> None:
    """A queue past its threshold that no move would help: nor would it wait longer if others came."""
    capacity = Capacity(uplink_bytes_per_s=1_000_000.0)
    one_second = subscription().model_copy(update={"deadline_us": 1_000_000})
    driver = EdgeDriver("e", [one_second], capacity, balancing=AT_ONCE)
    for _ in range(3):
        driver.sample([SubscriptionSample("out.s.0", "a", 10, 10, 5_000, 4, 0.4, 100)])
    assert load_of(driver).state is LoadState.HIGH


def test_a_target_tells_its_load_and_is_busy_until_the_session_shows() -> None:
    driver = target()
    load = load_of(driver)
    assert (load.state, load.busy, load.bytes_offered_per_s) == (LoadState.LOW, False, 1000)
    driver.notice("x~1~1", SessionPhase.STARTED, "x")
    driver.notice("x~1~1", SessionPhase.STARTED, "x")
    assert load_of(driver).busy
    calm(driver)
    assert of(driver.done, Announce)[-1].message.busy
    driver.notice("x~1~1", SessionPhase.ENDED, "x", moved=1)
    calm(driver)
    assert load_of(driver).busy
    calm(driver)
    assert not load_of(driver).busy
    assert not of(driver.done, Announce)[-1].message.busy
    # A notice that was delayed on its way is of the past.
    driver.notice("x~1~1", SessionPhase.STARTED, "x")
    assert not load_of(driver).busy


def test_a_target_leaves_a_session_that_nobody_ends() -> None:
    driver = target()
    driver.notice("x~1~1", SessionPhase.STARTED, "x")
    calm(driver, 59)
    assert load_of(driver).busy
    driver.now += 1.0
    assert not load_of(driver).busy
    assert driver.decisions(d.SessionLeft)[0].session == "x~1~1"


def test_nothing_is_known_about_an_edge_before_its_first_sample() -> None:
    assert load_of(EdgeDriver()).state is LoadState.NOT_AVAILABLE
