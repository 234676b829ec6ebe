"""Options that take several whole numbers at once."""

from __future__ import annotations

from typing import Any

import click


class WholeNumbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers separated by commas, each within bounds."""

    name = "numbers"

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers; use e.g. {self._low},{self._high}", param, ctx)
        for number in numbers:
            if not self._low <= number <= self._high:
                self.fail(f"{number} is not in the range {self._low} to {self._high}", param, ctx)
        return numbers
