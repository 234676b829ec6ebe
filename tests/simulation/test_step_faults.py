"""A process killed right after each message of a session, as the random schedules seldom manage to do.

A run without faults tells when the messages of its first session are sent. As every run is the same up to the fault,
each of them can then be followed by a crash within a tenth of a millisecond: after a request was sent and before the
binding that goes with it was made, for example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import pytest

from tidegate._core.collector import Collector
from tidegate_agents.config import BalancingConfig
from tidegate_simulator.observer import Observer
from tidegate_simulator.runner import run_scenario
from tidegate_simulator.scenario import (
    EdgeSpec,
    Fault,
    FaultKind,
    HeadSpec,
    PublisherSpec,
    RateChange,
    Scenario,
    SubscriberSpec,
)
from tidegate_simulator.world import World

HEAD, TARGET, SOURCE = "h", "e0", "e1"
MOVED = "siren0"
FIRST = "balance-request"
SESSION_KINDS = {
    FIRST,
    "load-request",
    "load-reply",
    "balance-candidates",
    "balance-plan",
    "balance-accepted",
    "session-notice",
    "marker-bind",
    "marker-bound",
    "output-prepare",
    "output-ready",
    "migrate-order",
    "migration-report",
    "migration-ack",
    "output-remove",
    "output-removed",
}
AFTER_S = 0.0001


def coast(*faults: Fault) -> Scenario:
    """The sirens' edge is overrun by a burst, and the first of them is moved with seconds of backlog before it."""
    uplinks = {TARGET: 16_500.0, SOURCE: 40_000.0, "e2": 40_000.0}
    quakes = PublisherSpec(
        "quakes", HEAD, "quake", 10.0, 600.0, starts_s=2.0, changes=(RateChange(12.0, 2.2), RateChange(30.0, 1.0))
    )
    return Scenario(
        name="coast",
        seed=1,
        duration_s=50.0,
        settle_s=40.0,
        heads=(HeadSpec(HEAD),),
        edges=tuple(
            EdgeSpec(name, HEAD, uplink_bytes_per_s=uplink, head_delay_s=0.02, client_delay_s=0.03)
            for name, uplink in uplinks.items()
        ),
        publishers=(quakes, PublisherSpec("citizens", HEAD, "social", 10.0, 800.0, starts_s=2.0)),
        subscribers=(
            *(SubscriberSpec(f"siren{number}", HEAD, "quake", 1.0, joins_s=0.5) for number in range(4)),
            *(SubscriberSpec(f"desk{number}", HEAD, "social", 10.0, joins_s=0.5) for number in range(3)),
        ),
        faults=faults,
        balancing=BalancingConfig(migration_timeout_s=8.0, session_timeout_s=16.0, retry_s=2.0),
    )


class Steps(Observer):
    """When each kind of message of the first session was sent first: some are used to place clients, too."""

    def __init__(self) -> None:
        self.first_s: dict[str, float] = {}

    def control_sent(self, sender: str, receiver: str, kind: str, now: float) -> None:
        if kind == FIRST or (kind in SESSION_KINDS and FIRST in self.first_s):
            self.first_s.setdefault(kind, now)


@cache
def steps() -> dict[str, float]:
    watcher = Steps()
    World(coast(), (watcher,)).run()
    return watcher.first_s


def test_the_session_has_all_its_steps() -> None:
    assert steps().keys() == SESSION_KINDS
    result = run_scenario(coast())
    assert not result.failed, result.problems
    assert result.counts["moves"] >= 1


@pytest.mark.parametrize("away_s", [1.5, 6.0])
@pytest.mark.parametrize("victim", [HEAD, SOURCE, TARGET, MOVED])
@pytest.mark.parametrize("kind", sorted(SESSION_KINDS))
def test_a_crash_right_after_a_message_harms_nothing(kind: str, victim: str, away_s: float) -> None:
    crash = FaultKind.CLIENT_CRASH if victim == MOVED else FaultKind.CRASH
    at_s = steps()[kind] + AFTER_S
    result = run_scenario(coast(Fault(at_s, crash, victim, at_s + away_s)))
    assert not result.failed, result.problems


@contextmanager
def in_no_order() -> Iterator[None]:
    """The client hands over what it collects as it comes, whatever waits before it in the queue in use."""
    with patch.object(Collector, "must_wait", lambda self, message_id: False):
        yield


def test_these_crashes_notice_what_is_collected_too_early() -> None:
    """The head was killed when it had asked for a new queue and not yet bound its link: that queue begins when the
    head is back, while the old one has a backlog.
    """
    at_s = steps()["output-prepare"] + AFTER_S
    result = run_scenario(coast(Fault(at_s, FaultKind.CRASH, HEAD, at_s + 1.5)), plant=in_no_order)
    assert {violation.name for violation in result.violations} == {"out-of-order"}
