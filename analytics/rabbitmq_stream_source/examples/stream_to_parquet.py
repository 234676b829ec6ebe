"""Everything that RabbitMQ streams hold, and whatever comes, to Parquet files; each message exactly once.

    python stream_to_parquet.py amqp://guest:guest@localhost:5672 events,alerts /tmp/messages
    python stream_to_parquet.py … --follow          # go on until Ctrl-C; without it, read what is there and end

Run it again, or kill it and run it again: it goes on where the checkpoint says.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, max, min

from rabbitmq_stream_source import FORMAT, register


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="amqp://user:password@host:port/vhost; several as name=amqp://…,name=amqp://…")
    parser.add_argument("streams", help="names of streams, with commas between them")
    parser.add_argument("directory", type=Path, help="for the files and the checkpoint")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    arguments = parser.parse_args()

    # Spark's workers must be the Python that has this package, pika and pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)

    messages = spark.readStream.format(FORMAT).options(urls=arguments.url, streams=arguments.streams).load()
    query = (
        messages.withColumn("text", col("body").cast("string"))
        .writeStream.format("parquet")
        .option("path", str(arguments.directory / "files"))
        .option("checkpointLocation", str(arguments.directory / "checkpoint"))
        .trigger(**({"processingTime": "1 second"} if arguments.follow else {"availableNow": True}))
        .start()
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()

    files = spark.read.parquet(str(arguments.directory / "files"))
    files.groupBy("broker", "stream").agg(count("*"), min("offset"), max("offset")).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
