"""Talking to RabbitMQ: a kept AMQP connection, control messages, the management API."""
