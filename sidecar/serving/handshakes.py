"""TLS of accepted connections: handshakes under way are counted, and bounded in number and time.

asyncio's own server tells nobody of a connection before its handshake is over, so whoever opens connections and stays
silent would hold any number of them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

HANDSHAKES_MAX: Final = 100
HANDSHAKE_S: Final = 5.0

T = TypeVar("T")


def of_the_busiest_address(connections: Iterable[tuple[str, T]]) -> list[T]:
    """Return the connections of the address that has the most, in the order given."""
    by_address: defaultdict[str, list[T]] = defaultdict(list)
    for address, connection in connections:
        by_address[address].append(connection)
    return max(by_address.values(), key=len)


def bound_handshakes(loop: asyncio.AbstractEventLoop) -> None:
    """Let the servers that this loop creates with TLS shake hands in `Handshake`."""
    create_server: Callable[..., Awaitable[asyncio.Server]] = loop.create_server

    async def create(
        factory: Callable[[], asyncio.Protocol], *args: Any, ssl: ssl.SSLContext | None = None, **kwargs: Any
    ) -> asyncio.Server:
        if ssl is None:
            return await create_server(factory, *args, **kwargs)
        under_way: dict[Handshake, None] = {}
        return await create_server(lambda: Handshake(factory(), ssl, under_way), *args, **kwargs)

    loop.create_server = create  # type: ignore[method-assign, assignment]


class Handshake(asyncio.Protocol):
    """One accepted connection until it speaks TLS; then the inner protocol has it.

    Args:
        inner: What speaks over the connection.
        context: The certificate.
        under_way: All that shake hands at the moment, the oldest first.
    """

    def __init__(self, inner: asyncio.Protocol, context: ssl.SSLContext, under_way: dict[Handshake, None]) -> None:
        self._inner = inner
        self._context = context
        self._under_way = under_way
        self._early = bytearray()
        self._ended = False
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # What has come already belongs to the handshake.
        transport.pause_reading()
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._under_way[self] = None
        if len(self._under_way) > HANDSHAKES_MAX:
            of_the_busiest_address((each.address, each) for each in self._under_way)[0].drop()
        self._shaking = asyncio.get_running_loop().create_task(self._shake())

    def data_received(self, data: bytes) -> None:
        """Keep what comes with the end of the handshake."""
        self._early += data

    def connection_lost(self, _: Exception | None) -> None:
        self._ended = True

    async def _shake(self) -> None:
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:  # also of TLS, and of its time
            self._transport.abort()
            return
        finally:
            self._under_way.pop(self, None)
        if transport is None or self._ended:
            return
        transport.set_protocol(self._inner)
        self._inner.connection_made(transport)
        if self._early:
            self._inner.data_received(bytes(self._early))

    def drop(self) -> None:
        """Close the connection at once."""
        # Its place is free now, not when its task ends: many connections can arrive at once.
        self._under_way.pop(self, None)
        self._transport.abort()
