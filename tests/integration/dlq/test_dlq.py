"""`dlq report` and `dlq redrive`, from processes that own nothing, against a DLQ that a running sidecar fills."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from tests.broker import Read, create_topic, read_committed, unique
from tests.integration.messages import Given, Pairs, World, marked, now_ms, one_sidecar
from tests.integration.sidecars import LOG_APPEND_TIME, ROOT, Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

ORIGINS = ("killed", "fenced", "mended", "limited", "listed", "asked")
API = ("-m", "sidecar", "api")
REDRIVES = "/dlq/redrives"
DISCARDS = "/dlq/discards"
SMALL_BYTES = 2_000
WAIT_S = 60.0
SLOW = "4"
"""So many in a second, of 300: it is killed long before the end, also if the machine stands still meanwhile."""


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    def origins(stage: Stage) -> None:
        for name in ORIGINS:
            create_topic(bootstrap, topic(stage, name), 2, LOG_APPEND_TIME)
        create_topic(bootstrap, topic(stage, "small"), 1, {"max.message.bytes": str(SMALL_BYTES)})

    with one_sidecar(
        bootstrap,
        tmp_path_factory.mktemp("dlq"),
        origins=origins,
        RETRIABLE_EXCEPTION="com.acme.*",
        FATAL_EXCEPTION="com.acme.Fatal",
        MAX_ATTEMPTS="3",
        MAX_DELAY="1d",
        FIRST_DELAY_MS="0",
    ) as made:
        yield made


def topic(stage: Stage, name: str) -> str:
    return f"{stage.app_id}-{name}"


def arguments(world: World, *given: str) -> list[str]:
    return ["dlq", *given, *world.stage.flags]


def run(world: World, *given: str) -> Result:
    return CliRunner().invoke(cli.main, arguments(world, *given))


def answer(world: World, *given: str) -> dict[str, Any]:
    result = run(world, *given, "--json")
    assert result.exit_code == 0, result.output
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def lines(world: World, *given: str) -> list[dict[str, Any]]:
    result = run(world, *given, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def start(world: World, *given: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sidecar", *arguments(world, *given)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def exhausted(world: World, name: str, count: int) -> bytes:
    """Send messages for an origin that die with all attempts used up; return their marker."""
    marker = unique("m").encode()
    headers: Pairs = [
        ("retry-origin-topic", topic(world.stage, name).encode()),
        ("retry-exception", b"com.acme.Late"),
        ("retry-attempt", b"3"),
        ("test", marker),
    ]
    world.send(*(Given(b"value %d" % each, b"key %d" % each, headers, each % 2) for each in range(count)))
    assert len(world.dead(marker, count)) == count
    return marker


def retry_topic_records(world: World, marker: bytes) -> list[Read]:
    return marked(read_committed(world.stage.bootstrap, [world.stage.input_topic]), marker)


def await_redriven(world: World, marker: bytes, count: int) -> None:
    """Wait until the retry topic has more than so many; more come meanwhile, so it has no end that could be awaited."""
    topics = [world.stage.input_topic]
    read_committed(world.stage.bootstrap, topics, WAIT_S, until=lambda seen: len(marked(seen, marker)) > count)


def require_each_once(world: World, name: str, marker: bytes, count: int) -> None:
    """Fail unless each message has come to its origin once, as one on its first retry."""
    fired = world.fired(marker, count, topic(world.stage, name))
    assert Counter(record.value for record in fired) == {b"value %d" % each: 1 for each in range(count)}
    # Twice on the retry topic: as it was sent first, and redriven.
    assert len(retry_topic_records(world, marker)) == 2 * count
    for record in fired:
        assert (record.key, record.header("retry-attempt")) == ((record.value or b"").replace(b"value", b"key"), b"1")
        assert record.header("retry-redrives") == b"1"
        assert not [each for each, _ in record.headers if each.startswith(("retry-dlq-", "__connect."))]


def test_the_report_counts_what_was_sent_to_death_by_all_that_it_says(world: World) -> None:
    stage, group = world.stage, unique("group")
    more: Pairs = [("retry-exception", b"com.acme.Late"), ("retry-group", group.encode())]
    origin = ("retry-origin-topic", stage.origin.encode())
    small = ("retry-origin-topic", topic(stage, "small").encode())
    cases: dict[str, tuple[int, Pairs]] = {
        "missing-header": (1, more),
        "bad-header": (2, [origin, ("retry-delay-ms", b"x"), *more]),
        "origin-not-allowed": (3, [("retry-origin-topic", b"elsewhere"), *more]),
        "origin-unknown": (4, [("retry-origin-topic", topic(stage, "nowhere").encode()), *more]),
        "too-large": (5, [small, ("retry-due-ms", b"1"), ("big", os.urandom(SMALL_BYTES)), *more]),
        "delay-out-of-range": (6, [origin, ("retry-delay-ms", b"172800000"), *more]),
        "fatal": (7, [origin, ("retry-exception", b"com.acme.Fatal"), more[1]]),
        "attempts-exhausted": (8, [origin, ("retry-attempt", b"3"), *more]),
        "unknown-exception": (9, [origin, ("retry-exception", b"org.Odd"), more[1]]),
    }
    marker = ("test", group.encode())
    sent = world.send(*(Given(headers=[*each, marker]) for count, each in cases.values() for _ in range(count)))
    world.dead(group.encode(), len(sent))

    body = answer(world, "report", "--group", group, "--examples", "2")
    assert body["by_reason"] == {reason: count for reason, (count, _) in reversed(cases.items())}
    assert body["total"] == sum(body["by_hour"].values()) == len(sent) == 45
    assert body["by_origin"] == {
        stage.origin: 32,
        topic(stage, "small"): 5,
        topic(stage, "nowhere"): 4,
        "elsewhere": 3,
        "": 1,
    }
    assert body["by_exception"] == {"com.acme.Late": 29, "org.Odd": 9, "com.acme.Fatal": 7}
    assert body["by_attempt"] == {"": 1, "0": 36, "3": 8}
    assert body["by_group"] == {group: 45}
    (one,) = body["examples"]["missing-header"]
    assert one["came_from"] == {"topic": stage.input_topic, "partition": 0, "offset": sent[0].offset}
    assert "retry-origin-topic" in one["detail"]
    assert {reason: len(each) for reason, each in body["examples"].items() if len(each) < 2} == {"missing-header": 1}

    chosen = answer(world, "report", "--group", group, "--reason", "f*", "--reason", "origin-*", "--origin", "*-orders")
    assert chosen["by_reason"] == {"fatal": 7}
    assert answer(world, "report", "--group", group, "--exception", "org.*")["total"] == 9
    assert answer(world, "report", "--group", group, "--died-from", "1m")["total"] == 0
    assert answer(world, "report", "--group", group, "--died-to", "-1h")["total"] == 0
    assert answer(world, "report", "--group", group, "--died-from", "-1h", "--died-to", "now")["total"] == 45
    shown = run(world, "report", "--group", group, "--examples", "1")
    assert f"45 dead letters group {group}" in shown.stdout
    assert "fatal, the first 1:" in shown.stdout


def test_a_redrive_that_is_killed_and_repeated_brings_each_back_once(world: World) -> None:
    count, origin = 300, topic(world.stage, "killed")
    marker = exhausted(world, "killed", count)
    wanted = ("redrive", "--origin", origin)

    looked = answer(world, *wanted, "--dry-run")
    assert (looked["redriven"], looked["dry_run"], looked["first"][0]["reason"]) == (count, True, "attempts-exhausted")
    asked = run(world, *wanted)
    assert asked.exit_code == 2
    assert "give --yes" in asked.stderr
    assert refused_at_a_terminal(world, *wanted) == 1
    assert len(retry_topic_records(world, marker)) == count, "nothing has changed"

    first = start(world, *wanted, "--yes", "--per-second", SLOW)
    await_redriven(world, marker, count)
    first.kill()
    first.communicate()
    assert first.returncode == -9
    done = len(retry_topic_records(world, marker)) - count
    assert done < count, "killed in the middle"

    again = answer(world, *wanted, "--yes")
    assert again["run"] == looked["run"]
    assert again["redriven"] == count - done
    require_each_once(world, "killed", marker, count)
    assert answer(world, *wanted, "--yes")["redriven"] == 0
    assert answer(world, *wanted, "--dry-run")["read"] == 0


def refused_at_a_terminal(world: World, *given: str) -> int:
    """Return the exit status when a person says no."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"n\n")
        return subprocess.run(
            [sys.executable, "-m", "sidecar", *arguments(world, *given)],
            cwd=ROOT,
            stdin=theirs,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        ).returncode
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_second_process_of_a_run_takes_it_over_and_the_first_one_says_so(world: World) -> None:
    count, origin = 60, topic(world.stage, "fenced")
    marker = exhausted(world, "fenced", count)
    wanted = ("redrive", "--origin", origin, "--yes")
    first = start(world, *wanted, "--per-second", "1")
    await_redriven(world, marker, count)

    second = answer(world, *wanted)
    _, said = first.communicate(timeout=WAIT_S)
    assert first.returncode == 1
    assert f"another process has taken over run {second['run']}" in said
    assert 0 < second["redriven"] < count
    require_each_once(world, "fenced", marker, count)


def test_what_dies_again_is_redriven_only_so_often(world: World) -> None:
    marker = unique("m").encode()
    fatal: Pairs = [("retry-origin-topic", world.stage.origin.encode()), ("retry-exception", b"com.acme.Fatal")]
    world.send(Given(headers=[*fatal, ("retry-group", marker), ("test", marker)]))
    world.dead(marker, 1)
    wanted = ("redrive", "--group", marker.decode(), "--max-redrives", "2", "--yes")
    for count in (1, 2):
        assert answer(world, *wanted)["redriven"] == 1
        assert world.dead(marker, count + 1)[-1].header("retry-redrives") == b"%d" % count
    last = answer(world, *wanted)
    assert (last["redriven"], last["left"]) == (0, {"loop-guard": {"fatal": 1}})
    assert len(world.dead(marker, 3)) == 3
    again = run(world, *wanted, "--restart")
    assert "1 stay: they were redriven as often as --max-redrives allows" in again.stdout


def test_what_would_only_die_again_stays_until_it_is_fixed_and_each_keeps_its_dialect(world: World) -> None:
    marker, origin = unique("m").encode(), topic(world.stage, "mended")
    wanted = ("redrive", "--group", marker.decode(), "--yes")
    both: Pairs = [("retry-group", marker), ("test", marker), ("twice", b"1"), ("twice", None)]
    ibm: Pairs = [
        ("x-ibm-retry-origin-topic", b'"%b"' % origin.encode()),
        ("x-ibm-retry-exception-type", b"com.acme.Late"),
        ("x-ibm-retry-timestamp-ms", b"1"),
        ("x-ibm-retry-attempts", b'"3"'),
    ]
    world.send(Given(None, b"k", [*both, ("retry-exception", b"com.acme.Late")]), Given(b"i", None, [*both, *ibm]))
    world.dead(marker, 2)

    body = answer(world, *wanted)
    assert (body["redriven"], body["left"]) == (1, {"would-die-again": {"missing-header": 1}})
    (again,) = world.fired(marker, 1, origin)
    assert (again.key, again.value, again.header("x-ibm-retry-attempts")) == (None, b"i", b'"1"')
    assert int(again.header("x-ibm-retry-timestamp-ms") or 0) > now_ms() - 3_600_000

    fixed = answer(world, *wanted, "--run", unique("run"), "--reason", "missing-header", "--to-origin", origin)
    assert fixed["redriven"] == 1
    (again,) = (each for each in world.fired(marker, 2, origin) if each.value is None)
    assert (again.key, again.value, again.header("retry-origin-topic")) == (b"k", None, origin.encode())
    assert [each for each in again.headers if each[0] == "twice"] == [("twice", b"1"), ("twice", None)]


def test_a_limit_takes_the_next_ones_when_the_command_is_given_again_and_a_spread_parts_them(world: World) -> None:
    origin = topic(world.stage, "limited")
    marker = exhausted(world, "limited", 7)
    wanted = ("redrive", "--origin", origin, "--yes", "--delay", "1h", "--spread", "10m", "--limit", "3")
    began_ms = now_ms()
    assert [answer(world, *wanted)["redriven"] for _ in range(4)] == [3, 3, 1, 0]
    records = retry_topic_records(world, marker)
    redriven = [each for each in records if "retry-redrives" in dict(each.headers)]
    dues_ms = sorted(int(each.header("retry-due-ms") or 0) for each in redriven)
    assert len(dues_ms) == 7
    assert began_ms + 3_600_000 <= dues_ms[0]
    assert dues_ms[-1] < now_ms() + 4_200_000
    assert dues_ms[-1] - dues_ms[0] > 200_000
    came = {each.value: each.partition for each in records if each not in redriven}
    assert {each.value: each.partition for each in redriven} == came, "into the partition that it came from"


@pytest.mark.parametrize("command", [("report",), ("redrive", "--yes")])
def test_a_topic_that_is_not_there_is_an_error_that_names_it(world: World, command: tuple[str, ...]) -> None:
    nobody = world._replace(stage=replace(world.stage, app_id=unique("nobody")))
    result = run(nobody, *command)
    assert result.exit_code == 1
    assert "does not exist; look with: retry-sidecar topics check" in result.stderr


# Over HTTP


@pytest.fixture
def api(world: World, tmp_path: Path) -> Iterator[Sidecar]:
    """A process that serves HTTP and owns nothing, so that it can be killed."""
    sidecars = Sidecars(tmp_path)
    try:
        made = sidecars.make("api", world.stage)
        made.start(API)
        made.await_ready()
        yield made
    finally:
        sidecars.end()


def read(instance: Sidecar, path: str) -> dict[str, Any]:
    """Return an answer, also when another request reads the DLQ just now."""
    answers: list[dict[str, Any]] = []

    def answered() -> bool:
        status, body = instance.call("GET", path, None, {})
        assert status in {200, 429, 503}, body
        answers.append(body)
        return status == 200

    eventually(answered, WAIT_S, f"{path} is answered")
    return answers[-1]


def redriven(instance: Sidecar, **request: Any) -> dict[str, Any]:
    """Redrive over HTTP and return the status at the end."""
    status, body = instance.call("POST", REDRIVES, request, {})
    assert status == 202, body
    eventually(lambda: read(instance, f"{REDRIVES}/{body['run']}")["state"] != "running", WAIT_S, "the redrive ends")
    return read(instance, f"{REDRIVES}/{body['run']}")


def test_http_counts_lists_and_shows_what_the_report_counts(world: World) -> None:
    origin = topic(world.stage, "listed")
    marker = exhausted(world, "listed", 25)
    counts = read(world.sidecar, f"/dlq?origin={origin}")
    report = answer(world, "report", "--origin", origin)
    assert counts["total"] == 25
    assert {kind: counts[kind] for kind in report if kind.startswith("by_")} == {
        kind: report[kind] for kind in report if kind.startswith("by_")
    }
    assert (counts["topics"], counts["unread"], counts["cursor"]) == ([world.stage.dlq_topic], 0, None)

    met: list[dict[str, Any]] = []
    cursor = ""
    while len(met) < 25 or cursor:
        page = read(world.sidecar, f"/dlq/messages?origin={origin}&limit=10{cursor}")
        met += page["messages"]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={quote(page['cursor'])}"
    assert len({each["id"] for each in met}) == len(met) == 25
    died = [each["died_ms"] for each in met if each["partition"] == met[0]["partition"]]
    assert died == sorted(died, reverse=True)
    assert read(world.sidecar, f"/dlq/messages?origin={origin}&died_to=1")["messages"] == []

    path = f"/dlq/messages/{met[0]['id']}"
    shown, whole = read(world.sidecar, path), read(world.sidecar, f"{path}?payload=true")
    assert {name: shown[name] for name in met[0]} == met[0]
    assert {each["name"]: each["value"] for each in shown["headers"]}["test"] == marker.decode()
    assert "value" not in shown
    assert base64.b64decode(whole["value"]).startswith(b"value ")
    assert world.sidecar.call("GET", "/dlq/messages/0-99999999", None, {})[0] == 404
    assert world.sidecar.call("GET", "/dlq?topic=elsewhere", None, {})[0] == 400


def test_a_redrive_over_http_that_is_killed_and_asked_for_again_brings_each_back_once(
    world: World, api: Sidecar
) -> None:
    count, origin = 300, topic(world.stage, "asked")
    marker = exhausted(world, "asked", count)
    wanted = {"origin": [origin], "per_second": float(SLOW)}
    looked = redriven(api, origin=[origin], dry_run=True)
    assert (looked["state"], looked["redriven"], looked["left"]) == ("done", count, {})
    assert looked["run"] == answer(world, "redrive", "--origin", origin, "--dry-run")["run"], "the command's run"
    assert len(retry_topic_records(world, marker)) == count, "nothing has changed"

    status, first = api.call("POST", REDRIVES, wanted, {})
    assert (status, first["run"]) == (202, looked["run"])
    await_redriven(world, marker, count)
    assert api.call("POST", REDRIVES, wanted, {})[0] == 200, "asked twice"
    refused, said = api.call("POST", REDRIVES, {"origin": [origin]}, {})
    assert (refused, first["run"] in said["message"]) == (409, True)
    api.kill()
    done = len(retry_topic_records(world, marker)) - count
    assert done < count, "killed in the middle"

    api.start(API)
    api.await_ready()
    again = redriven(api, origin=[origin])
    assert (again["state"], again["message"]) == ("done", "")
    assert again["redriven"] == count - done
    require_each_once(world, "asked", marker, count)
    assert redriven(api, origin=[origin])["redriven"] == 0
    assert answer(world, "redrive", "--origin", origin, "--yes")["redriven"] == 0


def test_one_dead_letter_is_redriven_once_in_its_run_and_a_stopped_run_continues(world: World, api: Sidecar) -> None:
    marker = unique("m").encode()
    fatal: Pairs = [("retry-origin-topic", world.stage.origin.encode()), ("retry-exception", b"com.acme.Fatal")]
    world.send(*(Given(b"%d" % each, None, [*fatal, ("retry-group", marker), ("test", marker)]) for each in range(3)))
    one = world.dead(marker, 3)[1]
    name = f"{one.partition}-{one.offset}"
    assert redriven(api, id=name, dry_run=True)["first"][0]["id"] == name
    assert redriven(api, id=name)["redriven"] == 1
    (back,) = [each for each in world.dead(marker, 4) if "retry-redrives" in dict(each.headers)]
    assert back.value == one.value
    again = redriven(api, id=name)
    assert (again["redriven"], again["handled_before"]) == (0, 1)
    gone = redriven(api, id="0-99999999")
    assert (gone["state"], "no record 0-99999999" in gone["message"]) == ("failed", True)

    group, run = marker.decode(), unique("run")
    status, _ = api.call("POST", REDRIVES, {"run": run, "group": [group], "max_redrives": 1, "per_second": 0.01}, {})
    assert status == 202
    eventually(lambda: read(api, f"{REDRIVES}/{run}")["redriven"] == 1, WAIT_S, "the first is sent")
    assert api.call("DELETE", f"{REDRIVES}/{run}", None, {})[0] == 200
    eventually(lambda: read(api, f"{REDRIVES}/{run}")["state"] == "stopped", WAIT_S, "it stops")
    rest = redriven(api, run=run, group=[group], max_redrives=1)
    assert rest["redriven"] + 1 == 3
    assert rest["left"]["loop-guard"]["fatal"] >= 1


def test_what_is_discarded_is_listed_counted_and_redriven_no_more_wherever_it_is_asked(
    world: World, api: Sidecar
) -> None:
    marker = unique("m").encode()
    group = marker.decode()
    fatal: Pairs = [("retry-origin-topic", world.stage.origin.encode()), ("retry-exception", b"com.acme.Fatal")]
    world.send(*(Given(b"%d" % each, None, [*fatal, ("retry-group", marker), ("test", marker)]) for each in range(4)))
    names = [f"{each.partition}-{each.offset}" for each in world.dead(marker, 4)]
    assert [each["id"] for each in lines(world, "list", "--group", group)] == sorted(
        names, key=lambda each: int(each.split("-")[1]), reverse=True
    )
    by_http, by_command = names[:2]
    status, made = api.call("POST", DISCARDS, {"id": by_http, "why": "a test order"}, {})
    assert (status, made["id"], made["why"]) == (200, by_http, "a test order")
    (told,) = lines(world, "discard", by_command, "--why", "another one")
    assert (told["id"], "@" in told["who"]) == (by_command, True)
    for instance in (world.sidecar, api):
        seen = read(instance, f"/dlq/messages?group={group}")["messages"]
        assert {each["id"] for each in seen} == set(names[2:])
        assert read(instance, f"/dlq?group={group}")["total"] == 2
        assert [each["id"] for each in read(instance, DISCARDS)["discards"]][:2] == [by_command, by_http]
        assert read(instance, f"/dlq/messages/{by_http}")["discarded"] == made
    assert answer(world, "report", "--group", group)["total"] == 2
    (shown,) = lines(world, "get", by_command)
    assert shown["discarded"]["why"] == "another one"
    tally = answer(world, "redrive", "--group", group, "--yes")
    assert (tally["redriven"], tally["left"]["discarded"]) == (2, {"fatal": 2})
    assert redriven(api, id=by_http)["left"]["discarded"] == {"fatal": 1}
    assert "com.acme" not in str(tally["first_left"][0]["because"])

    (undone,) = lines(world, "discard", by_http, "--undo")
    assert undone == {"id": by_http, "taken_back": True}
    taken_back = {"id": by_command, "taken_back": True}
    assert api.call("DELETE", f"{DISCARDS}/{by_command}", None, {}) == (200, taken_back)
    assert api.call("DELETE", f"{DISCARDS}/{by_command}", None, {})[0] == 404
    assert api.call("POST", DISCARDS, {"id": "0-99999999", "why": "x"}, {})[0] == 404
    assert read(world.sidecar, f"/dlq/messages/{by_http}")["discarded"] is None
    assert redriven(api, id=by_http, run=unique("run"))["redriven"] == 1


def test_one_dead_letter_is_found_by_its_key_or_its_id(world: World) -> None:
    marker = unique("m").encode()
    headers: Pairs = [("retry-origin-topic", topic(world.stage, "orders").encode()), ("retry-attempt", b"3")]
    own = [*headers, ("test", marker), ("retry-id", marker)]
    world.send(Given(b"1", marker, [*headers, ("test", marker)], 0), Given(b"2", b"k", own, 1))
    one, two = sorted(world.dead(marker, 2), key=lambda each: each.value or b"")
    for option, wanted in (("--key", one), ("--retry-id", two)):
        (found,) = lines(world, "list", option, marker.decode())
        assert found["id"] == f"{wanted.partition}-{wanted.offset}"
