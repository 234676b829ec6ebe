"""One rule for all tests: in CI a skipped test is a failed one.

A test that needs Docker may skip on a laptop. In CI (`CI=true`) everything is meant to be there, and a skip
would hide that it is not.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# How long one example takes depends on what else the machine has to do.
settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")

STRICT = os.environ.get("CI", "").lower() == "true"


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
