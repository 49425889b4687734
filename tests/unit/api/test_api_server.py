"""The HTTP server on a real socket, with clients that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from sidecar.api.app import create_app
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.metrics import Metrics
from sidecar.serving import listener
from sidecar.serving import server as server_module
from sidecar.serving.server import CONNECTIONS_MAX, HEAD_BYTES_MAX, Server, _Gathered
from tests.unit.api.test_api import Failing, Snapshots
from tests.unit.engine.test_view import view_of
from tests.waiting import eventually

PARTIAL_HEAD = b"GET /pending HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
SOON_S = 12.0
"""Less than a slow client may take (EXCHANGE_S)."""


def served(source: Snapshots, *, port: int = 0) -> Server:
    metrics = Metrics(version="1.2.3", now_ms=source.now_ms)
    return Server(create_app(source, metrics=metrics, version="1.2.3"), host="127.0.0.1", port=port)


@pytest.fixture
def server() -> Iterator[Server]:
    running = served(Snapshots([view_of([1_800_000_000_000])]))
    running.start()
    yield running
    running.stop(SOON_S)
    assert not running.alive


def connect(server: Server, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S)
    client.sendall(sent)
    return client


def read_all(client: socket.socket) -> bytes:
    """Return what the server sends until it closes; a reset counts as the end."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(65_536):
            received += chunk
    return received


def was_dropped(client: socket.socket) -> bool:
    """Tell whether the server has ended this connection, on which it never answered."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def assert_answered(server: Server) -> None:
    assert httpx.get(server.url + "/pending", timeout=SOON_S).json()["total"] == 1


def test_the_head_of_an_answer_is_sent_with_its_body(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    flush = _Gathered.flush

    def noted(self: _Gathered) -> None:
        sent.extend([b"".join(self._held)] if self._held else [])
        flush(self)

    monkeypatch.setattr(_Gathered, "flush", noted)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SOON_S)
    for _ in range(2):
        connection.request("GET", "/pending")
        body = connection.getresponse().read()
        assert json.loads(body)["total"] == 1
        (one,) = sent
        assert one.startswith(b"HTTP/1.1 200")
        assert one.endswith(b"\r\n\r\n" + body)
        sent.clear()
    connection.close()


def test_an_answer_that_comes_in_parts_is_sent_as_it_comes() -> None:
    """The second part is only sent when the client says that it has the first one."""
    has_first = threading.Event()

    async def in_parts(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        async with asyncio.timeout(SOON_S):
            await asyncio.to_thread(has_first.wait, SOON_S)
        await send({"type": "http.response.body", "body": b"second"})

    running = Server(in_parts, host="127.0.0.1", port=0)
    running.start()
    try:
        client = connect(running, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = b""
        while b"first" not in received:
            received += client.recv(65_536)
        assert b"second" not in received
        has_first.set()
        assert b"second" in read_all(client)
        client.close()
    finally:
        running.stop(SOON_S)


def test_port_0_takes_a_free_port_and_tells_it(server: Server) -> None:
    assert server.port > 0
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert_answered(server)


def test_a_connection_serves_many_requests(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=SOON_S) as client:
        answers = [client.get(path) for path in ("/pending", "/livez", "/metrics/", "/nowhere", "/pending")]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 200]
    assert {answer.headers["x-content-type-options"] for answer in answers} == {"nosniff"}
    assert all("server" not in answer.headers for answer in answers)


def test_head_has_the_length_and_no_body(server: Server) -> None:
    with connect(server, b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") as client:
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: 28" in head
    assert body == b""


def test_a_port_in_use_is_named_with_the_setting_to_change(server: Server) -> None:
    with pytest.raises(CommandFailed, match=rf"port {server.port} .* in use .*KAFKA_RETRY_HTTP_PORT"):
        served(Snapshots(), port=server.port).start()
    assert_answered(server)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_ours_is_named_with_the_setting_to_change(host: str) -> None:
    app = create_app(Snapshots(), metrics=Metrics(version="1", now_ms=int), version="1")
    with pytest.raises(CommandFailed, match=rf"HTTP_HOST: .*{host}.*KAFKA_RETRY_HTTP_HOST"):
        Server(app, host=host, port=0).start()


def test_a_port_without_the_right_to_it_is_named() -> None:
    advice = listener._advice("0.0.0.0", 80, OSError(errno.EACCES, "Permission denied"))
    assert "port 80" in advice
    assert "KAFKA_RETRY_HTTP_PORT to 1024 or above" in advice


def test_it_listens_on_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6: sysctl net.ipv6.conf.lo.disable_ipv6=0 gives it a loopback")
    app = create_app(Snapshots(), metrics=Metrics(version="1", now_ms=int), version="1")
    six = Server(app, host="::1", port=0)
    try:
        six.start()
    except CommandFailed as refusal:
        pytest.skip(str(refusal))
    try:
        assert httpx.get(six.url + "/livez", timeout=SOON_S).status_code == 200
    finally:
        six.stop(SOON_S)


def test_after_stop_the_port_is_free_again_although_clients_hang_on() -> None:
    first = served(Snapshots())
    first.start()
    with connect(first, PARTIAL_HEAD), connect(first):
        began_s = SystemClock().monotonic_s()
        first.stop(SOON_S)
        assert SystemClock().monotonic_s() - began_s < SOON_S
        assert not first.alive
        second = served(Snapshots([view_of([1_800_000_000_000])]), port=first.port)
        second.start()
        assert_answered(second)
        second.stop(SOON_S)


def test_a_request_still_running_when_the_server_stops_gets_503() -> None:
    """As a change does whose outcome is not there yet."""
    app = create_app(Snapshots([]), metrics=Metrics(version="1", now_ms=lambda: 0), version="1")
    reached = threading.Event()

    @app.get("/waits")
    async def waits() -> None:
        reached.set()
        await asyncio.Event().wait()

    running = Server(app, host="127.0.0.1", port=0)
    running.start()
    with connect(running, b"GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
        assert reached.wait(30)
        running.stop(30)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error_code"] == 503
    assert "another instance" in json.loads(body)["message"]


def test_stop_before_start_does_nothing() -> None:
    served(Snapshots()).stop(SOON_S)


def test_more_slow_clients_than_places_do_not_keep_others_out(server: Server) -> None:
    with contextlib.ExitStack() as slow:
        clients = [slow.enter_context(connect(server, PARTIAL_HEAD)) for _ in range(CONNECTIONS_MAX + 20)]
        for _ in range(5):
            assert_answered(server)
        dropped = [was_dropped(client) for client in clients]
    assert dropped[:20] == [True] * 20, "the oldest make room"
    assert dropped[-CONNECTIONS_MAX // 2 :] == [False] * (CONNECTIONS_MAX // 2)


def test_a_client_that_sends_its_head_byte_by_byte_is_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_dropped(client: socket.socket) -> bool:
        client.settimeout(0.05)
        try:
            client.sendall(b"x")
            return client.recv(1) == b""
        except TimeoutError:
            return False
        except (ConnectionResetError, BrokenPipeError):
            return True

    with connect(server, PARTIAL_HEAD) as patient:
        assert not is_dropped(patient)
    monkeypatch.setattr(server_module, "EXCHANGE_S", 0.5)
    with connect(server, PARTIAL_HEAD) as client:
        eventually(lambda: is_dropped(client), 60.0, "the trickling client is dropped")
    assert_answered(server)


def test_a_client_that_does_not_read_its_answers_is_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "EXCHANGE_S", 0.5)
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def is_dropped() -> bool:
        try:
            client.send(request * 50)
        except TimeoutError:
            return False
        except (ConnectionResetError, BrokenPipeError):
            return True
        return False

    with socket.socket() as client:
        # Before it connects: a small window is filled by few answers.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", server.port))
        client.settimeout(0.05)
        eventually(is_dropped, 120.0, "the client that reads nothing is dropped")
    assert_answered(server)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 2 * HEAD_BYTES_MAX,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2 * HEAD_BYTES_MAX,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_the_shape_of_all_errors(server: Server, sent: bytes) -> None:
    with connect(server, sent) as client:
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(body)["error_code"] == 400
    assert_answered(server)


def test_an_unexpected_body_is_not_read(server: Server) -> None:
    head = b"GET /pending HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    with connect(server, head) as client:
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"takes no body" in answer


def test_a_bug_is_logged_with_its_trace_and_requests_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    failing = served(Failing())
    failing.start()
    assert httpx.get(failing.url + "/livez", timeout=SOON_S).status_code == 200
    assert httpx.get(failing.url + "/pending", timeout=SOON_S).json()["error_code"] == 500
    failing.stop(SOON_S)
    ours = [record for record in caplog.records if record.name.startswith("uvicorn")]
    assert [record.levelname for record in ours] == ["ERROR"]
    assert "a secret of the implementation" in str(ours[0].exc_info)


def test_many_clients_at_once_are_all_answered(server: Server) -> None:
    statuses: list[int] = []

    def answer() -> int | None:
        # 429 is the answer of a machine that has no time for all of them at once: the client asks again.
        status = httpx.get(server.url + "/pending", timeout=120.0).status_code
        return None if status == 429 else status

    def ask() -> None:
        statuses.append(eventually(answer, 120.0, "a client gets its answer") or 0)

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 40
