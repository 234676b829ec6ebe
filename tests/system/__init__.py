"""Whole clusters on real RabbitMQ under load, with faults."""
