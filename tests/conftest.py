"""One rule for all tests, in CI a skipped test is a failed one, and the RabbitMQ nodes that they share.

A test that needs Docker may skip on a laptop. In CI (`CI=true`) everything is meant to be there, and a skip
would hide that it is not.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.support.node_pool import NodePool

# How long one example takes depends on what else the machine has to do.
settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")

HERE = Path(__file__).parent
STRICT = os.environ.get("CI", "").lower() == "true"

TURNS = ("system", "simulation", "integration", "property", "unit")
"""The folders in the order in which they run. Workers take whole files: with small files at the end, no worker waits
long for another worker's last file."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0]
        return TURNS.index(folder) if folder in TURNS else 0

    items.sort(key=turn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # An expected failure also counts as skipped in pytest's books; that one is a result.
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and with CI=true a skip is a failure: {reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if STRICT and report.skipped:
        report.outcome = "failed"
        text = f"{report.nodeid} was skipped, and with CI=true a skip is a failure: {reason(report)}"
        report.longrepr = text
    return report


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodePool]:
    """The nodes that modules, and clusters on one RabbitMQ, use one after the other."""
    # Most tests need none of this.
    from tests.support.backends import one_node
    from tests.support.node_pool import NodePool

    pool = NodePool(lambda backend: one_node(backend, tmp_path_factory.mktemp("container")))
    yield pool
    pool.close()
