"""A slow link: a relay in front of a local broker, which carries so many bytes a second towards it.

    with Link() as link, LocalBroker(link.broker_port, properties=link.properties):
        link.bytes_a_second = 50_000

All clients go by it, since the broker tells them the link's address. What the broker says comes back at once.
The link carries before the broker starts: whoever asks the new broker may already come this way.
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
"""Carried at once, of each connection in its turn: as in a packet."""
BUFFER_BYTES: Final = 64 * 1024
"""Of a connection, asked of the system: what is sent is not on its way long before it is carried."""
BURST_S: Final = 0.05
"""Time that is made up for when this process was late."""
_CONNECT_S: Final = 5.0


class Link:
    """Unlimited until `bytes_a_second` is set; all connections share it."""

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
        """Server properties of the broker, which make clients come this way."""
        return {"advertised.listeners": f"PLAINTEXT://{HOST}:{self._listener.getsockname()[1]}"}

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
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
        for end in (source, target):  # wakes who carries the other way
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def _takes_s(self, size: int) -> float:
        """Return the seconds until so many bytes are carried, behind those of other connections."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_s = max(self._free_s, now_s - BURST_S) + size / self.bytes_a_second
            return max(0.0, self._free_s - now_s)
