"""Single messages of a real query: the driver's API lists, finds and shows them, and so does `retry-sidecar api`."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.messages import Given, native, send
from tests.integration.sidecars import API, Sidecar, Sidecars, Stage
from tests.spark.queries import WAIT_S, command
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

HOUR_MS = 3_600_000
TOKEN = {"authorization": "Bearer a-token-of-sixteen"}


def messages_of(one: Sidecar, query: str = "") -> dict[str, Any]:
    """Return a page; a query that is busy or starts answers 503, and is asked again."""
    found: dict[str, Any] = {}

    def answered() -> bool:
        status, body = one.call("GET", f"/pending/messages{query}", None, TOKEN)
        assert status in {200, 429, 503}, body
        found.update(body)
        return status == 200

    eventually(answered, WAIT_S, f"{one.name} answers")
    return found


def shown(one: Sidecar, target: str, query: str = "") -> tuple[int, Any]:
    """Return status and body; a query that is busy answers 503, and is asked again."""

    def answered() -> tuple[int, Any] | None:
        status, body = one.call("GET", f"/pending/messages/{quote(target)}{query}", None, TOKEN)
        return None if status in {429, 503} else (status, body)

    found = eventually(answered, WAIT_S, f"{one.name} answers")
    assert found is not None
    return found


def test_messages_are_listed_found_and_shown_and_a_filter_changes_what_it_matches(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    one = sidecars.make("spark", stage, API_TOKEN="a-token-of-sixteen")
    one.start(command("run", tmp_path))
    given = [
        Given(
            b"value %d" % number,
            b"key %d" % number,
            native(
                stage,
                b"listed",
                HOUR_MS + 1000 * number,
                ("retry-id", b"id-%d" % (number // 2)),
                ("n", b"%d" % (number % 3)),
            ),
            number % 2,
        )
        for number in range(20)
    ]
    send(stage.bootstrap, stage.input_topic, *given)
    eventually(lambda: (one.group() or {}).get("total") == 20, WAIT_S, "all are pending")

    page = messages_of(one)
    assert (len(page["messages"]), page["cursor"], page["complete"], page["missing"]) == (20, None, True, [])
    assert page["examined"] == 20
    assert page["micro_batch"] > 0
    assert page["as_of_ms"] > 0
    dues = [each["due_ms"] for each in page["messages"]]
    assert dues == sorted(dues)

    seen, cursor = [], ""
    while cursor is not None:
        part = messages_of(one, f"?limit=7{cursor and f'&cursor={cursor}'}")
        seen += part["messages"]
        cursor = part["cursor"]
    assert seen == page["messages"]
    assert len(messages_of(one, "?header=n:1")["messages"]) == 7
    assert [each["partition"] for each in messages_of(one, "?partition=1")["messages"]] == [1] * 10

    first = page["messages"][0]
    status, body = shown(one, first["id"], "?payload=true")
    assert (status, body["id"], base64.b64decode(body["value"])) == (200, first["id"], b"value 0")
    assert body["micro_batch"] >= page["micro_batch"]
    assert shown(one, "0-999999-5")[0] == 404
    status, named = shown(one, "id:id-3")
    assert (status, len(named["messages"]), named["complete"]) == (200, 2, True)

    _another_process_asks_the_driver(one, stage, sidecars, page)
    _commands_act_on_what_a_filter_matches(one, stage)
    assert one.stop(60) == 0


def _another_process_asks_the_driver(one: Sidecar, stage: Stage, sidecars: Sidecars, page: dict[str, Any]) -> None:
    api = sidecars.make("api", stage, API_TOKEN="a-token-of-sixteen")
    api.start(API)
    api.await_ready()
    eventually(lambda: messages_of(api)["messages"] == page["messages"], WAIT_S, "the driver is known")

    def key() -> bytes | None:
        status, body = shown(api, page["messages"][3]["id"], "?payload=true")
        return base64.b64decode(body["key"]) if status == 200 else None

    assert eventually(key, WAIT_S, "the driver answers") == b"key 3"
    assert api.stop() == 0


def _commands_act_on_what_a_filter_matches(one: Sidecar, stage: Stage) -> None:
    def run(*arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "sidecar", *arguments, "--url", f"http://127.0.0.1:{one.port}", "--json"],
            capture_output=True,
            text=True,
            env=one.environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    listed = run("list", "--header", "n:2")
    assert len(listed) == 6
    (answer,) = run("cancel", "--header", "n:2", "--yes")
    assert (answer["total"], answer["outcomes"]) == (6, {"cancelled": 6})
    assert run("list", "--header", "n:2") == []
    eventually(lambda: (one.group() or {}).get("total") == 14, WAIT_S, "the rest is pending")
    status, gone = one.change("DELETE", f"/pending/messages/{listed[0]['id']}", None, TOKEN)
    assert (status, gone["result"]) == (404, "not-pending")
