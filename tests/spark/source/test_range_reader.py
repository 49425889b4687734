"""Ranges of a real log: holes of aborted and compacted records, and records that retention has deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sidecar.errors import CommandFailed, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.range_reader import Range, RangeReader
from sidecar.model import Record
from sidecar.settings import Settings
from tests.broker import create_topic, unique
from tests.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def reader(bootstrap: str) -> Iterator[RangeReader]:
    made = RangeReader(config.range_reader(Settings(bootstrap_servers=bootstrap)))
    yield made
    made.close()


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("ranges")
    create_topic(bootstrap, name, 2)
    return name


def produce(bootstrap: str, topic: str, *values: bytes, commit: bool | None = None, partition: int = 0) -> None:
    """Write values, in a transaction that is committed or aborted, or without one."""
    more = {} if commit is None else {"transactional.id": unique("tx")}
    producer = Producer({"bootstrap.servers": bootstrap, **more})
    if commit is not None:
        producer.init_transactions(20)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition, headers=[("n", value)])
    assert producer.flush(20) == 0
    if commit is True:
        producer.commit_transaction(20)
    elif commit is False:
        producer.abort_transaction(20)


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    assert deleted.result(15).low_watermark == offset


def offsets(reader: RangeReader, wanted: Range, *, skips_deleted: bool = False) -> list[int]:
    return [each.offset for each in read(reader, wanted, skips_deleted=skips_deleted)]


def read(reader: RangeReader, wanted: Range, *, skips_deleted: bool = False) -> list[Record]:
    return [record for records in reader.read(wanted, skips_deleted=skips_deleted) for record in records]


def test_a_range_has_its_records_and_no_other(bootstrap: str, reader: RangeReader, topic: str) -> None:
    produce(bootstrap, topic, *(b"%d" % n for n in range(20)))
    produce(bootstrap, topic, b"other", partition=1)
    assert offsets(reader, Range(topic, 0, 5, 12)) == list(range(5, 12))
    assert offsets(reader, Range(topic, 0, 12, 20)) == list(range(12, 20))
    assert offsets(reader, Range(topic, 0, 5, 12)) == list(range(5, 12)), "it can be read again"
    (other,) = read(reader, Range(topic, 1, 0, 1))
    assert (other.partition, other.value, other.headers) == (1, b"other", [("n", b"other")])


def test_a_range_ends_at_its_position_where_only_aborted_records_and_markers_are(
    bootstrap: str, reader: RangeReader, topic: str
) -> None:
    produce(bootstrap, topic, b"a", b"b", commit=True)  # 0, 1, marker 2
    produce(bootstrap, topic, b"x", b"y", commit=False)  # 3, 4, marker 5
    assert offsets(reader, Range(topic, 0, 0, 6)) == [0, 1]
    assert offsets(reader, Range(topic, 0, 2, 6)) == []
    assert offsets(reader, Range(topic, 0, 3, 5)) == []
    produce(bootstrap, topic, b"c", commit=True)  # 6, marker 7
    assert offsets(reader, Range(topic, 0, 0, 8)) == [0, 1, 6]
    assert offsets(reader, Range(topic, 0, 2, 5)) == [], "also when a record follows"


def test_compaction_leaves_holes_that_are_passed(bootstrap: str, reader: RangeReader) -> None:
    topic = unique("compacted")
    quick = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    create_topic(bootstrap, topic, 1, quick)
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(10):
        producer.produce(topic, b"%d" % n, b"same")
    producer.flush(20)

    def holes() -> bool:
        producer.produce(topic, b"roll", b"roll")
        producer.flush(20)
        return 0 not in offsets(reader, Range(topic, 0, 0, 10))

    eventually(holes, 90, "the log is compacted")
    found = offsets(reader, Range(topic, 0, 0, 10))
    assert set(found) <= {9}


def test_records_that_retention_has_deleted_are_an_error_that_names_them(
    bootstrap: str, reader: RangeReader, topic: str
) -> None:
    produce(bootstrap, topic, *(b"%d" % n for n in range(10)))
    delete_before(bootstrap, topic, 6)
    said = f"{topic}, partition 0: offset 4 is to be read, and the first one kept is 6: retention has deleted"
    with pytest.raises(CommandFailed, match=said):
        offsets(reader, Range(topic, 0, 4, 9))
    assert offsets(reader, Range(topic, 0, 6, 9)) == [6, 7, 8], "the reader goes on with other ranges"


def test_a_job_can_leave_deleted_records_out(bootstrap: str, reader: RangeReader, topic: str) -> None:
    produce(bootstrap, topic, *(b"%d" % n for n in range(10)))
    delete_before(bootstrap, topic, 6)
    assert offsets(reader, Range(topic, 0, 4, 9), skips_deleted=True) == [6, 7, 8]
    assert offsets(reader, Range(topic, 0, 0, 5), skips_deleted=True) == []


def test_a_log_that_ends_before_the_range_begins_is_another_one(
    bootstrap: str, reader: RangeReader, topic: str
) -> None:
    produce(bootstrap, topic, b"only")
    with pytest.raises(CommandFailed, match="offset 50 is to be read, and the log ends at 1: the topic was deleted"):
        offsets(reader, Range(topic, 0, 50, 60))


def test_the_wait_for_records_that_do_not_come_is_bounded(bootstrap: str, topic: str) -> None:
    produce(bootstrap, topic, b"0", b"1")
    with closing(RangeReader(config.range_reader(Settings(bootstrap_servers=bootstrap)), stall_s=5.0)) as reader:
        assert offsets(reader, Range(topic, 0, 0, 2)) == [0, 1], "the connection is there"
        with pytest.raises(KafkaFailed, match="nothing came for 5 s from offset 2 on, of the range that ends at 9"):
            offsets(reader, Range(topic, 0, 0, 9))


def test_a_topic_that_does_not_exist_is_an_error(reader: RangeReader) -> None:
    with pytest.raises(KafkaFailed):
        offsets(reader, Range(unique("missing"), 0, 0, 1))


def test_a_range_that_is_given_up_does_not_disturb_the_next(bootstrap: str, reader: RangeReader, topic: str) -> None:
    produce(bootstrap, topic, *(b"%d" % n for n in range(10)))
    given_up = reader.read(Range(topic, 0, 0, 10), slice_records=2)
    assert next(each.offset for each in next(given_up)) == 0
    second = reader.read(Range(topic, 0, 5, 10), slice_records=1)
    first = [each.offset for each in next(second)]
    del given_up
    assert first + [each.offset for records in second for each in records] == [5, 6, 7, 8, 9]
