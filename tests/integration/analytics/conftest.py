"""One Spark for all tests of the jobs. Without Java they are skipped, and in CI that counts as a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark import SETTINGS
from tidegate_analytics import session
from tidegate_analytics.errors import SparkMissing


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        started = session.start("local[2]", **SETTINGS)
    except SparkMissing as error:
        pytest.skip(str(error))
    try:
        yield started
    finally:
        started.stop()
