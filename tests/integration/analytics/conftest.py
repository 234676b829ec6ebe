"""One Spark for the tests of a module, gone with it: other modules may have one of their own.

Without Java they are skipped, and in CI that counts as a failure.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_settings import SETTINGS
from tidegate_analytics import session
from tidegate_analytics.errors import SparkMissing


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    try:
        started = session.start("local[2]", **SETTINGS)
    except SparkMissing as error:
        pytest.skip(str(error))
    try:
        yield started
    finally:
        started.stop()
