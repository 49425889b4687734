"""Changes over HTTP: every response of a sidecar becomes a definite outcome, a refusal, or neither."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from retry_sidecar import Change, NoOutcome, Outcome, Sidecar, SidecarRefused


class Server(ThreadingHTTPServer):
    """Answers requests with the responses that a test gives, the last one again and again; None ends the connection."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.responses: list[tuple[int, object] | None] = []
        self.requests: list[tuple[str, str, str | None, bytes]] = []

    @property
    def control_id(self) -> str:
        """Return the id that the first request brought."""
        return parse_qs(urlsplit(self.requests[0][1]).query)["control_id"][0]

    def sidecar(self, *responses: tuple[int, object] | None, **options: Any) -> Sidecar:
        """Return a client of this server."""
        self.responses = list(responses)
        return Sidecar(f"http://127.0.0.1:{self.server_port}/base/", **options)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization"), content))
        responses = self.server.responses
        response = responses.pop(0) if len(responses) > 1 else responses[0]
        if response is None:
            return
        status, body = response
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    do_GET = do_POST = do_DELETE = do_PATCH = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def body(result: str | None, count: int = 1) -> dict[str, object]:
    return {"result": result, "count": count, "control_id": "c/1", "target": "id:a", "detail": "", "missing": []}


def test_each_change_is_the_request_that_the_sidecar_documents(server: Server) -> None:
    sidecar = server.sidecar((200, body("cancelled", 2)), token="secret")
    assert sidecar.cancel("id:order/17 ü") == Change(Outcome.CANCELLED, 2, "c/1", "")
    sidecar.reschedule("0-1-2", delay_ms=5)
    sidecar.reschedule("0-1-2", due_ms=7)
    sidecar.fire("0-1-2")
    sidecar.cancel("id:a", origin="orders")
    asked = [(method, urlsplit(path), content) for method, path, _, content in server.requests]
    assert [(method, url.path, content) for method, url, content in asked] == [
        ("DELETE", "/base/pending/messages/id%3Aorder%2F17%20%C3%BC", b""),
        ("PATCH", "/base/pending/messages/0-1-2", b'{"delay_ms": 5}'),
        ("PATCH", "/base/pending/messages/0-1-2", b'{"due_ms": 7}'),
        ("POST", "/base/pending/messages/0-1-2/fire", b""),
        ("DELETE", "/base/pending/messages/id%3Aa", b""),
    ]
    queries = [parse_qs(url.query) for _, url, _ in asked]
    assert [query.get("origin") for query in queries] == [None] * 4 + [["orders"]]
    assert len({query["control_id"][0] for query in queries}) == 5
    assert {token for _, _, token, _ in server.requests} == {"Bearer secret"}


@pytest.mark.parametrize(("status", "outcome"), [(404, Outcome.NOT_PENDING), (409, Outcome.ORIGIN_PAUSED)])
def test_what_was_not_changed_is_an_outcome_and_no_error(server: Server, status: int, outcome: Outcome) -> None:
    assert server.sidecar((status, body(outcome, 0))).fire("id:a").outcome is outcome


def test_a_change_that_no_owner_answered_yet_is_looked_up_until_there_is_an_outcome(server: Server) -> None:
    """Neither a missing outcome, nor a sidecar that restarts meanwhile, says anything about the change."""
    unknown = (404, {"error_code": 404, "message": "no outcome"})
    overloaded = (503, {"error_code": 503, "message": "no broker answers"})
    sidecar = server.sidecar(
        (202, body(None, 0)), unknown, overloaded, None, (200, body(None, 0)), (200, body("fired"))
    )
    assert sidecar.fire("id:a").outcome is Outcome.FIRED
    assert {request[:2] for request in server.requests[1:]} == {("GET", f"/base/control/{server.control_id}")}
    assert len(server.requests) == 6


def test_without_an_outcome_within_the_deadline_the_error_has_the_id_to_ask_with(server: Server) -> None:
    with pytest.raises(NoOutcome, match=r"no outcome of .* within 0 s") as raised:
        server.sidecar((202, body(None, 0)), deadline_s=0).cancel("id:a")
    assert raised.value.control_id == server.control_id


def test_an_outcome_that_is_not_there_is_none(server: Server) -> None:
    assert server.sidecar((404, {"error_code": 404, "message": "no outcome"})).outcome("c/1") is None


@pytest.mark.parametrize(
    ("status", "content", "text"),
    [
        (401, {"error_code": 401, "message": "The token is wrong."}, "401: The token is wrong."),
        (405, b"<html>Not allowed</html>", "405: <html>Not allowed"),
        (400, [], r"400: \[\]"),
    ],
)
def test_a_refusal_is_an_error_with_the_sidecars_words(server: Server, status: int, content: object, text: str) -> None:
    with pytest.raises(SidecarRefused, match=text) as raised:
        server.sidecar((status, content)).cancel("id:a")
    assert raised.value.status == status


TOO_MANY = (429, {"error_code": 429, "message": "too many", "applied": "no"})
NO_BROKER = (503, {"error_code": 503, "message": "no broker answers", "applied": "no"})


def test_what_was_not_applied_is_sent_again_under_the_same_id(server: Server) -> None:
    assert server.sidecar(TOO_MANY, NO_BROKER, (200, body("fired"))).fire("id:a").outcome is Outcome.FIRED
    assert [(method, parse_qs(urlsplit(path).query)["control_id"]) for method, path, _, _ in server.requests] == [
        ("POST", [server.control_id])
    ] * 3


@pytest.mark.parametrize("answer", [TOO_MANY, NO_BROKER])
def test_what_was_not_applied_until_the_deadline_changed_nothing(server: Server, answer: tuple[int, object]) -> None:
    with pytest.raises(SidecarRefused, match=r"\d+: ") as raised:
        server.sidecar(answer, deadline_s=0).cancel("id:a")
    assert raised.value.status == answer[0]


@pytest.mark.parametrize("answer", [(502, {"message": "failed"}), (503, {"message": "?", "applied": "unknown"}), None])
def test_a_change_that_may_have_been_applied_is_looked_up(server: Server, answer: tuple[int, object] | None) -> None:
    assert server.sidecar(answer, (200, body("cancelled"))).cancel("id:a").outcome is Outcome.CANCELLED
    assert server.requests[1][:2] == ("GET", f"/base/control/{server.control_id}")


@pytest.mark.parametrize("status", [502, 503])
def test_a_server_that_fails_may_have_changed_something(server: Server, status: int) -> None:
    with pytest.raises(NoOutcome, match=f"{status}: failed"):
        server.sidecar((status, {"message": "failed"}), deadline_s=0).cancel("id:a")


def test_a_lost_response_is_no_refusal_since_the_change_may_take_effect(server: Server) -> None:
    with pytest.raises(NoOutcome, match="was lost") as raised:
        server.sidecar(None, deadline_s=0).cancel("id:a")
    assert raised.value.control_id == server.control_id


def test_where_nothing_listens_nothing_was_changed() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(SidecarRefused, match=f"nothing listens at 127[.]0[.]0[.]1:{port}"):
            Sidecar(f"http://127.0.0.1:{port}").cancel("id:a")


def test_an_address_that_is_none_and_a_due_time_that_is_none_or_two_are_refused() -> None:
    for url in ("localhost:8080", "ftp://host", "http://"):
        with pytest.raises(ValueError, match="allowed are addresses such as http://retry-sidecar:8080"):
            Sidecar(url)
    with pytest.raises(ValueError, match="allowed is exactly one"):
        Sidecar().reschedule("id:a")
    with pytest.raises(ValueError, match="allowed is exactly one"):
        Sidecar().reschedule("id:a", due_ms=1, delay_ms=1)
