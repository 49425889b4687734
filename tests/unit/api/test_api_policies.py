"""`POST /policies/reload`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.api.source import Reloaded
from sidecar.errors import SettingsInvalid
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import Client, Neighbours
from tests.unit.engine.test_view import view_of

PATH = "/policies/reload"
TWO = "http://10.0.0.2:8080"


def failing() -> Reloaded:
    raise SettingsInvalid(["JITTER: '2' is not allowed", "DELAYS: '' is not allowed"])


def client_of(reload: Callable[[], Reloaded] | None, token: str | None = None) -> Client:
    return Client(Snapshots(), token=token, reload=reload)


def test_a_reload_tells_what_changed_and_is_logged() -> None:
    with client_of(lambda: Reloaded(["POLICIES"], ["INPUT_TOPIC"])) as client, capture_logs() as lines:
        answer = client.request("POST", PATH)
    done = {"changed": ["POLICIES"], "needs_restart": ["INPUT_TOPIC"]}
    one = {**done, "instance": "one", "outcome": "reloaded", "message": ""}
    assert (answer.status_code, answer.json()) == (200, {**done, "instances": [one]})
    assert [(line["what"], line["outcome"]) for line in lines if line["event"] == "api_change"] == [
        ("reload", "reloaded")
    ]


def test_mistakes_are_answered_and_no_settings_are_taken_over() -> None:
    with client_of(failing) as client:
        assert_problem(client.request("POST", PATH), 400, "JITTER: '2' is not allowed; DELAYS: '' is not allowed")


@dataclass
class Group:
    """Instance `one`, which is asked, and `two`, which owns a partition."""

    here: Callable[[], Reloaded] | None
    there: Callable[[], Reloaded] | None
    away: bool = False

    def ask(self) -> Any:
        view = replace(view_of([]), owner="two", url=TWO, state="running")
        own = replace(view_of([], partition=1), owner="one", url="http://10.0.0.1:8080", state="running")
        with client_of(self.there) as other:
            peers = Neighbours({} if self.away else {TWO: other})
            with Client(Snapshots([view, own]), reload=self.here, peers=peers) as client:
                answer = client.request("POST", PATH)
        assert {url for url, _ in peers.asked} <= {TWO}
        return answer


def outcomes(answer: Any) -> list[tuple[str, str]]:
    return [(each["instance"], each["outcome"]) for each in answer.json()["instances"]]


def test_one_request_reloads_all_instances() -> None:
    answer = Group(lambda: Reloaded(["POLICIES"], []), lambda: Reloaded([], ["INPUT_TOPIC"])).ask()
    assert (answer.status_code, outcomes(answer)) == (200, [("one", "reloaded"), ("two", "reloaded")])
    assert (answer.json()["changed"], answer.json()["needs_restart"]) == (["POLICIES"], ["INPUT_TOPIC"])


def test_a_process_without_policies_reloads_those_that_have_them() -> None:
    answer = Group(None, lambda: Reloaded(["POLICIES"], [])).ask()
    assert (answer.status_code, outcomes(answer)) == (200, [("two", "reloaded")])


@pytest.mark.parametrize(("away", "outcome", "said"), [(True, "unreachable", TWO), (False, "refused", "JITTER")])
def test_an_instance_that_did_not_reload_is_named(away: bool, outcome: str, said: str) -> None:
    answer = Group(lambda: Reloaded(["POLICIES"], []), failing, away).ask()
    body = answer.json()
    assert (answer.status_code, outcomes(answer)) == (503, [("one", "reloaded"), ("two", outcome)])
    assert (body["error_code"], body["applied"], body["changed"]) == (503, "unknown", ["POLICIES"])
    assert said in body["message"]


def test_mistakes_of_the_instance_that_is_asked_change_nothing_anywhere() -> None:
    reloaded = list[str]()

    def there() -> Reloaded:
        reloaded.append("two")
        return Reloaded([], [])

    assert_problem(Group(failing, there).ask(), 400, "JITTER")
    assert reloaded == []


def test_a_process_without_policies_says_so() -> None:
    with client_of(None) as client:
        assert_problem(client.request("POST", PATH), 501, "Spark")


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"authorization": "Bearer secret"}, 200)])
def test_a_reload_needs_the_token(headers: dict[str, str], status: int) -> None:
    with client_of(lambda: Reloaded([], []), token="secret") as client:
        assert client.request("POST", PATH, headers=headers).status_code == status
