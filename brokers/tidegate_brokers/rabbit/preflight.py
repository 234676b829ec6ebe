"""What is looked at before a process begins: is this a RabbitMQ we can work with?

The check waits, within bounds, for a RabbitMQ that can't be reached yet. Every other problem (wrong password, too old,
a plugin missing) is an error at once, because waiting does not cure it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ..errors import RabbitUnreachable
from .management import Management

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5


async def check_rabbitmq(management: Management, timeout_s: float, *, shovels: bool) -> str:
    """Return RabbitMQ's version once it answers as it must; raise an error of `errors.py` otherwise.

    Only a head needs shovels: an edge forwards nothing.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            version = await management.check(shovels=shovels)
        except RabbitUnreachable as error:
            if loop.time() + RETRY_S > deadline:
                raise
            log.info("cannot reach RabbitMQ yet; trying again: %s", error.problem)
            await asyncio.sleep(RETRY_S)
        else:
            log.info("RabbitMQ answers", extra={"version": version, "url": management.where})
            return version
