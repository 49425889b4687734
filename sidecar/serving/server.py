"""Serves the application from a separate thread, and bounds what a client can use."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sidecar.api.guard import POLICIES
from sidecar.api.problems import problem
from sidecar.errors import CommandFailed
from sidecar.serving.handshakes import bound_handshakes, of_the_busiest_address
from sidecar.serving.listener import listen

CONNECTIONS_MAX: Final = 100
HEAD_BYTES_MAX: Final = 16 * 1024
HEAD_LINES_MAX: Final = 100
BODY_S: Final = 5.0
"""Longest time from the end of a head to the end of its body."""
EXCHANGE_S: Final = 15.0
"""Longest time from the start of a connection, or its last response, to the next response."""
KEEP_ALIVE_S: Final = 5
LATE_S: Final = 1.0
"""A deadline that ends so much late has seen the process stand still, and says nothing of the client."""
START_S: Final = 30.0


class _Gathered:
    """A transport that sends the head of an answer with its body.

    Each send gives up the interpreter's lock, and at full load it takes milliseconds to get it back.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold data until the answer is complete, or until the loop's next round."""
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        """Send what is held."""
        if self._held and not self._transport.is_closing():
            self._transport.write(b"".join(self._held))
        self._held.clear()

    def close(self) -> None:
        """Send what is held, then close."""
        self.flush()
        self._transport.close()


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a deadline for each part of an exchange and bounds on heads and connections.

    uvicorn itself never closes a connection that sends its request byte by byte or does not read the response, and
    refuses new ones while such clients hold all connections. Here single bytes do not extend a deadline. Of too many
    connections one of the address that has most ends: the one that has been idle for longest, if any is. So neither
    half a request nor a flood from one address keeps the probes of another one out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting_since_s = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._body_is_due = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._gathered = _Gathered(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._gathered))
        self._begin_exchange()
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        body_is_due = self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete
        if body_is_due is not self._body_is_due:
            self._body_is_due = body_is_due
            self._allow(BODY_S if body_is_due else EXCHANGE_S)

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE:
            # Before the library sees it: it takes whatever came at once, and its time grows with the lines.
            head, _, _ = self.conn.trailing_data[0].partition(b"\r\n\r\n")
            if len(head) > HEAD_BYTES_MAX or head.count(b"\n") > HEAD_LINES_MAX:
                self.send_400_response("The head of the request is too long.")
                return
        super().handle_events()

    def on_response_complete(self) -> None:
        self._gathered.flush()
        self._begin_exchange()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, or one with a too long head, in the format of all errors."""
        if self.is_busy():
            # A response cannot be inserted into another one.
            self.drop()
            return
        bounds = f"{HEAD_BYTES_MAX} bytes and {HEAD_LINES_MAX} lines at most"
        answer = problem(400, f"{msg} Its head may have {bounds}.", {**POLICIES, "connection": "close"})
        head = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def is_busy(self) -> bool:
        """Return whether a request is being answered whose body is complete, or whose answer has begun."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body)

    def drop(self) -> None:
        """Close the connection at once, even with unread data."""
        # Free the slot now, not in connection_lost: many connections can arrive at once.
        self.connections.discard(self)
        self.transport.abort()

    def _make_room(self) -> None:
        connections = [other for other in self.connections if isinstance(other, BoundedProtocol)]
        most = of_the_busiest_address((other.client[0] if other.client else "", other) for other in connections)
        min(most, key=lambda other: (other.is_busy(), other._waiting_since_s)).drop()  # noqa: SLF001

    def _begin_exchange(self) -> None:
        self._waiting_since_s = self.loop.time()
        self._body_is_due = False
        self._allow(EXCHANGE_S)

    def _allow(self, seconds: float) -> None:
        """Set the deadline of what the client is to do next."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._expire, self.loop.time() + seconds)

    def _expire(self, due_s: float) -> None:
        if self.loop.time() - due_s > LATE_S:
            self._allow(EXCHANGE_S)
        else:
            self.drop()


class _SignallingServer(uvicorn.Server):
    """uvicorn's server with an event that is set when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        bound_handshakes(asyncio.get_running_loop())
        await super().startup(sockets)
        self.up.set()


class Server:
    """The HTTP server: a daemon thread with its own event loop.

    Args:
        app: The application.
        host: Address to listen at (setting HTTP_HOST).
        port: Port to listen at (setting HTTP_PORT); 0 takes any free one.
        listener: The socket, when it listens already.
        close: Ends what requests have started; called with a deadline in seconds after the last response.
        certificate: With it the server speaks HTTPS (setting HTTP_TLS_CERT).
        key: Its key (setting HTTP_TLS_KEY).
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        listener: socket.socket | None = None,
        close: Callable[[float], None] = lambda _: None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._app = app
        self._certificate = certificate
        self._key = key
        self._close = close
        self._listener = listener
        self._host = host
        self._port = port
        self._server: _SignallingServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port; after start() the actual one, even for port 0."""
        return self._port

    @property
    def url(self) -> str:
        """The URL of the server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._certificate is None else 'https'}://{host}:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Listen, and return when the server accepts requests.

        Raises:
            CommandFailed: The address or port cannot be used; the text names the setting.
        """
        listener = self._listener or listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        self._server = _SignallingServer(self._config())
        self._thread = threading.Thread(target=self._serve, args=([listener],), name="http", daemon=True)
        self._thread.start()
        if not self._server.up.wait(START_S):
            raise CommandFailed(f"The HTTP server at {self.url} did not start within {START_S:g} s.")

    def stop(self, deadline_s: float) -> None:
        """Finish current responses and end the thread; after the deadline let it die with the process."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(deadline_s)
        self._close(deadline_s)

    def _serve(self, sockets: list[socket.socket]) -> None:
        assert self._server is not None
        self._server.run(sockets)

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._app,
            ssl_certfile=self._certificate,
            ssl_keyfile=self._key,
            loop="asyncio",
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            # Logging is set up by the process. Only errors: a hostile client must not be able to fill the log.
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[("x-content-type-options", "nosniff")],
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
