"""Clients that rest, and load that was promised."""

from __future__ import annotations

import pytest

from tests.support.head_cluster import load, move
from tidegate_agents.head.moving.cooldowns import Cooldowns
from tidegate_agents.head.moving.promises import Promises

CLIENT = ("s", "a")


def test_a_client_rests_until_its_time_is_over() -> None:
    cooldowns = Cooldowns()
    cooldowns.rest(CLIENT, 10.0)
    assert cooldowns.rests(CLIENT, 9.9)
    assert not cooldowns.rests(CLIENT, 10.0)
    assert cooldowns.resting(9.9) == [CLIENT]
    assert cooldowns.resting(10.0) == []
    cooldowns.validate()


def test_a_rest_may_be_prolonged_but_not_cut_short() -> None:
    cooldowns = Cooldowns()
    cooldowns.rest(CLIENT, 10.0)
    cooldowns.rest(CLIENT, 20.0)
    cooldowns.rest(CLIENT, 15.0)
    cooldowns.expire(10.0)
    assert cooldowns.rests(CLIENT, 19.9)
    cooldowns.validate()
    cooldowns.expire(20.0)
    assert not cooldowns.rests(CLIENT, 19.9)


def test_the_memory_of_resting_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_agents.head.moving.cooldowns.CLIENTS_MAX", 3)
    cooldowns = Cooldowns()
    for number in range(10):
        cooldowns.rest((f"s{number}", "a"), float(number))
        for later in range(10):
            cooldowns.rest(("often", "a"), 100.0 + number + later / 10)
        cooldowns.validate()
    assert len(cooldowns.resting(-1.0)) <= 3


def test_promises_add_up_per_broker() -> None:
    promises = Promises()
    promises.promise("m1", "e1", move("s", bytes_per_s=10.0))
    promises.promise("m2", "e1", move("t", bytes_per_s=5.0))
    promises.promise("m3", "e2", move("u", bytes_per_s=1.0))
    assert promises.added_to(load("e1", offered=100.0), 0.0).bytes_offered_per_s == 115.0
    promises.drop("m1")
    promises.keep("m2", until_s=3.0)
    promises.validate()
    assert promises.added_to(load("e1"), 2.9).bytes_in_per_s == 5.0
    assert promises.added_to(load("e1"), 3.0) == load("e1")
    assert promises.added_to(load("e2"), 3.0).messages_in_per_s == 1.0
    promises.drop("m3")
    promises.drop("never")
    assert len(promises) == 0
    promises.validate()
