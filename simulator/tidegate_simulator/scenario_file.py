"""Scenarios as JSON: read from a file, written back, with errors that name the field and what would be right.

The form follows the dataclasses of `scenario` field by field, so that it needs no description of its own: an object per
dataclass, a list per tuple, the value of an enumeration as text. Invariant: `read(write(scenario))` is the same
scenario; a field nobody knows, a value of the wrong type and a scenario that `scenario_check` finds impossible are all
refused before anything runs, never guessed around.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from .errors import ScenarioError
from .scenario import Scenario
from .scenario_check import check

FILE_BYTES_MAX: Final = 16 << 20
"""A scenario is written by a person or a small program; a larger file is a mistake."""

DIGITS_MAX: Final = 1_000
"""Python refuses to read whole numbers that are much longer, without saying where they are."""

T = TypeVar("T")


def read_file(path: Path) -> Scenario:
    """The scenario in a JSON file. Raises `ScenarioError`."""
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise ScenarioError(str(path), f"has {size} bytes", f"use at most {FILE_BYTES_MAX}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        problem = f"can't be read: {error.strerror or error}"
        raise ScenarioError(str(path), problem, "give the path of a JSON file") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(str(path), "is not UTF-8 text", "give the path of a JSON file") from error
    return read(text)


def read(text: str) -> Scenario:
    """The scenario in this JSON text."""
    try:
        value = json.loads(text, parse_int=_whole)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ScenarioError("scenario", f"is not JSON: {error}", "write one JSON object") from error
    scenario = _dataclass(Scenario, value, "scenario")
    check(scenario, all_come=True)
    return scenario


def write(scenario: Scenario) -> str:
    """The JSON text of a scenario, readable and complete."""
    return json.dumps(dataclasses.asdict(scenario), indent=2)


def _whole(digits: str) -> float:
    """A whole number of the file; one without end if it is longer than any field takes, so that its field is named."""
    return int(digits) if len(digits) <= DIGITS_MAX else float(digits)


def _dataclass(kind: type[T], value: object, where: str) -> T:
    assert dataclasses.is_dataclass(kind)
    if not isinstance(value, dict):
        raise ScenarioError(where, f"is {_described(value)}", "write an object")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(value.keys() - fields.keys())
    if unknown:
        raise ScenarioError(f"{where}.{unknown[0]}", "is unknown", f"known are {', '.join(sorted(fields))}")
    missing = [
        name
        for name, field in fields.items()
        if name not in value and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ScenarioError(f"{where}.{missing[0]}", "is missing", "it has no default")
    hints = typing.get_type_hints(kind)
    made: T = kind(**{name: _value(hints[name], given, f"{where}.{name}") for name, given in value.items()})
    return made


def _value(kind: Any, value: object, where: str) -> Any:
    if isinstance(kind, types.UnionType):
        if value is None and type(None) in typing.get_args(kind):
            return None
        (kind,) = (one for one in typing.get_args(kind) if one is not type(None))
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ScenarioError(where, f"is {_described(value)}", "write a list")
        item = typing.get_args(kind)[0]
        return tuple(_value(item, one, f"{where}[{position}]") for position, one in enumerate(value))
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type[Any], kind), value, where)
    if issubclass(kind, Enum):
        return _member(kind, value, where)
    return _plain(kind, value, where)


def _member(kind: type[Enum], value: object, where: str) -> Enum:
    for member in kind:
        if member.value == value:
            return member
    known = ", ".join(str(member.value) for member in kind)
    raise ScenarioError(where, f"is {_described(value)}", f"known are {known}")


def _plain(kind: type, value: object, where: str) -> object:
    # To Python a truth value is a whole number too; in a scenario it is a mistake.
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ScenarioError(where, "is too large", "write a number that fits 64 bits") from error
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    names = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    raise ScenarioError(where, f"is {_described(value)}", f"write {names[kind]}")


def _described(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
