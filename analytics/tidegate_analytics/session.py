"""A Spark session for the jobs, and whether there can be one.

Invariants: times are UTC, whatever the machine's time zone, so that a date in the lake means the same everywhere.
Python workers of a local master run the interpreter of this process, which has our packages. Importing this module
needs no Spark.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .errors import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP: Final = "tidegate-analytics"
DEFAULT_MASTER: Final = "local[*]"
JAVA_MIN: Final = 17
PACKAGES: Final = ("pyspark", "pyarrow", "pandas")
_JAVA_TIMEOUT_S: Final = 20.0
_QUIET: Final = Path(__file__).resolve().with_name("quiet.log4j2.properties")
_LOCAL_SETTINGS: Final = {
    # Nobody else is to talk to a driver whose executors are its own threads.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Before a session exists to tell it how much to log, Spark would greet the user with ten lines of warnings.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
}


def check_prerequisites() -> None:
    """Raise `SparkMissing` with what to install, before Spark fails in words of its own."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "pip install '.[analytics]' in the project's root, or make setup"
        raise SparkMissing(f"{', '.join(missing)} is not installed", remedy)
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    remedy = "install openjdk-17-jre-headless or newer, or set JAVA_HOME to one"
    if java is None or not os.access(java, os.X_OK):
        raise SparkMissing("Java is not there" if home is None else f"JAVA_HOME ({home}) holds no Java", remedy)
    version = _java_version(java)
    if version is not None and version < JAVA_MIN:
        raise SparkMissing(f"{java} is Java {version}, and must be {JAVA_MIN} or newer", remedy)


def _java_version(java: str) -> int | None:
    """The first number of its version; None where it does not tell one."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', told.stderr + told.stdout)
    if found is None:
        return None
    first = int(found[1])
    return int(found[2] or 0) if first == 1 else first  # Java 8 calls itself 1.8


def start(master: str = DEFAULT_MASTER, **settings: str) -> SparkSession:
    """A session on `master`; `settings` are Spark's own, with `__` for each dot."""
    check_prerequisites()
    from pyspark.sql import SparkSession

    values = {"spark.sql.session.timeZone": "UTC", "spark.sql.streaming.metricsEnabled": "false"}
    if master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        values |= _LOCAL_SETTINGS
        # Spark's own default is made for a cluster. One machine would spend its time on 200 nearly empty tasks, and a
        # streaming job on as many stores of its state.
        values["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    values |= {name.replace("__", "."): value for name, value in settings.items()}
    builder = SparkSession.builder.master(master).appName(APP)
    for name, value in values.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
