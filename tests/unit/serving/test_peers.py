"""Calls to another instance: its answer is returned unchanged, and no instance can keep the caller waiting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.serving import peers
from sidecar.serving.address import advertised_url
from sidecar.serving.peers import HttpPeers
from sidecar.serving.tls import client_context
from sidecar.settings import Settings

TLS = client_context(None)
Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server of the test take its time, where the time is not the point."""
    monkeypatch.setattr(peers, "WAIT_S", 60.0)
    monkeypatch.setattr(peers, "ANSWER_S", 60.0)


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def test_status_and_body_come_back_and_the_token_goes_along() -> None:
    seen: list[tuple[str, str | None, str | None]] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        headers = handler.headers
        seen.append((handler.path, headers.get("x-retry-sidecar-forwarded"), headers.get("authorization")))
        said(handler, 404, b'{"error_code":404}')

    with serving(answer) as url:
        asked = HttpPeers(SystemClock(), "secret", TLS)
        assert asked.get(url, "/pending/messages?limit=1") == (404, b'{"error_code":404}')
        HttpPeers(SystemClock(), None, TLS).get(url, "/y")
    assert seen == [("/pending/messages?limit=1", "1", "Bearer secret"), ("/y", "1", None)]


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254", "http://10.0.0.1:8080", "https://elsewhere.example", "http://[::2]"]
)
def test_without_a_token_an_address_of_another_machine_is_not_asked(url: str) -> None:
    with pytest.raises(CommandFailed, match="set API_TOKEN"):
        HttpPeers(SystemClock(), None, TLS).send("POST", url, "/")


def test_a_redirect_is_not_followed() -> None:
    with serving(lambda handler: said(handler, 302, b"", Location="http://127.0.0.1:1/")) as url:
        assert HttpPeers(SystemClock(), "secret", TLS).get(url, "/") == (302, b"")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "", "http://[", "http://h:x", "http://127.0.0.1:1"])
def test_what_does_not_answer_is_said(url: str) -> None:
    with pytest.raises(CommandFailed, match=r"address|answer"):
        HttpPeers(SystemClock(), None, TLS).get(url, "/")


def test_an_instance_that_is_silent_does_not_hold_the_asker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WAIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CommandFailed, match="does not answer"):
            HttpPeers(SystemClock(), None, TLS).get(url, "/")


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        try:
            said(handler, 200, b"")
            while True:
                handler.wfile.write(b"x" * 1_000)
        except OSError:
            return

    with serving(endless) as url:
        monkeypatch.setattr(peers, "ANSWER_BYTES_MAX", 100_000)
        with pytest.raises(CommandFailed, match="bytes"):
            HttpPeers(SystemClock(), None, TLS).get(url, "/")
        monkeypatch.setattr(peers, "ANSWER_BYTES_MAX", 10**12)
        monkeypatch.setattr(peers, "ANSWER_S", 0.1)
        with pytest.raises(CommandFailed, match="longer"):
            HttpPeers(SystemClock(), None, TLS).get(url, "/")


def test_the_published_address_is_one_that_others_can_reach() -> None:
    def told(host: str, brokers: str = "127.0.0.1:9092") -> str:
        return advertised_url(Settings(http_host=host, bootstrap_servers=brokers), f"http://{host}:8080")

    assert told("0.0.0.0") == "http://127.0.0.1:8080"
    assert told("0.0.0.0", "SASL_SSL://127.0.0.1:9092,b:9092") == "http://127.0.0.1:8080"
    assert told("10.1.2.3") == "http://10.1.2.3:8080"
    assert told("sidecar-0.retry") == "http://sidecar-0.retry:8080"
    assert told("0.0.0.0", "name.invalid:9092") == "http://0.0.0.0:8080"
    named = Settings(http_host="0.0.0.0", http_advertised_url="https://sidecar.example:443")
    assert advertised_url(named, "http://0.0.0.0:8080") == "https://sidecar.example:443"
    assert advertised_url(Settings(http_host="0.0.0.0"), "https://0.0.0.0:8443").startswith("https://127.0.0.1:8443")
