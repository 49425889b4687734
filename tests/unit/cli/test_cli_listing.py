"""`list`, `get`, and what acts over a filter or by HTTP: what is asked for, what is said, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from sidecar.cli import instance
from sidecar.cli.instance import Reply, address
from sidecar.cli.instants import parse_instant_ms, shown_from
from sidecar.cli.messages import by_filter, http_control, listing
from sidecar.clock import SystemClock
from tests.unit.shelf import URL, Shelf

DUE_MS = 1_800_000_000_000
TARGET = f"2-1841-{DUE_MS}"
PATH = f"/pending/messages/{TARGET}"


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf()
    monkeypatch.setattr(instance, "ask", made.ask)
    return made


def run(*arguments: str, **env: str) -> Result:
    return CliRunner(env=env).invoke(cli.main, [*arguments, "--url", URL])


def reply(status: int, body: object = None, reason: str = "") -> Reply:
    return Reply(f"{URL}{PATH}", status, body, reason)


def detail(**more: object) -> dict[str, Any]:
    shelf = Shelf()
    timer = shelf.store(2, 1841, DUE_MS, "orders")
    return {**shelf.messages[timer], "headers": [], **more}


# list


def test_a_list_asks_for_what_its_options_say(shelf: Shelf) -> None:
    options = ("--origin", "orders", "--partition", "3", "--due-from", "2027-01-15T08:00:00Z", "--due-to", "9e9")
    assert run("list", *options).exit_code == 2
    result = run("list", *options[:-1], str(DUE_MS + 5), "--limit", "7", "--token", "a-token-of-the-tests")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing is pending for orders, in partition 3, due from 2027-01-15 08:00:00.000 UTC" in result.stderr
    wanted = {"origin": "orders", "partition": "3", "due_from": str(DUE_MS), "due_to": str(DUE_MS + 5), "limit": "7"}
    assert shelf.asked == [("GET", "/pending/messages", wanted)]
    assert shelf.tokens == {"a-token-of-the-tests"}


def test_a_list_asks_for_exception_group_key_and_headers(shelf: Shelf) -> None:
    options = ("--exception", "com.acme.*", "--group", "shop", "--key", "4711", "--header", "a:b", "--header", "c:d:e")
    result = run("list", *options)
    assert (
        "nothing is pending with exception 'com.acme.*', with group 'shop', with key '4711', with header 'a:b', "
        "with header 'c:d:e'"
    ) in result.stderr
    wanted = {"exception": "com.acme.*", "group": "shop", "key": "4711", "header": ["a:b", "c:d:e"], "limit": "100"}
    assert shelf.asked == [("GET", "/pending/messages", wanted)]


@pytest.mark.parametrize("header", ["tenant", ":acme", ""])
def test_a_header_without_a_name_or_a_colon_is_refused(shelf: Shelf, header: str) -> None:
    result = run("list", "--header", header)
    assert result.exit_code == 2
    assert f"--header: {header!r} is not allowed: it must be NAME:VALUE, such as tenant:acme" in result.stderr
    assert shelf.asked == []


def test_a_list_is_a_table_for_people_and_lines_of_json_for_programs(shelf: Shelf) -> None:
    timers = [
        shelf.store(0, number, DUE_MS + number, retry_id="\x1b[2J[b]x" if number == 1 else None) for number in range(3)
    ]
    shelf.messages[timers[2]] |= {"deferred": True, "stored_due_ms": DUE_MS + 60_000}
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["timer", *timers]
    assert "\\x1b[2J[b]x" in lines[2]
    assert "put off to 2027-01-15 08:01:00.000 UTC" in lines[3]
    assert [json.loads(line)["id"] for line in run("list", "--json").stdout.splitlines()] == timers
    assert [json.loads(line)["id"] for line in run("list", "--json", "--limit", "2").stdout.splitlines()] == timers[:2]
    assert "2 shown; there may be more" in run("list", "--limit", "2").stderr


def test_all_goes_on_page_by_page_under_one_heading(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 10)
    for number in range(21):
        shelf.store(0, number, DUE_MS)
    result = run("list", "--all")
    assert (len(result.stdout.splitlines()), result.stdout.count("timer id"), result.stderr) == (22, 1, "")
    assert [query["limit"] for _, _, query in shelf.asked] == ["10"] * 3


def test_a_list_that_is_not_complete_says_so_with_exit_status_1(shelf: Shelf) -> None:
    shelf.store(0, 1, DUE_MS)
    shelf.missing.append([2, 3])
    result = run("list", "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    assert "not complete: partition 2, 3 has no owner now" in result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (reply(200, ["x"]), "has no messages: the server there is not a sidecar"),
        (reply(200), "is not JSON"),
        (reply(401, {"message": "no token"}), "answers 401: no token; set the token with --token or API_TOKEN"),
        (reply(500, None, "Oops"), "answers 500: Oops"),
    ],
)
def test_an_answer_that_is_none_is_named(shelf: Shelf, given: Reply, said: str) -> None:
    shelf.replies["GET", "/pending/messages"] = given
    result = run("list")
    assert result.exit_code == 1
    assert said in result.stderr


def test_without_an_answer_each_address_is_named() -> None:
    with pytest.raises(instance.Unanswered, match=r"(?s)127.0.0.1:1 .*start `retry-sidecar run`.*127.0.0.1:2 "):
        instance.Instances(lambda: ("http://127.0.0.1:1", "http://127.0.0.1:2"), None).ask("GET", "/x")
    with pytest.raises(instance.Unanswered, match="nobody there"):
        instance.Instances(list, None, "nobody there").ask("GET", "/x")


def test_an_address_is_http_and_has_no_path() -> None:
    assert address("http://a:1/pending/") == "http://a:1"
    assert address("https://a/") == "https://a"
    with pytest.raises(click.UsageError, match="must look like http://localhost:8080"):
        address("file:///etc/passwd")


# get


def test_get_shows_headers_and_payload_without_what_steers_a_terminal(shelf: Shelf) -> None:
    headers = [{"name": "a\x07", "value": "b\x1b[31m"}, {"name": "n", "value": None}, _binary("bin", "/w==")]
    body = detail(headers=headers, key=None, value="aMOpbGxvCg==", retry_id="order-4711", deferred=True)
    shelf.replies["GET", PATH] = reply(200, body)
    result = run("get", TARGET, "--payload")
    assert result.exit_code == 0, result.output
    assert shelf.asked == [("GET", PATH, {"payload": "true"})]
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines() if line)
    shown = {name.strip(): text.strip() for name, text in lines.items()}
    assert (shown["header a\\x07"], shown["header n"], shown["header bin"]) == ("b\\x1b[31m", "null", "/w== (base64)")
    assert (shown["key"], shown["value"], shown["retry-id"]) == ("null", "héllo\\n", "order-4711")
    assert "its origin is not open" in shown["put off to"]


def _binary(name: str, encoded: str) -> dict[str, object]:
    return {"name": name, "value": None, "value_base64": encoded}


def test_get_writes_the_value_of_one_message_to_a_file(shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "value"
    shelf.replies["GET", PATH] = reply(200, detail(key=None, value="AP8="))
    result = run("get", TARGET, "--payload-to", str(path))
    assert (result.exit_code, path.read_bytes()) == (0, b"\x00\xff")
    assert "value" not in result.stdout
    shelf.replies["GET", PATH] = reply(200, detail(key=None, value=None))
    assert "has no value (null)" in run("get", TARGET, "--payload-to", str(path)).stderr
    several = {"messages": [detail(), detail()], "complete": True, "missing": [], "truncated": False}
    shelf.replies["GET", "/pending/messages/id%3Ax%2Fy"] = reply(200, several)
    refused = run("get", "id:x/y", "--payload-to", str(path))
    assert (refused.exit_code, path.read_bytes()) == (1, b"\x00\xff")
    assert "is 2 messages; name one by its timer id" in refused.stderr


def test_get_says_what_is_missing_of_a_retry_id_and_what_is_not_pending(shelf: Shelf) -> None:
    part = {"messages": [detail()], "complete": False, "missing": [1], "truncated": True}
    shelf.replies["GET", "/pending/messages/id%3Ax"] = reply(200, part)
    result = run("get", "id:x", "--json")
    assert (result.exit_code, json.loads(result.stdout)["id"]) == (1, TARGET)
    assert "more messages have this id" in result.stderr
    assert "partition 1 has no owner" in result.stderr
    shelf.replies["GET", PATH] = reply(404, {"error_code": 404, "message": f"{TARGET} is gone."})
    assert run("get", TARGET).stderr == f"{TARGET} is gone.\n"
    assert run("get", "order-4711").exit_code == 2


# By HTTP


def control(outcome: str | None, status: int = 200, **more: object) -> Reply:
    body = {"result": outcome, "count": 1, "control_id": "c-1", "target": TARGET, "detail": "", "missing": [], **more}
    return reply(status, body)


@pytest.mark.parametrize(
    ("arguments", "call", "given", "status", "said"),
    [
        (["cancel", TARGET], ("DELETE", PATH), control("cancelled"), 0, f"{TARGET}: cancelled, 1 message"),
        (
            ["cancel", TARGET, "--origin", "orders", "--group", "mail 1"],
            ("DELETE", PATH),
            control("cancelled"),
            0,
            "cancelled, 1 message",
        ),
        (["fire", TARGET], ("POST", f"{PATH}/fire"), control("fired"), 0, "fired, 1 message"),
        (["fire", TARGET], ("POST", f"{PATH}/fire"), control("origin-paused", 409), 1, "origin is not open"),
        (["cancel", TARGET], ("DELETE", PATH), control("not-pending", 404), 1, "not pending"),
        (["cancel", TARGET], ("DELETE", PATH), reply(400, {"message": "bad"}), 1, "refused (bad)"),
        (["cancel", TARGET], ("DELETE", PATH), reply(403, {"message": "set one"}), 1, "answers 403: set one"),
        (["cancel", TARGET], ("DELETE", PATH), reply(404, {"detail": "?"}, "Not Found"), 1, "404: Not Found"),
        (["reschedule", TARGET, "--due-ms", "5"], ("PATCH", PATH), control("rescheduled"), 0, "rescheduled to 1970"),
        (["pause", "orders"], ("PUT", "/origins/orders/pause"), control("paused"), 0, "paused, 1 message pending"),
        (
            ["resume", "ordesr", "--json"],
            ("PUT", "/origins/ordesr/resume"),
            control("resumed", count=0, known=False),
            0,
            '"known": false',
        ),
        (["resume", "orders"], ("PUT", "/origins/orders/resume"), control("resumed"), 0, "resumed, 1 message pending"),
        (["outcome", "c/1"], ("GET", "/control/c%2F1"), control("cancelled"), 0, "cancelled, 1 message"),
        (["outcome", "c1"], ("GET", "/control/c1"), reply(404, {"error_code": 404}), 1, "no outcome of control id c1"),
    ],
)
def test_an_instance_does_what_the_cluster_would_do(
    shelf: Shelf, arguments: list[str], call: tuple[str, str], given: Reply, status: int, said: str
) -> None:
    shelf.replies[call] = given
    result = run(*arguments)
    ((method, path, query),) = shelf.asked
    assert (result.exit_code, method, path) == (status, *call), result.output
    assert said in result.output
    assert ("control_id" in query) == (method != "GET")
    narrowed = {"origin": "orders", "group": "mail 1"} if "--origin" in arguments else {}
    assert {name: value for name, value in query.items() if name != "control_id"} == narrowed


TOO_MANY = reply(429, {"error_code": 429, "message": "too many"}, "Too Many Requests")
NO_BROKER = reply(503, {"error_code": 503, "message": "no broker", "applied": "no"})
UNCONFIRMED = reply(503, {"error_code": 503, "message": "not confirmed", "applied": "unknown", "control_id": "x"})


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([TOO_MANY, NO_BROKER, control("cancelled")], ["DELETE", "DELETE", "DELETE"]),
        ([UNCONFIRMED, control("cancelled")], ["DELETE", "GET"]),
        ([UNCONFIRMED, reply(404, {"error_code": 404}), control("cancelled")], ["DELETE", "GET", "DELETE"]),
        ([UNCONFIRMED, TOO_MANY, control("cancelled")], ["DELETE", "GET", "GET"]),
        ([control(None, 202, missing=[2]), TOO_MANY, control("cancelled")], ["DELETE", "GET", "GET"]),
    ],
)
def test_what_is_not_applied_is_sent_again_and_what_may_be_is_looked_up(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, answers: list[Reply], calls: list[str]
) -> None:
    """Under one id: it acts once."""
    monkeypatch.setattr(http_control, "AGAIN_S", 0.001)
    left, asked, ids = iter(answers), list[str](), set[str]()

    def answering(_url: str, method: str, path: str, *_: Any, query: Any = None, **__: Any) -> Reply:
        asked.append(method)
        if method == "DELETE":
            ids.add(query["control_id"])
        elif answers[0] is UNCONFIRMED:
            ids.add(path.rpartition("/")[2])
        return next(left)

    monkeypatch.setattr(instance, "ask", answering)
    result = run("cancel", TARGET)
    assert (result.exit_code, asked, len(ids)) == (0, calls, 1), result.output


@pytest.mark.parametrize(("given", "said"), [(NO_BROKER, "not applied"), (UNCONFIRMED, "retry-sidecar outcome ")])
def test_without_an_outcome_in_time_the_error_says_whether_it_may_act(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, given: Reply, said: str
) -> None:
    monkeypatch.setattr(instance, "ask", lambda *_, **__: given)
    result = run("cancel", TARGET, "--timeout", "0.001")
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


def test_an_instance_that_does_not_know_yet_is_asked_again(shelf: Shelf) -> None:
    shelf.replies["DELETE", PATH] = control(None, 202, missing=[2])
    shelf.replies["GET", "/control/c-1"] = control("cancelled")
    assert run("cancel", TARGET).exit_code == 0
    shelf.replies["GET", "/control/c-1"] = control(None, missing=[2])
    late = run("cancel", TARGET, "--timeout", "0.1")
    assert late.exit_code == 1
    assert "no answer from partition 2 in time" in late.stderr


def test_an_instance_waits_for_the_answer_itself(shelf: Shelf) -> None:
    assert run("cancel", TARGET, "--no-wait").exit_code == 2


# Over a filter


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cancel"], "Missing argument 'TARGET...': name messages, or choose them with --origin"),
        (["cancel", TARGET, "--due-from", "1h"], "TARGET takes only --origin and --group"),
        (["cancel", TARGET, "--yes"], "TARGET takes only --origin and --group"),
        (["cancel", TARGET, "--origin", "no topic"], "retry-origin-topic"),
        (["cancel", "--yes"], "Missing argument"),
        (["cancel", "--all", "--origin", "orders", "--yes"], "--all and a filter"),
        (["cancel", "--origin", "orders"], "stdin is not a terminal): add --yes"),
        (["cancel", "--origin", "orders", "--yes", "--no-wait"], "--no-wait and --url"),
        (["cancel", "--origin", "no topic", "--yes"], "retry-target"),
        (["cancel", "--header", "a:" + 1_000 * "b", "--yes"], "retry-target"),
        (["reschedule", "--origin", "orders", "--yes"], "--due-ms and --delay: give one of them"),
        (["reschedule", "--all", "--yes", "--due-ms", str(2**63)], "retry-due-ms"),
        (["cancel", "--due-from", "2h", "--due-to", "1h", "--yes"], "--due-from must not be after --due-to"),
        (["cancel", "--due-from", "soon"], "ISO 8601"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_and_nothing_is_asked(
    shelf: Shelf, arguments: list[str], said: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, shelf.asked) == (2, []), result.output
    assert said in " ".join(result.stderr.split())


def test_a_dry_run_says_how_many_and_shows_the_first(shelf: Shelf) -> None:
    for number in range(12):
        shelf.store(0, number, DUE_MS, "orders" if number else "mail")
    result = run("cancel", "--origin", "orders", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "would cancel 11 messages for orders"
    assert result.stdout.count("0 of") == 0
    assert len(result.stdout.splitlines()) == 13
    shown = json.loads(run("fire", "--all", "--dry-run", "--json").stdout)
    assert (shown["command"], shown["total"], len(shown["first"])) == ("fire", 12, 10)
    assert run("cancel", "--origin", "none", "--dry-run").stdout == "nothing to do: cancel 0 messages for none\n"
    assert {method for method, _, _ in shelf.asked} == {"GET"}


MATCHING = "/pending/messages/fire"


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_somebody_who_can_be_asked_is_asked(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    monkeypatch.setattr(by_filter, "_somebody_is_there", lambda: True)
    for number in range(3):
        shelf.store(0, number, DUE_MS + number)
    target = 'filter:{"origin":"orders"}'
    shelf.replies["POST", MATCHING] = control("fired", count=3, target=target)
    result = CliRunner().invoke(cli.main, ["fire", "--origin", "orders", "--url", URL], input=answer)
    assert result.exit_code == status, result.output
    assert "fire 3 messages for orders? [y/N]" in result.stderr
    assert {method for method, _, _ in shelf.asked} == ({"GET", "POST"} if status == 0 else {"GET"})
    assert shelf.bodies == ([{"filter": {"origin": "orders"}}] if status == 0 else [])
    if not status:
        assert result.stdout.endswith(f"{target}: fired, 3 messages\n")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--all"], {"due_from": 0}),
        (["--due-from", "5", "--due-to", "9", "--partition", "3"], {"due_from": 5, "due_to": 9, "partition": 3}),
        (
            ["--exception", "com.*", "--group", "g", "--key", "k", "--header", "a:b"],
            {"exception": "com.*", "group": "g", "key": "k", "header": ["a:b"]},
        ),
    ],
)
def test_whoever_says_yes_is_not_asked_and_one_call_has_the_filter(
    shelf: Shelf, arguments: list[str], wanted: dict[str, object]
) -> None:
    shelf.replies["POST", "/pending/messages/reschedule"] = control("rescheduled", count=7, target="filter:{}")
    result = run("reschedule", *arguments, "--due-ms", "77", "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["count"] == 7
    ((method, path, query),) = shelf.asked
    assert (method, path, list(query)) == ("POST", "/pending/messages/reschedule", ["control_id"])
    assert json.loads(json.dumps(shelf.bodies)) == [{"filter": wanted, "due_ms": 77}]


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (control("not-pending", target="filter:{}", count=0), 0, "nothing to do: no pending message matches"),
        (control("origin-paused", 409, target="filter:{}", count=0), 1, "not fired: its origin is not open"),
        (control("fired", target="filter:{}", detail="2 were left as they are"), 0, "1 message (2 were left"),
        (reply(401, {"message": "no token"}), 1, "answers 401: no token"),
    ],
)
def test_the_outcome_of_a_filter_decides_the_exit_status(shelf: Shelf, given: Reply, status: int, said: str) -> None:
    shelf.replies["POST", MATCHING] = given
    result = run("fire", "--all", "--yes")
    assert (result.exit_code, said in " ".join(result.output.split())) == (status, True), result.output


def test_a_filter_that_takes_long_is_looked_up_until_it_has_its_outcome(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_control, "AGAIN_S", 0.001)
    shelf.replies["POST", MATCHING] = control(None, 202, missing=[2], count=5, target="filter:{}")
    shelf.replies["GET", "/control/c-1"] = control("fired", count=9, target="filter:{}")
    assert run("fire", "--all", "--yes").stdout == "filter:{}: fired, 9 messages\n"
    shelf.replies["GET", "/control/c-1"] = control(None, missing=[2], count=5, target="filter:{}")
    late = run("fire", "--all", "--yes", "--timeout", "0.05")
    assert late.exit_code == 1
    assert "retry-sidecar outcome c-1" in " ".join(late.stderr.split())


def test_an_interrupted_command_says_how_to_look_up_what_it_sent(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: Any, **__: Any) -> Reply:
        raise KeyboardInterrupt

    monkeypatch.setattr(instance, "ask", cut)
    result = run("cancel", "--all", "--yes")
    assert result.exit_code == 1
    assert "filter:{} was sent: look up its outcome with: retry-sidecar outcome " in " ".join(result.stderr.split())


def test_a_count_waits_for_every_partition(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_filter, "AGAIN_S", 0.001)
    monkeypatch.setattr(by_filter, "PAGE", 2)
    for number in range(5):
        shelf.store(number % 2, number, DUE_MS + number)
    shelf.missing.extend([[1], [], [0]])
    assert json.loads(run("cancel", "--all", "--dry-run", "--json").stdout)["total"] == 5
    monkeypatch.setattr(by_filter, "PATIENCE_S", 0.0)
    shelf.missing.append([1])
    result = run("cancel", "--all", "--dry-run")
    assert result.exit_code == 1
    assert "partition 1 has no owner now" in result.stderr


# Instants


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1767225600000", 1767225600000),
        ("0", 0),
        ("now", 5_000_000),
        ("10m", 5_600_000),
        ("+1s", 5_001_000),
        ("-20s", 4_980_000),
        ("2026-01-01", 1767225600000),
        ("2026-01-01T00:00:00.250", 1767225600250),
        ("2026-01-01T01:00:00+01:00", 1767225600000),
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("soon", None),
        ("", None),
        ("10", 10),
        ("1.5h", None),
        ("--1s", None),
        ("10\n", None),
        ("٣", None),
        ("9999-12-31T23:59:59-23:59", 253402387139000),
    ],
)
def test_an_instant_is_epoch_ms_iso_8601_or_a_duration_from_now(text: str, at_ms: int | None) -> None:
    assert parse_instant_ms(text, 5_000_000) == at_ms


def test_an_instant_is_shown_with_its_distance() -> None:
    now_ms = SystemClock().wall_ms()
    assert shown_from(now_ms + 300_000, now_ms).endswith(" UTC (in 5 min)")
    assert shown_from(10**18, 0).startswith(f"{10**18} ms (in ")
