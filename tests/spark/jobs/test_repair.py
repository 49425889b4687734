"""A checkpoint is lost: `spark audit --repair` brings back what was pending, each message once and as it was."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from sidecar.contract.control import ControlKind, Outcome, parse_target
from sidecar.control.client import ControlClient
from sidecar.settings import Settings
from tests.broker import Read, read_committed
from tests.integration.messages import Given, marked, native, send
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.spark.queries import WAIT_S, command, deliveries
from tests.spark.test_run import kill_with_its_jvm
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

NEAR, SOON, FAR = 60, 40, 30
SOON_MS = 20_000
"""Due after the query is killed, and before the messages are armed again."""


def test_what_was_pending_in_a_lost_checkpoint_comes_once(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    one = sidecars.make("one", stage)
    one.start(command("run", tmp_path))
    one.await_ready(WAIT_S)
    given = [Given(b"n%d" % n, b"k", native(stage, b"near", 1), n % 2) for n in range(NEAR)]
    given += [Given(b"f%d" % n, b"k", native(stage, b"far", 3_600_000, ("retry-id", b"f")), n % 2) for n in range(FAR)]
    given += [
        Given(b"g", b"k", native(stage, b"gone", 3_600_000, ("retry-id", b"g"))),
        Given(headers=[("no", b"origin")]),
    ]
    sent = send(stage.bootstrap, stage.input_topic, *given)
    deliveries(stage, b"near", NEAR)
    _does(stage, ControlKind.CANCEL, "id:g", Outcome.CANCELLED)
    attempted = ("retry-attempt", b"2")
    soon = [Given(b"s%d" % n, b"k", native(stage, b"soon", SOON_MS, attempted), n % 2) for n in range(SOON)]
    send(stage.bootstrap, stage.input_topic, *soon)
    eventually(lambda: (one.group() or {}).get("total") == FAR + SOON, WAIT_S, "all else is pending")
    kill_with_its_jvm(one)
    shutil.rmtree(tmp_path / "checkpoint")
    assert marked(read_committed(stage.bootstrap, [stage.origin]), b"soon") == []
    # Sent while nothing runs: it waits on the retry topic.
    send(stage.bootstrap, stage.input_topic, Given(b"later", b"k", native(stage, b"later", 1)))

    refused = subprocess.run(
        [sys.executable, *command("run", tmp_path)], capture_output=True, text=True, env=one.environment, check=False
    )
    assert "spark audit --repair" in refused.stderr
    refused = _audit(one, "-m", "sidecar")
    assert "--checkpoint" in refused.stderr
    planned = _repaired(one, "--dry-run")
    assert planned == {"armed": FAR + SOON, "undecided": 0, "rejected": 0, "done": False}

    killed = _audit(one, "-m", "tests.spark.jobs.killed_repair", "--repair", "--yes", "--json")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert _repaired(one, "--yes") == {"armed": FAR + SOON, "undecided": 0, "rejected": 0, "done": True}
    assert _repaired(one, "--yes")["armed"] == 0

    two = sidecars.make("two", stage)
    two.start(command("run", tmp_path / "new", "--from-changelog"))
    came = deliveries(stage, b"soon", SOON)
    assert {each.header("retry-attempt") for each in came} == {b"3"}
    assert len(deliveries(stage, b"later", 1)) == 1
    eventually(lambda: (two.group() or {}).get("total") == FAR, WAIT_S, "what is far is pending")
    # A timer id from before the loss names the message.
    named = next(each for each, message in zip(sent, given, strict=True) if message.value == b"f0")
    _does(stage, ControlKind.FIRE, f"{named.partition}-{named.offset}-{named.timestamp_ms + 3_600_000}", Outcome.FIRED)
    _does(stage, ControlKind.FIRE, "id:f", Outcome.FIRED)
    far = deliveries(stage, b"far", FAR)
    assert (b"f0", _timer_id(named.partition, named.offset)) in {
        (each.value, (each.header("retry-timer-id") or b"").rsplit(b"-", 1)[0]) for each in far
    }
    assert two.stop(90) == 0
    _each_came_once(stage)


def test_what_an_origin_may_have_deleted_is_left(java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path) -> None:
    """And lost messages of the embedded engine are armed beside those that are pending."""
    embedded = sidecars.start("embedded", stage)
    send(stage.bootstrap, stage.input_topic, *[Given(b"%d" % n, b"k", native(stage, b"near", 1)) for n in range(5)])
    send(stage.bootstrap, stage.input_topic, *[Given(b"f", b"k", native(stage, b"far", 3_600_000)) for _ in range(3)])
    fired = deliveries(stage, b"near", 5)
    eventually(lambda: embedded.pending() == 3, 40, "three wait")
    assert embedded.stop() == 0
    # Three deliveries are deleted, two of them before the last one that is left.
    places = {each.partition for each in fired}
    assert len(places) == 1
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    before = [TopicPartition(stage.origin, places.pop(), fired[3].offset)]
    for future in admin.delete_records(before).values():
        future.result(20)
    assert _repaired(embedded, "--dry-run") == {"armed": 0, "undecided": 3, "rejected": 0, "done": False}
    assert _repaired(embedded, "--yes", "--even-undecided")["armed"] == 3
    embedded.start()
    again = deliveries(stage, b"near", 5)
    assert sorted(each.value or b"" for each in again) == sorted(each.value or b"" for each in fired)
    eventually(lambda: embedded.pending() == 3, 40, "the three wait as before")


def _each_came_once(stage: Stage) -> None:
    seen = read_committed(stage.bootstrap, [stage.origin])
    values = Counter(each.value for each in seen)
    wanted = {b"n%d" % n for n in range(NEAR)} | {b"s%d" % n for n in range(SOON)} | {b"f%d" % n for n in range(FAR)}
    assert values == Counter(wanted | {b"later"})
    assert len(read_committed(stage.bootstrap, [stage.dlq_topic])) == 1
    assert all(_early_ms(each) <= 0 for each in seen if ("test", b"soon") in each.headers)


def _early_ms(record: Read) -> int:
    return int(record.header("retry-was-due-ms") or b"") - record.timestamp_ms


def _timer_id(partition: int, offset: int) -> bytes:
    return b"%d-%d" % (partition, offset)


def _does(stage: Stage, kind: ControlKind, target: str, outcome: Outcome) -> None:
    settings = Settings(bootstrap_servers=stage.bootstrap, streams_app_id=stage.app_id, input_topic=stage.input_topic)
    with ControlClient(settings) as control:
        assert control.act(kind, parse_target(target), deadline_s=WAIT_S).outcome is outcome


def _repaired(one: Sidecar, *more: str) -> dict[str, Any]:
    answer = _audit(one, "-m", "sidecar", "--repair", "--json", *more)
    assert answer.stdout, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)["repair"]
    return found


def _audit(one: Sidecar, module: str, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = [module, name, "spark", "audit", "--master", "local[2]", *more]
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=one.environment, check=False, timeout=240
    )
