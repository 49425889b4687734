"""A micro-batch that was sent to Kafka and is not complete in Spark's checkpoint: what the next start makes of it.

What such an end leaves is made of one that came to its end, by taking Spark's own word for that away.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from msgspec.structs import replace

from sidecar import __version__
from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.marks import Mark, MarkedCheckpoint
from tests.broker import create_topic, read_committed
from tests.integration.messages import Given, Pairs, marked, native, send
from tests.integration.sidecars import LOG_APPEND_TIME, Sidecar, Sidecars, Stage
from tests.spark.queries import WAIT_S, command, deliveries
from tests.spark.stream.test_sink import settings_of
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

END_S = 90.0


def standing(settings: Settings) -> tuple[MarkedCheckpoint, Mark]:
    """Return the last checkpoint of partition 0 in the changelog, and its mark."""
    last = group.last_checkpoints(settings, 2)[0]
    assert last.mark is not None
    return last, last.mark


def take_back(checkpoint: Path, batch: int) -> None:
    """Leave the checkpoint as if Spark had been killed before it noted that this micro-batch is complete."""
    for log, least in (("commits", batch), ("offsets", batch + 1)):
        for file in (checkpoint / "query" / log).iterdir():
            number = file.name.removeprefix(".").removesuffix(".crc")
            if number.isdigit() and int(number) >= least:
                file.unlink()


def write(file: Path, text: str) -> None:
    """Write a file of the checkpoint, without the checksum that Hadoop keeps beside it."""
    file.write_text(text)
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def refusal(one: Sidecar, tmp_path: Path) -> str:
    one.start(command("run", tmp_path))
    eventually(lambda: not one.running, WAIT_S, "it refuses to go on")
    return one.log


def test_a_micro_batch_that_was_sent_is_completed_under_the_settings_that_it_was_begun_under(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    settings = settings_of(stage)
    failing: Pairs = native(stage, b"once", 0, ("retry-exception", b"Broken"))
    one = sidecars.make("former", stage)
    one.start(command("run", tmp_path))
    send(stage.bootstrap, stage.input_topic, Given(b"once", b"k", failing))
    deliveries(stage, b"once", 1)
    assert one.stop(END_S) == 0
    last, mark = standing(settings)
    take_back(tmp_path / "checkpoint", mark.batch)

    # Another version makes other records of it.
    other = sidecars.make("other", stage, FATAL_EXCEPTION="Broken")
    rules = tmp_path / "checkpoint" / "retry-sidecar-rules.json"
    kept = rules.read_text()
    assert json.loads(kept)["version"] == __version__
    write(rules, kept.replace(f'"{__version__}"', '"0.0.1"'))
    group.write_checkpoints(settings, {0: replace(last, mark=replace(mark, digest="0" * 32))})
    said = refusal(other, tmp_path)
    assert "makes other records of it for partition 0" in said
    assert "Run version 0.0.1 that" in said
    assert len(marked(read_committed(stage.bootstrap, [stage.origin]), b"once")) == 1

    # The group's offsets have expired: it has no members, and nothing was committed for long.
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.delete_consumer_groups([settings.group_id])[settings.group_id].result(20)
    assert group.committed(settings, 2) == {}

    # Other settings wait until it is complete: by them it would have become a dead letter.
    write(rules, kept)
    group.write_checkpoints(settings, {0: last})
    other.start(command("run", tmp_path))
    send(
        stage.bootstrap,
        stage.input_topic,
        Given(b"now", b"k", native(stage, b"now", 0, ("retry-exception", b"Broken"))),
    )
    dead = read_committed(stage.bootstrap, [stage.dlq_topic], WAIT_S, until=lambda seen: len(seen) >= 1)
    assert [(each.value, each.header("retry-dlq-reason")) for each in dead] == [(b"now", b"fatal")]
    assert "micro_batch_repeated" in other.log
    assert other.stop(END_S) == 0
    assert [each.value for each in read_committed(stage.bootstrap, [stage.origin])] == [b"once"]
    assert len(read_committed(stage.bootstrap, [stage.dlq_topic])) == 1
    assert standing(settings)[1].sequence > mark.sequence

    # The changelog was created anew.
    group.write_checkpoints(settings, dict.fromkeys(range(2), Checkpoint(engine=Engine.SPARK)))
    send(stage.bootstrap, stage.input_topic, Given(b"more", b"k", native(stage, b"more", 0)))
    assert "--restore-marks" in refusal(other, tmp_path)
    other.start([*command("run", tmp_path), "--restore-marks"])
    deliveries(stage, b"more", 1)
    assert other.stop(END_S) == 0
    assert [each.value for each in read_committed(stage.bootstrap, [stage.origin])] == [b"once", b"more"]


def test_an_origin_that_takes_nothing_is_deferred_and_the_others_fire(
    java: Path, stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    """It goes behind the back of the state, which takes it for open when its message is due."""
    leaving = f"{stage.app_id}-leaving"
    create_topic(stage.bootstrap, leaving, 1, LOG_APPEND_TIME)
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    one = sidecars.make("one", stage, ORIGIN_TOPICS=f"{stage.origin},{leaving}")
    one.start(command("run", tmp_path))
    send(stage.bootstrap, stage.input_topic, Given(b"warm", b"k", native(stage, b"warm", 0)))
    deliveries(stage, b"warm", 1)
    to_leaving: Pairs = [("retry-origin-topic", leaving.encode()), ("retry-delay-ms", b"12000")]
    send(stage.bootstrap, stage.input_topic, *(Given(b"%d" % n, b"k", to_leaving, partition=n) for n in range(2)))
    eventually(lambda: (one.group() or {}).get("total") == 2, WAIT_S, "they are ingested")
    admin.delete_topics([leaving])[leaving].result(20)
    send(stage.bootstrap, stage.input_topic, Given(b"goes", b"k", native(stage, b"goes", 13_000)))
    deliveries(stage, b"goes", 1)
    create_topic(stage.bootstrap, leaving, 1, LOG_APPEND_TIME)
    fired = read_committed(stage.bootstrap, [leaving], WAIT_S, until=lambda seen: len(seen) >= 2)
    assert sorted(each.value or b"" for each in fired) == [b"0", b"1"]
    assert read_committed(stage.bootstrap, [stage.dlq_topic]) == []

    # The input gains a partition, which the status topic has not yet.
    admin.create_partitions([NewPartitions(stage.input_topic, 3)])[stage.input_topic].result(20)
    send(stage.bootstrap, stage.input_topic, Given(b"gained", b"k", native(stage, b"gained", 0), 2))
    deliveries(stage, b"gained", 1)

    # No record arrives after a restart, and what is due fires all the same.
    send(stage.bootstrap, stage.input_topic, Given(b"later", b"k", native(stage, b"later", 75_000)))
    eventually(lambda: (one.group() or {}).get("total") == 1, WAIT_S, "it is ingested")
    assert one.stop(END_S) == 0
    assert marked(read_committed(stage.bootstrap, [stage.origin]), b"later") == []
    one.start(command("run", tmp_path))
    deliveries(stage, b"later", 1)
    assert one.stop(END_S) == 0
