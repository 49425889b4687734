"""A running instance under attack, over real sockets: who sends nonsense, and who sends too much, keeps nobody out."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from sidecar.api.auth import OPEN_PATHS, Gate
from sidecar.api.connect import plugins
from sidecar.api.guard import RateLimiter
from sidecar.api.messages.changes import ACTIONS_AT_A_TIME, WAITING_MAX
from sidecar.serving import server as server_module
from sidecar.serving.server import CONNECTIONS_MAX, HEAD_BYTES_MAX, HEAD_LINES_MAX, Server
from tests.unit.api.test_api import Snapshots
from tests.unit.api_stage import Client, Desk, Told
from tests.unit.engine.test_view import NOW_MS, view_of
from tests.waiting import eventually

SOON_S = 60.0
TOKEN = {"authorization": "Bearer secret"}
TIMER = f"/pending/messages/0-0-{NOW_MS}"
VALIDATE = "/connector-plugins/RetrySidecar/config/validate"


@contextlib.contextmanager
def running(app: Any) -> Iterator[Server]:
    server = Server(app, host="127.0.0.1", port=0)
    server.start()
    try:
        yield server
    finally:
        server.stop(SOON_S)


@pytest.fixture
def guarded() -> Iterator[Server]:
    """An instance with a token."""
    with (
        Client(Snapshots([view_of([NOW_MS + 3_000])]), desk=Desk(), token="secret") as client,
        running(client.app) as it,
    ):
        yield it


@pytest.fixture
def unguarded() -> Iterator[Server]:
    """An instance without a token: it takes bodies from everybody."""
    with Client(Snapshots([view_of([NOW_MS + 3_000])])) as client, running(client.app) as it:
        yield it


def connect(server: Server, sent: bytes = b"", address: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), SOON_S, source_address=(address, 0))
    client.sendall(sent)
    return client


def half_a_request(path: str, method: str = "PATCH", length: int = 50) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}"
    return f"{head}\r\n\r\n".encode()


def first_line(client: socket.socket) -> bytes:
    """Return the first line of the answer, empty when the server has closed without one."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while b"\r\n" not in received and (chunk := client.recv(65_536)):
            received += chunk
    return received.partition(b"\r\n")[0]


def status(server: Server, path: str = "/livez", method: str = "GET", **kwargs: Any) -> int:
    return httpx.request(method, server.url + path, timeout=SOON_S, **kwargs).status_code


def test_half_sent_bodies_keep_neither_probes_nor_others_out(unguarded: Server) -> None:
    with contextlib.ExitStack() as slow:
        for _ in range(CONNECTIONS_MAX + 20):
            slow.enter_context(connect(unguarded, half_a_request(TIMER)))
        answers = [status(unguarded, path) for _ in range(15) for path in ("/livez", "/pending")]
    assert answers == [200] * 30


def test_half_a_body_holds_its_connection_for_seconds_only(unguarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_module.BODY_S < server_module.EXCHANGE_S
    monkeypatch.setattr(server_module, "BODY_S", 0.2)
    monkeypatch.setattr(server_module, "EXCHANGE_S", 3_600.0)
    monkeypatch.setattr(server_module, "LATE_S", 3_600.0)
    with connect(unguarded, half_a_request(TIMER)) as slow:
        assert first_line(slow) == b""


def test_who_sends_half_a_body_takes_no_place_among_the_requests(unguarded: Server) -> None:
    with contextlib.ExitStack() as slow:
        for _ in range(CONNECTIONS_MAX - 10):
            slow.enter_context(connect(unguarded, half_a_request(VALIDATE, "PUT")))
        assert status(unguarded, VALIDATE, "PUT", json={"connector.class": "RetrySidecar"}) == 200


def test_a_change_without_the_token_is_refused_before_its_body(guarded: Server) -> None:
    with connect(guarded, half_a_request(TIMER)) as client:
        assert first_line(client).startswith(b"HTTP/1.1 401 ")


def test_what_nobody_may_change_is_refused_before_its_body() -> None:
    stage = Client(Snapshots([view_of([])]), loopback=False)
    with stage as client, running(client.app) as it, connect(it, half_a_request(TIMER)) as sender:
        assert first_line(sender).startswith(b"HTTP/1.1 403 ")


def test_a_flood_from_one_address_does_not_keep_another_one_out() -> None:
    """As kubelet's is, on the node."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/hangs":
            await receive()
            await receive()
            return
        await PlainTextResponse("alive")(scope, receive, send)

    with running(app) as server, contextlib.ExitStack() as flood:
        with contextlib.suppress(ConnectionResetError):
            for _ in range(CONNECTIONS_MAX + 30):
                flood.enter_context(connect(server, b"GET /hangs HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        for _ in range(5):
            with connect(server, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", "127.0.0.2") as probe:
                assert first_line(probe).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * HEAD_LINES_MAX,
    ],
)
def test_a_long_head_is_refused_although_it_comes_at_once(unguarded: Server, head: bytes) -> None:
    with connect(unguarded, head + b"\r\n") as client:
        assert first_line(client).startswith(b"HTTP/1.1 400 ")
    behind = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" + head + b"\r\n"
    with connect(unguarded, behind) as client:
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := client.recv(65_536):
                received += chunk
    assert received.count(b"HTTP/1.1 200 ") == 1
    assert received.count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # how TLS begins
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET  /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n folded\r\nX\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
        b"GET /li\x00vez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PATCH /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"PATCH /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"PATCH /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"PATCH /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[::1/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nExpect: nothing\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_request_is_answered_as_every_error_is(unguarded: Server, sent: bytes) -> None:
    with connect(unguarded, sent) as client:
        client.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := client.recv(65_536):
                received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    status_code = int(head.split()[1])
    if status_code == 200:
        assert b"Upgrade" in sent, "an upgrade is not made, as HTTP allows"
        return
    assert 400 <= status_code < 500
    assert b"content-type: application/json" in head
    said = json.loads(body)
    assert (set(said), said["error_code"]) == ({"error_code", "message"}, status_code)


def test_requests_that_queue_while_the_process_stands_still_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "EXCHANGE_S", 3.0)
    monkeypatch.setattr(server_module, "LATE_S", 0.1)
    with Client(Snapshots([view_of([NOW_MS + 3_000])])) as client:

        @client.app.get("/ui/stalls")
        async def stalls() -> None:
            time.sleep(4.0)

        client.app.router.routes.insert(0, client.app.router.routes.pop())
        with running(client.app) as server, contextlib.ExitStack() as opened:
            waiting = [opened.enter_context(connect(server)) for _ in range(20)]
            with connect(server, b"GET /ui/stalls HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                for each in waiting:
                    each.sendall(b"GET /pending HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert [first_line(each) for each in waiting] == [b"HTTP/1.1 200 OK"] * 20


def test_every_answer_keeps_out_of_frames_and_of_other_sites_pages(guarded: Server) -> None:
    paths = [*sorted(OPEN_PATHS), "/nowhere", "/ui/app.js", "/docs-assets/swagger-ui.css", TIMER]
    answers = [httpx.get(guarded.url + path, timeout=SOON_S) for path in paths]
    with connect(guarded, b"nonsense\r\n\r\n") as client:
        raw = client.makefile("rb").read()
    assert b"frame-ancestors 'none'" in raw
    for answer in answers:
        assert answer.headers["x-frame-options"] == "DENY", answer.url
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], answer.url
        assert "default-src" in answer.headers["content-security-policy"], answer.url
        assert answer.headers["referrer-policy"] == "no-referrer", answer.url
        assert answer.headers["x-content-type-options"] == "nosniff", answer.url


def test_the_page_of_the_reference_may_run_its_own_script_and_no_other(guarded: Server) -> None:
    page = httpx.get(guarded.url + "/docs", timeout=SOON_S)
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = next(each for each in page.headers["content-security-policy"].split(";") if "script-src" in each)
    assert scripts.split() == ["script-src", "'self'", f"'sha256-{own}'"]
    for address in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert httpx.get(f"{guarded.url}/{address}", timeout=SOON_S).status_code == 200


@pytest.mark.parametrize("authorization", ["", "Authorization: Bearer reads\r\n"], ids=["strangers", "readers"])
def test_who_asks_too_much_keeps_neither_an_operator_nor_prometheus_nor_probes_out(authorization: str) -> None:
    """Their requests wait for one another; operators, metrics and probes have budgets of their own."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        until_s = time.thread_time() + (0.25 if scope["path"] == "/pending" else 0.0)
        while time.thread_time() < until_s:
            pass
        await PlainTextResponse("done")(scope, receive, send)

    limited = RateLimiter(app, Gate(["secret"], ["reads"], loopback=True))
    with running(limited) as server, contextlib.ExitStack() as opened:
        flood = [opened.enter_context(connect(server)) for _ in range(12)]
        for each in flood:
            each.sendall(f"GET /pending HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n".encode())
        for _ in range(3):
            assert status(server, TIMER, "DELETE", headers=TOKEN) == 200
            assert status(server, "/metrics") == 200
            assert status(server, "/readyz") == 200
        assert {first_line(each).split()[1] for each in flood} == {b"200", b"429"}


def test_strangers_that_wait_leave_room_for_probes_and_for_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateLimiter, "WAIT_MAX_S", 3_600.0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/pending":
            await receive()
            return
        await PlainTextResponse("done")(scope, receive, send)

    limited = RateLimiter(app, Gate(["secret"], loopback=True))
    with running(limited) as server, contextlib.ExitStack() as opened:
        flood = [opened.enter_context(connect(server)) for _ in range(CONNECTIONS_MAX)]
        for each in flood:
            each.sendall(b"GET /pending HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(5):
            assert status(server, TIMER, "DELETE", headers=TOKEN) == 200
            assert status(server) == 200


def test_of_too_many_changes_at_once_the_last_ones_are_turned_away() -> None:
    answered = threading.Event()

    class Slow(Desk):
        def act(self, *args: Any) -> Told:
            assert answered.wait(SOON_S)
            return super().act(*args)

    statuses: list[int] = []

    def cancel(server: Server) -> None:
        statuses.append(status(server, TIMER, "DELETE", headers=TOKEN))

    over = 6
    most = ACTIONS_AT_A_TIME + WAITING_MAX
    with (
        Client(Snapshots([view_of([NOW_MS + 3_000])]), desk=Slow(), token="secret") as client,
        running(client.app) as server,
    ):
        flood = [threading.Thread(target=cancel, args=(server,)) for _ in range(most + over)]
        for each in flood:
            each.start()
        eventually(lambda: len(statuses) == over, SOON_S, "those beyond the bound are answered at once")
        assert not {200, 202} & set(statuses)
        assert status(server) == 200
        answered.set()
        for each in flood:
            each.join()
    assert statuses[over:] == [200] * most


def test_nested_yaml_is_refused_for_its_depth_and_computed_apart_from_the_requests(
    unguarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    validated = plugins.validated

    def noted(config: Any) -> Any:
        threads.append(threading.current_thread().name)
        return validated(config)

    monkeypatch.setattr(plugins, "validated", noted)
    names = ("origin.policies", "policies", "exception.policies", "backoff", "custom.headers")
    bomb = {"connector.class": "RetrySidecarConnector"} | dict.fromkeys(names, "[" * 4_000)
    answer = httpx.put(unguarded.url + VALIDATE, json=bomb, timeout=SOON_S)
    assert answer.status_code == 200
    errors = [each["value"]["errors"] for each in answer.json()["configs"] if each["value"]["errors"]]
    assert len(errors) == len(names)
    assert sum("nested more than 32 deep" in text for texts in errors for text in texts) >= 3
    (thread,) = threads
    assert thread != "http"


def test_the_process_answers_again_at_once_after_the_flood(unguarded: Server) -> None:
    for _ in range(3):
        with contextlib.ExitStack() as flood:
            for _ in range(CONNECTIONS_MAX):
                flood.enter_context(connect(unguarded, half_a_request(TIMER)))
    eventually(lambda: status(unguarded, "/pending") == 200, SOON_S, "the flood is over")
