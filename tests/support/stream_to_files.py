"""A Spark driver in a process of its own, to be killed: everything available from streams to Parquet files.

python -m tests.support.stream_to_files DIRECTORY OPTIONS-AS-JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rabbitmq_stream_source import FORMAT, register
from tests.support.spark import spark_session


def main(directory: Path, options: dict[str, str]) -> None:
    with spark_session(directory) as spark:
        register(spark)
        query = (
            spark.readStream.format(FORMAT)
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(directory / "out"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
