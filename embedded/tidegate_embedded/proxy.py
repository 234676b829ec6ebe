"""Sockets of a link conditioner: listeners, the two sides of a connection, and the flows between them.

A connection is two `Side`s and two `Flow`s, one per direction. A flow reads from its source exactly while there is room
on the way to its target, so memory is bounded and the sender feels a slow link as it would a real one. No byte of a
living connection is dropped, doubled or reordered. Nothing here knows of commands or of AMQP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final, cast

from .shaping import QUEUE_S, DelayLine, Lane

log = logging.getLogger(__name__)

READ_BYTES: Final = 16 * 1024
KERNEL_BUFFER_BYTES: Final = 64 * 1024
"""What a socket may hold out of our sight; the kernel's own choice of megabytes would hide back-pressure."""
WINDOW_BYTES_MIN: Final = 256 * 1024
UNSHAPED_BYTES_PER_S: Final = 64e6
"""What a delayed connection without a bandwidth may reach; sizes its window like bandwidth × delay."""
GRAIN_S: Final = 0.004
"""Timers fire on a grid of this, so that one wake-up serves whatever is due: most of a proxy's cost is waking up."""
CONNECT_TIMEOUT_S: Final = 10.0
BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One door of the conditioner. `outgoing`: the broker itself connects here, so its bytes go up, not down. `shaped`:
    whether they share the broker's lanes; control messages pass them by, because control never queues behind data."""

    name: str
    port: int
    target_host: str
    target_port: int
    delay_s: float = 0.0
    outgoing: bool = False
    shaped: bool = True


class Pump:
    """Empties one lane in time and lets flows in while there is room."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.lane: Lane[Flow] = Lane(bytes_per_s)
        self._waiting: dict[Flow, None] = {}  # a set that remembers who came first
        self._timer: asyncio.TimerHandle | None = None

    def push(self, flow: Flow, data: bytes) -> None:
        """Queue bytes of a flow and send what may go."""
        self.lane.push(flow, data, time.monotonic())
        if self._timer is None:
            self.run()

    def run(self) -> None:
        """Pass on what is due, then sleep until the next slice is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for flow, data in self.lane.pop_due(time.monotonic()):
            flow.passed(data)
        due_s = self.lane.next_due_s()
        if due_s is not None:
            self._timer = _call_at(due_s, self.run)
        if not self.lane.is_full and self._waiting:
            waiting, self._waiting = self._waiting, {}
            for flow in waiting:
                flow.steer()

    def wait(self, flow: Flow) -> None:
        """Have `flow` asked again when the lane has room."""
        self._waiting[flow] = None

    def forget(self, flow: Flow) -> None:
        """A flow whose reader is gone."""
        self._waiting.pop(flow, None)
        self.lane.forget(flow)


class Flow:
    """One direction of one connection: source → lane → delay line → target."""

    def __init__(self, listener: Listener, pump: Pump) -> None:
        self._listener = listener
        self._pump = pump
        self._line = DelayLine(listener.delay_s)
        self._timer: asyncio.TimerHandle | None = None
        self._laned_bytes = 0
        self._dropped = False
        self.source: Side
        self.target: Side

    def feed(self, data: bytes) -> None:
        """Bytes from the source."""
        if self._dropped:
            return
        self._laned_bytes += len(data)
        self._pump.push(self, data)
        self.steer()

    def finish(self) -> None:
        """The source will send no more, or is lost (both may happen): an empty mark follows what is under way."""
        if not self._dropped:
            self._pump.push(self, b"")

    def passed(self, data: memoryview) -> None:
        """Bytes that have left the lane."""
        self._laned_bytes -= len(data)
        self._line.delay_s = self._listener.delay_s
        self._line.push(data, time.monotonic())
        if self._timer is None:
            self.release()

    def release(self) -> None:
        """Hand over what has waited long enough, unless the listener is stalled or the target not yet connected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._listener.is_stalled and self.target.is_connected:
            for data in self._line.pop_due(time.monotonic()):
                self._hand_over(data)
            due_s = self._line.next_due_s()
            if due_s is not None:
                self._timer = _call_at(due_s, self.release)
        self.steer()

    def _hand_over(self, data: memoryview) -> None:
        if len(data):
            self.target.write(data)
        elif self.source.is_lost:
            self.target.close()
        else:
            self.target.write_eof()

    def steer(self) -> None:
        """Read from the source exactly while there is somewhere to put it."""
        may_read = (
            not self._dropped
            and not self._listener.is_stalled
            and self.target.can_take
            and self._held_bytes < self._window_bytes
        )
        if may_read and self._pump.lane.is_full:
            self._pump.wait(self)
            may_read = False
        self.source.read(may_read)

    def drop(self) -> None:
        """The target is gone: nothing that is under way can arrive."""
        self._dropped = True
        self._pump.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        self.source.read(False)

    @property
    def _held_bytes(self) -> int:
        return self._laned_bytes + self._line.held_bytes

    @property
    def _window_bytes(self) -> float:
        rate, delay_s = self._pump.lane.bytes_per_s, self._listener.delay_s
        under_way = UNSHAPED_BYTES_PER_S * delay_s if rate is None else rate * (delay_s + QUEUE_S)
        return WINDOW_BYTES_MIN + under_way


class Side(asyncio.BufferedProtocol):
    """One of the two sockets of a proxied connection."""

    def __init__(self, opened: Callable[[Side], None], lost: Callable[[Side], None]) -> None:
        self._opened = opened
        self._lost = lost
        self._buffer = bytearray(READ_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_full = False
        self._is_reading = True
        self._has_ended = False
        self.is_lost = False
        self.outflow: Flow
        self.inflow: Flow

    @property
    def is_connected(self) -> bool:
        """Whether there is, or was, a peer."""
        return self._transport is not None

    @property
    def can_take(self) -> bool:
        """Whether bytes written now go out soon."""
        return self._transport is not None and not self._is_full

    def write(self, data: memoryview) -> None:
        """Send, unless the peer has gone."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    def write_eof(self) -> None:
        """Tell the peer that no more comes; once it has said so too, the connection is over."""
        if self._has_ended:
            self.close()
        elif self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):  # the peer may have gone this very moment
                self._transport.write_eof()

    def close(self) -> None:
        """Send what is buffered, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, *, reset: bool = False) -> None:
        """Close at once; with `reset`, the peer gets an RST instead of an orderly end."""
        if self._transport is None:
            return
        if reset:
            sock = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def read(self, wanted: bool) -> None:
        """Start or stop reading."""
        if self._transport is None or self._transport.is_closing() or wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=KERNEL_BUFFER_BYTES)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.outflow.feed(bytes(memoryview(self._buffer)[:nbytes]))

    def eof_received(self) -> bool:
        self._has_ended = True
        self.outflow.finish()
        return True  # the other direction may still have something to say

    def pause_writing(self) -> None:
        self._is_full = True
        self.inflow.steer()

    def resume_writing(self) -> None:
        self._is_full = False
        self.inflow.steer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.inflow.drop()
        self.outflow.finish()
        self._lost(self)


class Listener:
    """One door: accepts, connects to its target, and joins the two."""

    def __init__(self, config: ListenerConfig, host: str, uplink: Pump, downlink: Pump) -> None:
        self._config = config
        self._host = host
        self._to_target, self._from_target = (uplink, downlink) if config.outgoing else (downlink, uplink)
        self._server: asyncio.Server | None = None
        self._sides: set[Side] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self.name = config.name
        self.delay_s = config.delay_s
        self.is_stalled = False
        self.accepted_total = 0

    @property
    def is_open(self) -> bool:
        """Whether new connections are accepted."""
        return self._server is not None

    @property
    def connections(self) -> int:
        """Connections with both ends alive."""
        return len(self._sides) // 2

    async def open(self) -> None:
        """Listen."""
        if self._server is not None:
            return
        sock = socket.socket()
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bound_buffers(sock)  # accepted sockets inherit it, and it must be set before the window is agreed on
            sock.bind((self._host, self._config.port))
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: Side(self._accepted, self._lost), sock=sock, backlog=BACKLOG
            )
        except BaseException:
            sock.close()  # `restore` may be asked for again
            raise

    def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.end_connections(reset=False)

    def end_connections(self, *, reset: bool) -> None:
        """End every connection now."""
        for task in self._connecting:
            task.cancel()
        for side in list(self._sides):
            side.abort(reset=reset)

    def steer(self) -> None:
        """Look again at every flow, after `is_stalled` or `delay_s` changed."""
        for side in list(self._sides):
            side.outflow.release()

    def _accepted(self, near: Side) -> None:
        far = Side(lambda _: None, self._lost)
        forward, backward = Flow(self, self._to_target), Flow(self, self._from_target)
        near.outflow = far.inflow = forward
        near.inflow = far.outflow = backward
        forward.source = backward.target = near
        forward.target = backward.source = far
        if not self.is_open:  # accepted in the same turn of the loop in which the listener was cut
            near.abort()
            return
        self._sides.add(near)
        self.accepted_total += 1
        task = asyncio.get_running_loop().create_task(self._connect(near, far))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, near: Side, far: Side) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        _bound_buffers(sock)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.sock_connect(sock, (self._config.target_host, self._config.target_port))
            if near.is_lost:
                return
            self._sides.add(far)
            await loop.create_connection(lambda: far, sock=sock)
        except (OSError, TimeoutError) as error:
            log.info("%s: cannot reach port %s; the client is reset: %s", self.name, self._config.target_port, error)
            near.abort(reset=True)
        except asyncio.CancelledError:  # cut while connecting; uvloop then closes without a word to the protocol
            far.abort()
            self._sides.discard(far)
            raise
        else:
            near.outflow.release()
            near.inflow.release()
        finally:
            if not far.is_connected:  # the socket is still ours
                self._sides.discard(far)
                sock.close()

    def _lost(self, side: Side) -> None:
        self._sides.discard(side)


def _call_at(due_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    """Call at the first point of the grid after `due_s`. Half a millisecond more, because uvloop rounds to the nearest
    one: a timer that fires early finds nothing due, and asks again."""
    wait_s = ceil(due_s / GRAIN_S) * GRAIN_S - time.monotonic()
    return asyncio.get_running_loop().call_later(max(wait_s, 0.0) + 0.0005, callback)


def _bound_buffers(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
