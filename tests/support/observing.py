"""What a Prometheus saw while a burst was on, and what must hold of it whatever cluster it looked at.

Every query of every panel has returned data or is listed here with the reason why it may be empty; every rule is
evaluated without an error, on metrics that are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tests.support.dashboards import Target, all_targets
from tests.support.prometheus import PROMETHEUS, RABBITMQ, Prometheus, alerts, metrics_in
from tests.support.waiting import eventually

AWAITED: Final = {
    "a move": 'sum(tidegate_migrations_ended_total{outcome="moved", clients="subscribers"})',
    "the pause it made": "sum(increase(tidegate_migration_gap_seconds_count[%s]))",
    "what came of it": "sum(increase(tidegate_prediction_error_ratio_count[%s]))",
}
"""What a burst ends in, sooner or later: only then is there something for every panel."""
MAY_BE_EMPTY: Final = {
    "malformed:": "no control message was malformed",
    "not sent:": "every control message could be sent",
    "refused:": "no request was refused",
    "action refused:": "RabbitMQ refused nothing",
    "opened again:": "no connection was lost",
    "Alerts that fire": "none does where all goes well",
    "Why nobody was moved": "somebody was moved at the first attempt",
}
"""By the beginning of a line's name, or by the title of a panel."""
ABSENT: Final = {"rabbitmq_alarms_file_descriptor_limit": "RabbitMQ 4 has no such limit any more"}
CALLED: Final = frozenset({"TidegateDeadlineInDanger", "TidegateDeadlineMissed"})
"""Alerts that a slow machine may raise in a burst; all others mean that something is wrong."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Seen:
    """A Prometheus that has seen a burst."""

    prometheus: Prometheus
    began_s: float
    ended_s: float
    broker: str
    """The one that the dashboard *Broker* is opened for."""
    scrape_s: float

    @property
    def rate(self) -> str:
        """What Grafana makes of `$__rate_interval`: four scrapes at least; ten seconds for the fastest of ours."""
        return f"{max(4 * self.scrape_s, 10):.0f}s"

    @property
    def lasted(self) -> str:
        """All of it, as a range of Prometheus."""
        return f"{self.ended_s - self.began_s:.0f}s"


async def wait_for_outcome(prometheus: Prometheus, within: str) -> None:
    """Return when Prometheus has seen what a burst ends in, `within` being a range of it."""
    for what, query in AWAITED.items():

        async def seen(query: str = query.replace("%s", within)) -> bool:
            return await prometheus.value(query) > 0.0

        await eventually(seen, f"Prometheus has seen {what}", 60)


async def rows_of(seen: Seen, target: Target) -> int:
    """How many lines a query has over the whole time."""
    query = target.resolved(broker=seen.broker if target.dashboard == "broker" else ".*", rate=seen.rate)
    window = {"start": seen.began_s, "end": seen.ended_s, "step": seen.scrape_s}
    data = await seen.prometheus.ask("query_range", query=query, **window)
    return sum(any(value != "NaN" for _, value in one["values"]) for one in data["result"])


async def check_panels(seen: Seen, may_be_empty: Mapping[str, str] = NOTHING) -> None:
    """Every query of every panel has data, or a reason to have none; `may_be_empty`: beside what always may."""
    known = MAY_BE_EMPTY | dict(may_be_empty)
    counts = [(target, await rows_of(seen, target)) for target in all_targets()]
    empty = [(target.panel, target.legend, target.expr) for target, count in counts if not count]
    unexplained = [one for one in empty if not any(one[0] == words or one[1].startswith(words) for words in known)]
    assert not unexplained, unexplained
    print(f"{len(counts)} queries, {len(empty)} empty: {[one[:2] for one in empty]}")


async def check_rules(seen: Seen, absent: Mapping[str, str] = ABSENT) -> None:
    """Every rule is evaluated, and all that it looks at is there; `absent`: metrics that can't be, and why."""
    groups = (await seen.prometheus.ask("rules"))["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert rules.keys() == {alert["alert"] for alert in alerts()}, rules.keys()
    failed = {name: rule.get("lastError") for name, rule in rules.items() if rule["health"] != "ok"}
    assert not failed, failed
    for alert in alerts():
        for metric in metrics_in(alert["expr"]) - absent.keys():
            query = f"count(last_over_time({metric}[{seen.lasted}]))"
            assert await seen.prometheus.value(query, seen.ended_s) > 0.0, f"{alert['alert']}: {metric}"


async def check_names(seen: Seen) -> None:
    """What is said to be RabbitMQ's or Prometheus' own is."""
    names = set(await seen.prometheus.ask("label/__name__/values"))
    missing = (RABBITMQ - ABSENT.keys() | PROMETHEUS - {"ALERTS"}) - names
    assert not missing, missing


async def check_calls(seen: Seen) -> None:
    """Nobody was called while all went well."""
    query = f'max_over_time(ALERTS{{alertstate="firing"}}[{seen.lasted}])'
    found = (await seen.prometheus.ask("query", query=query, time=seen.ended_s))["result"]
    fired = {one["metric"]["alertname"] for one in found}
    assert fired <= CALLED, fired
