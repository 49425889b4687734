"""The port of a process is open at once; the application is loaded when there is time for it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sidecar.errors import CommandFailed
from sidecar.serving import http as http_module
from sidecar.serving.http import Http
from sidecar.serving.server import Server
from sidecar.settings import Settings

SOON_S = 30.0
LOADED_LATER = ("fastapi", "starlette", "uvicorn", "h11", "anyio", "pydantic", "opentelemetry", "sidecar.api.app")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "WITHIN_S", 3_600.0)


class Loading:
    """Makes servers, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, listener: socket.socket) -> Server:
        async def live(_request: Request) -> PlainTextResponse:
            return PlainTextResponse("ok")

        self.made += 1
        return Server(Starlette(routes=[Route("/livez", live)]), host="127.0.0.1", port=0, listener=listener)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], Server]], Http]]:
    started: list[Http] = []

    def start(make: Callable[[socket.socket], Server]) -> Http:
        started.append(Http(Settings(http_port=0), make))
        return started[-1]

    yield start
    for each in started:
        each.stop(SOON_S)


def test_nothing_of_the_api_is_imported_before_the_first_message_fires() -> None:
    program = (
        "import json, sys, sidecar.cli, sidecar.cli.run, sidecar.runtime.main; "
        f"print(json.dumps([name for name in {LOADED_LATER!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []


@pytest.mark.usefixtures("later")
def test_a_request_before_the_application_is_loaded_waits_for_it(serve: Callable[[Loading], Http]) -> None:
    loading = Loading()
    http = serve(loading)
    with socket.create_connection(("127.0.0.1", httpx.URL(http.url).port or 0), timeout=SOON_S) as early:
        early.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert loading.made == 0
        http.open()
        received = b""
        while chunk := early.recv(4096):
            received += chunk
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"ok")
    assert loading.made == 1


def test_the_application_is_loaded_in_time_for_probes_when_nothing_asks_for_it(
    serve: Callable[[Loading], Http], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http_module.WITHIN_S < 5, "the shortest time-out of a probe in the charts"
    monkeypatch.setattr(http_module, "WITHIN_S", 0.01)
    http = serve(Loading())
    assert httpx.get(http.url + "/livez", timeout=SOON_S).text == "ok"


@pytest.mark.usefixtures("later")
def test_what_prevents_the_application_from_loading_ends_the_process(serve: Callable[..., Http]) -> None:
    def fail(_listener: socket.socket) -> Server:
        raise ImportError("no such library")

    http = serve(fail)
    with pytest.raises(ImportError, match="no such library"):
        http.await_open()

    with pytest.raises(ImportError, match="no such library"):
        http.open()


@pytest.mark.usefixtures("later")
def test_a_process_that_ends_early_closes_its_port_and_loads_nothing(serve: Callable[[Loading], Http]) -> None:
    loading = Loading()
    http = serve(loading)
    port = httpx.URL(http.url).port or 0
    http.stop(SOON_S)
    assert loading.made == 0
    assert not any(thread.name == "http-start" for thread in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=SOON_S)


@pytest.mark.usefixtures("later")
def test_a_port_in_use_is_refused_at_once(serve: Callable[[Loading], Http]) -> None:
    taken = httpx.URL(serve(Loading()).url).port or 0
    with pytest.raises(CommandFailed, match=f"HTTP_PORT: port {taken}"):
        Http(Settings(http_port=taken), Loading())
