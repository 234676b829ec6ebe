"""`tidegate status`: what a head knows of its cluster."""

from __future__ import annotations

import click
from rich.table import Table

from tidegate_protocol.messages import Capacity, StatusReply

from ..ask import ask_status
from ..console import json_option, out, print_json, run, url_option


@click.command("status")
@url_option
@json_option
def command(url: str, as_json: bool) -> None:
    """Ask a head for its edges, subscriptions, publishers and neighbours."""
    reply = run(ask_status(url))
    if as_json:
        print_json(reply.model_dump(mode="json", exclude={"v", "kind"}))
    else:
        _show(reply)


def _show(reply: StatusReply) -> None:
    console = out()
    console.print(
        f"cluster [bold]{reply.cluster}[/bold], head [bold]{reply.head}[/bold] "
        f"(Tidegate {reply.version}), {reply.publishers} publishers"
    )
    edges = Table()
    for heading, right in (
        ("edge", False),
        ("state", False),
        ("subscriptions", True),
        ("patterns", True),
        ("uplink", True),
    ):
        edges.add_column(heading, justify="right" if right else "left")
    for edge in reply.edges:
        state = "draining" if edge.draining else "alive" if edge.alive else f"silent for {edge.seen_ago_s:.0f} s"
        edges.add_row(edge.edge, state, str(edge.subscriptions), str(edge.patterns), _uplink(edge.capacity))
    console.print(edges)
    if not reply.neighbours:
        return
    heads = Table()
    for heading in ("neighbouring head", "state", "patterns it needs", "patterns asked of it"):
        heads.add_column(heading)
    for head in reply.neighbours:
        heads.add_row(head.head, "alive" if head.alive else "silent", str(head.needs), str(head.offered))
    console.print(heads)


def _uplink(capacity: Capacity) -> str:
    return "not set" if capacity.uplink_bytes_per_s is None else f"{capacity.uplink_bytes_per_s / 1e6:.2f} MB/s"
