"""A slow link: a relay in front of a local broker, which limits the bytes a second towards it.

    with Link() as link, LocalBroker(link.broker_port, properties=link.properties):
        link.bytes_a_second = 50_000

All clients use it, since the broker advertises the link's address. The answers of the broker are not slowed down.
The link works before the broker starts: a client that asks the new broker may already use it.
"""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import HOST, free_port

CHUNK_BYTES: Final = 1_460
"""The bytes that are carried at once, of each connection in turn: as in a packet."""
BUFFER_BYTES: Final = 64 * 1024
"""The socket buffer of a connection: small, so that sent bytes do not wait long before the link."""
BURST_S: Final = 0.05
"""The delay of this process that the link makes up for."""
_CONNECT_S: Final = 5.0


class Link:
    """A link without a limit until `bytes_a_second` is set; all connections share the limit."""

    def __init__(self) -> None:
        self.bytes_a_second = math.inf
        self.broker_port = free_port()
        self._listener = socket.create_server((HOST, 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._free_s = float("-inf")
        self._ended = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name="link", daemon=True)

    @property
    def properties(self) -> dict[str, str]:
        """The server properties with which the broker advertises the link."""
        return {"advertised.listeners": f"PLAINTEXT://{HOST}:{self._listener.getsockname()[1]}"}

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection((HOST, self.broker_port), _CONNECT_S)
                except OSError:
                    client.close()
                    continue
                broker.settimeout(None)
                for ends, slow in (((client, broker), True), ((broker, client), False)):
                    threading.Thread(target=self._carry, args=ends, kwargs={"slow": slow}, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, *, slow: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES if slow else BUFFER_BYTES):
                if slow:
                    self._ended.wait(self._takes_s(len(data)))
                target.sendall(data)
        for end in (source, target):  # wakes the thread of the other direction
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def _takes_s(self, size: int) -> float:
        """Return the seconds until these bytes are carried, after those of other connections."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_s = max(self._free_s, now_s - BURST_S) + size / self.bytes_a_second
            return max(0.0, self._free_s - now_s)
