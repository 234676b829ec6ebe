"""`tidegate up`: a whole cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click

from tidegate_embedded.cluster import EmbeddedCluster
from tidegate_embedded.topology import TelemetrySpec, Topology

from ..console import err, json_option, out, print_json, progress, run
from ..tables import table

_WATCH_PERIOD_S: Final = 1.0


@click.command("up")
@click.option(
    "--topology",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file that names clusters, brokers, capacities and links (docs/operations.md).",
)
@click.option("--clusters", type=click.IntRange(1, 16), default=1, help="Clusters, in a chain.")
@click.option("--edges", type=click.IntRange(1, 32), default=4, help="Edges per cluster.")
@click.option("--compact", is_flag=True, help="One RabbitMQ with a virtual host per broker: starts fastest.")
@click.option("--no-telemetry", is_flag=True, help="Write no telemetry, whatever the topology says.")
@json_option
def command(file: Path | None, clusters: int, edges: int, compact: bool, no_telemetry: bool, as_json: bool) -> None:
    """Start a whole cluster on this machine, on real RabbitMQ, and keep it until Ctrl-C.

    Everything it starts and writes is gone afterwards, also if this process is killed.
    """
    context = click.get_current_context()
    if file is not None and any(
        context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT for name in ("clusters", "edges")
    ):
        raise click.UsageError(
            "--topology says how many clusters and edges there are: leave out --clusters and --edges"
        )
    topology = Topology.load(file) if file else Topology.simple(clusters=clusters, edges=edges)
    if no_telemetry:
        topology = topology.model_copy(update={"telemetry": TelemetrySpec(enabled=False)})
    run(_up(topology, compact, as_json))


async def _up(topology: Topology, compact: bool, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        # The bars end before anything else is printed: two writers would overwrite each other on a terminal.
        with progress(quiet=as_json) as report:
            cluster = await stack.enter_async_context(EmbeddedCluster(topology, compact=compact, progress=report))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        ready_s = time.monotonic() - began
        if as_json:
            print_json(_describe(cluster, ready_s))
        else:
            _show(cluster, ready_s)
        watching = asyncio.create_task(_tell_of_deaths(cluster))
        await stop.wait()
        watching.cancel()
        if not as_json:
            out().print("Stopping …")


async def _tell_of_deaths(cluster: EmbeddedCluster) -> None:
    """Say so when a broker's process ends by itself; messages keep flowing, but somebody should look."""
    running = set(cluster.brokers)
    while running:
        await asyncio.sleep(_WATCH_PERIOD_S)
        for name in sorted(running):
            if cluster.process(name).pid is None:
                running.discard(name)
                err().print(f"The process of {name} has ended; its log: {cluster.process(name).log}", soft_wrap=True)


def _describe(cluster: EmbeddedCluster, ready_s: float) -> dict[str, Any]:
    return {
        "ready_s": round(ready_s, 2),
        "urls": {name: cluster.url(name) for name in cluster.clusters},
        "brokers": [
            {
                "name": broker.name,
                "cluster": broker.cluster,
                "kind": broker.kind,
                "url": broker.url,
                "management_url": broker.management_url,
                "http_url": broker.http_url,
                "conditioner": str(client.control) if (client := cluster.conditioners.get(broker.name)) else None,
            }
            for broker in cluster.brokers.values()
        ],
    }


def _show(cluster: EmbeddedCluster, ready_s: float) -> None:
    rows = [(broker.name, broker.cluster, broker.kind, broker.http_url) for broker in cluster.brokers.values()]
    headings = ("broker", "cluster", "role", "health and metrics")
    console = out()
    console.print(table(*headings, title=f"Ready after {ready_s:.1f} s", rows=rows))
    _show_conditioners(cluster)
    first = next(iter(cluster.clusters))
    console.print("\nIn another terminal:", style="bold")
    console.print(f"  export TIDEGATE_URL='{cluster.url(first)}'", soft_wrap=True)
    console.print("  tidegate subscribe 'quake.#' --deadline 1.5")
    console.print("  tidegate publish quake.alert 'magnitude 6.1'")
    for name in list(cluster.clusters)[1:]:
        console.print(f"  cluster {name}: {cluster.url(name)}", soft_wrap=True)
    console.print("\nCtrl-C stops everything and leaves nothing behind.")


def _show_conditioners(cluster: EmbeddedCluster) -> None:
    if not cluster.conditioners:
        return
    shaped = [cluster.conditioners[name] for name in cluster.brokers if name in cluster.conditioners]
    rows = [(client.broker, str(client.control)) for client in shaped]
    console = out()
    console.print()
    console.print(table("broker", "control socket", title="Link conditioners", rows=rows))
    last = shaped[-1]
    console.print(f"Change the links of {last.broker}: tidegate condition {last.control} --delay 0.5", soft_wrap=True)
