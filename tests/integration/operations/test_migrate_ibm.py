"""`migrate ibm` on a real broker: what waits in IBM's changelog is taken over once, also after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition

from sidecar import cli
from sidecar.clock import SystemClock
from sidecar.kafka.producer import TransactionalProducer
from sidecar.migrate import ibm as migration
from sidecar.settings import Settings
from tests.broker import Read, create_topic, read_committed
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

HOUR_MS = 3_600_000


class Ibm:
    """What IBM's program has left: its changelog, and the offsets of its group."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.changelog = f"{stage.app_id}-retry-queue-changelog"
        create_topic(stage.bootstrap, self.changelog, 2, {"cleanup.policy": "compact"})
        self.producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0})

    def put(self, key: str, info: Mapping[str, Any] | None, partition: int = 0) -> None:
        self.producer.produce(self.changelog, None if info is None else json.dumps(info), key, partition)

    def commit(self, offset: int) -> None:
        """Commit as its group, which is called like its application, for the first partition."""
        consumer = Consumer({"bootstrap.servers": self.stage.bootstrap, "group.id": self.stage.app_id})
        try:
            consumer.commit(offsets=[TopicPartition(self.stage.input_topic, 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    def flush(self) -> None:
        assert self.producer.flush(30) == 0


def info(origin: str, payload: object, *, attempt: int = 1, ago_ms: int = 0) -> dict[str, Any]:
    """Return what IBM's store keeps of a message."""
    at_ms = SystemClock().wall_ms() - ago_ms
    return {"timeStamp": at_ms, "originTopic": origin, "retryAttempt": attempt, "payload": payload}


def migrate(stage: Stage, *more: str) -> Result:
    flags = [*stage.flags, "--store-name", "wheel", "--retriable-exception", "com.acme.Busy", "--json"]
    return CliRunner().invoke(cli.main, ["migrate", "ibm", *flags, *more], catch_exceptions=False)


def taken(stage: Stage) -> list[Read]:
    """Return the records of the retry topic that the command has sent."""
    sent = read_committed(stage.bootstrap, [stage.input_topic])
    return [each for each in sent if "x-ibm-retry-origin-topic" in dict(each.headers)]


def test_what_waits_is_taken_over_once_and_fires_from_there(stage: Stage, sidecars: Sidecars) -> None:
    left = Ibm(stage)
    # Read by IBM's program, and delivered long ago: the sidecar's group begins behind it.
    left.producer.produce(stage.input_topic, b'{"old": true}', b"old", 0)
    left.put("replaced", info(stage.origin, {"n": 1}))
    left.put("replaced", info(stage.origin, {"n": 2}, attempt=2, ago_ms=HOUR_MS))
    left.put("delivered", info(stage.origin, "never"))
    left.put("delivered", None)
    left.put("later", info(stage.origin, [1, 2.50, "ü"], attempt=1, ago_ms=-HOUR_MS), partition=1)
    left.producer.produce(left.changelog, b"not JSON", b"strange", 1)
    left.flush()
    left.commit(1)

    looked = migrate(stage, "--dry-run")
    assert looked.exit_code == 1  # for the value that is not IBM's
    shown = json.loads(looked.stdout)
    assert (shown["messages"], shown["by_origin"], shown["not_stored"]) == (2, {stage.origin: 2}, {})
    assert shown["unreadable"] == ["partition 1, offset 1"]
    assert taken(stage) == []

    moved = migrate(stage)
    assert json.loads(moved.stdout)["messages"] == 2
    assert f"where the group {stage.app_id} stopped" in json.loads(moved.stdout)["began"]
    again = migrate(stage)
    assert json.loads(again.stdout)["messages"] == 0
    records = {each.key: each for each in taken(stage)}
    assert records.keys() == {b"replaced", b"later"}
    assert json.loads(records[b"later"].value or b"") == [1, 2.50, "ü"]
    assert dict(records[b"replaced"].headers)["x-ibm-retry-exception-type"] == b"com.acme.Busy"

    sidecar = sidecars.start("one", stage, STORE_NAME="wheel", START_AT="")
    (fired,) = read_committed(stage.bootstrap, [stage.origin], 60, until=bool)
    assert (fired.key, json.loads(fired.value or b"")) == (b"replaced", {"n": 2})
    assert fired.header("x-ibm-retry-attempts") == b"2"
    eventually(lambda: sidecar.pending() == 1, 60, "the other one waits")
    assert read_committed(stage.bootstrap, [stage.dlq_topic]) == []


def test_a_kill_between_two_transactions_loses_and_repeats_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Ibm(stage)
    for number in range(7):
        left.put(f"key-{number}", info(stage.origin, number, ago_ms=-HOUR_MS))
    left.flush()
    monkeypatch.setattr(migration, "BATCH_MAX", 2)
    commit, done = TransactionalProducer.commit, list[int]()

    def killed(self: TransactionalProducer) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt  # everything of the third transaction is written, and not committed
        commit(self)
        done.append(1)

    monkeypatch.setattr(TransactionalProducer, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        migration.IbmMigration(*_given(stage)).carry_out(lambda _: None)
    monkeypatch.setattr(TransactionalProducer, "commit", commit)
    rest = migration.IbmMigration(*_given(stage)).carry_out(lambda _: None)
    assert rest.by_origin.total() == 3
    assert sorted(each.value for each in taken(stage) if each.value) == [b"%d" % number for number in range(7)]


def _given(stage: Stage) -> Any:
    settings = Settings(
        bootstrap_servers=stage.bootstrap,
        streams_app_id=stage.app_id,
        input_topic=stage.input_topic,
        store_name="wheel",
    )
    return settings, migration.Source(stage.app_id, "retry-queue", stage.input_topic)


def test_a_program_that_still_runs_is_left_alone(stage: Stage) -> None:
    left = Ibm(stage)
    left.put("key", info(stage.origin, 1))
    left.flush()
    member = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": stage.app_id})
    try:
        member.subscribe([stage.input_topic])
        eventually(lambda: member.poll(0.2) is None and bool(member.assignment()), 60, "it has joined")
        refused = migrate(stage)
        assert refused.exit_code == 1
        assert "IBM's program still runs" in refused.stderr
        assert taken(stage) == []
    finally:
        member.close()


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--store-name", "retry-queue"], 2, "STORE_NAME: 'retry-queue' gives the sidecar the changelog of IBM's"),
        (["--profiles", "native"], 2, "PROFILES: 'native' must name ibm"),
        (["--retriable-exception", "com.acme.*"], 1, "name one with --exception"),
        (["--from-store", "a b"], 2, "'a b': must be 1 to 249 characters"),
    ],
)
def test_settings_that_cannot_take_over_are_refused(
    flags: list[str], status: int, said: str, unique: Callable[[str], str]
) -> None:
    given = ["migrate", "ibm", "--streams-app-id", unique("app"), "--store-name", "wheel", *flags]
    refused = CliRunner().invoke(cli.main, given)
    assert (refused.exit_code, said in refused.stderr) == (status, True), refused.stderr
