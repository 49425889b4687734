"""Permission to make changes and to see payloads."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from sidecar.api.auth import OPEN_PATHS
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
FIGURES = [
    "/pending",
    "/pending?origin=orders",
    "/origins",
    "/partitions",
    "/metrics",
    "/livez",
    "/openapi.json",
    "/ui/",
]
READS = [
    *("/pending/messages", TIMER, "/dlq", "/dlq/messages", "/dlq/redrives", "/control/c-1"),
    *("/connectors", "/connectors/kafka-retry/config", "/connector-plugins", "/admin/loggers"),
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


def test_reads_need_a_token_and_figures_do_not() -> None:
    with made(Desk(), token="secret", read_tokens=("reader",), loopback=False) as client:
        for path in FIGURES:
            assert client.get(path).status_code == 200, path
        for path in READS:
            assert_problem(client.get(path), 401, "API_READ_TOKEN")
            assert_problem(client.get(path, headers={"authorization": "Bearer wrong"}), 401, "API_READ_TOKEN")
            for header in ("Bearer secret", "Bearer reader", basic("anybody", "reader")):
                assert client.get(path, headers={"authorization": header}).status_code in {200, 404}, path


def test_whatever_is_not_known_to_be_harmless_needs_a_token() -> None:
    """Every route of the application but those that are listed as open."""
    with made(Desk(), token="secret", loopback=False) as client:
        for path, calls in client.get("/openapi.json").json()["paths"].items():
            for method in calls:
                answer = client.request(method, path, json=None if method in {"get", "delete"} else {})
                refused = answer.status_code == 401
                assert refused is not (method == "get" and path in OPEN_PATHS), f"{method} {path}"
        for path in ("/nowhere", "/pending/", "/ui"):
            assert (client.get(path).status_code == 401) is (path == "/nowhere")


def test_the_reading_token_changes_nothing() -> None:
    desk = Desk()
    with made(desk, token="secret", read_tokens=("reader",), loopback=False) as client:
        for method, path, body in CHANGES:
            answer = client.request(method, path, json=body, headers={"authorization": "Bearer reader"})
            assert_problem(answer, 403, "API_READ_TOKEN")
    assert desk.acted == []


def test_open_reads_need_no_token_and_payloads_do() -> None:
    with made(Desk(), token="secret", loopback=False, open_reads=True) as client:
        for path in (*FIGURES, *READS, f"{TIMER}?payload=false"):
            assert client.get(path).status_code in {200, 404}, path
        assert_problem(client.get(f"{TIMER}?payload=true"), 401, "Payloads")
        assert client.get(f"{TIMER}?payload=true", headers={"authorization": "Bearer secret"}).status_code == 200
    with made(Desk(), loopback=False, open_reads=True) as client:
        assert_problem(client.get(f"{TIMER}?payload=true"), 403, "KAFKA_RETRY_API_TOKEN")


def test_without_a_token_other_machines_read_figures_only() -> None:
    with made(Desk(), loopback=False) as client:
        for path in FIGURES:
            assert client.get(path).status_code == 200, path
        for path in READS:
            assert_problem(client.get(path), 403, "KAFKA_RETRY_API_TOKEN")
    with made(Desk()) as client:
        assert client.get(f"{TIMER}?payload=true").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "[", "", "127.0.0.1.evil.example"])
def test_a_name_that_leads_here_shows_nothing(host: str) -> None:
    """DNS rebinding: a page of that name would see the answers, figures too."""
    with made(Desk()) as client:
        for path in (*FIGURES, *READS):
            assert_problem(client.get(path, headers={"host": host}), 403, "loopback name")
    with made(Desk(), token="secret") as client:
        headers = {"host": host, "authorization": "Bearer secret"}
        assert client.get("/pending", headers=headers).status_code == 200, "a page does not know the token"


def test_a_page_of_another_site_reads_nothing() -> None:
    with made(Desk()) as client:
        for path in READS:
            assert_problem(client.get(path, headers={"sec-fetch-site": "cross-site"}), 403, "another site")


def test_a_login_that_is_none_is_refused() -> None:
    with made(Desk(), token="secret") as client:
        answer = client.request("DELETE", TIMER, headers={"authorization": "Basic !!!"})
        assert answer.status_code == 401
        assert set(answer.json()) == {"error_code", "message"}
