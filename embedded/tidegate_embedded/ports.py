"""Ports that nobody else takes between the moment they are chosen and the moment a child listens on them.

A reservation is a socket that is bound but does not listen. The kernel then gives the port to no outgoing connection
and to no other search for a free port, while a server that sets SO_REUSEADDR (RabbitMQ, asyncio) may listen on it, as
often as it is restarted. Reservations end with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from tidegate_brokers.errors import ClientPortTaken

LOOPBACK: Final = "127.0.0.1"


class Ports:
    """The reservations of one launch."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def free(self) -> int:
        """Reserve any free port."""
        holder = socket.socket()
        self._held.append(holder)
        holder.bind((LOOPBACK, 0))
        # Only now: set before, the kernel could hand out a port that another launch has reserved.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = holder.getsockname()[1]
        assert isinstance(port, int)
        return port

    def fixed(self, port: int, broker: str) -> int:
        """Reserve a port that the topology asks for; raise `ClientPortTaken` if something listens there."""
        try:
            # A trial with listen, because binding alone does not see a listener that also reuses addresses.
            with contextlib.closing(socket.socket()) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((LOOPBACK, port))
                trial.listen(1)
            holder = socket.socket()
            self._held.append(holder)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((LOOPBACK, port))
        except OSError as error:
            raise ClientPortTaken(broker, port, error.strerror or str(error)) from None
        return port

    def close(self) -> None:
        """Give all ports back."""
        while self._held:
            self._held.pop().close()
