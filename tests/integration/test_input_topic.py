"""What happens to the input topic while messages wait: grown, cut, rewound, deleted and made anew."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.broker import create_topic, partitions_of, unique
from tests.integration.messages import Given, World, native, send
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

RPC_S = 15.0


@pytest.fixture
def marker() -> bytes:
    return unique("m").encode()


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def wait_for_pending(sidecar: Sidecar, count: int) -> None:
    eventually(lambda: sidecar.pending() == count, 40, f"{count} wait")


def delete_topic(admin: AdminClient, bootstrap: str, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(RPC_S)
    eventually(lambda: topic not in admin.list_topics(timeout=RPC_S).topics, 20, f"{topic} is gone")


def test_partitions_that_are_added_while_it_runs_are_served(
    stage: Stage, sidecars: Sidecars, admin: AdminClient, marker: bytes
) -> None:
    world = World(stage, sidecars.start("one", stage))
    admin.create_partitions([NewPartitions(stage.input_topic, 6)])[stage.input_topic].result(RPC_S)
    eventually(lambda: partitions_of(stage.bootstrap, stage.input_topic) == 6, 20, "there are six")
    world.send(*(Given(b"%d" % n, headers=native(stage, marker, 500), partition=n) for n in range(6)))
    assert sorted(record.value or b"" for record in world.fired(marker, 6)) == [b"%d" % n for n in range(6)]
    assert partitions_of(stage.bootstrap, stage.changelog_topic) == 6
    assert partitions_of(stage.bootstrap, stage.status_topic) == 6
    eventually(lambda: world.sidecar.partitions() == dict.fromkeys(range(6), "running"), 20, "all six run")


def test_a_changelog_with_another_number_of_partitions_stops_the_start_with_the_command_that_mends_it(
    stage: Stage, sidecars: Sidecars
) -> None:
    create_topic(stage.bootstrap, stage.changelog_topic, 7, {"cleanup.policy": "compact"})
    one = sidecars.make("one", stage)
    one.start()
    assert one.wait() == 1
    assert stage.changelog_topic in one.log
    assert "7" in one.log
    assert "Traceback" not in one.log


def test_records_that_retention_took_before_they_were_read_are_counted_and_the_rest_goes_on(
    stage: Stage, sidecars: Sidecars, admin: AdminClient, marker: bytes
) -> None:
    one = sidecars.start("one", stage)
    world = World(stage, one)
    world.send(Given(b"waits", headers=native(stage, marker, 8_000)))
    wait_for_pending(one, 1)
    one.stop()
    send(stage.bootstrap, stage.input_topic, *(Given(b"%d" % n, headers=native(stage, marker, 1)) for n in range(10)))
    before = TopicPartition(stage.input_topic, 0, 6)
    admin.delete_records([before])[before].result(RPC_S)
    one.start()
    fired = world.fired(marker, 6)
    assert {record.value for record in fired} == {b"waits", *(b"%d" % n for n in range(5, 10))}
    assert "input_records_gone" in one.log
    assert one.get("/health")[1]["details"]["skipped_input_records"] == 5


def test_an_operators_reset_backwards_counts_what_waits_once_and_fires_again_what_had_fired(
    stage: Stage, sidecars: Sidecars, admin: AdminClient, marker: bytes
) -> None:
    one = sidecars.start("one", stage)
    world = World(stage, one)
    world.send(*(Given(b"soon", headers=native(stage, marker, 1)) for _ in range(5)))
    world.send(*(Given(b"later", headers=native(stage, marker, 15_000)) for _ in range(5)))
    world.fired(marker, 5)
    wait_for_pending(one, 5)
    one.stop()
    to = ConsumerGroupTopicPartitions(stage.group_id, [TopicPartition(stage.input_topic, 0, 0)])
    eventually(lambda: _altered(admin, to, stage.group_id), 20, "the group is empty and its offset set back")
    one.start()
    again = world.fired(marker, 10)
    assert [record.value for record in again] == [b"soon"] * 10
    wait_for_pending(one, 5)
    fired = world.fired(marker, 15)
    assert sorted(record.value or b"" for record in fired) == [b"later"] * 5 + [b"soon"] * 10
    wait_for_pending(one, 0)


def _altered(admin: AdminClient, to: ConsumerGroupTopicPartitions, group: str) -> bool:
    answer = admin.alter_consumer_group_offsets([to])[group].result(RPC_S)
    return all(each.error is None for each in answer.topic_partitions)


@pytest.mark.parametrize("running", [False, True], ids=["while stopped", "while it runs"])
def test_an_input_topic_made_anew_is_read_from_its_start_once_what_waits_has_fired(
    stage: Stage, sidecars: Sidecars, admin: AdminClient, marker: bytes, running: bool
) -> None:
    """Offsets mean other messages then, so old and new ones never wait at the same time."""
    one = sidecars.start("one", stage)
    world = World(stage, one)
    world.send(*(Given(b"old", headers=native(stage, marker, 1)) for _ in range(20)))
    world.fired(marker, 20)
    # Who was killed gets its partitions back only when its session has timed out.
    later_ms = 24_000 if running else 38_000
    world.send(*(Given(b"old later", headers=native(stage, marker, later_ms)) for _ in range(3)))
    world.send(*(Given(b"old soon", headers=native(stage, marker, 18_000)) for _ in range(3)))
    wait_for_pending(one, 6)
    if not running:
        one.stop()
    delete_topic(admin, stage.bootstrap, stage.input_topic)
    create_topic(stage.bootstrap, stage.input_topic, stage.partitions)
    send(stage.bootstrap, stage.input_topic, *(Given(b"new", headers=native(stage, marker, 1)) for _ in range(4)))
    if not running:
        one.start()
    eventually(lambda: "is another topic" in str(one.get("/readyz")[1]), 40, "readyz says why intake is held")
    soon = sorted(world.fired(marker, 23), key=lambda record: record.timestamp_ms)
    assert [record.value for record in soon[20:]] == [b"old soon"] * 3
    if not running:
        one.kill()  # what was fired meanwhile must not make the new topic pass for the old one
        one.start()
        eventually(lambda: "is another topic" in str(one.get("/readyz")[1]), 40, "readyz still says why")
    # Read over several partitions, so put in the order of firing; what was fired apart lies seconds apart.
    everything = sorted(world.fired(marker, 30), key=lambda record: record.timestamp_ms)
    assert [record.value for record in everything[20:]] == [b"old soon"] * 3 + [b"old later"] * 3 + [b"new"] * 4
    eventually(one.ready, 20, "it is ready again")
