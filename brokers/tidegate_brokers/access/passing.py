"""Whether the account of a link passes on the accounts of publishers: tried out on the RabbitMQ that it writes to.

A shovel copies the property `user_id`, and RabbitMQ takes another's only from an account with the tag `impersonator`.
Configurations and the rights in a RabbitMQ are made at different times, so that what a file says does not count: a
message that names nobody's account is published to an exchange that leads nowhere. RabbitMQ takes it or refuses it.

Invariant: only RabbitMQ's own answer counts. While there is none (it can't be reached), nothing is known and nothing is
posted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed
from pamqp.commands import Basic

from tidegate_agents.machine import Event, LinkChecked
from tidegate_protocol.names import LINK_CHECK_EXCHANGE

from ..errors import BrokerError
from ..rabbit.connection import close_quietly, lost_by_connection, open_connection
from ..settings.options import EdgeConfig, HeadConfig
from ..settings.urls import ServerUrl

log = logging.getLogger(__name__)

NOBODY: Final = "tidegate.nobody"
"""The account that is named; accounts of brokers, links and clients are called otherwise."""
KNOWN_FOR_S: Final = 60.0
"""How often it is tried again: rights may be imported, or restored, at any time."""
RETRY_S: Final = 1.0
REFUSED: Final = (ChannelPreconditionFailed, ChannelAccessRefused, ChannelNotFoundEntity)
"""The first is the refusal of another's account. The others: the definitions in this RabbitMQ are of an earlier
version, and so are the tags of its accounts.
"""
ANSWER_S: Final = 10.0


async def passes_accounts(url: ServerUrl) -> bool | None:
    """Whether the account in `url` may name others' accounts; None where RabbitMQ does not say."""
    try:
        connection = await open_connection(url, "tidegate link check")
    except BrokerError as error:
        log.info("cannot try out the account of a link yet; it is tried again: %s", error)
        return None
    try:
        async with asyncio.timeout(ANSWER_S):
            channel = await connection.channel(publisher_confirms=True)
            await channel.basic_publish(b"", exchange=LINK_CHECK_EXCHANGE, properties=Basic.Properties(user_id=NOBODY))
        return True
    except REFUSED:
        return False
    except BaseException as error:
        if not lost_by_connection(error) and not isinstance(error, AMQPError):
            raise
        log.info("cannot try out the account of a link yet; it is tried again: %s", error)
        return None
    finally:
        await close_quietly(connection)


async def watch(target: str, url: ServerUrl, post: Callable[[Event], None]) -> None:
    """Try out the account of the link to `target` again and again, and post what is found; ends by cancellation."""
    warned = False
    while True:
        found = await passes_accounts(url)
        if found is not None:
            post(LinkChecked(target, found))
        if found is False and not warned:
            log.warning(
                "the account %s can't pass on the accounts of publishers at %s; import the definitions that "
                "`tidegate access prepare` has made, or give it the tag impersonator",
                url.credentials[0],
                url,
            )
        warned = found is False
        await asyncio.sleep(RETRY_S if found is None else KNOWN_FOR_S)


def link_watches(
    config: HeadConfig | EdgeConfig, post: Callable[[Event], None]
) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
    """What a process runs to know its links: an edge the one that leads to it, a head those to its neighbours.

    An account is tried out where this process reaches the RabbitMQ; the link may reach it by another address.
    """
    if config.accounts != "checked":
        return ()
    if isinstance(config, EdgeConfig):
        return (partial(watch, config.name, _as(config.url, config.link), post),)
    return tuple(partial(watch, n.name, _as(n.url, n.link), post) for n in config.neighbours)


def _as(url: ServerUrl, link: ServerUrl) -> ServerUrl:
    user, password = link.credentials
    return replace(url, user=user, password=password)
