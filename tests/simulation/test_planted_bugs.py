"""Bugs planted on purpose are noticed: a checker that never fails, or a swarm that never gets there, is worth nothing.

Each bug is put into a machine for the time of a run, from outside. No machine has a switch for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest

from tidegate._core import inbox
from tidegate._core.intake import Intake
from tidegate._core.migration import SubscriptionMachine
from tidegate._core.moves import Release
from tidegate._core.overlap import Overlap
from tidegate_agents.head.context import HeadContext
from tidegate_agents.head.moving.cooldowns import Cooldowns
from tidegate_agents.head.moving.promises import Promises
from tidegate_agents.head.moving.sessions import PART as SESSION_TIMER
from tidegate_protocol.balancing.loads import BrokerLoad
from tidegate_simulator import links
from tidegate_simulator.checkers import Violation
from tidegate_simulator.runner import Plant, run_seed

SEEDS_MAX = 200
FIRST_SEEDS = {"believe_every_id": 68, "ignore_promises": 124, "release_what_was_held_backwards": 23}
"""Where a bug shows, as long as seeds take the course that they take now: these are tried first, then all others."""


@contextmanager
def detach_before_the_marker() -> Iterator[None]:
    """The client switches as soon as it has something of the new queue, whatever is still on its way to the old one."""
    with patch.object(SubscriptionMachine, "_may_switch", lambda self, migration: len(migration.hold) > 0):
        yield


@contextmanager
def hand_over_what_both_queues_bring() -> Iterator[None]:
    """The client hands over every plain message of the new queue, also those that the old one brought."""
    with patch.object(Overlap, "take", lambda self, content: False):
        yield


@contextmanager
def drop_what_only_the_new_queue_brings() -> Iterator[None]:
    """The client takes every plain message of the new queue for one that the old queue has brought."""
    with patch.object(Overlap, "take", lambda self, content: True):
        yield


@contextmanager
def release_what_was_held_backwards() -> Iterator[None]:
    """The client hands over what it held during a move with the last message first."""
    release = Intake.release

    def backwards(self: Intake[object], order: Release) -> None:
        release(self, replace(order, items=order.items[::-1]))

    with patch.object(Intake, "release", backwards):
        yield


@contextmanager
def ignore_promises() -> Iterator[None]:
    """The head shows candidates as they say they are, without what running migrations will bring them."""

    def bare(self: Promises, load: BrokerLoad, now: float) -> BrokerLoad:
        return load

    with patch.object(Promises, "added_to", bare):
        yield


@contextmanager
def no_cooldown() -> Iterator[None]:
    """The head forgets at once whom it has moved."""
    with patch.object(Cooldowns, "rest", lambda self, client, until_s: None):
        yield


@contextmanager
def forget_the_timeout() -> Iterator[None]:
    """The head waits for ever for the candidates and the plan of a session, and for its last migration."""
    set_timer = HeadContext.set_timer

    def forgetful(self: HeadContext, name: str, after_s: float) -> None:
        if not name.startswith(f"{SESSION_TIMER} "):
            set_timer(self, name, after_s)

    with patch.object(HeadContext, "set_timer", forgetful):
        yield


@contextmanager
def believe_every_id() -> Iterator[None]:
    """The client knows messages by their ids, whoever sent them."""

    def alone(account: str | None, message_id: str | None, checked_accounts: bool) -> str | None:
        return message_id

    with patch.object(inbox, "identity_of", alone), patch.object(links, "identity_of", alone):
        yield


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (believe_every_id, {"lost"}),
        (detach_before_the_marker, {"lost", "out-of-order"}),
        (ignore_promises, {"promise-ignored"}),
        (no_cooldown, {"oscillation"}),
        (forget_the_timeout, {"session-without-end"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_noticed(plant: Plant, expected: set[str]) -> None:
    assert_noticed(plant, lambda violation: violation.name in expected)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (hand_over_what_both_queues_bring, "doubled"),
        (drop_what_only_the_new_queue_brings, "lost"),
        (release_what_was_held_backwards, "out-of-order"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_noticed_in_messages_without_ids(plant: Plant, expected: str) -> None:
    """The names of plain publishers have no number of a run, so their messages are told from those of the SDK."""
    assert_noticed(plant, lambda violation: violation.name == expected and "~" not in violation.text)


def assert_noticed(plant: Plant, wanted: Callable[[Violation], bool]) -> None:
    first = FIRST_SEEDS.get(plant.__name__, 1)
    for seed in (*range(first, SEEDS_MAX + 1), *range(1, first)):
        if any(wanted(violation) for violation in run_seed(seed, plant=plant).violations):
            assert not run_seed(seed).failed, f"seed {seed} fails without the planted bug as well"
            return
    pytest.fail(f"{plant.__name__} was not noticed in {SEEDS_MAX} seeds")
