"""A head that is overloaded and has publishers to give away."""

from __future__ import annotations

from tests.support.parts_driver import PartsDriver
from tidegate_agents.load.metrics import PublisherSample
from tidegate_agents.machine import (
    Action,
)

SAMPLES = (PublisherSample("remote~1", "far", 4.0, 100.0), PublisherSample("local~1", "near", 7.0, 100.0))


def overloaded(*neighbours: str) -> tuple[PartsDriver, list[Action]]:
    """A head with one publisher whose subscribers are behind `n`, and one whose subscribers are here."""
    driver = PartsDriver(*(neighbours or ("n",)))
    driver.edge("e1")
    driver.context.routes.need("e1", "near")
    driver.context.routes.need("n", "far")
    driver.hello("remote~1", "far")
    driver.hello("local~1", "near")
    actions = driver.sample(*SAMPLES, bytes_in=1_100.0, bytes_out=1_100.0)
    return driver, actions
