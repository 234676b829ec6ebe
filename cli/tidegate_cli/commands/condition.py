"""`tidegate condition`: change a link conditioner of a running embedded cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tidegate_embedded.conditioner_client import ConditionerClient, ConditionerStats, LaneStats

from ..console import json_option, out, print_json, run
from ..tables import table

_UNLIMITED = "none"


class _Bandwidth(click.ParamType[float]):
    """Bytes per second, or `none` for no limit."""

    name = "bytes/s|none"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == _UNLIMITED:
            return float("inf")
        try:
            number = float(str(value))
        except ValueError:
            number = 0.0
        if not number > 0:
            self.fail(f"{value!r} is neither a number above 0 nor '{_UNLIMITED}'", param, ctx)
        return number


@click.command("condition")
@click.argument("socket", type=click.Path(exists=True, path_type=Path))
@click.option("--uplink", type=_Bandwidth(), help="Bandwidth of what leaves the broker.")
@click.option("--downlink", type=_Bandwidth(), help="Bandwidth of what arrives at the broker.")
@click.option("--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="One-way delay.")
@click.option("--listener", help="Only this listener: client, link or to:<broker>.")
@click.option("--stall", "verb", flag_value="stall", help="Accept, but move nothing.")
@click.option("--resume", "verb", flag_value="resume", help="End a stall; nothing that was held is lost.")
@click.option("--cut", "verb", flag_value="cut", help="Close all connections and refuse new ones.")
@click.option("--restore", "verb", flag_value="restore", help="Accept connections again after a cut.")
@click.option("--reset", "verb", flag_value="reset", help="Reset all current connections, once.")
@json_option
def command(
    socket: Path,
    uplink: float | None,
    downlink: float | None,
    delay: float | None,
    listener: str | None,
    verb: str | None,
    as_json: bool,
) -> None:
    """Shape, stall, cut or reset the links of a broker, live, and show how they are.

    SOCKET is the control socket of the broker's link conditioner, as `tidegate up --topology` prints it.
    """
    client = ConditionerClient(socket.stem, socket)
    statistics = run(_condition(client, uplink, downlink, delay, listener, verb))
    if as_json:
        print_json(asdict(statistics))
    else:
        _show(statistics)


async def _condition(
    client: ConditionerClient,
    uplink: float | None,
    downlink: float | None,
    delay: float | None,
    listener: str | None,
    verb: str | None,
) -> ConditionerStats:
    if uplink is not None:
        await client.set_uplink(None if uplink == float("inf") else uplink)
    if downlink is not None:
        await client.set_downlink(None if downlink == float("inf") else downlink)
    if delay is not None:
        await client.set_delay(delay, listener)
    if verb is not None:
        await getattr(client, verb)(listener)
    return await client.stats()


def _show(statistics: ConditionerStats) -> None:
    console = out()
    for name, lane in (("uplink", statistics.uplink), ("downlink", statistics.downlink)):
        console.print(f"{name}: {_limit(lane)}, {lane.bytes_total:,} bytes so far, {lane.queued_bytes:,} waiting")
    shown = table("listener", "state", "delay", "connections", "accepted")
    for name, listener in statistics.listeners.items():
        state = "cut" if not listener.is_open else "stalled" if listener.is_stalled else "open"
        shown.add_row(name, state, f"{listener.delay_s:g} s", str(listener.connections), str(listener.accepted_total))
    console.print(shown)


def _limit(lane: LaneStats) -> str:
    return "no limit" if lane.bytes_per_s is None else f"{lane.bytes_per_s:,.0f} bytes/s"
