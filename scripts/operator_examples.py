"""The examples of `docs/operations.md`: what operators' commands print, made of answers recorded in a simulated run.

The page marks each example with a comment, `<!-- example: NAME -->`, before its block. `filled` writes the blocks anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import Final

from rich.console import Console, Group, RenderableType

from tidegate_cli.explain import overview, plan, session, subjects
from tidegate_protocol.messages import ControlMessage, decode
from tidegate_protocol.operations import ExplainReply, OverviewReply, PlanReply

GOLDEN: Final = Path(__file__).parents[1] / "tests" / "golden" / "operators"
NOW: Final = datetime(2026, 5, 4, 14, 3, 43)
WIDTH: Final = 118
SESSION_TABLES: Final = 2
"""Tables of a session that are shown; the page names the others."""
BLOCK: Final = re.compile(r"(<!-- example: ([\w-]+) -->\n```text\n).*?(^```$)", re.MULTILINE | re.DOTALL)


def _recorded(name: str) -> ControlMessage:
    return decode((GOLDEN / f"{name}.json").read_bytes())


def _printed(*parts: RenderableType) -> str:
    written = StringIO()
    Console(width=WIDTH, highlight=False, file=written).print(Group(*parts))
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


def _status() -> str:
    reply = _recorded("overview-in-session")
    assert isinstance(reply, OverviewReply)
    return _printed(*overview.render(reply, NOW))


def _session() -> str:
    reply = _recorded("session")
    assert isinstance(reply, ExplainReply)
    text = fill(session.paragraph(reply, NOW), WIDTH, break_on_hyphens=False)
    return f"{text}\n{_printed(*session.tables(reply, NOW)[:SESSION_TABLES])}"


def _about(name: str, command: str) -> str:
    reply = _recorded(name)
    assert isinstance(reply, ExplainReply)
    return f"$ {command}\n{fill(subjects.paragraph(reply, NOW), WIDTH, break_on_hyphens=False)}\n"


def _plan(name: str) -> str:
    reply = _recorded(name)
    assert isinstance(reply, PlanReply)
    return fill(plan.paragraph(reply), WIDTH, break_on_hyphens=False) + "\n"


EXAMPLES: Final[Mapping[str, Callable[[], str]]] = {
    "status": _status,
    "session": _session,
    "broker": lambda: _about("helper", "tidegate explain b3"),
    "subscriber": lambda: _about("subscriber", "tidegate explain t1-s1"),
    "plan-at-rest": lambda: _plan("plan-at-rest"),
    "plan-paused": lambda: _plan("plan-paused"),
}


def filled(page: str) -> str:
    """The page with its examples as they are printed now."""
    assert {name for _, name, _ in BLOCK.findall(page)} == EXAMPLES.keys(), "an example without a block, or another way"
    return BLOCK.sub(lambda found: f"{found[1]}{EXAMPLES[found[2]]()}{found[3]}", page)
