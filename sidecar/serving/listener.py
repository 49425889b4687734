"""The listening socket of the HTTP server, and what a user does when it cannot be had."""

from __future__ import annotations

import errno
import socket

from sidecar.errors import CommandFailed


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises CommandFailed with the setting to change."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=128)
        # asyncio sets it only on sockets of protocol TCP by number; without it an answer waits 40 ms for a delayed ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise CommandFailed(_advice(host, port, error)) from error


def url_of(host: str, listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a server: the host as it was set, the port as it is."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"HTTP_PORT: port {port} at {host} is in use by another program. "
            "Set KAFKA_RETRY_HTTP_PORT to a free port; 0 takes any."
        )
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"HTTP_PORT: this user may not listen at port {port}. Set KAFKA_RETRY_HTTP_PORT to 1024 or above."
    return (
        f"HTTP_HOST: cannot listen at {host!r}: {error.strerror or error}. "
        "Set KAFKA_RETRY_HTTP_HOST to an address of this machine, such as 127.0.0.1 or 0.0.0.0."
    )
