"""`POST /policies/reload`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from sidecar.api.source import Reloaded
from sidecar.errors import SettingsInvalid
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import Client

PATH = "/policies/reload"


def failing() -> Reloaded:
    raise SettingsInvalid(["JITTER: '2' is not allowed", "DELAYS: '' is not allowed"])


def client_of(reload: Callable[[], Reloaded] | None, token: str | None = None) -> Client:
    return Client(Snapshots(), token=token, reload=reload)


def test_a_reload_tells_what_changed_and_is_logged() -> None:
    with client_of(lambda: Reloaded(["POLICIES"], ["INPUT_TOPIC"])) as client, capture_logs() as lines:
        answer = client.request("POST", PATH)
    assert (answer.status_code, answer.json()) == (200, {"changed": ["POLICIES"], "needs_restart": ["INPUT_TOPIC"]})
    assert [(line["what"], line["outcome"]) for line in lines if line["event"] == "api_change"] == [
        ("reload", "reloaded")
    ]


def test_mistakes_are_answered_and_no_settings_are_taken_over() -> None:
    with client_of(failing) as client:
        assert_problem(client.request("POST", PATH), 400, "JITTER: '2' is not allowed; DELAYS: '' is not allowed")


def test_a_process_without_policies_says_so() -> None:
    with client_of(None) as client:
        assert_problem(client.request("POST", PATH), 501, "Spark")


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"authorization": "Bearer secret"}, 200)])
def test_a_reload_needs_the_token(headers: dict[str, str], status: int) -> None:
    with client_of(lambda: Reloaded([], []), token="secret") as client:
        assert client.request("POST", PATH, headers=headers).status_code == status
