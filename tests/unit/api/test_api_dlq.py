"""Dead letters over HTTP, over letters and redrives that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.api.dlq.bodies import REDRIVE_EXAMPLE, RedriveBody, RedriveRequest
from sidecar.errors import AlreadyRunning, BrokerUnavailable
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import ELSEWHERE, Client, Letters, Neighbours, letter
from tests.unit.engine.test_view import view_of

TOKEN = {"authorization": "Bearer secret"}
POST = "/dlq/redrives"


def client_of(letters: Letters, **more: Any) -> Client:
    return Client(Snapshots(), letters=letters, **more)


def test_counts_and_a_list_take_the_same_filter() -> None:
    letters = Letters([letter(9), letter(8, reason="bad-header")])
    with client_of(letters) as client:
        counts = client.get("/dlq?reason=fatal&reason=bad-header&origin=ord*&died_from=5").json()
        page = client.get("/dlq/messages?reason=fatal&limit=1").json()
    assert (counts["total"], counts["by_reason"]) == (2, {"fatal": 1, "bad-header": 1})
    assert [each["id"] for each in page["messages"]] == ["0-9"]
    assert not {"headers", "key", "value"} & page["messages"][0].keys()
    first = letters.asked[0]
    assert (first.reason, first.origin, first.died_from) == (["fatal", "bad-header"], ["ord*"], 5)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("reason=fatl", "reason"),
        ("reasons=fatal", "reasons: unknown parameter"),
        ("died_from=5&died_to=4", "died_from must not be after died_to"),
        ("cursor=%20", "cursor"),
        ("topic=a%20b", "topic"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(query: str, said: str) -> None:
    with client_of(Letters()) as client:
        for path in ("/dlq", "/dlq/messages"):
            assert_problem(client.get(f"{path}?{query}"), 400, said)


def test_a_dlq_that_cannot_be_read_is_asked_again_later() -> None:
    with client_of(Letters(trouble=BrokerUnavailable("no record within 3 s"))) as client:
        for path in ("/dlq", "/dlq/messages", "/dlq/messages/0-9"):
            answer = client.get(path)
            assert_problem(answer, 503, "no record within 3 s")
            assert answer.headers["retry-after"] == "1"


def test_what_the_reader_refuses_is_a_mistake_of_the_request() -> None:
    with client_of(Letters(trouble=ValueError("cursor: it is not one that a page returned"))) as client:
        assert_problem(client.get("/dlq?cursor=AA"), 400, "not one that a page returned")


def test_a_dead_letter_shows_its_headers_and_its_payload_with_the_token_only() -> None:
    with client_of(Letters([letter(9)]), token="secret", open_reads=True) as client:
        shown = client.get("/dlq/messages/0-9").json()
        assert_problem(client.get("/dlq/messages/0-9?payload=true"), 401, "Payloads need the API_TOKEN")
        whole = client.get("/dlq/messages/0-9?payload=true", headers=TOKEN).json()
        assert_problem(client.get("/dlq/messages/0-8"), 404, "no record 0-8")
        assert_problem(client.get("/dlq/messages/9"), 400, "id")
    assert [(each["name"], each["value"]) for each in shown["headers"]] == [("retry-dlq-reason", "fatal")]
    assert not {"key", "value"} & shown.keys()
    assert (whole["key"], whole["value"]) == ("aw==", "dg==")


def test_a_redrive_is_started_once_and_asked_for_twice() -> None:
    letters = Letters()
    body = {"run": "june", "reason": ["fatal"], "dry_run": True}
    with client_of(letters) as client, capture_logs() as lines:
        first, second = (client.request("POST", POST, json=body) for _ in range(2))
        shown = client.get("/dlq/redrives/june").json()
        listed = client.get(POST).json()
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.headers["location"] == "/dlq/redrives/june"
    assert first.json() == second.json() == shown == listed["redrives"][0]
    assert letters.started[0] == RedriveRequest(run="june", reason=["fatal"], dry_run=True)
    assert [(line["what"], line["run"], line["outcome"]) for line in lines if line["event"] == "api_change"] == [
        ("redrive", "june", "started"),
        ("redrive", "june", "running"),
    ]


def test_a_redrive_needs_the_token_and_a_body_of_json() -> None:
    letters = Letters()
    with client_of(letters, token="secret") as client:
        assert_problem(client.request("POST", POST, json={}), 401, "API_TOKEN")
        assert_problem(client.request("DELETE", "/dlq/redrives/june"), 401, "API_TOKEN")
        assert_problem(client.request("POST", POST, content=b"{}", headers=TOKEN), 415, "JSON")
    assert not letters.started


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"reasons": ["fatal"]}, "reasons: unknown parameter"),
        ({"reason": ["fatl"]}, "matches no reason"),
        ({"id": "17"}, "id"),
        ({"run": "a b"}, "run"),
        ({"per_second": 0}, "per_second"),
        ({"per_second": 10_001}, "per_second"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"max_redrives": 0}, "max_redrives"),
    ],
)
def test_terms_that_cannot_be_meant_are_refused(body: dict[str, Any], said: str) -> None:
    letters = Letters()
    with client_of(letters) as client:
        assert_problem(client.request("POST", POST, json=body), 400, said)
    assert not letters.started


def test_a_second_redrive_waits_for_the_one_that_runs() -> None:
    with client_of(Letters(trouble=AlreadyRunning("redrive june is running on this instance"))) as client:
        assert_problem(client.request("POST", POST, json={}), 409, "redrive june is running")


def test_a_redrive_that_another_instance_runs_is_found_there() -> None:
    status = RedriveBody.model_validate({**REDRIVE_EXAMPLE, "run": "june"})
    view = replace(view_of([]), owner="two", url=ELSEWHERE, state="running")
    with client_of(Letters(known={"june": status})) as other:
        neighbours = Neighbours({ELSEWHERE: other})
        with Client(Snapshots([view]), letters=Letters(), peers=neighbours) as client:
            assert client.get("/dlq/redrives/june").json() == {**status.model_dump(), "instance": "two"}
            assert_problem(client.get("/dlq/redrives/july"), 404, "has a redrive july")
            asked = len(neighbours.asked)
            assert_problem(
                client.get("/dlq/redrives/june", headers={"x-retry-sidecar-forwarded": "1"}), 404, "has a redrive june"
            )
    assert len(neighbours.asked) == asked, "a forwarded request is not sent on"


def test_a_dead_letter_is_discarded_with_who_and_why_and_taken_back() -> None:
    letters = Letters([letter(9)])
    with client_of(letters) as client, capture_logs() as lines:
        made = client.request("POST", "/dlq/discards", json={"id": "0-9", "why": "a test"})
        listed = client.get("/dlq/discards").json()
        assert_problem(
            client.request("POST", "/dlq/discards", json={"id": "0-8", "why": "a test"}), 404, "no record 0-8"
        )
        taken = client.request("DELETE", "/dlq/discards/0-9")
        assert_problem(client.request("DELETE", "/dlq/discards/0-9"), 404, "not discarded")
    assert (made.status_code, made.json()["why"]) == (200, "a test")
    assert listed == {"topic": "dlq", "total": 1, "discards": [made.json()]}
    assert (taken.status_code, taken.json()) == (200, {"id": "0-9", "taken_back": True})
    changes = [line for line in lines if line["event"] == "api_change"]
    assert [(line["what"], line["target"], line["outcome"]) for line in changes] == [
        ("discard", "0-9", "discarded"),
        ("discard", "0-8", "not-found"),
        ("discard-undo", "0-9", "taken-back"),
        ("discard-undo", "0-9", "not-found"),
    ]
    assert all(line["who"] == made.json()["who"] for line in changes)


@pytest.mark.parametrize(
    "body", [{"id": "0-9"}, {"id": "0-9", "why": ""}, {"id": "0-9", "why": "x" * 501}, {"why": "x"}]
)
def test_a_discard_needs_its_reason(body: dict[str, Any]) -> None:
    letters = Letters([letter(9)])
    with client_of(letters) as client:
        assert client.request("POST", "/dlq/discards", json=body).status_code == 400
    assert not letters.discarded


class Two:
    """Two instances; `two` owns a partition, and so is known to `one`."""

    def __init__(self, stack: ExitStack, state: str = "running", *, away: bool = False) -> None:
        fields = {**REDRIVE_EXAMPLE, "run": "june", "state": state}
        self.mine, self.theirs = Letters(), Letters(known={"june": RedriveBody.model_validate(fields)})
        self.peers = Neighbours()
        view = replace(view_of([]), owner="two", url=ELSEWHERE, state="running")
        if not away:
            self.peers.clients[ELSEWHERE] = stack.enter_context(client_of(self.theirs))
        self.one = stack.enter_context(Client(Snapshots([view]), letters=self.mine, peers=self.peers))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_redrive_is_stopped_on_the_instance_that_runs_it(stack: ExitStack) -> None:
    two = Two(stack)
    answer = two.one.request("DELETE", "/dlq/redrives/june")
    assert (answer.status_code, answer.json()["instance"]) == (200, "two")
    assert (two.theirs.stopped, two.mine.stopped) == (["june"], [])
    assert_problem(two.one.request("DELETE", "/dlq/redrives/july"), 404, "No instance has a redrive july")


def test_a_redrive_is_started_once_in_the_group(stack: ExitStack) -> None:
    two = Two(stack)
    answer = two.one.request("POST", POST, json={"run": "june", "reason": ["fatal"]})
    assert (answer.status_code, answer.json()["instance"]) == (200, "two")
    assert two.mine.started == []
    assert two.theirs.started == [RedriveRequest(run="june", reason=["fatal"])], "it knows whether it is the same one"
    other = two.one.request("POST", POST, json={"run": "july"})
    assert (other.status_code, other.json()["instance"], len(two.mine.started)) == (202, "one", 1)
    two.theirs.trouble = AlreadyRunning("june is running on this instance with other terms")
    assert_problem(two.one.request("POST", POST, json={"run": "june"}), 409, "two runs redrive june with other terms")


def test_a_redrive_that_has_ended_elsewhere_continues_where_it_is_asked_for(stack: ExitStack) -> None:
    two = Two(stack, "stopped")
    answer = two.one.request("POST", POST, json={"run": "june"})
    assert (answer.status_code, answer.json()["instance"]) == (202, "one")
    assert two.one.get("/dlq/redrives/june").json()["instance"] == "one", "the one that runs, not the one that ended"


def test_each_instance_lists_the_redrives_of_the_group(stack: ExitStack) -> None:
    two = Two(stack)
    two.one.request("POST", POST, json={"run": "july"})
    listed = two.one.get(POST).json()
    assert sorted((each["run"], each["instance"]) for each in listed["redrives"]) == [("july", "one"), ("june", "two")]
    assert listed["missing"] == []


def test_an_instance_that_does_not_answer_is_named(stack: ExitStack) -> None:
    two = Two(stack, away=True)
    assert two.one.get(POST).json() == {"redrives": [], "missing": ["two"]}
    answer = two.one.request("DELETE", "/dlq/redrives/june")
    assert_problem(answer, 503, "two does not answer, and may run redrive june", applied="no")
    assert two.one.request("POST", POST, json={"run": "june"}).status_code == 202, "the fence of the run ends the other"
