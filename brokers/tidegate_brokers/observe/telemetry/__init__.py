"""Telemetry of a broker process: records made of what it handles anyway, written to a stream of the head's RabbitMQ."""
