"""The same backends as the integration tests have: RabbitMQ of this machine, and a newer one in a container."""

from tests.integration.conftest import backend, launch

__all__ = ["backend", "launch"]
