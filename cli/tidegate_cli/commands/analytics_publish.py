"""`tidegate analytics publish`: what Spark has learned, sent back to the heads."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tidegate import Refused, TidegateError
from tidegate._engine.asking import Asking
from tidegate_analytics.errors import InvalidOption
from tidegate_protocol.insight import VALID_US_MAX, Insight, InsightReply
from tidegate_protocol.messages import StatusReply, StatusRequest
from tidegate_protocol.rendering.operations import unused
from tidegate_protocol.rendering.words import counted

from ..asking import fields
from ..console import head_option, json_option, out, print_json, run
from ..errors import describe
from ..exit_codes import ExitCode
from ..explain.insights import duration

VALID_FOR_S: Final = 24 * 3600.0
_NAMED_MAX: Final = 5

Made = Callable[[str], tuple[Insight, dict[str, str]]]
"""What is to be sent to a cluster, and what is left out of it."""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What has come of it at one head."""

    url: str
    cluster: str = ""
    insight: Insight | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    taken: InsightReply | None = None
    error: TidegateError | InvalidOption | None = None


@click.command("publish")
@click.option(
    "--tables",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where `tidegate analytics run rates` and `run correlation` have written (their --out).",
)
@head_option(
    "Address of a head's RabbitMQ. May be given once per cluster; each gets what concerns its cluster.", multiple=True
)
@click.option(
    "--valid-for",
    "valid_for_s",
    type=click.FloatRange(0, VALID_US_MAX / 1e6, min_open=True),
    default=VALID_FOR_S,
    metavar="S",
    help="Seconds after the tables were written at which heads forget it.",
)
@click.option("--withdraw", is_flag=True, help="Instead: have heads forget the insight that is in force.")
@click.option("--dry-run", is_flag=True, help="Send nothing; print what would be sent.")
@json_option
def command(
    folder: Path | None, urls: tuple[str, ...], valid_for_s: float, withdraw: bool, dry_run: bool, as_json: bool
) -> None:
    """Send what was learned to heads: correlated topics, rate forecasts, what uplinks carry.

    Needs no Spark. A head takes the newest insight and uses it until it expires, within bounds, so that a wrong one
    does little harm (docs/analytics.md); `tidegate status` shows it, `tidegate explain` what came of it.

    Exits with 1 if a head refused, with 65 if the tables have nothing for its cluster, with 69 if it could not be
    reached; the others have got theirs.
    """
    _check(folder, urls, withdraw, dry_run)
    if dry_run and click.get_current_context().get_parameter_source("urls") is ParameterSource.ENVIRONMENT:
        urls = ()  # the variable is there for other commands; all clusters in the tables are told
    made, clusters = _maker(folder, valid_for_s)
    if dry_run and not urls:
        outcomes = [PublishOutcome("", cluster, *made(cluster)) for cluster in clusters]
    else:
        outcomes = run(_publish_all(urls, made, send=not dry_run))
    for outcome in outcomes:
        if as_json:
            print_json(_as_json(outcome))
        else:
            _show(outcome)
    if any(isinstance(outcome.error, Refused) for outcome in outcomes):
        sys.exit(ExitCode.FAILED)
    failed = [described for one in outcomes if one.error is not None and (described := describe(one.error))]
    if failed:
        sys.exit(failed[0].code)


def _check(folder: Path | None, urls: tuple[str, ...], withdraw: bool, dry_run: bool) -> None:
    if folder is None and not withdraw:
        raise InvalidOption("--tables", "missing", "give the directory of the tables, or --withdraw")
    if folder is not None and withdraw:
        raise InvalidOption("--withdraw", "--tables is given too", "give one of them")
    if not urls and (withdraw or not dry_run):
        raise InvalidOption("--url", "missing", "give the address of a head's RabbitMQ")


def _maker(folder: Path | None, valid_for_s: float) -> tuple[Made, list[str]]:
    from tidegate_analytics.insight import clusters_in, compose, read_tables, withdrawal

    if folder is None:
        return lambda cluster: (withdrawal(cluster, time.time()), {}), []
    tables = read_tables(folder)

    def made(cluster: str) -> tuple[Insight, dict[str, str]]:
        composed = compose(tables, cluster, time.time(), valid_for_s)
        return composed.insight, composed.left_out

    return made, clusters_in(tables)


async def _publish_all(urls: Sequence[str], made: Made, *, send: bool) -> list[PublishOutcome]:
    """All at once: one that can't be reached keeps nobody from the others."""
    return list(await asyncio.gather(*(_publish(url, made, send=send) for url in urls)))


async def _publish(url: str, made: Made, *, send: bool) -> PublishOutcome:
    cluster, insight = "", None
    left_out: dict[str, str] = {}
    try:
        async with Asking(url) as head:
            cluster = (await head.ask(StatusRequest(), StatusReply)).cluster
            insight, left_out = made(cluster)
            taken = await head.ask(insight, InsightReply) if send else None
        return PublishOutcome(url, cluster, insight, left_out, taken)
    except (TidegateError, InvalidOption) as error:
        return PublishOutcome(url, cluster, insight, left_out, error=error)


def _as_json(outcome: PublishOutcome) -> dict[str, Any]:
    insight, taken = outcome.insight, outcome.taken
    told: dict[str, Any] = {"cluster": outcome.cluster, "taken": taken is not None}
    if taken is not None:
        told |= fields(taken)
    elif insight is not None:
        told["insight"] = fields(insight)
    if outcome.error is not None:
        told["error"] = str(outcome.error)
    return told | {"left_out": outcome.left_out}


def _show(outcome: PublishOutcome) -> None:
    console, insight, taken = out(), outcome.insight, outcome.taken
    where = f"cluster {outcome.cluster}" if outcome.cluster else "a head"
    if outcome.error is not None:
        console.print(f"{where}: {outcome.error}", style="red", markup=False, soft_wrap=True)
    elif taken is not None and insight is not None and insight.withdraws:
        console.print(f"{where}: no insight is in force any more")
    elif taken is not None:
        already = "was in force already" if taken.repeated else "taken"
        text = f"{where}: {already}: {_counted(taken)}; valid for another {duration(taken.left_us)}"
        console.print(text, soft_wrap=True)
        _show_all("not used now", dict(map(unused, taken.unused)))
    elif insight is not None:
        left = duration(insight.valid_for_us - insight.age_us)
        console.print(f"{where}: would be sent: {_counted(insight)}; valid for another {left}")
        _show_parts(insight)
    _show_all("left out", outcome.left_out)


def _counted(of: Insight | InsightReply) -> str:
    counts = {
        "correlated pair": of.pairs if isinstance(of, InsightReply) else len(of.pairs),
        "forecast": of.forecasts if isinstance(of, InsightReply) else len(of.forecasts),
        "uplink": of.capacities if isinstance(of, InsightReply) else len(of.capacities),
    }
    return ", ".join(counted(count, name) for name, count in counts.items())


def _show_parts(insight: Insight) -> None:
    console = out()
    for pair in insight.pairs:
        console.print(f"  {pair.topic_a} with {pair.topic_b}: {pair.coefficient:.2f}", markup=False)
    for one in insight.forecasts:
        change = f"{one.trend_per_s * 60:+.3g} per minute"
        text = f"{one.level_per_s:.4g}/s, {change}, ± {one.error_per_s:.3g}, for {duration(one.horizon_us)}"
        console.print(f"  {one.topic}: {text}", markup=False)
    for uplink in insight.capacities:
        console.print(f"  {uplink.edge}: {uplink.uplink_bytes_per_s:,.0f} B/s", markup=False)


def _show_all(what: str, parts: dict[str, str]) -> None:
    console = out()
    for name, why in list(parts.items())[:_NAMED_MAX]:
        console.print(f"  {what}: {name}: {why}", markup=False, soft_wrap=True)
    if len(parts) > _NAMED_MAX:
        console.print(f"  {what}: {len(parts) - _NAMED_MAX} more (--json tells all)")
