"""Permission to make changes and to see payloads."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import Client, Desk, Held, message
from tests.unit.engine.test_view import EMPTY, NOW_MS

TIMER = f"/pending/messages/0-0-{NOW_MS}"
CHANGES = [
    ("DELETE", TIMER, None),
    ("PATCH", TIMER, {"delay_ms": 5}),
    ("POST", f"{TIMER}/fire", None),
    ("PUT", "/origins/orders/pause", None),
    ("PUT", "/origins/orders/resume", None),
]


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def made(desk: Desk, **given: Any) -> Client:
    held = Held([message(NOW_MS)], frozenset({0}))
    return Client(Snapshots([EMPTY], 1), held, desk=desk, **given)


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_a_change_needs_the_token_that_is_set(method: str, path: str, body: object) -> None:
    desk = Desk()
    with made(desk, token="secret") as client:
        for header in (
            None,
            "Bearer wrong",
            "Bearer secre",
            "Bearer secrett",
            basic("u", "x"),
            "Digest secret",
            "secret",
        ):
            headers = {} if header is None else {"authorization": header}
            answer = client.request(method, path, json=body, headers=headers)
            assert_problem(answer, 401, "API_TOKEN")
            assert answer.headers["www-authenticate"].startswith('Bearer realm="')
        assert desk.acted == []
        for header in ("Bearer secret", "bearer secret", basic("anybody", "secret"), basic("", "secret")):
            assert client.request(method, path, json=body, headers={"authorization": header}).status_code == 200


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_without_a_token_only_this_machine_can_change_something(method: str, path: str, body: object) -> None:
    desk = Desk()
    with made(desk, loopback=False) as client:
        answer = client.request(method, path, json=body, headers={"authorization": "Bearer guessed"})
        assert_problem(answer, 403, "KAFKA_RETRY_API_TOKEN")
    assert desk.acted == []
    with made(desk) as client:
        assert client.request(method, path, json=body).status_code == 200
    assert len(desk.acted) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"host": "evil.example"},
        {"host": "evil.example", "origin": "http://evil.example"},
        {"host": "["},
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str]) -> None:
    desk = Desk()
    with made(desk) as client:
        assert_problem(client.request("POST", f"{TIMER}/fire", headers=headers), 403)
    assert desk.acted == []


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": "http://127.0.0.1:8080"},
        {"host": "localhost:8080", "origin": "http://localhost:8080"},
        {"host": "[::1]:8080"},
    ],
)
def test_the_own_page_and_tools_may(headers: dict[str, str]) -> None:
    with made(Desk()) as client:
        assert client.request("POST", f"{TIMER}/fire", headers=headers).status_code == 200


def test_payloads_need_the_token_and_other_reads_do_not() -> None:
    with made(Desk(), token="secret", loopback=False) as client:
        for path in ("/pending/messages", TIMER, f"{TIMER}?payload=false", "/origins", "/pending"):
            assert client.get(path).status_code == 200, path
        assert_problem(client.get(f"{TIMER}?payload=true"), 401, "Payloads")
        assert client.get(f"{TIMER}?payload=true", headers={"authorization": "Bearer secret"}).status_code == 200


def test_payloads_are_shown_nowhere_else_without_a_token() -> None:
    with made(Desk(), loopback=False) as client:
        assert_problem(client.get(f"{TIMER}?payload=true"), 403, "KAFKA_RETRY_API_TOKEN")
        assert client.get(TIMER).status_code == 200
    with made(Desk()) as client:
        assert client.get(f"{TIMER}?payload=true").status_code == 200
        assert_problem(client.get(f"{TIMER}?payload=true", headers={"host": "evil.example"}), 403)


def test_a_login_that_is_none_is_refused() -> None:
    with made(Desk(), token="secret") as client:
        answer = client.request("DELETE", TIMER, headers={"authorization": "Basic !!!"})
        assert answer.status_code == 401
        assert set(answer.json()) == {"error_code", "message"}
