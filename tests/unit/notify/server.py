"""A webhook of the tests: a real HTTP server on this machine that answers as it is told."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tests.waiting import eventually

TOKEN: Final = "T0KEN-of-the-hook"
WAIT_S: Final = 60.0


class Answer(NamedTuple):
    """A response; without a status there is none."""

    status: int | None = 200
    headers: Mapping[str, str] = MappingProxyType({})
    drips: bool = False
    """Send the headers for ever, a byte now and then."""


class Request(NamedTuple):
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


class Hook:
    """What the server answers next, and what it was sent."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[Answer] = SimpleQueue()
        """Each is given once; then everything is accepted."""
        self.requests: list[Request] = []
        self.over = threading.Event()
        self.url = ""

    def await_requests(self, count: int) -> list[Request]:
        """Return all requests, once there are as many."""
        eventually(lambda: len(self.requests) >= count, WAIT_S, f"{count} requests")
        return self.requests

    def answer(self) -> Answer:
        return Answer() if self.answers.empty() else self.answers.get()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook: Hook = self.server.hook  # type: ignore[attr-defined]  # set by `webhook`
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = hook.answer()
        hook.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(body)))
        if answer.drips:
            self._drip(hook)
        elif answer.status is None:
            hook.over.wait(WAIT_S)
        else:
            self.send_response(answer.status)
            for name, value in {"content-length": "0", **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()

    def _drip(self, hook: Hook) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        try:
            while not hook.over.wait(0.02):
                self.wfile.write(b"x")
                self.wfile.flush()
        except OSError:
            self.close_connection = True  # the client has gone

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def webhook(certificate: str = "") -> Iterator[Hook]:
    """Serve while the block runs; with a PEM file of certificate and key, over TLS."""
    hook = Hook()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hook = hook  # type: ignore[attr-defined]  # for the handler
    scheme = "http"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    hook.url = f"{scheme}://127.0.0.1:{server.server_port}/hook/{TOKEN}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hook
    finally:
        hook.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
