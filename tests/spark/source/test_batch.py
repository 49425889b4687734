"""The source of batch jobs against a broker: its ranges, and a job's step over their records. No JVM is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import InputPartition

from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.range_reader import Range
from sidecar.model import Record
from sidecar.settings import Settings
from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.source import batch
from sidecar.spark.source.batch import LogReading, _LogReader, log_ranges
from tests.broker import create_topic, unique

pytestmark = pytest.mark.broker

SCHEMA = "partition int, offset long, slice long"


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic of three partitions: ten records of known times, one, and none."""
    name = unique("log")
    # They are of 1970: by default the broker may delete them at any time.
    create_topic(bootstrap, name, 3, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(10):
        producer.produce(name, b"%d" % n, partition=0, timestamp=1_000 * (n + 1))
    producer.produce(name, b"one", partition=1, timestamp=5_000)
    assert producer.flush(20) == 0
    return name


def rows(slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
    for number, records in enumerate(slices):
        yield from batch_of([(each.partition, each.offset, number) for each in records], schema_of(SCHEMA))


def test_the_ranges_of_a_topic_leave_out_what_is_empty(bootstrap: str, topic: str) -> None:
    admin = Admin(Settings(bootstrap_servers=bootstrap))
    assert log_ranges(admin, topic) == [Range(topic, 0, 0, 10), Range(topic, 1, 0, 1)]
    assert log_ranges(admin, topic, since_ms=4_000, until_ms=8_000) == [Range(topic, 0, 3, 7), Range(topic, 1, 0, 1)]
    assert log_ranges(admin, topic, since_ms=9_500) == [Range(topic, 0, 9, 10)], "later than all of partition 1"
    assert log_ranges(admin, topic, until_ms=10) == []


def test_large_partitions_are_divided_where_a_job_allows_it(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "TASK_OFFSETS", 4)
    admin = Admin(Settings(bootstrap_servers=bootstrap))
    divided = log_ranges(admin, topic)
    assert [(each.start, each.end) for each in divided] == [(0, 4), (4, 8), (8, 10), (0, 1)]
    assert log_ranges(admin, topic, divided=False) == [Range(topic, 0, 0, 10), Range(topic, 1, 0, 1)]


def test_a_topic_that_does_not_exist_is_an_error(bootstrap: str) -> None:
    with pytest.raises(CommandFailed, match="cannot be read"):
        log_ranges(Admin(Settings(bootstrap_servers=bootstrap)), unique("missing"))


def test_a_job_sees_the_records_of_each_range_in_slices(bootstrap: str, topic: str) -> None:
    settings = Settings(bootstrap_servers=bootstrap)
    ranges = [Range(topic, 0, 2, 9), Range(topic, 1, 0, 1)]
    reader = _LogReader(LogReading(settings=settings, ranges=ranges, step=rows, schema=SCHEMA, slice_records=3))
    found = [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]
    assert [(row["partition"], row["offset"]) for row in found] == [*((0, n) for n in range(2, 9)), (1, 0)]
    assert max(row["slice"] for row in found) >= 2
    assert list(reader.read(InputPartition(None))) == [], "as Spark asks where there are no ranges"


def test_a_job_leaves_deleted_records_out_or_fails(bootstrap: str, topic: str) -> None:
    settings, ranges = Settings(bootstrap_servers=bootstrap), [Range(topic, 0, 0, 10)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 8)]).values()
    deleted.result(15)
    given = LogReading(settings=settings, ranges=ranges, step=rows, schema=SCHEMA)
    (found,) = _LogReader(given).read(InputPartition(ranges[0]))
    assert found.column("offset").to_pylist() == [8, 9]
    strict = LogReading(settings=settings, ranges=ranges, step=rows, schema=SCHEMA, skips_deleted=False)
    with pytest.raises(CommandFailed, match="the first one kept is 8"):
        list(_LogReader(strict).read(InputPartition(ranges[0])))
