"""Requests that mean harm: every answer is one of the API's own, and the next client notices nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from sidecar.api.guard import BODY_BYTES_MAX
from sidecar.serving import server as server_module
from sidecar.serving.server import Server
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api.test_api_server import SOON_S, connect, read_all
from tests.unit.api_stage import Client, Desk, Held, message
from tests.unit.engine.test_view import NOW_MS, view_of
from tests.waiting import eventually

TARGET = f"/pending/messages/{message(NOW_MS).id}"
DESK = Desk()
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(Snapshots([view_of([NOW_MS])]), Held([message(NOW_MS)]), desk=DESK) as client:
        yield client


@pytest.fixture
def desk() -> Desk:
    DESK.acted.clear()
    return DESK


@pytest.fixture(scope="module")
def server(client: Client) -> Iterator[Server]:
    running = Server(client.app, host="127.0.0.1", port=0)
    running.start()
    yield running
    running.stop(SOON_S)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * BODY_BYTES_MAX,
        b'{"delay_ms":' * (BODY_BYTES_MAX // 16),
        b'{"delay_ms":' + b"9" * (BODY_BYTES_MAX - 32) + b"}",
        b'{"delay_ms":1e999}',
        b'{"delay_ms":NaN}',
        b'{"delay_ms":true}',
        b'{"delay_ms":"5"}',
        b'{"\\ud800":1}',
        b'{"delay_ms":"\\ud800"}',
        b'{"delay_ms":1,"delay_ms":2,"due_ms":3}',
        b"\xff\xfe{",
        b"\x00",
        b"",
        b"null",
        b"{}" + b" " * 100 + b"x",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_none_is_refused_and_changes_nothing(client: Client, desk: Desk, body: bytes) -> None:
    assert_problem(client.request("PATCH", TARGET, content=body, headers=JSON), 400)
    assert desk.acted == []


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/pending/messages/%00",
            "/pending/messages/%ff%fe",
            "/pending/messages/id:",
            "/pending/messages/id:%ED%A0%80",
        ),
        *(
            "/pending/messages/..%2f..%2fetc%2fpasswd",
            f"/pending/messages/{'9' * 4_000}-1-1",
            "/pending/messages/1-1--1",
        ),
        *("/pending/messages?cursor=%00", "/pending/messages?limit=1&limit=2000", "/pending/messages?origin=../../x"),
        *("/pending?origin=%ED%A0%80", "/pending?partition=" + "9" * 5_000, "/pending/messages?due_from=1e3"),
        *("/control/%00", "/control/" + "x" * 8_000, "/control/..%2f..", "/connectors/..%2f..%2fsecret/config"),
        *("/connectors/%00/status", "/connectors/kafka-retry/tasks/" + "9" * 5_000 + "/status", "/admin/loggers/%00"),
    ],
    ids=lambda path: path[:40],
)
def test_a_path_or_query_that_names_nothing_is_refused(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in {400, 404}
    assert_problem(answer, answer.status_code)


@pytest.mark.parametrize(
    "path",
    [
        *("/ui/../api/auth.py", "/ui/..%2fauth.py", "/ui/%2e%2e/auth.py", "/ui/....//auth.py", "/ui/..%5cauth.py"),
        *("/ui//etc/passwd", "/ui/%2fetc%2fpasswd", "/ui/index.html%00.js", "/ui/./index.html/../../auth.py"),
    ],
)
def test_the_page_gives_its_own_files_only(server: Server, path: str) -> None:
    """As raw bytes on the socket: clients tidy such paths up."""
    with connect(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()) as attacker:
        head, _, body = read_all(attacker).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    assert json.loads(body)["error_code"] == 404


def test_a_body_that_comes_byte_by_byte_ends_the_connection(
    server: Server, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "EXCHANGE_S", 0.5)
    head = (
        f"PATCH {TARGET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    )

    def is_dropped() -> bool:
        try:
            attacker.sendall(b" ")
            return attacker.recv(1) == b""
        except TimeoutError:
            return False
        except (ConnectionResetError, BrokenPipeError):
            return True

    with connect(server, head.encode()) as attacker:
        attacker.settimeout(0.05)
        eventually(is_dropped, 30.0, "the connection ends")
    assert desk.acted == []


def test_a_client_that_goes_away_in_its_body_changes_nothing(server: Server, desk: Desk) -> None:
    body = b'{"delay_ms": 5}'
    head = (
        f"PATCH {TARGET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n"
    )
    with connect(server, head.encode() + body) as attacker:
        attacker.shutdown(socket.SHUT_WR)
        read_all(attacker)
    assert desk.acted == []


def test_a_second_request_hidden_in_the_first_is_not_smuggled_past_the_gate(server: Server, desk: Desk) -> None:
    """Two lengths that contradict each other are not HTTP."""
    hidden = f"DELETE {TARGET} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    head = (
        f"PATCH {TARGET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(hidden)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    with connect(server, (head + hidden).encode()) as attacker:
        answer = read_all(attacker)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 411"))
    assert desk.acted == []
