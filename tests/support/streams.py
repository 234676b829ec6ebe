"""RabbitMQ streams without the code under test: declare, publish, read the truth with bare pika."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import httpx
import pika

WAIT_S: Final = 60.0
PREFETCH: Final = 2_000


def declare(url: str, *names: str, **arguments: object) -> None:
    """Streams, with arguments as RabbitMQ calls them, but with underscores."""
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for name in names:
            connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **table})


def delete(url: str, *names: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for name in names:
            connection.channel().queue_delete(name)


def publish(
    url: str, stream: str, bodies: Iterable[bytes], properties: Callable[[int], pika.BasicProperties] | None = None
) -> None:
    """Publish to a stream that nobody else publishes to, and return when it has them all."""
    last = b""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for number, body in enumerate(bodies):
            channel.basic_publish("", stream, body, properties(number) if properties else None)
            last = body
        channel.close()
        _read(connection, stream, "last", until=lambda _, body: body == last)


def contents(url: str, stream: str) -> dict[int, bytes]:
    """All that is in a stream: body by offset. It must not be empty, and nobody may publish meanwhile."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        newest = max(_read(connection, stream, "last", until=lambda *_: True, whole_chunk=True))
        return _read(connection, stream, "first", until=lambda offset, _: offset >= newest)


def _read(
    connection: Any, stream: str, start: object, until: Callable[[int, bytes], bool], whole_chunk: bool = False
) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    done = False

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal done
        offset = int(properties.headers["x-stream-offset"])
        found[offset] = body
        if len(found) % (PREFETCH // 4) == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        done = done or until(offset, body)

    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    channel.basic_consume(stream, on_message, arguments={"x-stream-offset": start})
    end = time.monotonic() + WAIT_S
    while not done:
        assert time.monotonic() < end, f"not within {WAIT_S:g} s: the end of stream {stream}"
        connection.process_data_events(0.1)
    if whole_chunk:
        # RabbitMQ sends a chunk in one go, so its answer to a later request follows all of it.
        channel.basic_qos(prefetch_count=PREFETCH)
        connection.process_data_events(0)
    return found


def stream_port(management_url: str) -> int:
    """Where RabbitMQ speaks the stream protocol."""
    listeners = httpx.get(f"{management_url}/api/overview", trust_env=False).raise_for_status().json()["listeners"]
    return next(int(one["port"]) for one in listeners if one["protocol"] == "stream")


class StreamClient:
    """As much of the stream protocol as it takes to store an offset, which takes up an offset of the stream itself.

    Every frame is: size, key, version, and for requests a number that comes back with the answer.
    """

    STORE_OFFSET, QUERY_OFFSET = 0x0A, 0x0B
    PROPERTIES, HANDSHAKE, AUTHENTICATE, TUNE, OPEN = 0x11, 0x12, 0x13, 0x14, 0x15

    def __init__(self, host: str, port: int, user: str, password: str, vhost: str = "/") -> None:
        self._socket = socket.create_connection((host, port), timeout=WAIT_S)
        self._file = self._socket.makefile("rb")
        self._request(self.PROPERTIES, struct.pack(">i", 0))
        self._request(self.HANDSHAKE)
        secret = f"\0{user}\0{password}".encode()
        self._request(self.AUTHENTICATE, _string("PLAIN") + struct.pack(">i", len(secret)) + secret)
        key, tune = self._receive()
        assert key == self.TUNE
        self._send(struct.pack(">HH", self.TUNE, 1) + tune)
        self._request(self.OPEN, _string(vhost))

    def store_offset(self, stream: str, reference: str, offset: int) -> None:
        """Store an offset, and return when RabbitMQ knows it."""
        self._send(
            struct.pack(">HH", self.STORE_OFFSET, 1) + _string(reference) + _string(stream) + struct.pack(">Q", offset)
        )
        end = time.monotonic() + WAIT_S
        while struct.unpack(">Q", self._request(self.QUERY_OFFSET, _string(reference) + _string(stream)))[0] != offset:
            assert time.monotonic() < end, "the offset is not stored"

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _request(self, key: int, content: bytes = b"") -> bytes:
        self._send(struct.pack(">HHI", key, 1, 1) + content)
        while True:
            answered, rest = self._receive()
            if answered == key | 0x8000:
                # A number, a code, and what was asked for. 0x13 means that nothing is stored yet.
                code = struct.unpack(">IH", rest[:6])[1]
                assert code in (1, 0x13), f"RabbitMQ answers {code} to {key:#x}"
                return rest[6:] if code == 1 else struct.pack(">Q", 2**64 - 1)

    def _send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(frame)) + frame)

    def _receive(self) -> tuple[int, bytes]:
        (size,) = struct.unpack(">I", self._file.read(4))
        frame = self._file.read(size)
        return struct.unpack(">H", frame[:2])[0], frame[4:]


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
