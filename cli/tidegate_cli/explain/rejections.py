"""What was thought of and not done, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tidegate_protocol.decisions import Rejected
from tidegate_protocol.rendering.clauses import rejected_what, rejection

from ..tables import table


def rejections(title: str, rejected: Sequence[Rejected]) -> list[Table]:
    """One table, or none if nothing was rejected."""
    rows = [(rejected_what(one), rejection(one)) for one in rejected]
    return [table("what", "why", title=title, rows=rows)] if rows else []
