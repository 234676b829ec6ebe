"""Tables for a person: columns by their headings, rows as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod, RenderableType
from rich.table import Table

NARROW: Final[Mapping[str, Any]] = MappingProxyType(
    {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "collapse_padding": True}
)
"""Layout of a table with many columns: fewer lines and spaces between them."""


def table(
    *headings: str,
    title: str | None = None,
    rows: Iterable[Iterable[RenderableType]] = (),
    whole: Collection[str] = (),
    **layout: Any,
) -> Table:
    """A table with these columns. As in a format, `>` before a heading puts its column to the right.

    No cell is cut short: a word that is too long goes on in the next line, but in columns named in `whole`. `layout` is
    Rich's.
    """
    made = Table(title=title, title_justify="left", **layout)
    for heading in headings:
        name = heading.removeprefix(">")
        justify: JustifyMethod = "left" if name == heading else "right"
        made.add_column(name, justify=justify, no_wrap=name in whole, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def listing(rows: Iterable[tuple[str, str]], title: str | None = None) -> Table:
    """Names and their values, without headings."""
    return table("", ">", title=title, rows=rows, show_header=False)
