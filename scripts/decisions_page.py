"""The page `docs/decisions.md`: every kind of decision with its fields, its reasons and an example in words.

Everything on the page is read from `tidegate_protocol.decisions`: a kind's docstring says what it means, the text
behind a field what the field means, and the golden file of the kind gives the example. Nothing is written here twice.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from tidegate_protocol import decisions
from tidegate_protocol.decisions import brokers, insights, load, moves, places, publishers, sessions
from tidegate_protocol.rendering import sentence

GOLDEN: Final = Path(__file__).parents[1] / "tests" / "golden" / "decisions"
SUBJECTS: Final[tuple[tuple[str, ModuleType], ...]] = (
    ("Load", load),
    ("Sessions", sessions),
    ("Moves of subscribers", moves),
    ("Places", places),
    ("Publishers", publishers),
    ("Brokers", brokers),
    ("Insights", insights),
)
INLINE_MAX: Final = 10
"""Enums with more members than that have a section of their own, to which the fields lead that hold one."""

_INTRODUCTION: Final = """\
# Decisions

Every decision of an agent is one record: a kind, names, numbers and, where there is a choice of them, a reason from a
closed set. This page is made from the code (`make docs`; `scripts/decisions_page.py`).

| where | what it holds of a decision |
| --- | --- |
| the log of a head or an edge | the sentence as the message; the fields `decision` (the kind), `session`, `record` |
| [telemetry](telemetry.md), kind `decision` | `decision`, `reason`, `session` and `record` |
| `/metrics` | `tidegate_decisions_total`, by `decision` and `reason` ([metrics](metrics.md)) |
| `tidegate explain`, `status`, `plan` | sentences and tables made of the records |
| `decisions.jsonl` of an experiment's `--out` | time, broker and record, one per line |

A record reads `{"kind": "…", <fields>}`. A field that has its default is left out. Texts are cut at %(text)s
characters, lists at %(items)s items. The *reason* of a decision is its field `reason` or `outcome`; of a kind without
these, another field gives the reason, or there is only one and the label of the metric is `%(none)s`. Names end in
their unit, as `_s` or `_per_s`; utilizations are shares of 1.

Every record may have the field `session`: the session or migration it belongs to. A field `detail` holds the words of
RabbitMQ, a client or another broker; no program reads it. A reader that meets a kind it does not know goes on
(`UnknownDecision`). Sentences are made in `protocol/tidegate_protocol/rendering` and may change at any time; kinds,
fields and reasons are pinned by `tests/golden/decisions`."""


def render() -> str:
    """The page, as Markdown."""
    lines = [_INTRODUCTION % {"text": decisions.TEXT_MAX, "items": decisions.ITEMS_MAX, "none": decisions.NO_REASON}]
    for title, module in SUBJECTS:
        lines += ["", f"## {title}"]
        for kind in decisions.DECISIONS:
            if kind.__module__ == module.__name__:
                lines += _kind(kind)
    lines += ["", "## Parts of records"]
    for part in _used(is_dataclass):
        lines += ["", f"### {part.__name__}", "", _text(part), "", *_fields(part)]
    lines += ["", "## Sets of reasons", "", "The longer ones; the others stand where they are used."]
    for enum in _used(_is_enum):
        if _has_section(enum):
            lines += ["", f"### {enum.__name__}", "", *_members(enum)]
    return "\n".join(lines) + "\n"


def _kind(kind: type[decisions.Decision]) -> list[str]:
    golden = json.loads((GOLDEN / f"{kind.kind}.json").read_text())
    example = sentence(decisions.from_plain(golden)).replace("|", "\\|").replace("*", "\\*")
    reason = _reason(kind)
    return ["", f"### {kind.kind}", "", f"{_text(kind)} *{example}.*", "", *_fields(kind), *reason]


def _reason(kind: type[decisions.Decision]) -> list[str]:
    """The reasons of a kind, where no field of the record has the name of one."""
    if kind.labels is None or {"outcome", "reason"} & {each.name for each in fields(kind)}:
        return []
    return [f"- the reason follows from the others: {_type(kind.labels)}"]


def _fields(part: Any) -> list[str]:
    """The fields whose names say it all, and a line for each of the others."""
    hints, texts = get_type_hints(part), dict(_texts_behind(part))
    plain, lines = [], []
    for each in fields(part):
        held, text = _type(hints[each.name]), texts.get(each.name, "")
        told = ". ".join(filter(None, (held, text)))
        if each.name == "session":
            continue
        if told:
            lines.append(f"- `{each.name}`: {told}")
        else:
            plain.append(f"`{each.name}`")
    return [f"- {', '.join(plain)}", *lines] if plain else lines


def _type(hint: Any) -> str:
    """What a field holds, where that is more than a name or a number."""
    if get_origin(hint) is UnionType:
        return _type(next(each for each in get_args(hint) if each is not NoneType))
    if get_origin(hint) is tuple:
        held = _type(get_args(hint)[0])
        return f"a list of {held}" if held else "a list"
    if inspect.isclass(hint) and issubclass(hint, StrEnum):
        if _has_section(hint):
            return f"[{hint.__name__}](#{hint.__name__.lower()})"
        return ", ".join(f"`{member}`" for member in hint)
    if is_dataclass(hint) and inspect.isclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return ""


def _has_section(enum: type[StrEnum]) -> bool:
    return len(enum) > INLINE_MAX or any(_texts_behind(enum))


def _is_enum(hint: type[Any]) -> bool:
    return issubclass(hint, StrEnum)


def _used(wanted: Callable[[type[Any]], bool]) -> list[type[Any]]:
    """Every class of this sort that a field of a kind leads to, by name."""
    found: dict[str, type[Any]] = {}
    waiting: list[type[Any]] = list(decisions.DECISIONS)
    while waiting:
        current = waiting.pop()
        found[current.__name__] = current
        hints = get_type_hints(current).values() if is_dataclass(current) else ()
        leaves = {leaf for hint in hints for leaf in _leaves(hint)} | {getattr(current, "labels", None) or current}
        waiting += [leaf for leaf in leaves if leaf.__name__ not in found]
    kinds = {kind.__name__ for kind in decisions.DECISIONS}
    return [found[name] for name in sorted(found) if name not in kinds and wanted(found[name])]


def _leaves(hint: Any) -> Iterator[type[Any]]:
    if inspect.isclass(hint) and not get_args(hint):
        yield hint
    for each in get_args(hint):
        yield from _leaves(each)


def _members(enum: type[StrEnum]) -> list[str]:
    """The members that say it all, and a line for each of the others."""
    texts = dict(_texts_behind(enum))
    plain = [f"`{each}`" for each in enum if each.name not in texts]
    told = [f"- `{each}`: {texts[each.name]}" for each in enum if each.name in texts]
    return [f"- {', '.join(plain)}", *told] if plain else told


# Texts behind fields


def _text(part: type[Any]) -> str:
    own = part.__doc__ if part.__doc__ and not part.__doc__.startswith(f"{part.__name__}(") else ""
    return " ".join(own.split())


def _texts_behind(part: type[Any]) -> Iterator[tuple[str, str]]:
    """The string literals that stand behind assignments in a class, by the name that is assigned to."""
    (tree,) = ast.parse(inspect.getsource(part)).body
    assert isinstance(tree, ast.ClassDef)
    for before, after in pairwise(tree.body):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
