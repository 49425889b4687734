"""Records too large for the DLQ, the changelog, the status topic or an origin, or that fit only compressed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.broker import create_topic, read_committed
from tests.integration.messages import Given, Pairs, World, marked, names, native, noise, one_sidecar
from tests.integration.sidecars import Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

MIB = 1024 * 1024


def prose(size: int) -> bytes:
    """Return JSON that travels in a fraction of its size."""
    line = json.dumps({"order": 1, "customer": "example", "lines": [{"sku": "A-1", "quantity": 2}] * 20}).encode()
    return (line * (size // len(line) + 1))[:size]


def configure(bootstrap: str, topic: str, **config: str) -> None:
    """Change the configuration of a topic."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(60)


def send_compressed(world: World, given: Given) -> None:
    """Send to the input topic as zstd, which takes what is small only compressed."""
    producer = Producer(
        {"bootstrap.servers": world.stage.bootstrap, "compression.type": "zstd", "message.max.bytes": 100 * MIB}
    )
    headers = given.headers or []
    producer.produce(
        world.stage.input_topic,
        given.value,
        given.key,
        headers=headers,  # type: ignore[arg-type]
        partition=given.partition,
    )
    assert producer.flush(30) == 0


def fatal(stage: Stage, marker: bytes, *more: tuple[str, bytes | None]) -> Pairs:
    """Return the headers of a message that has no attempts left."""
    return [("retry-origin-topic", stage.origin.encode()), ("retry-remaining", b"0"), ("test", marker), *more]


def test_a_message_of_several_megabytes_that_travels_compressed_is_stored_and_comes_back(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    def origins(stage: Stage) -> None:
        configure(bootstrap, stage.origin, max_message_bytes=str(5 * MIB))

    with one_sidecar(bootstrap, tmp_path, origins=origins) as world:
        value = prose(3 * MIB)
        send_compressed(world, Given(value, b"k", native(world.stage, marker, 15_000)))
        eventually(lambda: world.sidecar.pending() == 1, 30, "it waits: the changelog has it")
        send_compressed(world, Given(value, b"now", native(world.stage, marker, 0), partition=1))
        world.send(Given(b"small", b"k", native(world.stage, marker, 1_000)))
        assert sorted(len(each.value or b"") for each in world.fired(marker, 3)) == [5, 3 * MIB, 3 * MIB]
        eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")


def test_a_dead_letter_is_cut_to_what_the_dlq_takes_and_nothing_waits(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    with one_sidecar(bootstrap, tmp_path) as world:
        stage = world.stage
        world.send(
            Given(b"v", b"class", fatal(stage, marker, ("retry-exception", b"x" * 600_000))),
            Given(noise(1_048_000), b"value", fatal(stage, marker)),
            Given(None, b"headers", fatal(stage, marker, *((f"h{n}", noise(262_000, n)) for n in range(4)))),
            Given(b"v", b"fires", native(stage, marker, 0), partition=1),
            Given(b"v", b"behind", native(stage, marker, 0)),
        )
        assert {each.key for each in world.fired(marker, 2)} == {b"fires", b"behind"}
        dead = {each.key: each for each in world.dead(marker, 3)}
        assert dead[b"class"].value == b"v"
        assert "retry-dlq-truncated" not in names(dead[b"class"])
        assert len(dead[b"class"].header("__connect.errors.exception.class.name") or b"") == 256
        assert (dead[b"value"].value, dead[b"value"].header("retry-dlq-truncated")) == (None, b"value")
        assert dead[b"headers"].header("retry-dlq-truncated") == b"headers"
        assert dead[b"headers"].header("retry-origin-topic") == stage.origin.encode()
        eventually(world.sidecar.ready, 30, "it is ready")


def test_many_letters_reach_a_dlq_that_takes_little_and_compressed_ones_keep_their_value(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    def origins(stage: Stage) -> None:
        configure(bootstrap, stage.dlq_topic, max_message_bytes="300000")

    with one_sidecar(bootstrap, tmp_path, origins=origins) as world:
        stage = world.stage
        letters = [Given(noise(1_000, n), b"%d" % n, fatal(stage, marker), partition=n % 2) for n in range(2_000)]
        world.send(*letters, Given(prose(900_000), b"large", fatal(stage, marker)))
        dead = world.dead(marker, 2_001)
        assert len({each.key for each in dead}) == 2_001
        (large,) = (each for each in dead if each.key == b"large")
        assert large.value == prose(900_000)


def test_a_dlq_whose_limit_falls_while_it_runs_gets_what_fits_at_last_the_coordinates_alone(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    with one_sidecar(bootstrap, tmp_path) as world:
        stage = world.stage
        configure(bootstrap, stage.dlq_topic, max_message_bytes="700")
        world.send(
            Given(b"v" * 500, b"first", [*fatal(stage, marker), ("h", noise(900))]),
            Given(b"v", b"behind", native(stage, marker, 0)),
            Given(b"v", b"beside", native(stage, marker, 0), partition=1),
        )
        assert {each.key for each in world.fired(marker, 2)} == {b"behind", b"beside"}
        (letter,) = read_committed(bootstrap, [stage.dlq_topic], 60, until=bool)
        assert letter.header("retry-dlq-reason") == b"attempts-exhausted"
        assert letter.header("__connect.errors.offset") == b"0"
        assert "value" in (letter.header("retry-dlq-truncated") or b"").decode()


def test_a_dlq_that_takes_nothing_holds_only_the_partition_whose_next_record_must_go_there(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    with one_sidecar(bootstrap, tmp_path) as world:
        stage = world.stage
        configure(bootstrap, stage.dlq_topic, max_message_bytes="100")
        world.send(Given(b"v", b"waits", native(stage, marker, 4_000)), Given(b"v", b"dead", fatal(stage, marker)))
        eventually(lambda: not world.sidecar.ready(), 30, "it says that the DLQ cannot be written")
        world.send(Given(b"v", b"beside", native(stage, marker, 0), partition=1))
        assert {each.key for each in world.fired(marker, 2)} == {b"waits", b"beside"}
        configure(bootstrap, stage.dlq_topic, max_message_bytes="100000")
        assert [each.key for each in world.dead(marker)] == [b"dead"]
        eventually(world.sidecar.ready, 90, "it is ready")


def test_a_changelog_whose_limit_falls_while_it_runs_keeps_what_it_takes_and_the_rest_is_too_large(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    with one_sidecar(bootstrap, tmp_path) as world:
        stage = world.stage
        configure(bootstrap, stage.changelog_topic, max_message_bytes="20000")
        many = [
            Given(noise(100_000 if n in {50, 120} else 2_000, n), b"%d" % n, native(stage, marker, 20_000), n % 2)
            for n in range(200)
        ]
        world.send(*many)
        dead = world.dead(marker, 2)
        assert {each.key for each in dead} == {b"50", b"120"}
        assert {each.header("retry-dlq-reason") for each in dead} == {b"too-large"}
        fired = world.fired(marker, 198)
        assert len({each.key for each in fired}) == 198
        eventually(world.sidecar.ready, 30, "it is ready")


def test_a_timer_that_fits_nowhere_holds_its_partition_back_and_the_others_go_on(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    def origins(stage: Stage) -> None:
        create_topic(bootstrap, f"{stage.app_id}-small", config={"max.message.bytes": "20000"})

    with one_sidecar(bootstrap, tmp_path, origins=origins) as world:
        stage = world.stage
        to: Pairs = [("retry-origin-topic", f"{stage.app_id}-small".encode()), ("retry-delay-ms", b"15000")]
        world.send(Given(noise(30_000), b"large", [*to, ("test", marker)]))
        eventually(lambda: world.sidecar.pending() == 1, 30, "it waits")
        configure(bootstrap, stage.changelog_topic, max_message_bytes="20000")
        configure(bootstrap, stage.dlq_topic, max_message_bytes="100")
        eventually(lambda: "the changelog cannot be written" in world.sidecar.log, 60, "it is due and fits nowhere")
        for number in range(3):
            world.send(Given(b"v", b"%d" % number, native(stage, marker, 0), partition=1))
            assert len(world.fired(marker, number + 1)) == number + 1
        eventually(lambda: "partition_held_back" in world.sidecar.log, 60, "it is said to be held back")
        configure(bootstrap, stage.dlq_topic, max_message_bytes="100000")
        (letter,) = world.dead(marker)
        assert (letter.key, letter.header("retry-dlq-reason")) == (b"large", b"too-large")
        eventually(world.sidecar.ready, 60, "it is ready")


def test_what_is_too_large_for_its_origin_even_compressed_goes_to_the_dlq_when_it_is_due(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    def origins(stage: Stage) -> None:
        create_topic(bootstrap, f"{stage.app_id}-small", config={"max.message.bytes": "20000"})

    with one_sidecar(bootstrap, tmp_path, origins=origins) as world:
        small = f"{world.stage.app_id}-small".encode()
        to: Pairs = [("retry-origin-topic", small), ("retry-delay-ms", b"500"), ("test", marker)]
        world.send(
            *(Given(noise(30_000, n), b"noise", to, n % 2) for n in range(20)),
            *(Given(prose(30_000), b"prose", to, n % 2) for n in range(20)),
            *(Given(b"v", b"tiny", to, n % 2) for n in range(20)),
        )
        dead = world.dead(marker, 20)
        assert {(each.key, each.header("retry-dlq-reason")) for each in dead} == {(b"noise", b"too-large")}
        assert all(len(each.value or b"") == 30_000 for each in dead)
        assert (
            sorted(each.key or b"" for each in world.fired(marker, 40, small.decode()))
            == [b"prose"] * 20 + [b"tiny"] * 20
        )


def test_without_compression_what_is_too_large_goes_to_the_dlq_at_once(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    def origins(stage: Stage) -> None:
        create_topic(bootstrap, f"{stage.app_id}-small", config={"max.message.bytes": "20000"})

    with one_sidecar(bootstrap, tmp_path, origins=origins, CLIENT_COMPRESSION_TYPE="none") as world:
        small = f"{world.stage.app_id}-small".encode()
        to: Pairs = [("retry-origin-topic", small), ("retry-delay-ms", b"3600000"), ("test", marker)]
        world.send(Given(prose(30_000), b"prose", to))
        (letter,) = world.dead(marker)
        assert (letter.header("retry-dlq-reason"), letter.value) == (b"too-large", prose(30_000))
        assert not marked(read_committed(bootstrap, [small.decode()], 15), marker)


def test_a_control_record_acts_though_the_status_topic_takes_no_outcome(
    bootstrap: str, tmp_path: Path, marker: bytes
) -> None:
    with one_sidecar(bootstrap, tmp_path) as world:
        stage = world.stage
        configure(bootstrap, stage.status_topic, max_message_bytes="100")  # the marker of a transaction has 78
        world.send(Given(b"v", headers=native(stage, marker, 3_600_000, ("retry-id", marker))))
        eventually(lambda: world.sidecar.pending() == 1, 60, "it waits")
        cancel: Pairs = [("retry-control", b"cancel"), ("retry-target", b"id:" + marker), ("retry-control-id", marker)]
        world.send(Given(headers=cancel))
        eventually(lambda: world.sidecar.pending() == 0, 60, "it is cancelled")
        world.send(Given(b"next", headers=native(stage, marker, 0)))
        assert [each.value for each in world.fired(marker)] == [b"next"]
        outcomes = read_committed(bootstrap, [stage.status_topic], 60)
        assert [each for each in outcomes if marker in (each.key or b"")] == []
