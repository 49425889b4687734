"""The writer of single records and the reader of logs against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import chain

import pytest

from sidecar.clock import SystemClock
from sidecar.errors import KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.log_reader import End, LogReader, Unread
from sidecar.kafka.producer import TransactionalProducer
from sidecar.kafka.writer import Writer, Written
from sidecar.model import Record
from sidecar.settings import Settings
from tests.broker import create_topic
from tests.integration.sidecars import LOG_APPEND_TIME
from tests.waiting import eventually

pytestmark = pytest.mark.broker

SECONDS = 30.0


def write(bootstrap: str, topic: str, values: Mapping[int, tuple[bytes, ...]]) -> list[Written]:
    writer = Writer({**config.retry_producer(Settings(bootstrap_servers=bootstrap)), "linger.ms": 0})
    reports: list[Written | KafkaFailed] = []
    for partition, of_partition in values.items():
        for value in of_partition:
            writer.write(topic, b"key", value, partition=partition, headers=[("a", b"1")], report=reports.append)
    assert writer.flush(SECONDS) == 0
    written = [each for each in reports if isinstance(each, Written)]
    assert len(written) == len(reports)
    return written


def reader_of(bootstrap: str, topic: str) -> LogReader:
    settings = Settings(bootstrap_servers=bootstrap, streams_app_id=topic)
    return LogReader({**config.committed_reader(settings), "enable.partition.eof": True}, topic)


def read_to_the_ends(reader: LogReader, partitions: set[int], *, many: bool = False) -> list[Record]:
    records: list[Record] = []
    left = set(partitions)

    def step() -> bool:
        for read in chain(*reader.read_many(2, 0.2)) if many else reader.read(2, 0.2):
            assert not isinstance(read, Unread)
            if isinstance(read, End):
                left.discard(read.partition)
            else:
                records.append(read)
        return not left

    eventually(step, SECONDS, "the ends are reached")
    return records


@pytest.mark.parametrize("many", [False, True])
def test_what_is_written_is_read_from_the_offsets_that_are_named(
    bootstrap: str, unique: Callable[[str], str], many: bool
) -> None:
    topic = unique("log")
    create_topic(bootstrap, topic, 3, LOG_APPEND_TIME)
    written = write(bootstrap, topic, {0: (b"a", b"b", b"c"), 1: (b"d",)})
    assert sorted(each[:2] for each in written) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    stamped_ms = min(each.broker_ms or 0 for each in written)
    assert stamped_ms > 0
    with reader_of(bootstrap, topic) as reader:
        assert reader.partition_count(SECONDS) == 3
        assert [reader.bounds(each, SECONDS) for each in range(3)] == [(0, 3), (0, 1), (0, 0)]
        assert reader.offsets_at((0, 1), stamped_ms, SECONDS) == {0: 0, 1: 0}
        reader.start({0: 1, 1: 0})
        records = read_to_the_ends(reader, {0, 1}, many=many)
        assert sorted((each.partition, each.offset, each.value) for each in records) == [
            *((0, 1, b"b"), (0, 2, b"c"), (1, 0, b"d"))
        ]
        assert {(each.key, str(each.headers)) for each in records} == {(b"key", "[('a', b'1')]")}
        reader.stop(1)
        write(bootstrap, topic, {0: (b"e",), 1: (b"f",)})
        assert [each.value for each in read_to_the_ends(reader, {0}, many=many)] == [b"e"]


def test_a_topic_that_keeps_the_senders_time_says_nothing_of_the_brokers_clock(
    bootstrap: str, unique: Callable[[str], str]
) -> None:
    topic = unique("log")
    create_topic(bootstrap, topic)
    (written,) = write(bootstrap, topic, {0: (b"a",)})
    assert written.broker_ms is None


def test_offsets_are_committed_with_what_is_to_be_kept_beside_them(
    bootstrap: str, unique: Callable[[str], str]
) -> None:
    topic = unique("log")
    create_topic(bootstrap, topic, 3)
    settings = Settings(bootstrap_servers=bootstrap, streams_app_id=topic)
    with (
        reader_of(bootstrap, topic) as reader,
        closing(TransactionalProducer(config.transactional_producer(settings, topic), SystemClock())) as producer,
    ):
        assert eventually(lambda: reader.committed(range(3), SECONDS) == {}, SECONDS, "the group's coordinator answers")
        producer.init(SECONDS)
        producer.begin()
        producer.send_offsets(topic, {0: 5, 1: 6}, reader.membership(), {1: "beside"})
        producer.commit()
        assert reader.committed(range(3), SECONDS) == {0: Committed(5, ""), 1: Committed(6, "beside")}


def test_a_topic_that_is_not_there_has_no_partitions(bootstrap: str, unique: Callable[[str], str]) -> None:
    with reader_of(bootstrap, unique("none")) as reader, pytest.raises(KafkaFailed) as caught:
        reader.partition_count(SECONDS)
    assert caught.value.code == "UNKNOWN_TOPIC_OR_PART"
