#!/usr/bin/env python3
"""Exits with 0 when the broker in this container is ready; otherwise says why not and exits with 1.

Imports as little as it can: it is started every few seconds.
"""

import os
import socket
import sys

TIMEOUT_S = 4.0


def opened(port: int) -> socket.socket:
    """A connection to the broker; with TLS where it serves that, unchecked: it is in the same container."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    if not os.environ.get("TIDEGATE_HEALTH_TLS"):
        return connection
    import ssl

    return ssl._create_unverified_context().wrap_socket(connection)


def main() -> int:
    """Ask /readyz."""
    port = int(os.environ.get("TIDEGATE_HEALTH_PORT", "15780"))
    try:
        with opened(port) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError as error:
        sys.stdout.write(f"nothing answers on port {port}: {error}\n")
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    sys.stdout.write(body.decode(errors="replace"))
    return 0 if b" 200 " in head.split(b"\r\n", 1)[0] else 1


sys.exit(main())
