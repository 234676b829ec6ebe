"""Makes a report: reads the lake, draws, and puts one file where it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from ..errors import InvalidOption
from ..lake import open_lake
from ..runner import told_plainly
from .gather import Choice, Step, gather
from .loads import Lines
from .material import Material
from .page import page

FILE: Final = "report.html"
_WRITING: Final = ".report.html.part"


@dataclass(frozen=True, slots=True)
class Written:
    """A report that was made."""

    path: Path
    material: Material


def check_choice(choice: Choice) -> None:
    """Refuse a time that has no length."""
    if choice.since is not None and choice.until is not None and choice.since >= choice.until:
        raise InvalidOption(
            "--since", f"{choice.since:%Y-%m-%d %H:%M} is not before --until", "give the earlier one first"
        )


def prepare(out: Path) -> None:
    """Find out before a long run that nothing could be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / _WRITING).touch()
        (out / _WRITING).unlink()
    except OSError as error:
        raise InvalidOption(
            "--out", f"{out} can't be written to ({error.strerror})", "give another directory"
        ) from None


def write_report(
    spark: SparkSession,
    lake_path: str,
    out: Path,
    *,
    title: str,
    choice: Choice,
    lines: Lines,
    on_step: Step,
    origin: str | None = None,
) -> Written:
    """Make the report on the chosen time of a lake; a report that is there is replaced when the new one is whole.

    `origin` says in the page where its records are from, if not by the path of the lake.
    """
    check_choice(choice)
    prepare(out)
    with told_plainly():
        material = gather(open_lake(spark, lake_path), choice, on_step)
    text = page(material, title, datetime.now(UTC), origin or lake_path, lines)
    part, path = out / _WRITING, out / FILE
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return Written(path, material)
