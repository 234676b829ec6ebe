"""RabbitMQ streams as a data source of Spark: `format("rabbitmq_stream")`.

    from rabbitmq_stream_source import register

    register(spark)
    events = spark.readStream.format("rabbitmq_stream").option("url", "amqp://…").option("streams", "events").load()

See the README beside this file for options, guarantees and limits. It needs PySpark 4.2 or newer, pyarrow and pika, and
nothing else of the project it lives in.
"""

from .errors import InvalidOption, SourceError
from .source import FORMAT, RabbitMQStreamSource, register

__all__ = ["FORMAT", "InvalidOption", "RabbitMQStreamSource", "SourceError", "register"]
