"""Deliveries cut down to what a broker needs of them before aiormq reads them.

A broker uses four properties, `correlation_id`, `reply_to`, `type` and `user_id` (which RabbitMQ has compared with the
sender's account), and of the headers the offset that a stream gives to a record, and whether any of them tells of a
detour (`access.admission`). The rest is dropped here, because every client that may write to the control exchange can
send properties that pamqp refuses (`tidegate_protocol.amqp.rewriting`): so a bad message is judged by its body,
counted and dropped like any other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory

from tidegate_protocol.amqp.content import (
    CORRELATION_ID,
    HEADERS,
    REPLY_TO,
    TYPE,
    USER_ID,
    UnreadableHeaders,
    decode_properties,
)
from tidegate_protocol.amqp.publications import encode_attributes
from tidegate_protocol.amqp.rewriting import Rewrite, RewritingReader
from tidegate_protocol.form import AttributeValue

from ..access.admission import DETOURS, UNREADABLE

if TYPE_CHECKING:
    from yarl import URL

OFFSET_HEADER: Final = "x-stream-offset"
_KEPT: Final = ((CORRELATION_ID, "correlation_id"), (REPLY_TO, "reply_to"), (TYPE, "type"), (USER_ID, "user_id"))
"""Texts that are kept, in the order of the wire."""


class PlainTransport(TransportFactory):
    """Opens what aiormq would open, with plain properties in every content header, or those that `rewrite` makes."""

    def __init__(self, rewrite: Rewrite | None = None) -> None:
        self._rewrite = rewrite or plain_properties

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await factory.create(url, **options)
        return cast(asyncio.StreamReader, RewritingReader(reader, self._rewrite)), writer


def plain_properties(properties: bytes) -> bytes:
    """Keep the texts that are ASCII, as ours always are, the offset in a stream, and the names of detours."""
    found = decode_properties(properties, 0, len(properties))
    flags, kept = 0, b""
    headers = _kept_headers(found.get("headers"))
    if headers:
        flags |= HEADERS
        table = encode_attributes(headers)
        kept += len(table).to_bytes(4, "big") + table
    for flag, name in _KEPT:
        text = found.get(name)
        if text is not None and text.isascii():
            flags |= flag
            kept += bytes([len(text)]) + text.encode()
    return flags.to_bytes(2, "big") + kept


def _kept_headers(headers: dict[str, Any] | None) -> dict[str, AttributeValue]:
    if headers is None:
        return {}
    if isinstance(headers, UnreadableHeaders):
        return {UNREADABLE: True}
    kept: dict[str, AttributeValue] = {name: True for name in DETOURS if name in headers}
    offset = headers.get(OFFSET_HEADER)
    return kept | {OFFSET_HEADER: offset} if type(offset) is int else kept
