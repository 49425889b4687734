"""The redrive against a broker: what is meant goes once, in any number of starts, and what stays is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from sidecar.model import Reason
from tests.broker import Read, create_topic, read_committed, unique
from tests.integration.messages import Given, Pairs, marked, send
from tests.integration.sidecars import Sidecars, Stage
from tests.spark.jobs.dead_letters import dead
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

MARK = b"m"


@dataclass(frozen=True, slots=True)
class World:
    """A DLQ of three partitions with dead letters, and no sidecar."""

    stage: Stage
    dlq: str
    environment: dict[str, str]

    def run(self, *arguments: str) -> dict[str, Any]:
        """Return the output of a command."""
        command = self.command(*arguments)
        answer = subprocess.run(command, env=self.environment, capture_output=True, check=False, timeout=240)
        assert answer.returncode == 0, answer.stderr.decode()
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    def command(self, *arguments: str) -> list[str]:
        where = ("--master", "local[2]") if arguments[0] == "spark" else ()
        return [sys.executable, "-m", "sidecar", *arguments, "--json", *where]

    def has_begun(self) -> bool:
        """Return whether anything was written to the partition of the retry topic where the dead letters came from."""
        place = TopicPartition(self.stage.input_topic, 1)
        reader = Consumer({"bootstrap.servers": self.stage.bootstrap, "group.id": unique("reader")})
        try:
            return bool(reader.get_watermark_offsets(place, timeout=15.0)[1])
        finally:
            reader.close()

    def redriven(self) -> list[Read]:
        """Return the records on the retry topic."""
        return marked(read_committed(self.stage.bootstrap, [self.stage.input_topic]), MARK)


@pytest.fixture
def world(stage: Stage, sidecars: Sidecars) -> World:
    dlq = unique("dlq")
    create_topic(stage.bootstrap, dlq, 3)
    return World(stage, dlq, sidecars.make("none", stage, DLQ_TOPIC=dlq).environment)


def put(world: World, count: int, origin: bytes, reason: Reason, *, truncated: bool = False) -> None:
    """Put dead letters on all partitions of the DLQ, each as if from partition 1 of the retry topic."""
    headers: Pairs = [("retry-origin-topic", origin), ("twice", b"1"), ("twice", None), ("test", MARK)]
    gone = dead(headers, reason, topic=world.stage.input_topic, partition=1, truncated=truncated)
    given = (Given(b"%b %d" % (origin, each), b"k%d" % each, gone, each % 3) for each in range(count))
    send(world.stage.bootstrap, world.dlq, *given)


def test_a_redrive_sends_what_is_meant_once_and_continues_with_what_has_come_since(java: Path, world: World) -> None:
    put(world, 1_200, b"orders", Reason.ATTEMPTS_EXHAUSTED)
    put(world, 30, b"orders", Reason.FATAL, truncated=True)
    put(world, 20, b"orders", Reason.TOO_LARGE)
    put(world, 300, b"payments", Reason.FATAL)
    wanted = ("redrive", "--origin", "ord*", "--yes")

    first = world.run("spark", *wanted, "--keep-attempts")
    assert (first["read"], first["redriven"], first["filtered"]) == (1_550, 1_200, 300)
    assert first["left"] == {"truncated": {"fatal": 30}, "would-die-again": {"too-large": 20}}
    assert (first["passed"], first["failures"], len(first["first"])) == (0, {}, 10)
    records = world.redriven()
    assert Counter(each.value for each in records) == {b"orders %d" % each: 1 for each in range(1_200)}
    assert {each.partition for each in records} == {1}, "where they came from"
    one = records[0]
    assert [name for name, _ in one.headers] == [
        "retry-origin-topic",
        "twice",
        "twice",
        "test",
        "retry-due-ms",
        "retry-redrives",
    ]

    assert world.run("spark", *wanted)["read"] == 0
    assert world.run("dlq", *wanted)["read"] == 0, "it is the same run"
    put(world, 3, b"orders", Reason.FATAL)
    assert world.run("dlq", *wanted)["redriven"] == 3
    assert world.run("spark", *wanted)["read"] == 0
    assert len(world.redriven()) == 1_203


def test_a_dry_run_changes_nothing_and_a_restart_sends_again(java: Path, world: World) -> None:
    put(world, 30, b"orders", Reason.FATAL)
    looked = world.run("spark", "redrive", "--dry-run", "--run", "r")
    assert (looked["dry_run"], looked["redriven"], looked["run"]) == (True, 30, "r")
    assert not world.redriven()
    for times in (1, 2):
        assert world.run("spark", "redrive", "--run", "r", "--restart", "--yes")["redriven"] == 30
        assert len(world.redriven()) == 30 * times


def test_a_redrive_that_is_killed_and_repeated_sends_each_once(java: Path, world: World) -> None:
    count = 60_000
    put(world, count, b"orders", Reason.FATAL)
    with subprocess.Popen(
        world.command("spark", "redrive", "--yes"),
        env=world.environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as first:
        eventually(world.has_begun, 150, "some are redriven")
        os.killpg(first.pid, signal.SIGKILL)
    done = len(world.redriven())
    assert done < count, "killed in the middle"
    again = world.run("spark", "redrive", "--yes")
    assert again["redriven"] <= count - done
    assert Counter(each.value for each in world.redriven()) == {b"orders %d" % each: 1 for each in range(count)}
