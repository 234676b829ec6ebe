"""pika's connection with a codec of our own for the most frequent frames: publications and deliveries.

Publications are written as ready-made frames. Deliveries on a channel that registered for them are taken apart here, in
three steps (method, header, body) and without an object per frame; all other frames go pika's way. The I/O thread
shares the interpreter with the application and needs that speed. The codec also keeps floating-point attributes whole
(`tidegate_protocol.amqp.publications`), and no content properties, whatever they hold, end the thread
(`tidegate_protocol.amqp.content`).

Invariant: frames are handled in the order of arrival, and `after_chunk` runs once after each piece of data from the
socket, so that an application's thread is woken once for many messages.

A connection may also write ahead: frames that pika would write one by one, each after the answer to the frame before,
are written at once, and pika's own writes of them are dropped (`_core.opening`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pika
from pika import exceptions, frame, spec

from tidegate_protocol.amqp.content import CONTENT_START_BYTES, decode_properties, read_body_size
from tidegate_protocol.amqp.frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    FRAME_START_BYTES,
    PROTOCOL_NAME,
    unpack_frame_start,
)
from tidegate_protocol.amqp.methods import BASIC_DELIVER, read_deliver

from .._core.opening import OpeningDiffers, Tune

MECHANISMS: Final = "PLAIN EXTERNAL"
"""What a server is expected to offer before it has said so."""
Received = Callable[[int, str, bytes, dict[str, Any], bool], None]
"""Delivery tag, routing key, body, content properties, redelivered."""


class Properties:
    """Content properties of what comes to pika's own callbacks, which for us are returned requests."""

    __slots__ = ("correlation_id",)

    def __init__(self, correlation_id: str | None) -> None:
        self.correlation_id = correlation_id


class _Assembly:
    """A delivery of which not everything has come yet."""

    __slots__ = ("key", "left", "parts", "properties", "received", "redelivered", "tag")

    def __init__(self, received: Received) -> None:
        self.received = received
        self.tag = 0
        self.key = ""
        self.redelivered = False
        self.properties: dict[str, Any] = {}
        self.left = 0
        self.parts: list[bytes] = []

    def method(self, data: bytes, offset: int) -> None:
        self.tag, self.redelivered, self.key = read_deliver(data, offset)

    def header(self, data: bytes, offset: int, end: int) -> None:
        self.left = read_body_size(data, offset)
        self.properties = decode_properties(data, offset + CONTENT_START_BYTES, end)
        if not self.left:
            self.finish(b"")

    def body(self, part: bytes) -> None:
        self.left -= len(part)
        if self.left <= 0 and not self.parts:
            self.finish(part)
            return
        self.parts.append(part)
        if self.left <= 0:
            whole = b"".join(self.parts)
            self.parts = []
            self.finish(whole)

    def finish(self, body: bytes) -> None:
        tag, self.tag = self.tag, 0
        self.received(tag, self.key, body, self.properties, self.redelivered)


class CodecConnection(pika.SelectConnection):  # type: ignore[misc]
    """pika's connection; see the module."""

    _frame_buffer: bytes

    def __init__(
        self,
        *args: Any,
        after_chunk: Callable[[], None],
        tune: Tune | None = None,
        first: Sequence[bytes] = (),
        **options: Any,
    ) -> None:
        self._assemblies: dict[int, _Assembly] = {}
        self._after_chunk = after_chunk
        self._tune = tune
        """What the server is expected to agree to; None to open the connection the usual way."""
        self._first = first
        """Frames written right behind the opening."""
        self._ahead: list[bytes] = []
        self.connected = False
        """Whether a server answered at all."""
        super().__init__(*args, **options)

    def write_ahead(self, frames: Sequence[bytes]) -> None:
        """Write frames that pika is going to write later."""
        self._ahead += frames
        self.emit(b"".join(frames))

    def forget_ahead(self, frames: Sequence[bytes]) -> None:
        """pika will never write the ones of `frames` that it has not written by now."""
        self._ahead = [each for each in self._ahead if each not in frames]

    def _on_stream_connected(self) -> None:
        self.connected = True
        if self._tune is None:
            super()._on_stream_connected()
            return
        self._set_connection_state(self.CONNECTION_PROTOCOL)
        self._ahead = [*self._opening(self._tune), *self._first]
        self.emit(frame.ProtocolHeader().marshal() + b"".join(self._ahead))

    def _opening(self, tune: Tune) -> list[bytes]:
        mechanism, response = self.params.credentials.response_for(spec.Connection.Start(mechanisms=MECHANISMS))
        return marshal(
            0,
            spec.Connection.StartOk(self._client_properties, mechanism, response, self.params.locale),
            spec.Connection.TuneOk(tune.channel_max, tune.frame_max, self.params.heartbeat),
            spec.Connection.Open(self.params.virtual_host, insist=True),
        )

    def _send_frame(self, frame_value: Any) -> None:
        if not self._ahead:
            super()._send_frame(frame_value)
            return
        marshaled = frame_value.marshal()
        if marshaled in self._ahead:
            self._ahead.remove(marshaled)
        elif self._opened or self.is_closing:
            super()._send_frame(frame_value)
        elif self._error is None:
            self._terminate_stream(OpeningDiffers(marshaled))

    def emit(self, payload: bytes) -> None:
        """Write frames that are encoded already."""
        self._output_marshaled_frames([payload])

    def take_deliveries(self, channel: int, received: Received) -> None:
        """Hand deliveries on `channel` to `received` from now on."""
        self._assemblies[channel] = _Assembly(received)

    def leave_deliveries(self, channel: int) -> None:
        """What still comes on `channel` is pika's business: it gives back what a cancelled consumer gets."""
        self._assemblies.pop(channel, None)

    def abandon(self) -> None:
        """Cut the connection without waiting for what is still under way."""
        self._adapter_disconnect_stream()

    def _on_data_available(self, data_in: bytes) -> None:
        data = self._frame_buffer + data_in if self._frame_buffer else data_in
        offset, length = 0, len(data)
        self._frame_buffer = b""
        while length - offset >= FRAME_OVERHEAD:
            kind, channel, size = unpack_frame_start(data, offset)
            end = offset + FRAME_OVERHEAD + size
            if end > length and not data.startswith(PROTOCOL_NAME, offset):
                break
            if not self._take(kind, channel, data, offset + FRAME_START_BYTES, end):
                # pika's way, one frame at a time. A frame may change everything, even close the connection.
                consumed, value = _decode(data[offset:end] if end <= length else data[offset:])
                if value is None:
                    break
                end = offset + consumed
                self.bytes_received += consumed
                self._process_frame(value)
                if self._error is not None and not self._opened:
                    # Given up; what the server said ahead must not open the connection all the same.
                    return
            else:
                self.bytes_received += end - offset
            offset = end
        self._frame_buffer = data[offset:]
        self._after_chunk()

    def _take(self, kind: int, channel: int, data: bytes, start: int, end: int) -> bool:
        """Handle a frame that belongs to a delivery we take; False if it does not."""
        assembly = self._assemblies.get(channel)
        if assembly is None:
            return False
        if kind == FRAME_METHOD:
            if not data.startswith(BASIC_DELIVER, start):
                return False
            assembly.method(data, start)
        elif not assembly.tag or kind not in (FRAME_HEADER, FRAME_BODY):
            return False
        elif kind == FRAME_HEADER:
            assembly.header(data, start, end - 1)
        else:
            assembly.body(data[start : end - 1])
        if data[end - 1 : end] != FRAME_END:
            raise exceptions.InvalidFrameError("a frame does not end where it should")
        return True


def marshal(channel: int, *methods: Any) -> list[bytes]:
    """Methods as frames, as pika writes them."""
    return [frame.Method(channel, method).marshal() for method in methods]


def _decode(data: bytes) -> tuple[int, Any]:
    """pika's decoder, but for content headers."""
    if data[0] != FRAME_HEADER:
        return frame.decode_frame(data)  # type: ignore[no-any-return]
    _, channel, _ = unpack_frame_start(data)
    start = FRAME_START_BYTES
    properties = decode_properties(data, start + CONTENT_START_BYTES, len(data) - 1)
    header = frame.Header(channel, read_body_size(data, start), Properties(properties.get("correlation_id")))
    return len(data), header
