"""One rule for all tests, in CI a skipped test is a failed one, and the RabbitMQ nodes that they share.

A test that needs Docker may skip on a laptop. In CI (`CI=true`) everything is meant to be there, and a skip
would hide that it is not.
"""

from __future__ import annotations

import os
import signal
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

# A shell without job control has what it runs in the background ignore Ctrl-C, and children would do so, too: tests of
# what an interruption leaves behind would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
STRICT = os.environ.get("CI", "").lower() == "true"

LONGEST = (
    "system/test_compose.py", "integration/analytics/", "system/test_session_faults.py", "integration/test_brokers.py",
    "integration/test_faults.py", "integration/test_migration.py", "integration/test_alarms.py", "system/",
    "integration/test_embedded_cluster.py", "integration/", "simulation/",
    "property/", "unit/",
)  # fmt: skip
"""Folders and files in the order in which they run; the first one that fits an item counts.

Workers take whole files. Tests on real brokers mostly wait, so several of them share a processor; simulations and what
follows only compute. With small files at the end, no worker waits long for another worker's last file.
"""
SPARK = (
    *(f"integration/analytics/test_{name}.py" for name in ("attainment", "balance", "lake", "rates", "report")),
    "integration/analytics/test_analytics_cli.py", "integration/test_stream_source.py",
)  # fmt: skip
"""Files whose tests share a Spark, of which each worker would start one: the same worker runs them all."""
NODES = tuple(f"integration/test_{name}.py" for name in ("faults", "migration", "alarms"))
"""Files whose tests borrow three RabbitMQs at a time: the same worker runs them, and starts six."""


def begins_with(path: str, *beginnings: str) -> bool:
    """Whether a path below this folder begins like one of these."""
    return path.removeprefix(f"{HERE.name}/").startswith(beginnings)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        path = item.path.relative_to(HERE).as_posix()
        return next((turn for turn, beginning in enumerate(LONGEST) if begins_with(path, beginning)), 0)

    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Like `--dist loadfile`, but that files which share something costly are for the same worker."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((files[0] for files in (SPARK, NODES) if begins_with(file, *files)), file)

    return Scheduling(config, log)


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
