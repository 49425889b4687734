"""The commands that act on what is pending, against a running sidecar: they need the cluster and no HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from sidecar.clock import SystemClock
from tests.integration.messages import Given, World, one_sidecar
from tests.integration.sidecars import Stage

FAR_MS = 3_600_000
PATIENT = ("--timeout", "20")

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("commands")) as made:
        yield made


def run(stage: Stage, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, [*arguments, *stage.flags])


def put(world: World, marker: bytes, retry_id: bytes | None = None) -> str:
    """Send a message that is due in an hour and return its timer id."""
    due_ms = SystemClock().wall_ms() + FAR_MS
    headers: list[tuple[str, bytes | None]] = [
        ("retry-origin-topic", world.stage.origin.encode()),
        ("retry-due-ms", b"%d" % due_ms),
        ("test", marker),
    ]
    if retry_id is not None:
        headers.append(("retry-id", retry_id))
    (sent,) = world.send(Given(headers=headers))
    return f"{sent.partition}-{sent.offset}-{due_ms}"


def test_a_message_is_cancelled_once(world: World) -> None:
    timer = put(world, b"cancelled")
    first, again = (run(world.stage, "cancel", timer, *PATIENT) for _ in range(2))
    assert (first.exit_code, first.stdout) == (0, f"{timer}: cancelled, 1 message\n")
    assert (again.exit_code, again.stdout) == (1, "")
    assert f"{timer}: not pending" in again.stderr


def test_a_message_is_fired_now_and_one_is_rescheduled_to_soon(world: World) -> None:
    assert run(world.stage, "fire", put(world, b"fired"), *PATIENT).exit_code == 0
    assert run(world.stage, "reschedule", put(world, b"moved"), "--delay", "1s", *PATIENT).exit_code == 0
    world.fired(b"fired")
    world.fired(b"moved")


def test_what_was_sent_without_waiting_is_looked_up(world: World) -> None:
    put(world, b"named", b"x")
    put(world, b"named", b"x")
    control_id = run(world.stage, "cancel", "id:x", "--no-wait").stdout.strip()
    assert run(world.stage, "cancel", "id:x", *PATIENT).exit_code == 1, "the first one was reached before"
    found = json.loads(run(world.stage, "outcome", control_id, "--json").stdout)
    assert (found["target"], found["outcome"], found["count"]) == ("id:x", "cancelled", 2)


def test_a_paused_origin_fires_nothing_by_command_until_it_is_resumed(world: World) -> None:
    timer = put(world, b"paused")
    paused = run(world.stage, "pause", world.stage.origin, "--json", *PATIENT)
    assert (paused.exit_code, json.loads(paused.stdout)["outcome"]) == (0, "paused")
    refused = run(world.stage, "fire", timer, *PATIENT)
    assert refused.exit_code == 1
    assert f"{world.stage.origin} is paused" in refused.stderr
    assert run(world.stage, "resume", world.stage.origin, *PATIENT).exit_code == 0
    assert run(world.stage, "fire", timer, *PATIENT).exit_code == 0
    world.fired(b"paused")


def test_without_an_owner_there_is_no_answer_in_time(stage: Stage) -> None:
    """The topics are there and no sidecar runs: the record stays, and its id says where to look."""
    assert run(stage, "topics", "create").exit_code == 0
    result = run(stage, "cancel", "id:x", "--timeout", "12")
    assert result.exit_code == 1
    assert "no answer from partition 0, 1, 2, 3 in time" in result.stderr
    control_id = result.stderr.split()[-1]
    missing = run(stage, "outcome", control_id)
    assert missing.exit_code == 1
    assert f"no outcome of control id {control_id}" in missing.stderr
