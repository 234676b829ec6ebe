"""The file of the rules: a broker does not start without it, sees a change, and keeps what it had when it is broken."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.support.waiting import eventually
from tidegate_agents.machine import RulesSeen
from tidegate_brokers.access import rules_file
from tidegate_brokers.access.rules_file import RulesFile
from tidegate_brokers.errors import ConfigurationError
from tidegate_brokers.observe.counters import BrokerMetrics
from tidegate_protocol.rights import AccountRights, Rules, write_rules

ONE = Rules.of(AccountRights(account="a", publish=("x",)))
TWO = Rules.of(AccountRights(account="a", publish=("y",)), AccountRights(account="b"))


def metrics() -> BrokerMetrics:
    return BrokerMetrics(CollectorRegistry(), "edge", "e", "c")


def value(counted: BrokerMetrics, name: str) -> float | None:
    return counted.registry.get_sample_value(name)


def replace(file: Path, text: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(file)


@pytest.mark.parametrize("text", [None, "", "{", '{"v": 9}', '{"accounts": [{"account": "a", "publish": ["a..b"]}]}'])
def test_a_broker_does_not_start_with_rules_that_it_can_not_read(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "rules.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"rules_file.*tidegate access prepare"):
        RulesFile(str(file), metrics())


async def test_without_a_file_there_are_no_rules_and_nothing_to_look_at() -> None:
    counted = metrics()
    rules = RulesFile(None, counted)
    assert rules.rules is None
    await rules.watch(lambda event: pytest.fail("nothing can have changed"))
    assert value(counted, "tidegate_rules_accounts_count") == 0


@pytest.mark.parametrize("signalled", [False, True])
async def test_other_rules_are_told_once_and_a_broken_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signalled: bool
) -> None:
    monkeypatch.setattr(rules_file, "LOOK_PERIOD_S", 3600.0 if signalled else 0.01)
    file, counted, seen = tmp_path / "rules.json", metrics(), list[RulesSeen]()
    file.write_text(write_rules(ONE))
    rules = RulesFile(str(file), counted)
    assert rules.rules == ONE
    watching = asyncio.create_task(rules.watch(seen.append))
    await asyncio.sleep(0)

    def now() -> None:
        if signalled:
            os.kill(os.getpid(), signal.SIGHUP)

    try:
        replace(file, "{")
        now()
        await eventually(lambda: value(counted, "tidegate_rules_up") == 0, "the problem shows")
        assert rules.rules == ONE
        file.unlink()
        replace(file, write_rules(TWO))
        now()
        await eventually(lambda: seen == [RulesSeen(TWO)], "the new rules are told")
        assert value(counted, "tidegate_rules_up") == 1
        assert value(counted, "tidegate_rules_accounts_count") == 2
        replace(file, write_rules(TWO))
        now()
        replace(file, write_rules(ONE))
        now()
        await eventually(lambda: seen[1:] == [RulesSeen(ONE)], "the same rules again are no news")
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
