"""Large messages, small topics, and topics that refuse some records: nothing stops, and only the guilty do not fire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker import create_topic
from tests.integration.messages import Given, Pairs, World, native, noise, now_ms, one_sidecar
from tests.integration.sidecars import Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

SMALL_BYTES = 20_000


def _origins(stage: Stage) -> None:
    create_topic(stage.bootstrap, f"{stage.app_id}-small", config={"max.message.bytes": str(SMALL_BYTES)})
    create_topic(stage.bootstrap, f"{stage.app_id}-compacted", 2, {"cleanup.policy": "compact"})


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("sizes"), origins=_origins) as world:
        yield world


def to(topic: str, marker: bytes, due_ms: int) -> Pairs:
    return [("retry-origin-topic", topic.encode()), ("retry-due-ms", b"%d" % due_ms), ("test", marker)]


def test_a_value_of_900_kb_comes_back(world: World, marker: bytes) -> None:
    value = bytes(range(250)) * 3_600
    world.send(Given(value, b"k", native(world.stage, marker, 500)), Given(value, None, native(world.stage, marker, 1)))
    assert [record.value for record in world.fired(marker, 2)] == [value, value]


def test_many_large_ones_of_one_due_come_back(world: World, marker: bytes) -> None:
    due_ms = now_ms() + 3_000
    value = bytes(500_000)
    world.send(*(Given(value, b"%d" % n, to(world.stage.origin, marker, due_ms)) for n in range(50)))
    fired = world.fired(marker, 50)
    assert sorted(int(record.key or 0) for record in fired) == list(range(50))


def test_a_topic_with_a_small_limit_takes_many_small_messages_among_large_ones_for_others(
    world: World, marker: bytes
) -> None:
    """The limit is on a batch: a hundred messages of 1,000 bytes each fit, but not in one batch."""
    due_ms = now_ms() + 2_500
    small = f"{world.stage.app_id}-small"
    world.send(
        *(Given(bytes(1_000), b"%d" % n, to(small, marker, due_ms)) for n in range(100)),
        *(Given(bytes(100_000), b"%d" % n, to(world.stage.origin, marker, due_ms)) for n in range(10)),
    )
    assert len(world.fired(marker, 100, small)) == 100
    assert len(world.fired(marker, 10)) == 10
    eventually(world.sidecar.ready, 30, "it is ready")


def test_what_is_too_large_for_its_origin_goes_to_the_dlq_and_the_others_fire(world: World, marker: bytes) -> None:
    small = f"{world.stage.app_id}-small"
    world.send(
        Given(bytes(SMALL_BYTES - 1_000), b"fits", to(small, marker, 1)),
        Given(noise(SMALL_BYTES), b"too large", to(small, marker, 1)),
    )
    assert [record.key for record in world.fired(marker, 1, small)] == [b"fits"]
    (dead,) = world.dead(marker)
    assert (dead.key, dead.header("retry-dlq-reason")) == (b"too large", b"too-large")


def test_what_the_broker_refuses_goes_to_the_dlq_and_the_others_of_its_batch_fire(world: World, marker: bytes) -> None:
    """A compacted topic takes no message without a key; only trying shows it."""
    compacted = f"{world.stage.app_id}-compacted"
    due_ms = now_ms() + 2_500
    guilty = {7, 40, 41}
    world.send(
        *(
            Given(b"%d" % n, None if n in guilty else b"%d" % n, to(compacted, marker, due_ms), partition=n % 2)
            for n in range(60)
        ),
        *(Given(b"%d" % n, None, to(world.stage.origin, marker, due_ms)) for n in range(60)),
    )
    dead = world.dead(marker, len(guilty))
    assert {int(record.value or 0) for record in dead} == guilty
    assert {record.header("retry-dlq-reason") for record in dead} == {b"unfireable"}
    assert {record.header("__connect.errors.stage") for record in dead} == {b"fire"}
    fired = world.fired(marker, 60 - len(guilty), compacted)
    assert sorted(int(record.value or 0) for record in fired) == [n for n in range(60) if n not in guilty]
    assert sorted(int(record.value or 0) for record in world.fired(marker, 60)) == list(range(60))
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")
    eventually(world.sidecar.ready, 30, "it is ready")
