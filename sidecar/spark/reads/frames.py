"""Messages on a socket: their length in four bytes, then their bytes."""

from __future__ import annotations

import socket
from typing import Final

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024


class FrameLost(Exception):
    """The other side has closed the connection, or sends what is no frame."""


def write_frame(connection: socket.socket, body: bytes) -> None:
    """Send a message. Raises OSError."""
    connection.sendall(len(body).to_bytes(4, "big") + body)


def read_frame(connection: socket.socket, limit_bytes: int | None = None) -> bytes:
    """Return the next message. Raises OSError, FrameLost."""
    size = int.from_bytes(_exactly(connection, 4), "big")
    if size > (FRAME_BYTES_MAX if limit_bytes is None else limit_bytes):
        raise FrameLost(f"a frame of {size} bytes is too large")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    body = bytearray()
    while len(body) < size:
        part = connection.recv(min(size - len(body), 1 << 20))
        if not part:
            raise FrameLost("the connection is closed")
        body += part
    return bytes(body)
