"""The pages for readers: what they name is there, and pages made from the code are what the code makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import decisions_page, operator_examples

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FOLDERS = sorted(
    path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".") and path.name != "build"
)
PACKAGES = {path.name: path for folder in FOLDERS for path in (ROOT / folder).iterdir() if (path / "py.typed").exists()}

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*")
MODULE = re.compile(rf"(?:{'|'.join(PACKAGES.keys() - {'tidegate'})})(?:\.\w+)+")
"""`tidegate.publish` and its like are exchanges."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def paths_in(text: str) -> Iterator[str]:
    """Paths of this tree that a page names between backticks, from the root."""
    for quoted in QUOTED.findall(FENCE.sub("", text)):
        yield from PATH.findall(quoted) if PATH.match(quoted) else ()


def modules_in(text: str) -> Iterator[str]:
    """Dotted names that begin with one of our packages."""
    for quoted in QUOTED.findall(FENCE.sub("", text)):
        yield from MODULE.findall(quoted) if MODULE.match(quoted) else ()


def is_module(name: str) -> bool:
    """Whether this is a module, or a name that a module of ours has."""
    package, *parts = name.split(".")
    path = PACKAGES[package]
    for part in parts:
        if (path / part).is_dir() or (path / part).with_suffix(".py").exists():
            path = path / part
        else:
            text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
            return re.search(rf"\b{part}\b", text) is not None and part == parts[-1]
    return True


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_paths_that_a_page_names_are_there(page: Path) -> None:
    missing = {path for path in paths_in(page.read_text()) if not (ROOT / path).exists()}
    assert missing == set()


@every_page
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    missing = {name for name in modules_in(page.read_text()) if not is_module(name)}
    assert missing == set()


@every_page
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("walk", ["A publish to a callback", "A load sample to a moved client"])
def test_a_walk_passes_each_file_once(walk: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([^`]+)` \|", text.split(f"### {walk}\n")[1].split("\n#")[0], re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len({path for _, path in rows}) == len(rows) > 10


def test_what_is_missing_is_found() -> None:
    text = "`agents/nowhere.py`, `tidegate_agents.nowhere` and `make docs`\n```\n`agents/in_a_block.py`\n```\n"
    assert list(paths_in(text)) == ["agents/nowhere.py"]
    assert list(modules_in(text)) == ["tidegate_agents.nowhere"]
    assert not is_module("tidegate_agents.nowhere")
    assert not is_module("tidegate_agents.config.nowhere.BalancingConfig")
    assert is_module("tidegate_agents.config.BalancingConfig")


def test_the_page_of_decisions_is_made_from_the_code() -> None:
    assert (ROOT / "docs" / "decisions.md").read_text() == decisions_page.render(), "run `make docs`"


def test_the_examples_for_operators_are_what_commands_print() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert page == operator_examples.filled(page), "run `make docs`"
