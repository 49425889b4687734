"""A partition of the changelog goes away with its disk: the others start and run without it, and /readyz names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from sidecar.devbroker.local_broker import LocalBroker
from tests.broker import local_broker
from tests.integration.messages import Given, World, native
from tests.integration.sidecars import Sidecars, Stage, set_stage
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

LOST = 1


def test_a_partition_without_a_leader_keeps_none_of_the_others_from_running(tmp_path: Path, sidecars: Sidecars) -> None:
    good, bad = tmp_path / "kafka" / "topics", tmp_path / "bad"
    properties = {
        "log.dirs": f"{good},{bad}",
        # A disk that fails is noticed when something is written to it.
        "log.flush.offset.checkpoint.interval.ms": "500",
        "replica.high.watermark.checkpoint.interval.ms": "500",
    }
    with local_broker(properties=properties, data_dir=tmp_path / "kafka") as broker:
        stage = set_stage(broker.bootstrap_servers)
        world = World(stage, sidecars.start("one", stage))
        one = world.sidecar
        _served(world, b"before")
        assert one.stop() == 0
        _part(broker, good, bad, f"{stage.changelog_topic}-{LOST}")
        one.start()
        _served(world, b"moved")

        bad.rename(tmp_path / "gone")
        bad.touch()
        eventually(lambda: _leader(stage) < 0, 60, "the partition has no leader")
        _served(world, b"running", LOST)
        assert one.stop() == 0
        one.start()
        _served(world, b"started", LOST)

        bad.unlink()
        (tmp_path / "gone").rename(bad)
        broker.restart()
        assert {each.value for each in world.fired(b"running", 4)} == {b"0", b"1", b"2", b"3"}
        assert {each.value for each in world.fired(b"started", 4)} == {b"0", b"1", b"2", b"3"}
        one.await_ready()
        assert one.stop() == 0


def _served(world: World, marker: bytes, without: int | None = None) -> None:
    """Send to each partition; all come back but those of one, which is named at /readyz."""
    stage, one = world.stage, world.sidecar
    numbers = set(range(stage.partitions))
    world.send(*(Given(b"%d" % each, headers=native(stage, marker, 500), partition=each) for each in sorted(numbers)))
    served = numbers - {without}
    assert {each.value for each in world.fired(marker, len(served))} == {b"%d" % each for each in served}
    states = dict.fromkeys(served, "running")
    if without is None:
        one.await_ready()
    else:
        said = f"partition {without} is assigned: partition {without} of topic {stage.changelog_topic} has no leader"
        eventually(lambda: said in str(one.get("/readyz")[1]), 30, "it is named")
        states[without] = "assigned"
    assert one.partitions() == states


def _leader(stage: Stage) -> int:
    topic = AdminClient({"bootstrap.servers": stage.bootstrap}).list_topics(stage.changelog_topic, timeout=15)
    return topic.topics[stage.changelog_topic].partitions[LOST].leader


def _part(broker: LocalBroker, good: Path, bad: Path, lost: str) -> None:
    """Put what lies on either disk on the good one, and one partition on the bad one, while the broker is down."""
    broker._end()
    for folder in [each for each in bad.iterdir() if each.is_dir()]:
        folder.rename(good / folder.name)
    (good / lost).rename(bad / lost)
    broker.start()
