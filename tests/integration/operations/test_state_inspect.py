"""`retry-sidecar state inspect` against a real changelog: what it says is what a restore gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from sidecar import cli
from sidecar.clock import SystemClock
from tests.integration.messages import Given, World, native
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

FAR_MS = 3_600_000

pytestmark = pytest.mark.broker


def run(stage: Stage, *arguments: str) -> Result:
    return CliRunner().invoke(cli.main, [*arguments, *stage.flags])


def inspected(stage: Stage, *arguments: str) -> dict[str, Any]:
    result = run(stage, "state", "inspect", "--json", *arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_changelog_and_folder_tell_the_same_and_what_the_sidecar_says(stage: Stage, sidecars: Sidecars) -> None:
    one = sidecars.start("one", stage)
    world = World(stage, one)
    due_ms = SystemClock().wall_ms() + FAR_MS
    headers: list[tuple[str, bytes | None]] = [("retry-origin-topic", stage.origin.encode())]
    due: list[tuple[str, bytes | None]] = [("retry-due-ms", b"%d" % due_ms)]
    named: list[tuple[str, bytes | None]] = [("retry-id", b"x")]
    world.send(*(Given(headers=[*headers, *due], partition=number % 4) for number in range(20)))
    world.send(*(Given(headers=[*headers, *due, *named], partition=1) for _ in range(3)))
    world.send(Given(headers=native(stage, b"fired", 1)))
    world.fired(b"fired")
    assert run(stage, "cancel", "id:x", "--timeout", "20").exit_code == 0
    eventually(lambda: one.pending() == 20, 20, "twenty wait")
    live = inspected(stage, "--changelog", "--entries", "2")
    assert (live["source"], live["total"]) == (stage.changelog_topic, 20)
    assert live["by_partition"] == {"0": 5, "1": 5, "2": 5, "3": 5}
    assert live["next_due_ms"] == due_ms
    assert [each["origin"] for each in live["entries"]] == [stage.origin] * 2
    assert one.stop() == 0
    kept = inspected(stage, "--state-dir", str(one.state_dir))
    for name in ("total", "by_origin", "by_partition", "next_due_ms"):
        assert kept[name] == live[name], name
    assert (
        "with an empty state folder would have after its restore"
        in run(stage, "state", "inspect", "--changelog").stdout
    )


def test_a_partition_whose_changelog_cannot_be_read_is_named(stage: Stage) -> None:
    missing = run(stage, "state", "inspect", "--changelog")
    assert missing.exit_code == 1
    assert (
        f"topic {stage.changelog_topic}: does not exist; create it with: retry-sidecar topics create" in missing.stderr
    )
    assert run(stage, "topics", "create").exit_code == 0
    assert inspected(stage, "--changelog")["total"] == 0
    producer = Producer({"bootstrap.servers": stage.bootstrap})
    producer.produce(stage.changelog_topic, key=b"?", value=b"strange", partition=2)
    assert producer.flush(20) == 0
    result = run(stage, "state", "inspect", "--changelog", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, list(answer["problems"])) == (1, ["2"])
    assert f"partition 2: {stage.changelog_topic}, partition 2, offset 0: the key b'?'" in result.stderr
