"""Reads the source and holds it to the architecture: import arrows, purity of agents, sizes, public names.

Each rule is a function from a package's folder to its violations, so that each can be shown to find one: a
rule that can't fail is worth nothing.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import LONGEST, NODES, SPARK

ROOT = Path(__file__).parents[2]
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500

# Who may import whom. A package that does not exist yet has nothing to break.
ARROWS: dict[str, set[str]] = {
    "protocol/tidegate_protocol": set(),
    "agents/tidegate_agents": {"tidegate_protocol"},
    "brokers/tidegate_brokers": {"tidegate_protocol", "tidegate_agents"},
    "embedded/tidegate_embedded": {"tidegate_protocol", "tidegate_brokers"},
    "clients/tidegate": {"tidegate_protocol"},
    "simulator/tidegate_simulator": {"tidegate_protocol", "tidegate_agents", "tidegate"},
    "experiments/tidegate_experiments": {
        "rabbitmq_stream_source",
        "tidegate",
        "tidegate_agents",
        "tidegate_analytics",
        "tidegate_brokers",
        "tidegate_embedded",
        "tidegate_protocol",
        "tidegate_simulator",
    },
    "analytics/rabbitmq_stream_source": set(),
    "analytics/tidegate_analytics": {"tidegate_protocol", "rabbitmq_stream_source"},
}
# Which rooms of the agents a room may import, besides itself. Modules at the top are named like rooms.
ROOMS: dict[str, set[str]] = {
    "kit": {"config", "machine"},
    "topics": {"kit"},
    "edge": {"config", "kit", "load", "machine", "policy", "topics"},
    "head": {"config", "kit", "load", "machine", "policy", "topics"},
}
AGENTS = "agents/tidegate_agents"
SDK = "clients/tidegate"
SDK_OPEN = ("tidegate.__version__.", "tidegate._core.", "tidegate._engine.asking.")
CLI = "cli/tidegate_cli"
PACKAGES = {name: ROOT / name for name in (*ARROWS, CLI) if (ROOT / name).is_dir()}
OURS = {Path(name).name for name in (*ARROWS, CLI)}

# An agent gets time and randomness as arguments and does no I/O, or its simulation would prove nothing.
# fmt: off
IMPURE_MODULES = frozenset({
    "aio_pika", "aiormq", "asyncio", "builtins", "concurrent", "ctypes", "datetime", "http",
    "httpx", "importlib", "io", "logging", "multiprocessing", "os", "pamqp", "pathlib", "pika",
    "prometheus_client", "random", "requests", "secrets", "select", "selectors", "shutil", "signal",
    "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib",
    "uuid", "uvloop",
})
# fmt: on
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})

LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")

# Taking a name away breaks programs; adding one is a promise. Both are done here on purpose, or not at all.
# fmt: off
PUBLIC_NAMES = [
    "AccessRefused", "AsyncPublisher", "AsyncReceipt", "AsyncSubscriber", "AsyncSubscription",
    "Backoff", "CertificateRefused", "Closed", "ConnectionFailed", "ConnectionLost", "HeadSilent", "InvalidMessage",
    "InvalidName", "InvalidTopic", "InvalidUrl", "InvalidValue", "Limits", "Message",
    "NotConfirmed", "PeerError", "Publisher", "PublisherStatistics", "Receipt", "Refused", "Statistics", "Subscriber",
    "Subscription", "TidegateError", "TimedOut", "Timeouts", "UnexpectedReply", "__version__",
]
# fmt: on


@dataclass(frozen=True, slots=True)
class Parsed:
    """A module, and every node of its tree: several rules look at the same modules."""

    tree: ast.Module
    nodes: tuple[ast.AST, ...]


@functools.cache
def parsed(text: str) -> Parsed:
    tree = ast.parse(text)
    return Parsed(tree, tuple(ast.walk(tree)))


def texts(package: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(package.rglob("*.py")):
        yield path, path.read_text()


def modules(package: Path) -> Iterator[tuple[Path, Parsed]]:
    for path, text in texts(package):
        yield path, parsed(text)


def imports(module: Parsed) -> Iterator[tuple[int, str]]:
    """Every absolute import, also those inside functions and under TYPE_CHECKING: an arrow is an arrow."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


def wrong_arrows(package: Path, allowed: set[str]) -> list[str]:
    return [
        f"{path.name}:{line}: {package.name} must not import {name}"
        for path, module in modules(package)
        for line, name in imports(module)
        if name.split(".")[0] in OURS - allowed - {package.name}
    ]


def rooms_entered(package: Path) -> list[str]:
    """Imports of a room of the agents that point where no arrow does; relative and absolute ones."""
    return [
        f"{path.relative_to(package)}:{line}: {room} must not import {other}"
        for room, allowed in ROOMS.items()
        for path, module in modules(package / room)
        for line, name in inner_names(module, path.relative_to(package.parent))
        if (other := f"{name}..".split(".")[1]) and other not in allowed | {room}
        if name.split(".")[0] == package.name
    ]


def inner_names(module: Parsed, path: Path) -> Iterator[tuple[int, str]]:
    """The modules that are imported, in full, wherever `path` is."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.parts[: -node.level] if node.level else ()
            name = ".".join((*above, *filter(None, [node.module])))
            whole = name.count(".") == 0  # from .. import head
            yield from (
                (node.lineno, f"{name}.{alias.name}" if whole else name) for alias in node.names[: None if whole else 1]
            )


def inner_imports(package: Path) -> list[str]:
    """Imports from the inside of the SDK: others may use its public names, its pure core, and operators' questions."""
    return [
        f"{path.name}:{line}: {package.name} must not import {name}"
        for path, module in modules(package)
        for line, name in (*imports(module), *imported_names(module, "tidegate"))
        if name.startswith("tidegate._") and not f"{name}.".startswith(SDK_OPEN)
    ]


def imported_names(module: Parsed, package: str) -> Iterator[tuple[int, str]]:
    """What `from package import …` takes, as modules: `from tidegate import _io` imports `tidegate._io`."""
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == package:
            yield from ((node.lineno, f"{package}.{alias.name}") for alias in node.names)


def impurities(package: Path) -> list[str]:
    found = []
    for path, module in modules(package):
        found += [
            f"{path.name}:{line}: imports {name}"
            for line, name in imports(module)
            if name.split(".")[0] in IMPURE_MODULES
        ]
        found += [
            f"{path.name}:{node.lineno}: calls {node.func.id}"
            for node in module.nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
        ]
    return found


def long_functions(package: Path) -> list[str]:
    return [
        f"{path.name}:{node.lineno}: {node.name} has {length} lines"
        for path, module in modules(package)
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def long_files(package: Path) -> list[str]:
    return [
        f"{path.name}: {length} lines" for path, text in texts(package) if (length := text.count("\n")) > FILE_LINES_MAX
    ]


def missing_docstrings(package: Path) -> list[str]:
    return [f"{path.name}: no docstring" for path, module in modules(package) if not ast.get_docstring(module.tree)]


def leftovers(package: Path) -> list[str]:
    return [
        f"{path.name}:{number}: {line.strip()}"
        for path, text in texts(package)
        for number, line in enumerate(text.splitlines(), start=1)
        if LEFTOVERS.search(line)
    ]


def declared_names(package: Path) -> list[str]:
    """`__all__` of a package, read without importing it."""
    for node in ast.parse((package / "__init__.py").read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return sorted(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return []


every_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=lambda path: path.name)


@pytest.mark.parametrize("name", sorted(ARROWS.keys() & PACKAGES.keys()))
def test_imports_point_one_way(name: str) -> None:
    assert wrong_arrows(PACKAGES[name], ARROWS[name]) == []


@pytest.mark.parametrize("name", sorted(PACKAGES.keys() - {SDK}))
def test_others_use_the_core_of_the_sdk_and_its_public_names(name: str) -> None:
    assert inner_imports(PACKAGES[name]) == []


def test_rooms_of_agents_know_each_other_one_way() -> None:
    assert all((ROOT / AGENTS / room).is_dir() for room in ROOMS)
    assert rooms_entered(ROOT / AGENTS) == []


def test_agents_are_pure() -> None:
    assert impurities(PACKAGES["agents/tidegate_agents"]) == []


@every_package
def test_functions_are_short(package: Path) -> None:
    assert long_functions(package) == []


def test_tests_are_short_too() -> None:
    assert long_functions(ROOT / "tests") == []
    assert long_files(ROOT / "tests") == []


@every_package
def test_files_are_short(package: Path) -> None:
    assert long_files(package) == []


@every_package
def test_modules_have_a_docstring(package: Path) -> None:
    assert missing_docstrings(package) == []


@every_package
def test_nothing_is_left_for_later(package: Path) -> None:
    assert leftovers(package) == []


@every_package
def test_packages_are_typed(package: Path) -> None:
    assert (package / "py.typed").exists()


def test_public_names_of_the_sdk() -> None:
    assert declared_names(PACKAGES["clients/tidegate"]) == sorted(PUBLIC_NAMES)


def test_the_packages_are_there() -> None:
    assert {"tidegate_protocol", "tidegate_agents", "tidegate_brokers", "tidegate", "tidegate_cli"} <= {
        path.name for path in PACKAGES.values()
    }


# Each rule finds a violation, and leaves a tidy file alone.

TIDY = '"""A tidy module."""\n\nimport math\n\nfrom tidegate_protocol import names\n\nPI = math.pi\n'
Rule = Callable[[Path], list[str]]


def arrows_of_an_agent(package: Path) -> list[str]:
    return wrong_arrows(package, ARROWS["agents/tidegate_agents"])


def arrows_of_a_client(package: Path) -> list[str]:
    return wrong_arrows(package, ARROWS["clients/tidegate"])


@pytest.mark.parametrize(
    ("rule", "untidy"),
    [
        (arrows_of_an_agent, "import tidegate_brokers\n"),
        (arrows_of_an_agent, "from tidegate_brokers.rabbitmq import Connection\n"),
        (arrows_of_an_agent, "import tidegate\n"),
        (arrows_of_an_agent, "import tidegate_cli.main\n"),
        (arrows_of_an_agent, "def f():\n    from tidegate_simulator import world\n"),
        (arrows_of_a_client, "import tidegate_brokers\n"),
        (arrows_of_a_client, "import tidegate_agents\n"),
        (inner_imports, "import tidegate._io.aio\n"),
        (inner_imports, "from tidegate import _io\n"),
        (inner_imports, "from tidegate._engine.intake import Intake\n"),
        (inner_imports, "from tidegate._engine.asking_more import Asking\n"),
        (inner_imports, "def f():\n    from tidegate._sync_publisher import Publisher\n"),
        (impurities, "import time\n"),
        (impurities, "from os import path\n"),
        (impurities, "import asyncio.subprocess\n"),
        (impurities, "from random import random\n"),
        (impurities, "def f():\n    return open('x')\n"),
        (impurities, "print('x')\n"),
        (long_functions, "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX),
        (long_functions, "class C:\n    async def f(self):\n" + "        pass\n" * FUNCTION_LINES_MAX),
        (long_files, "x = 1\n" * FILE_LINES_MAX),
        (leftovers, "# TODO: later\n"),
        (leftovers, "raise NotImplementedError\n"),
    ],
)
def test_each_rule_can_fail(rule: Rule, untidy: str, tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(TIDY)
    assert rule(tmp_path) == []
    (tmp_path / "sample.py").write_text(TIDY + untidy)
    assert len(rule(tmp_path)) == 1


@pytest.mark.parametrize(
    ("path", "untidy"),
    [
        ("edge/sample.py", "from ..head.registry import key_of\n"),
        ("edge/sample.py", "from .. import head\n"),
        ("edge/sample.py", "import tidegate_agents.head.registry\n"),
        ("edge/sample.py", "def f():\n    from tidegate_agents.head import registry\n"),
        ("head/sample.py", "from ..edge.outputs import Outputs\n"),
        ("head/moving/sample.py", "from ...edge import outputs\n"),
        ("kit/sample.py", "from ..load.metrics import Metric\n"),
        ("kit/sample.py", "from ..topics.routes import RouteTable\n"),
        ("topics/sample.py", "from ..machine import Action\n"),
    ],
)
def test_each_arrow_between_rooms_can_fail(path: str, untidy: str, tmp_path: Path) -> None:
    sample = tmp_path / "tidegate_agents" / path
    sample.parent.mkdir(parents=True)
    sample.write_text(TIDY + "from ..kit.memory import Recent\n" * (path.count("/") == 1))
    assert rooms_entered(tmp_path / "tidegate_agents") == []
    sample.write_text(TIDY + untidy)
    assert len(rooms_entered(tmp_path / "tidegate_agents")) == 1


def test_a_missing_docstring_is_found(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text("x = 1\n")
    assert missing_docstrings(tmp_path) == ["sample.py: no docstring"]


def test_declared_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('__all__ = ["b", "a"]\n')
    assert declared_names(tmp_path) == ["a", "b"]
    (tmp_path / "__init__.py").write_text('__all__: list[str] = ["b", "c"]\n')
    assert declared_names(tmp_path) == ["b", "c"]


def test_tests_take_turns_by_names_that_are_there() -> None:
    tests = ROOT / "tests"
    assert [name for name in (*LONGEST, *NODES, *SPARK) if not (tests / name).exists()] == []
    takes_spark = re.compile(r"^(async )?def (test_|command).*\bspark: SparkSession", re.MULTILINE | re.DOTALL)
    using = {path.relative_to(tests).as_posix() for path, text in texts(tests) if takes_spark.search(text)}
    assert {name for name in using if name.startswith("integration")} == set(SPARK)


SKIPPING = {
    "in_the_test": "import pytest\ndef test(): pytest.skip('no Docker')",
    "by_mark": "import pytest\n@pytest.mark.skip('no Docker')\ndef test(): pass",
    "whole_module": "import pytest\npytest.skip('no Docker', allow_module_level=True)",
}


@pytest.mark.parametrize("ci", [True, False])
def test_a_skip_is_a_failure_in_ci_only(ci: bool, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    fine = "def test_good(): pass\n\n@pytest.mark.xfail\ndef test_known(): assert False\n"
    for name, skipping in SKIPPING.items():
        (tmp_path / f"test_{name}.py").write_text(f"{skipping}\n\n{fine}")
    environment = {**os.environ, "CI": "true" if ci else "false"}
    # A module that can't be collected would keep the others from being run.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-rA"]
    run = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    ends = re.findall(r"^(FAILED|ERROR|SKIPPED) .*?test_(\w+)\.py.*no Docker$", run.stdout, re.MULTILINE)
    assert {name: end == "SKIPPED" for end, name in ends} == dict.fromkeys(SKIPPING, not ci), run.stdout
    assert run.returncode == (1 if ci else 0), run.stdout
