"""Reads the source: English is made in `tidegate_protocol.rendering` only, and no program reads it back.

Agents put enums, names and numbers into records and messages. Who shows them has them rendered. Each rule is a
function from a file's syntax tree to its violations, so that each can be shown to find one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RENDERING = "tidegate_protocol.rendering"
RENDERER = ROOT / "protocol" / "tidegate_protocol" / "rendering"
REFUSALS = f"{RENDERING}.refusals"
"""What an agent may say: why it does not grant a request."""

SHOWING = frozenset({
    "brokers/tidegate_brokers/plane/head.py",  # RabbitMQ tells a publisher why it is disconnected
    "brokers/tidegate_brokers/runtime.py",  # the log of a broker
    "clients/tidegate/_engine/publisher.py",  # the log of a publisher that is to slow down
    "experiments/tidegate_experiments/live/files.py",  # the timeline of an experiment
})  # fmt: skip
"""Modules outside the command line that show decisions to people."""

TEXT_READERS = frozenset({
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "rfind", "rindex", "rpartition",
    "rsplit", "split", "splitlines", "startswith",
})  # fmt: skip
KEYED_READERS = frozenset({"findall", "finditer", "fullmatch", "get", "match", "pop", "search", "sub"})
"""Methods that read what they are given: of dictionaries and of regular expressions."""
WORDS = frozenset({"detail"})
"""Fields that hold words of RabbitMQ, a client or another broker."""
PERHAPS_WORDS = frozenset({"message", "what", "why"})
"""Fields that hold words in some classes: these must not be compared with a text."""
MESSAGE = re.compile(r"[a-z]{2,}\b")

Rule = Callable[[ast.Module], list[str]]


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if RENDERER not in path.parents)


def found_in(rule: Rule, *paths: Path) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{each}" for path in paths for each in rule(ast.parse(path.read_text()))]


def renderers(tree: ast.Module) -> dict[str, str]:
    """What a module imports of the renderer: the name that it has there, and the module or function that it is."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname or one.name: one.name for one in node.names if one.name.startswith(RENDERING)}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            found |= {name: whole for name, whole in names.items() if whole.startswith(RENDERING)}
    return found


# Rule 1: who may have anything rendered.


def renderings(tree: ast.Module) -> list[str]:
    return [f" imports {name}" for name in renderers(tree).values()]


def renderings_but_refusals(tree: ast.Module) -> list[str]:
    return [f" imports {name}" for name in renderers(tree).values() if not name.startswith(REFUSALS)]


# Rule 2: who may write a sentence.


def text_of(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) or "-" for value in values)
    return ""


def is_sentence(node: ast.AST) -> bool:
    """Whether this is a text of two words or more."""
    text = text_of(node).strip()
    return " " in text and len(MESSAGE.findall(text)) >= 2


def unsaid(tree: ast.Module) -> Iterator[ast.AST]:
    """Texts that no operator is to see: docstrings, and the messages of assertions and of errors that are raised."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                yield node.value
            case ast.Assert(msg=ast.AST() as message) | ast.Raise(exc=ast.AST() as message):
                yield from ast.walk(message)
            case ast.Call(func=ast.Attribute(attr="add_note")):
                yield from ast.walk(node)
            case ast.JoinedStr():
                yield from node.values


def sentences(tree: ast.Module) -> list[str]:
    left_out = set(map(id, unsaid(tree)))
    texts = (node for node in ast.walk(tree) if id(node) not in left_out and is_sentence(node))
    return [f"{node.lineno}: {text_of(node)!r}" for node in texts]  # type: ignore[attr-defined]


# Rule 3: what was rendered is not read. Rule 4: nor is what somebody else has said.


def is_words(node: ast.AST | None, names: set[str], known: dict[str, str]) -> bool:
    """Whether an expression is English. `names` are variables that hold some, `known` what comes from the renderer."""
    match node:
        case ast.Name(id=name):
            return name in names or known.get(name, "").rpartition(".")[2].isupper()
        case ast.Attribute(attr=attribute) if attribute in WORDS:
            return True
        case ast.Attribute(value=value) | ast.Subscript(value=value) | ast.Starred(value=value):
            return is_words(value, names, known)
        case ast.NamedExpr(value=value) | ast.FormattedValue(value=value):
            return is_words(value, names, known)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module))) if module in known:
            return True
        case ast.Call(func=ast.Attribute(value=value)):
            return is_words(value, names, known)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return name in known or (name == "str" and any(is_words(each, names, known) for each in arguments))
        case ast.JoinedStr(values=parts) | ast.BoolOp(values=parts):
            return any(is_words(part, names, known) for part in parts)
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return is_words(left, names, known) or is_words(right, names, known)
    return False


def holders(nodes: list[ast.AST], known: dict[str, str]) -> set[str]:
    """The variables of a function that English is assigned to, also by way of others."""
    names: set[str] = set()
    while True:
        more = set()
        for node in nodes:
            match node:
                case ast.Assign(targets=targets, value=value) if is_words(value, names, known):
                    more |= {target.id for target in targets if isinstance(target, ast.Name)}
                case (
                    ast.NamedExpr(target=ast.Name(id=name), value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=value)
                    | ast.AugAssign(target=ast.Name(id=name), value=value)
                ) if is_words(value, names, known):
                    more.add(name)
        if more <= names:
            return names
        names |= more


def is_read(node: ast.AST, words: Callable[[ast.AST], bool]) -> bool:
    match node:
        case ast.Compare(left=left, comparators=others):
            sides = [left, *others]
            literal = any(text_of(side) for side in sides)
            perhaps = any(isinstance(side, ast.Attribute) and side.attr in PERHAPS_WORDS for side in sides)
            compared = [side for side in sides if not (isinstance(side, ast.Constant) and side.value in (None, ""))]
            return (any(map(words, compared)) and not all(map(words, compared))) or (literal and perhaps)
        case ast.Call(func=ast.Attribute(value=value, attr=method), args=arguments):
            read = any(map(words, arguments)) and method in KEYED_READERS
            return read or (method in TEXT_READERS and words(value))
        case ast.Match(subject=subject):
            return words(subject)
        case ast.Subscript(slice=key):
            return words(key)
    return False


def scopes(tree: ast.Module) -> Iterator[list[ast.AST]]:
    """The nodes of each outermost function, and then those of the module that are in none."""
    outside: list[ast.AST] = [tree]
    for node in outside:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield list(ast.walk(child))
            else:
                outside.append(child)
    yield outside


def readings(tree: ast.Module) -> list[str]:
    """Where English is searched, taken apart, looked up, or compared with anything but English."""
    known = {name: whole for name, whole in renderers(tree).items() if not whole.startswith(f"{RENDERING}.words")}
    found: dict[int, str] = {}
    for nodes in scopes(tree):
        names = holders(nodes, known)
        for node in nodes:
            if is_read(node, lambda each, names=names: is_words(each, names, known)):  # type: ignore[misc]
                line: int = node.subject.lineno if isinstance(node, ast.Match) else node.lineno  # type: ignore[attr-defined]
                found[line] = f"{line}: reads English; read the fields of the record"
    return list(found.values())


# Rule 5: who may have words for the members of an enum.


def tables(tree: ast.Module) -> list[str]:
    return [
        f"{node.lineno}: words for {ast.unparse(node.keys[0])}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict) and node.keys and isinstance(node.keys[0], ast.Attribute)
        if 2 * sum(map(is_sentence, node.values)) > sum(value != "" for value in map(text_of, node.values))
    ]  # fmt: skip


# The tree

AGENTS = "agents/tidegate_agents"
SHOWERS = "cli/tidegate_cli"
SILENT = (
    "analytics/tidegate_analytics", "brokers/tidegate_brokers", "clients/tidegate", "embedded/tidegate_embedded",
    "experiments/tidegate_experiments", "simulator/tidegate_simulator",
)  # fmt: skip
RECORDS = ("balancing", "decisions", "insight.py", "operations.py", "parts.py", "telemetry.py")


def test_only_who_shows_something_has_it_rendered() -> None:
    shown = [path for path in sources(*SILENT) if str(path.relative_to(ROOT)) not in SHOWING]
    assert found_in(renderings, *shown) == []
    assert found_in(renderings_but_refusals, *sources(AGENTS)) == []


def test_agents_and_records_hold_no_sentence() -> None:
    protocol = ROOT / "protocol" / "tidegate_protocol"
    records = [path for name in RECORDS for path in (protocol / name).rglob("*.py")]
    records += [protocol / name for name in RECORDS if name.endswith(".py")]
    assert found_in(sentences, *sources(AGENTS), *records) == []


def test_nobody_reads_english() -> None:
    assert found_in(readings, *sources(AGENTS, SHOWERS, *SILENT)) == []


def test_enums_have_words_in_the_renderer_only() -> None:
    assert found_in(tables, *sources(AGENTS, SHOWERS, *SILENT, "protocol/tidegate_protocol")) == []


# Each rule finds its violations, and leaves a tidy file alone.

TIDY = f'''"""A tidy module, whose docstring has many words."""

from tidegate_agents.kit import outbox
from {REFUSALS} import limit
from {RENDERING} import said as told, why
from {RENDERING}.words import counted

KEY = "wait"


def f(x, name):
    """A docstring of several words."""
    assert x, "an assertion of our own"
    text = why(x)
    shown = f"{{KEY}} {{name}}" + (text or "-") + counted(2, "client")
    same = why(x) == told(x).why
    if not name:
        raise ValueError("a mistake of the caller")
    return shown, same, x.reason is not None, x.message
'''
IMPORT = f"from {RENDERING} import clauses, said, why as because\nfrom {RENDERING}.clauses import OUTCOMES, finding\n"


def test_a_tidy_module_is_left_alone() -> None:
    tree = ast.parse(TIDY)
    assert [rule(tree) for rule in (sentences, readings, tables)] == [[], [], []]
    assert len(renderings_but_refusals(tree)) == 3


@pytest.mark.parametrize(
    ("rule", "untidy"),
    [
        (renderings, f"from {RENDERING} import why\n"),
        (renderings, f"import {RENDERING}.clauses\n"),
        (renderings, "from tidegate_protocol import rendering as r\n"),
        (renderings, f"def f():\n    from {RENDERING}.clauses import rejected\n"),
        (renderings_but_refusals, f"from {RENDERING}.clauses import rejected\n"),
        (sentences, "TEXT = 'no edge has been heard of'\n"),
        (sentences, "def f(x):\n    return f'{x} is gone now'\n"),
        (sentences, "def f(x):\n    x.refuse(1, 'this is ' + x)\n"),
        (sentences, "class Gap:\n    UNREAD = 'may hold this'\n"),
        (readings, "def f(x):\n    return 'moved' in because(x)\n"),
        (readings, "def f(x):\n    text = because(x)\n    return 'moved' in text\n"),
        (readings, "def f(x):\n    s = said(x)\n    return s.what == 'is LOW'\n"),
        (readings, "def f(x):\n    first = said(x)\n    second = first.what.lower()\n    return second.split()\n"),
        (readings, "def f(x):\n    return finding(x).startswith('its ')\n"),
        (readings, "def f(x):\n    return clauses.rejected(x)[:5] == 'edge'\n"),
        (readings, "def f(x):\n    return PATTERN.match(because(x))\n"),
        (readings, "def f(x):\n    return re.search('a', f'{because(x)}.')\n"),
        (readings, "def f(x):\n    match because(x):\n        case 'moved':\n            return 1\n"),
        (readings, "def f(x):\n    return TABLE[because(x)]\n"),
        (readings, "def f(x):\n    return TABLE.get(because(x))\n"),
        (readings, "def f(x):\n    return OUTCOMES[x] == 'it moved'\n"),
        (readings, "def f(x):\n    if (text := because(x)) == 'moved':\n        return text\n"),
        (readings, "def f(x):\n    return x.detail == 'session-1'\n"),
        (readings, "def f(x):\n    why = x.detail\n    return why.partition(' ')\n"),
        (readings, "def f(x):\n    return 'paused' in x.message\n"),
        (readings, "SAID = because(1).index('moved')\n"),
        (tables, "WORDS = {Reason.GONE: 'it is gone', Reason.HERE: ''}\n"),
        (tables, "def f(x):\n    return {Reason.GONE: f'{x} is gone'}[x]\n"),
    ],
)
def test_each_rule_can_fail(rule: Rule, untidy: str) -> None:
    header = "" if rule is renderings or rule is renderings_but_refusals else IMPORT
    assert rule(ast.parse(header)) == []
    assert len(rule(ast.parse(header + untidy))) == 1
