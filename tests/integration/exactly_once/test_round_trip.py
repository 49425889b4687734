"""A message goes to the retry topic and comes back, byte for byte, with the headers that the contract adds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Message, Producer
from retry_sidecar import RetryTopic, is_for_group

from tests.broker import create_topic, read_committed
from tests.integration.messages import Given, World, murmur2_partition, names, native, now_ms, one_sidecar
from tests.integration.sidecars import LOG_APPEND_TIME, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

WIDE = 7
MANY = 64


def _more_origins(stage: Stage) -> None:
    create_topic(stage.bootstrap, f"{stage.app_id}-wide", WIDE, LOG_APPEND_TIME)
    for number in range(MANY):
        create_topic(stage.bootstrap, f"{stage.app_id}-many-{number}")


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("round"), origins=_more_origins) as world:
        yield world


@pytest.mark.parametrize("key", [None, b"", b"k", bytes(range(256))], ids=["null", "empty", "text", "bytes"])
@pytest.mark.parametrize("value", [None, b"", bytes(range(256))], ids=["null", "empty", "bytes"])
def test_key_and_value_come_back_as_they_were(
    world: World, marker: bytes, key: bytes | None, value: bytes | None
) -> None:
    world.send(Given(value, key, native(world.stage, marker, 1)))
    (fired,) = world.fired(marker)
    assert (fired.key, fired.value) == (key, value)


def test_foreign_headers_come_back_first_in_their_order_with_repeats_nulls_and_empty_ones(
    world: World, marker: bytes
) -> None:
    foreign: list[tuple[str, bytes | None]] = [
        ("a", b"1"),
        ("naïve – 名前", "größe".encode()),
        ("null", None),
        ("empty", b""),
        ("a", b"2"),
        ("a", b"1"),
        ("bytes", bytes(range(256))),
        ("retry-unknown", b"not ours"),
        ("", b"no name"),
    ]
    headers = [*foreign[:4], *native(world.stage, marker, 1), *foreign[4:]]
    world.send(Given(b"v", b"k", headers))
    (fired,) = world.fired(marker)
    assert list(fired.headers[: len(foreign) + 1]) == [*foreign[:4], ("test", marker), *foreign[4:]]
    assert names(fired)[len(foreign) + 1 :] == [
        "retry-attempt",
        "retry-remaining",
        "retry-origin-topic",
        "retry-timer-id",
        "retry-was-due-ms",
    ]


def test_each_of_the_contracts_headers_is_replaced_carried_or_gone(world: World, marker: bytes) -> None:
    due_ms = now_ms() + 700
    headers: list[tuple[str, bytes | None]] = [
        ("retry-due-ms", b"%d" % due_ms),
        ("retry-attempt", b"2"),
        ("retry-max-attempts", b"5"),
        ("retry-exception", b"com.acme.Late"),
        ("retry-group", b"billing"),
        ("retry-id", b"order-7"),
        ("retry-replace", b"true"),
        ("retry-target", b"left over"),
        ("retry-timer-id", b"left over"),
        ("retry-was-due-ms", b"left over"),
        ("retry-origin-topic", world.stage.origin.encode()),
        ("test", marker),
    ]
    (sent,) = world.send(Given(b"v", b"k", headers, partition=1))
    (fired,) = world.fired(marker)
    assert dict(fired.headers) == {
        "retry-max-attempts": b"5",
        "test": marker,
        "retry-attempt": b"3",
        "retry-remaining": b"2",
        "retry-origin-topic": world.stage.origin.encode(),
        "retry-group": b"billing",
        "retry-id": b"order-7",
        "retry-exception": b"com.acme.Late",
        "retry-timer-id": b"1-%d-%d" % (sent.offset, due_ms),
        "retry-was-due-ms": b"%d" % due_ms,
    }
    assert len(names(fired)) == len(set(names(fired)))
    assert fired.timestamp_ms >= due_ms


def test_a_delay_counts_from_the_records_own_timestamp(world: World, marker: bytes) -> None:
    (sent,) = world.send(Given(headers=native(world.stage, marker, 900)))
    (fired,) = world.fired(marker)
    assert fired.header("retry-was-due-ms") == b"%d" % (sent.timestamp_ms + 900)
    assert fired.timestamp_ms >= sent.timestamp_ms + 900


def test_a_consumer_that_fails_again_sends_the_record_as_it_is_until_the_limit_sends_it_to_the_dlq(
    world: World, marker: bytes
) -> None:
    limited = native(world.stage, marker, 1, ("retry-max-attempts", b"2"))
    world.send(Given(b"v", b"k", limited))
    (first,) = world.fired(marker)
    assert (first.header("retry-attempt"), first.header("retry-remaining")) == (b"1", b"1")
    again = [*first.headers, ("retry-delay-ms", b"1")]
    world.send(Given(first.value, first.key, again))
    second = world.fired(marker, 2)[-1]
    assert (second.header("retry-attempt"), second.header("retry-remaining")) == (b"2", b"0")
    assert second.header("retry-timer-id") != first.header("retry-timer-id")
    world.send(Given(second.value, second.key, list(second.headers)))
    (dead,) = world.dead(marker)
    assert dead.header("retry-dlq-reason") == b"attempts-exhausted"
    assert dead.header("retry-attempt") == b"2"


def test_the_partition_that_a_message_names_is_the_one_that_it_goes_to(world: World, marker: bytes) -> None:
    wide = f"{world.stage.app_id}-wide"
    base: list[tuple[str, bytes | None]] = [
        ("retry-origin-topic", wide.encode()),
        ("retry-delay-ms", b"1"),
        ("test", marker),
    ]
    world.send(*(Given(b"%d" % n, b"same key", [*base, ("retry-origin-partition", b"%d" % n)]) for n in range(WIDE)))
    fired = world.fired(marker, WIDE, wide)
    assert {record.value: record.partition for record in fired} == {b"%d" % n: n for n in range(WIDE)}


def test_a_key_goes_to_the_partition_that_java_producers_choose(world: World, marker: bytes) -> None:
    wide = f"{world.stage.app_id}-wide"
    headers: list[tuple[str, bytes | None]] = [
        ("retry-origin-topic", wide.encode()),
        ("retry-delay-ms", b"1"),
        ("test", marker),
    ]
    keys = [b"a" * length + b"%d" % length for length in range(40)]
    world.send(*(Given(b"v", key, headers) for key in keys))
    fired = world.fired(marker, len(keys), wide)
    assert {record.key: record.partition for record in fired} == {key: murmur2_partition(key, WIDE) for key in keys}


def test_the_partitioner_of_the_tests_is_kafkas() -> None:
    """The hashes are those of Kafka's own UtilsTest."""
    assert murmur2_partition(b"21", 2**31) == -973932308 & 0x7FFFFFFF
    assert murmur2_partition(b"foobar", 2**31) == -790332482 & 0x7FFFFFFF
    assert murmur2_partition(b"a-little-bit-long-string", 2**31) == -985981536 & 0x7FFFFFFF


def test_many_origins_are_served_by_one_batch(world: World, marker: bytes) -> None:
    due_ms = now_ms() + 4_000
    topics = [f"{world.stage.app_id}-many-{number}" for number in range(MANY)]
    world.send(
        *(
            Given(
                topic.encode(),
                b"k",
                [
                    ("retry-origin-topic", topic.encode()),
                    ("retry-due-ms", b"%d" % due_ms),
                    ("test", marker),
                ],
            )
            for topic in topics
            for _ in range(2)
        )
    )
    fired = read_committed(world.stage.bootstrap, topics, 60, until=lambda seen: len(seen) >= 2 * MANY)
    assert sorted((record.topic, record.value) for record in fired) == sorted(
        (topic, topic.encode()) for topic in topics for _ in range(2)
    )


def test_what_waits_is_counted_and_gone_when_it_has_fired(world: World, marker: bytes) -> None:
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")
    world.send(*(Given(headers=native(world.stage, marker, 12_000), partition=n % 2) for n in range(10)))
    eventually(lambda: world.sidecar.pending() == 10, 30, "ten wait")
    assert len(world.fired(marker, 10)) == 10
    eventually(lambda: world.sidecar.pending() == 0, 30, "nothing waits")


def test_what_is_made_from_a_retried_message_comes_back_to_its_own_topic_with_its_own_attempts(
    world: World, marker: bytes
) -> None:
    """An application that copies all headers leaks those of a retry into messages of other topics."""
    world.send(
        Given(b"order", b"k", [*native(world.stage, marker, 1, ("retry-group", b"billing")), ("retry-id", b"17")])
    )
    (retried,) = world.fired(marker)
    assert retried.header("retry-attempt") == b"1"

    shipments = f"{world.stage.app_id}-wide"
    made = Message(topic=shipments, partition=WIDE - 1, key=b"s", value=b"shipment", headers=list(retried.headers))
    assert is_for_group(made, "shipping")
    producer = Producer({"bootstrap.servers": world.stage.bootstrap})
    RetryTopic(producer, world.stage.input_topic).send_back(made, TimeoutError("late"), delay_ms=1, group="shipping")
    assert producer.flush(30) == 0

    (back,) = world.fired(marker, topic=shipments)
    assert (back.key, back.value, back.header("retry-attempt")) == (b"s", b"shipment", b"1")
    assert back.header("retry-origin-topic") == shipments.encode()
    assert back.header("retry-group") == b"shipping"
    assert back.header("retry-timer-id") != retried.header("retry-timer-id")
    assert "retry-id" not in names(back)
    assert len(world.fired(marker)) == 1
