"""The arithmetic of `tidegate bench analytics`: how long records waited for their windows, and whose memory it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidegate_embedded.guardian import descendants
from tidegate_experiments.benchmarks.analytics import bodies, digest, is_python, resident_mb
from tidegate_experiments.benchmarks.analytics_lag import US, WARM_UP_S, _lags
from tidegate_protocol.telemetry import LatencyDigest, decode


def test_a_record_has_waited_until_the_windows_of_its_batch_were_there() -> None:
    """Batches every two seconds that are ready one second after their last record: from one to three seconds."""
    began = 1_770_000_000 * US
    batches = [(began, began + 2 * at * US, began + (2 * at + 1) * US) for at in range(1, 40)]
    found = _lags(batches, rate_per_s=100, seconds=60)
    assert found["lag_p50_s"] == pytest.approx(2.0, abs=0.05)
    assert found["lag_p95_s"] == pytest.approx(2.9, abs=0.05)
    assert found["lag_max_s"] == pytest.approx(3.0, abs=0.05)
    assert found["lag_records"] == pytest.approx((78 - WARM_UP_S) * 100, abs=2)


def test_nothing_is_told_of_nothing() -> None:
    assert _lags([], rate_per_s=100, seconds=60)["lag_p95_s"] is None


def test_records_are_real_ones() -> None:
    record = decode(digest(7, 1_770_000_000_000_000))
    assert isinstance(record, LatencyDigest)
    assert record.number == 8
    assert len(set(bodies(1_500))) == 1_000


def test_processes_that_were_started_are_found_with_their_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in descendants(os.getpid())
        assert is_python(child.pid)
        assert resident_mb(child.pid) > 0
    finally:
        child.communicate(b"\n")
    assert resident_mb(child.pid) == 0
