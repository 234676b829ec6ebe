"""A process that writes a lake and kills itself, hard, when the files of a chosen batch are there but not committed.

`python -m tests.support.lake_child RAW LAKE BATCH`. It tells the id of its JVM first.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.support.spark_settings import SETTINGS
from tests.support.telemetry_maker import RawStream
from tidegate_analytics import lake, session
from tidegate_analytics.runner import wait


def main(raw: str, path: str, batch: int) -> None:
    spark = session.start("local[1]", **SETTINGS)
    jvm = spark._jvm
    assert jvm is not None
    print(jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    commit = lake.LakeWriter._commit

    def killed(self: lake.LakeWriter, number: int) -> None:
        if number == batch:
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self, number)

    lake.LakeWriter._commit = killed  # type: ignore[method-assign]
    wait(lake.start(RawStream(Path(raw)).read(spark), path))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
