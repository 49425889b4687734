"""The streaming reader against a broker: its plans and its tasks, as Spark calls them. No JVM is needed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sidecar.errors import CommandFailed
from sidecar.settings import Settings
from sidecar.spark.source.offsets import EARLIEST, Limits
from sidecar.spark.source.stream import Reading, StreamReader
from sidecar.spark.stream.placement import key_of
from sidecar.spark.stream.wire import decode_chunk
from tests.broker import create_topic, unique
from tests.spark.stream.test_partition_step import RULES
from tests.waiting import eventually

pytestmark = pytest.mark.broker

HEADERS: list[tuple[str, str | bytes | None]] = [("retry-origin-topic", b"orders"), ("retry-delay-ms", b"5000")]
MANY = Limits(10**6, 10**12)


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("retry")
    create_topic(bootstrap, name, 2)
    return name


def reader_of(bootstrap: str, topic: str, limits: Limits = MANY, **more: Any) -> StreamReader:
    settings = Settings(bootstrap_servers=bootstrap, input_topic=topic)
    given: dict[str, Any] = {"starts": {0: 0, 1: 0}, **more}
    return StreamReader(Reading(settings=settings, rules=RULES, state_partitions=2, limits=limits, **given))


def produce(bootstrap: str, topic: str, count: int, partition: int = 0, size: int = 10) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(count):
        producer.produce(topic, b"x" * size, b"%d" % n, partition=partition, headers=HEADERS)
    assert producer.flush(20) == 0


def offsets(position: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = position["offsets"]
    return found


def taken(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Return key and chunk of all tasks; each is sent to a worker as Spark does."""
    found: list[tuple[int, bytes]] = []
    for partition in reader.partitions(start, end):
        worker, part = pickle.loads(pickle.dumps((StreamReader(reader._reading), partition)))
        for batch in worker.read(part):
            found += zip(batch.column("key").to_pylist(), batch.column("payload").to_pylist(), strict=True)
    return found


def test_a_micro_batch_has_what_is_committed_and_reads_the_same_again(bootstrap: str, topic: str) -> None:
    reader = reader_of(bootstrap, topic)
    start = reader.initialOffset()
    assert offsets(start) == {"0": 0, "1": 0}
    assert reader.latestOffset(start, ReadMaxRows(1)) == start, "nothing is there"
    assert reader.partitions(start, start) == []
    produce(bootstrap, topic, 30)
    produce(bootstrap, topic, 12, partition=1)
    end = reader.latestOffset(start, ReadMaxRows(1))
    assert offsets(end) == {"0": 30, "1": 12}
    first = taken(reader, start, end)
    assert [key for key, _ in first] == [key_of(0, 2), key_of(1, 2)]
    assert [len(decode_chunk(payload).arrivals) for _, payload in first] == [30, 12]
    produce(bootstrap, topic, 5)
    assert taken(reader_of(bootstrap, topic), start, end) == first, "Spark runs it again after a crash"
    assert offsets(reader.latestOffset(end, ReadMaxRows(1))) == {"0": 35, "1": 12}


def test_records_are_judged_by_the_instant_of_their_micro_batch(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, 1)
    reader = reader_of(bootstrap, topic)
    start = reader.initialOffset()
    (late,) = reader.partitions(start, {**reader.latestOffset(start, ReadMaxRows(1)), "now_ms": 77})
    assert late.now_ms == 77


def test_a_backlog_is_read_in_micro_batches_of_bounded_records_and_bytes(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, 400)
    produce(bootstrap, topic, 200, partition=1, size=100_000)
    few = reader_of(bootstrap, topic, Limits(60, 10**12))
    start = few.initialOffset()
    assert offsets(few.latestOffset(start, ReadMaxRows(60))) == {"0": 40, "1": 20}
    small = reader_of(bootstrap, topic, Limits(10**6, 2_000_000))
    assert offsets(small.latestOffset(start, ReadMaxRows(60)))["1"] in range(15, 25)
    assert offsets(small.latestOffset(start, ReadAllAvailable())) == {"0": 400, "1": 200}


def test_a_backlog_without_a_record_is_estimated_and_passed(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("tx")})
    producer.init_transactions(20)
    producer.begin_transaction()
    for n in range(300):
        producer.produce(topic, b"%d" % n, partition=0)
    assert producer.flush(20) == 0
    producer.abort_transaction(20)
    reader = reader_of(bootstrap, topic, Limits(10**6, 1_000_000))
    start = reader.initialOffset()
    # The broker writes the mark of the abort after it has answered.
    eventually(lambda: offsets(reader.latestOffset(start, ReadMaxRows(1)))["0"] > 0, 20, "the abort is written")
    end = reader.latestOffset(start, ReadMaxRows(1))
    assert offsets(end) == {"0": 301, "1": 0}
    assert taken(reader, start, end) == []


def test_a_partition_that_was_added_is_read_from_its_first_record(bootstrap: str, topic: str) -> None:
    reader = reader_of(bootstrap, topic)
    start = reader.initialOffset()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    produce(bootstrap, topic, 4, partition=2)

    def gained() -> bool:
        return offsets(reader.latestOffset(start, ReadMaxRows(1))).get("2") == 4

    eventually(gained, 20, "the partition is known")
    assert [key for key, _ in taken(reader, start, reader.latestOffset(start, ReadMaxRows(1)))] == [key_of(2, 2)]


def test_a_new_checkpoint_begins_where_the_log_does_if_nothing_else_is_known(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, 9)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    deleted.result(15)
    assert offsets(reader_of(bootstrap, topic, starts={0: EARLIEST, 1: 0}).initialOffset()) == {"0": 6, "1": 0}


def test_a_log_that_is_shorter_than_what_was_read_is_another_one(bootstrap: str, topic: str) -> None:
    start = reader_of(bootstrap, topic, starts={0: 7, 1: 0}).initialOffset()
    with pytest.raises(CommandFailed, match="offset 7 is to be read, and the log ends at 0"):
        reader_of(bootstrap, topic).latestOffset(start, ReadMaxRows(1))


def test_a_topic_that_was_deleted_is_an_error(bootstrap: str) -> None:
    reader = reader_of(bootstrap, unique("gone"), starts={0: 0})
    with pytest.raises(CommandFailed, match=r"\(INPUT_TOPIC\) cannot be read"):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))


def test_without_a_broker_a_micro_batch_has_no_new_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.spark.source.stream.CALL_S", 0.5)
    reader = reader_of("127.0.0.1:9", "retry")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(1)) == start
