"""`tidegate access`: accounts of RabbitMQ for brokers, clients and people, each with the least rights that work."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from tidegate_brokers.access.layout import Layout
from tidegate_brokers.access.preparing import Access
from tidegate_brokers.errors import ConfigurationError
from tidegate_protocol.rendering.rights import judged, remedy
from tidegate_protocol.rendering.words import listed
from tidegate_protocol.rights import Judgement, may_publish, may_subscribe
from tidegate_protocol.topics import check_pattern, is_topic

from ..console import json_option, out, run
from ..exit_codes import ExitCode
from ..tables import table

_layout_option = click.option(
    "--layout",
    "files",
    type=click.Path(path_type=Path),
    required=True,
    multiple=True,
    envvar="TIDEGATE_ACCESS_LAYOUT",
    show_envvar=True,
    help="TOML file that names brokers, clients, operators and analysts (docs/operations.md). May be repeated: what "
    "they name is put together.",
)
_out_option = click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="TIDEGATE_ACCESS_DIR",
    show_envvar=True,
    help="Where passwords are kept and files are written.",
)
_tls_option = click.option(
    "--certificates",
    metavar="DIR",
    envvar="TIDEGATE_ACCESS_CERTIFICATES",
    show_envvar=True,
    help="Speak everything with TLS: where each broker and its RabbitMQ find ca.pem, cert.pem and key.pem, by the same "
    "path on each machine.",
)
_mutual_option = click.option(
    "--mutual",
    is_flag=True,
    envvar="TIDEGATE_ACCESS_MUTUAL",
    show_envvar=True,
    help="With --certificates: RabbitMQ takes only connections with a certificate, and accounts may log in by theirs, "
    "whose common name is the account. Brokers do so: broker/cert.pem and broker/key.pem in that folder.",
)


@click.group("access")
def command() -> None:
    """Make accounts of RabbitMQ: who may publish, subscribe, look, and report load (docs/operations.md)."""


@command.command("prepare")
@_layout_option
@_out_option
@_tls_option
@_mutual_option
@click.option("--owner", type=int, metavar="UID", help="User that broker processes run as, if it is not this one.")
def prepare(
    files: tuple[Path, ...], directory: Path, certificates: str | None, mutual: bool, owner: int | None
) -> None:
    """Make passwords, where there are none yet, and write what each broker, its RabbitMQ and Prometheus read.

    All settings of brokers in the environment (TIDEGATE_HEAD_…, TIDEGATE_EDGE_…) are checked before anything is
    written. A password is chosen with TIDEGATE_PASSWORD_<USER> or TIDEGATE_PASSWORD_<USER>_FILE; otherwise it is made
    up once and kept.
    """
    written = Access(Layout.load(*files), directory, os.environ, certificates or None, mutual).write(owner)
    out().print(f"Settings are in order; {len(written)} files are written to {directory}.", soft_wrap=True)


@command.command("apply")
@_layout_option
@_out_option
@_tls_option
@json_option
@click.option("--owner", type=int, metavar="UID", help="User that broker processes run as, if it is not this one.")
def apply(files: tuple[Path, ...], directory: Path, certificates: str | None, owner: int | None, as_json: bool) -> None:
    """Do what prepare does, and make every running RabbitMQ agree with it: nothing has to be restarted.

    Accounts are added, changed and taken away by the warden of each RabbitMQ, over its management API. What a right
    allowed ends at once: connections of accounts that lost a right are closed, and brokers end subscriptions as soon as
    they read their new rules.json, within a second where they find it in the folder given with --out.
    """
    changes = run(Access(Layout.load(*files), directory, os.environ, certificates or None).apply(owner))
    if as_json:
        click.echo(json.dumps({"changes": [asdict(change) for change in changes]}))
        return
    rows = [(one.broker, one.account, listed(one.kinds), str(one.closed)) for one in changes]
    if rows:
        out().print(table("broker", "account", "changed", ">connections closed", rows=rows))
    out().print(f"Every RabbitMQ of the layout holds its accounts; {len(rows)} were changed.", soft_wrap=True)


@command.command("explain")
@click.argument("account")
@click.argument("topic")
@_layout_option
@json_option
def explain(account: str, topic: str, files: tuple[Path, ...], as_json: bool) -> None:
    """Say whether ACCOUNT may publish and subscribe TOPIC by this layout, and which rule says so.

    TOPIC may be a pattern, which can only be subscribed. ACCOUNT may be a client's name, such as siren-1. Heads and
    edges judge in the same way, by the layout that was last prepared or applied. Exit code 1: it may do neither.
    """
    check_pattern(topic)
    rules = Layout.load(*files).rules
    found = [may_subscribe(account, topic, rules)]
    if is_topic(topic):
        found.insert(0, may_publish(account, topic, rules))
    if as_json:
        click.echo(json.dumps({str(one.deed): _plain(one) for one in found}))
    else:
        for one in found:
            out().print(f"{judged(one)}." if one.allowed else f"{judged(one)}; {remedy(one)}.", soft_wrap=True)
    if not any(one.allowed for one in found):
        sys.exit(ExitCode.FAILED)


def _plain(one: Judgement) -> dict[str, object]:
    return {"allowed": one.allowed, **{key: value for key, value in asdict(one).items() if value and key != "deed"}}


@command.command("url")
@click.argument("user")
@_layout_option
@_out_option
@_tls_option
@click.option("--cluster", help="Of several clusters, which; the first if it is left out.")
def url(user: str, files: tuple[Path, ...], directory: Path, certificates: str | None, cluster: str | None) -> None:
    """Print the address, password included, by which USER reaches a head: for TIDEGATE_URL."""
    layout = Layout.load(*files)
    if user not in layout.people:
        known = ", ".join(layout.people) or "nobody"
        raise ConfigurationError("USER", "command line", f"{user} has no account", f"those of the layout are {known}")
    click.echo(Access(layout, directory, os.environ, certificates or None).url(user, cluster).reveal())
