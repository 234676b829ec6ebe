"""A Spark driver in a process of its own, to be killed: everything available from a telemetry stream to a lake.

python -m tests.support.stream_to_lake LAKE URL OPTIONS-AS-JSON
"""

from __future__ import annotations

import json
import sys

from tests.support.spark_settings import SETTINGS
from tidegate_analytics import session
from tidegate_analytics.runner import raw_messages, write_lake


def main(path: str, url: str, options: dict[str, str]) -> None:
    spark = session.start("local[2]", **SETTINGS)
    write_lake(raw_messages(spark, [f"head={url}"], **options), path, on_batch=lambda counts: print(counts, flush=True))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
