"""Changes by HTTP: what is asked of the port, what is answered, what is logged."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sidecar.api.messages import changes
from sidecar.changelog.codec import NextTurn
from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.filter import MessageFilter
from sidecar.engine.group.view import OTHERS, PartitionView
from sidecar.errors import BrokerUnavailable, OutcomeUnknown
from sidecar.model import Scope, TimerId
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import Client, Desk, Told
from tests.unit.engine.test_view import EMPTY, NOW_MS

TIMER = TimerId(2, 1841, NOW_MS)
PATH = f"/pending/messages/{TIMER}"
TOKEN = "0123456789abcdef"


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def client(desk: Desk) -> Iterator[Client]:
    with Client(Snapshots([EMPTY], 1), desk=desk) as made:
        yield made


@pytest.mark.parametrize("slash", ["", "/"])
def test_each_call_becomes_its_control_record(client: Client, desk: Desk, slash: str) -> None:
    client.request("DELETE", PATH + slash)
    client.request("PATCH", PATH + slash, json={"due_ms": 5})
    client.request("PATCH", PATH + slash, json={"delay_ms": 5})
    client.request("POST", f"{PATH}/fire{slash}")
    client.request("PUT", f"/origins/orders/pause{slash}")
    client.request("PUT", f"/origins/orders/resume{slash}")
    assert desk.acted == [
        (ControlKind.CANCEL, TIMER, None),
        (ControlKind.RESCHEDULE, TIMER, 5),
        (ControlKind.RESCHEDULE, TIMER, NOW_MS + 5),
        (ControlKind.FIRE, TIMER, None),
        (ControlKind.PAUSE, "orders", None),
        (ControlKind.RESUME, "orders", None),
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("a", b"a"), ("a%2Fb", b"a/b"), ("%C3%A9%20%3F", "é ?".encode()), ("fire", b"fire"), ("a%0Ab", b"a\nb")],
)
def test_a_retry_id_may_hold_any_text(client: Client, desk: Desk, text: str, wanted: bytes) -> None:
    assert client.request("DELETE", f"/pending/messages/id:{text}").status_code == 200
    assert client.request("POST", f"/pending/messages/id:{text}/fire").status_code == 200
    assert [target for _, target, _ in desk.acted] == [wanted, wanted]


def test_a_change_can_name_the_origin_and_the_group_that_it_is_for(client: Client, desk: Desk) -> None:
    client.request("DELETE", f"{PATH}?origin=orders")
    client.request("PATCH", f"{PATH}?group=mail", json={"due_ms": 5})
    client.request("POST", f"{PATH}/fire?origin=orders&group=mail")
    assert desk.scopes == [Scope("orders"), Scope(group="mail"), Scope("orders", "mail")]
    assert_problem(client.request("DELETE", f"{PATH}?orign=orders"), 400, "orign")
    assert len(desk.scopes) == 3


def test_a_change_can_bring_its_own_id(client: Client, desk: Desk) -> None:
    client.request("DELETE", f"{PATH}?control_id=mine-1&origin=orders")
    client.request("PUT", "/origins/orders/pause?control_id=mine-2")
    client.request("PUT", "/origins/orders/resume")
    assert desk.ids == ["mine-1", "mine-2", None]
    assert_problem(client.request("PUT", "/origins/orders/pause?origin=orders"), 400, "origin")


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (Told(Outcome.CANCELLED, 3), 200),
        (Told(Outcome.NOT_PENDING), 404),
        (Told(Outcome.ORIGIN_PAUSED, detail="orders is paused"), 409),
        (Told(None, 1, missing=(1, 3)), 202),
    ],
)
def test_an_outcome_has_its_status(client: Client, desk: Desk, told: Told, status: int) -> None:
    desk.result = told
    answer = client.request("POST", f"{PATH}/fire")
    assert answer.status_code == status
    body = answer.json()
    if status >= 400:
        assert body.pop("error_code") == status
        assert "0-1-2" in body.pop("message")
    assert body == {
        "result": told.outcome,
        "count": told.count,
        "control_id": "c-1",
        "target": "0-1-2",
        "detail": told.detail,
        "missing": list(told.missing),
    }


@pytest.mark.parametrize(
    ("result", "status", "text"),
    [
        (Told(Outcome.BAD_REQUEST, detail="too far ahead"), 400, "too far ahead"),
        (ValueError("retry-due-ms is wrong"), 400, "retry-due-ms"),
    ],
)
def test_what_cannot_be_done_is_said_in_connects_shape(
    client: Client, desk: Desk, result: Told | Exception, status: int, text: str
) -> None:
    desk.result = result
    assert_problem(client.request("DELETE", PATH), status, text)


@pytest.mark.parametrize("call", [("DELETE", PATH), ("PUT", "/origins/orders/pause")])
def test_an_error_without_an_outcome_says_whether_the_change_may_act(
    client: Client, desk: Desk, call: tuple[str, str]
) -> None:
    desk.result = BrokerUnavailable("no broker answers")
    assert_problem(client.request(*call), 503, "no broker", applied="no")
    desk.result = OutcomeUnknown("not confirmed", "c-9")
    unknown = client.request(*call)
    assert_problem(unknown, 503, "not confirmed", applied="unknown", control_id="c-9")
    assert unknown.headers["retry-after"] == "1"


def test_a_change_too_many_is_refused_for_now_and_not_applied(
    client: Client, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "WAITING_MAX", 0)
    answer = client.request("DELETE", PATH)
    assert_problem(answer, 429, "Too many", applied="no")
    assert answer.headers["retry-after"] == "1"
    assert desk.acted == []


# By a filter

MATCHING = "/pending/messages"


def test_a_filter_becomes_one_control_record(client: Client, desk: Desk) -> None:
    given = {"origin": "orders", "partition": 3, "due_from": 5, "due_to": 9.0, "exception": "com.*", "group": "g"}
    more = {"key": "", "header": ["a:b", "c:d:e"]}
    assert client.request("POST", f"{MATCHING}/cancel?control_id=mine", json={"filter": {**given, **more}}).is_success
    client.request("POST", f"{MATCHING}/fire/", json={"filter": {"due_from": 0}})
    client.request("POST", f"{MATCHING}/reschedule", json={"filter": {"origin": "orders"}, "delay_ms": 5})
    client.request("POST", f"{MATCHING}/reschedule", json={"filter": {"origin": "orders"}, "due_ms": 5})
    orders = MessageFilter(origin="orders")
    assert desk.acted == [
        (ControlKind.CANCEL, MessageFilter("orders", 3, 5, 9, "com.*", "g", "", ("a:b", "c:d:e")), None),
        (ControlKind.FIRE, MessageFilter(), None),
        (ControlKind.RESCHEDULE, orders, NOW_MS + 5),
        (ControlKind.RESCHEDULE, orders, 5),
    ]
    assert desk.ids == ["mine", None, None, None]


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (Told(Outcome.CANCELLED, 2_000, target="filter:{}"), 200),
        (Told(Outcome.NOT_PENDING, target="filter:{}"), 200),
        (Told(Outcome.ORIGIN_PAUSED, target="filter:{}"), 409),
        (Told(None, 7, target="filter:{}", missing=(1,)), 202),
        (Told(Outcome.BAD_REQUEST, target="filter:{}", detail="no"), 400),
        (BrokerUnavailable("no broker"), 503),
        (ValueError("retry-target: too long"), 400),
    ],
)
def test_the_outcome_of_a_filter_has_its_status(
    client: Client, desk: Desk, told: Told | Exception, status: int
) -> None:
    desk.result = told
    answer = client.request("POST", f"{MATCHING}/fire", json={"filter": {"origin": "orders"}})
    assert answer.status_code == status
    if status in {200, 202}:
        assert isinstance(told, Told)
        assert (answer.json()["result"], answer.json()["count"]) == (told.outcome, told.count)
        assert "error_code" not in answer.json()


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"filter":{}}',
        '{"filter":{"origin":null}}',
        '{"filter":{"origin":"orders","due_to":null}}',
        '{"filter":{"orign":"orders"}}',
        '{"filter":{"origin":"no topic"}}',
        '{"filter":{"header":["tenant"]}}',
        '{"filter":{"due_to":-1}}',
        '{"filter":{"due_to":"5"}}',
        '{"filter":{"key":"\\ud800"}}',
        '{"filter":{"origin":"orders"},"due_ms":5}',
        '{"origin":"orders"}',
    ],
)
def test_a_filter_that_says_nothing_or_too_much_is_refused(client: Client, desk: Desk, body: str) -> None:
    headers = {"content-type": "application/json"}
    assert_problem(client.request("POST", f"{MATCHING}/cancel", content=body, headers=headers), 400)
    assert desk.acted == []


@pytest.mark.parametrize("times", [{}, {"due_ms": 5, "delay_ms": 5}, {"due_ms": None}])
def test_a_reschedule_by_a_filter_needs_exactly_one_time(client: Client, desk: Desk, times: dict[str, object]) -> None:
    answer = client.request("POST", f"{MATCHING}/reschedule", json={"filter": {"origin": "orders"}, **times})
    assert_problem(answer, 400, "due_ms")
    assert desk.acted == []


def test_a_filter_is_sent_as_json_and_the_log_has_it(client: Client, desk: Desk) -> None:
    body = {"filter": {"origin": "orders"}}
    text = client.request("POST", f"{MATCHING}/fire", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert_problem(text, 415, "application/json")
    assert_problem(client.request("POST", f"{MATCHING}/fire?origin=orders", json=body), 400, "origin")
    with capture_logs() as logs:
        client.request("POST", f"{MATCHING}/fire", json=body)
    (line,) = [each for each in logs if each["event"] == "api_change"]
    assert (line["what"], line["target"]) == ("fire", 'filter:{"origin":"orders"}')


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE", "PUT"])
def test_fire_is_no_part_of_a_target_unless_its_slash_is_encoded(client: Client, desk: Desk, method: str) -> None:
    for path in (f"{PATH}/fire", "/pending/messages/id:a/fire", "/pending/messages/id:a/fire/"):
        answer = client.request(method, path, **({"json": {"due_ms": 5}} if method == "PATCH" else {}))
        assert_problem(answer, 405, method)
        assert answer.headers["allow"] == "POST"
    refused = client.request("POST", "/pending/messages/id:a%2Ffire")
    assert_problem(refused, 405)
    assert refused.headers["allow"] == "GET, HEAD, PATCH, DELETE"
    assert desk.acted == []
    client.request("DELETE", "/pending/messages/id:a%2Ffire")
    client.request("POST", "/pending/messages/id:a%2Ffire/fire?origin=orders")
    assert [target for _, target, _ in desk.acted] == [b"a/fire", b"a/fire"]


@pytest.mark.parametrize("call", ["pause", "resume"])
def test_a_pause_says_whether_the_group_knows_the_origin(call: str) -> None:
    closed = replace(EMPTY, by_origin={"orders": 1, "gone": 0}, closed_origins={"mail": ("paused", 1)})
    told: list[tuple[PartitionView, dict[str, bool | None]]] = [
        (closed, {"orders": True, "mail": True, "*": True, "oders": False, "gone": False}),
        (replace(EMPTY, by_origin={OTHERS: 1}), {"oders": None}),
    ]
    for view, known in told:
        with Client(Snapshots([view], 1), desk=Desk()) as client:
            assert {name: client.request("PUT", f"/origins/{name}/{call}").json()["known"] for name in known} == known


def test_a_parameter_that_is_given_twice_changes_nothing(client: Client, desk: Desk) -> None:
    for call in (("DELETE", PATH), ("POST", f"{PATH}/fire"), ("GET", "/pending"), ("GET", "/pending/messages")):
        assert_problem(client.request(call[0], f"{call[1]}?origin=a&origin=b"), 400, "origin", "once")
    assert_problem(client.request("PUT", "/origins/a/pause?control_id=1&control_id=1"), 400, "control_id")
    assert client.get("/pending/messages?header=a:b&header=c:d").status_code == 200
    assert desk.acted == []


def test_a_slash_at_the_end_of_a_retry_id_belongs_to_it(client: Client, desk: Desk) -> None:
    for path in ("id:a%2F", "id:a%2F/", "id:a/"):
        assert client.request("DELETE", f"/pending/messages/{path}").status_code == 200
    assert [target for _, target, _ in desk.acted] == [b"a/", b"a/", b"a"]


@pytest.mark.parametrize("target", ["x", "1-2", "1-2-3-4", "01-2-3", "id:", "1-2-" + "9" * 30, "id:" + "x" * 257])
def test_a_target_that_names_nothing_is_refused(client: Client, desk: Desk, target: str) -> None:
    for method in ("GET", "DELETE"):
        assert_problem(client.request(method, f"/pending/messages/{target}"), 400)
    assert desk.acted == []


@pytest.mark.parametrize(
    "body",
    ["{}", '{"due_ms":1,"delay_ms":1}', '{"due_ms":-1}', '{"due_ms":"1"}', '{"due_ms":1.5}', '{"due":1}', "[]", "", "{",
     '{"due_ms":1,"x":1}', '{"delay_ms":9223372036854775808}', '{"due_ms":true}'],
)  # fmt: skip
def test_a_reschedule_needs_exactly_one_time(client: Client, desk: Desk, body: str) -> None:
    answer = client.request("PATCH", PATH, content=body, headers={"content-type": "application/json"})
    assert_problem(answer, 400)
    assert desk.acted == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_is_not_said_to_be_json_is_refused(client: Client, desk: Desk, kind: str) -> None:
    answer = client.request("PATCH", PATH, content='{"due_ms":1}', headers={"content-type": kind})
    assert_problem(answer, 415, "application/json")
    assert desk.acted == []


def test_a_parameter_is_refused_where_none_belongs(client: Client, desk: Desk) -> None:
    for method, path in (("DELETE", PATH), ("POST", f"{PATH}/fire"), ("PUT", "/origins/a/pause"), ("GET", "/origins")):
        assert_problem(client.request(method, f"{path}?dry_run=true"), 400, "dry_run", "unknown parameter")
    assert desk.acted == []


def test_every_change_is_logged_with_who_what_and_outcome(client: Client, desk: Desk) -> None:
    with capture_logs() as lines:
        client.request("DELETE", PATH, headers={"authorization": "Bearer hidden"})
        desk.result = BrokerUnavailable("no broker answers")
        client.request("PUT", "/origins/orders/pause")
        desk.result = Told(None)
        client.request("POST", f"{PATH}/fire")
        client.get(PATH)
    noted = [line for line in lines if line["event"] == "api_change"]
    assert [(each["who"], each["what"], each["target"], each["outcome"]) for each in noted] == [
        ("10.9.8.7", "cancel", str(TIMER), "cancelled"),
        ("10.9.8.7", "pause", "orders", "failed"),
        ("10.9.8.7", "fire", str(TIMER), "unanswered"),
    ]
    assert noted[0]["control_id"] == "c-1"
    assert "hidden" not in str(lines)


@pytest.mark.parametrize(
    ("user", "who"),
    [
        ("alice", "alice@10.9.8.7"),
        ("", "10.9.8.7"),
        ("a\nforged=1 \x1b[2J", "a?forged=1 ?[2J@10.9.8.7"),
        ("é" * 99, None),
    ],
)
def test_the_line_of_a_change_has_the_user_name_of_http_basic(user: str, who: str | None) -> None:
    with capture_logs() as lines, Client(Snapshots([EMPTY], 1), desk=Desk(), token=TOKEN) as client:
        given = base64.b64encode(f"{user}:{TOKEN}".encode()).decode()
        assert client.request("DELETE", PATH, headers={"authorization": f"Basic {given}"}).status_code == 200
    assert [each["who"] for each in lines if each["event"] == "api_change"] == [who or "é" * 64 + "@10.9.8.7"]
    assert TOKEN not in str(lines)


def test_an_outcome_is_found_by_its_control_id(client: Client, desk: Desk) -> None:
    desk.known["1770-a/b"] = Told(Outcome.FIRED, 2, control_id="1770-a/b")
    answer = client.get("/control/1770-a%2Fb")
    assert (answer.status_code, answer.json()["result"], answer.json()["count"]) == (200, "fired", 2)
    assert_problem(client.get("/control/other"), 404, "other")


def test_origins_tell_what_waits_and_what_is_not_open(desk: Desk) -> None:
    one = replace(EMPTY, by_origin={"orders": 3, "mail": 1}, deferred_by_origin={"orders": 2}, as_of_ms=NOW_MS)
    one = replace(one, closed_origins={"orders": ("vanished", 50), "idle": ("paused", 40)})
    two = replace(
        EMPTY, partition=1, by_origin={"orders": 4}, closed_origins={"orders": ("paused", 60)}, as_of_ms=NOW_MS
    )
    with Client(Snapshots([one, two], 2), desk=desk) as client:
        answer = client.get("/origins").json()
    assert answer["complete"] is True
    rows = [tuple(each.values()) for each in answer["origins"]]
    assert rows == [
        ("idle", 0, 0, 0, None, None, "paused", 40, [0]),
        ("mail", 1, 0, 0, None, None, "open", None, []),
        ("orders", 7, 2, 0, None, None, "paused", 50, [0, 1]),
    ]


def test_origins_tell_what_a_rate_holds_and_until_when(desk: Desk) -> None:
    def view(partition: int, behind: int) -> PartitionView:
        turn = NextTurn((NOW_MS + 20 * (behind + 1)) * 1_000_000, 20_000_000)
        seen = replace(EMPTY, partition=partition, by_origin={"orders": 900}, turns={"orders": turn}, as_of_ms=NOW_MS)
        read = PartitionView.from_json(seen.to_json())
        assert read == seen
        return seen

    with Client(Snapshots([view(0, 300), view(1, 500), replace(EMPTY, partition=2)], 4), desk=desk) as client:
        (orders,) = client.get("/origins").json()["origins"]
    assert (orders["held"], orders["max_per_second"], orders["held_until_ms"]) == (800, 200.0, NOW_MS + 10_000)


def test_openapi_names_every_call_with_its_login(client: Client) -> None:
    document = client.get("/openapi.json").json()
    paths = document["paths"]
    assert set(paths["/pending/messages/{target}"]) == {"get", "delete", "patch"}
    assert {"/pending/messages/{target}/fire", "/control/{control_id}", "/origins/{topic}/pause"} < set(paths)
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], path
            assert operation["summary"], path
            changes = method in {"delete", "patch", "post", "put"} and not path.endswith("/validate")
            assert changes <= ("security" in operation), (path, method)
    assert "HTTPBearer" in json.dumps(document["components"]["securitySchemes"])
