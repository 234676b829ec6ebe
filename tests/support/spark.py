"""A Spark of its own for tests: local, small, silent, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from rabbitmq_stream_source import register
from tests.support.spark_settings import SETTINGS
from tidegate_analytics.session import start

JVM_END_S = 30.0


def java_problem() -> str | None:
    """Why no Spark can be started here, or None if one can."""
    found = Path(os.environ["JAVA_HOME"], "bin", "java").exists() if "JAVA_HOME" in os.environ else shutil.which("java")
    return None if found else "there is no Java"


def build_session(directory: Path) -> SparkSession:
    """A session with two tasks at a time, whose files are all below `directory`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # What it says while it starts comes before any setting takes effect.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """A session, and at the end no JVM."""
    with _ended(build_session(directory)) as session:
        yield session


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """A session as analytics start theirs, made small, that can read streams; at the end no JVM."""
    with _ended(start("local[2]", **SETTINGS)) as session:
        register(session)
        yield session


@contextmanager
def _ended(session: SparkSession) -> Iterator[SparkSession]:
    gateway = SparkContext._gateway
    assert gateway is not None
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        # The JVM ends with its standard input.
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=JVM_END_S)
        SparkContext._gateway = SparkContext._jvm = None
