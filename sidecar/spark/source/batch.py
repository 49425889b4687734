"""The source of batch jobs: a job's own function reads the records where they are, so only its rows come into Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sidecar.errors import CommandFailed, KafkaFailed, SidecarError
from sidecar.kafka.admin.cluster import Admin, Deadline, end_offsets, first_offsets, offsets_at
from sidecar.kafka.range_reader import SLICE_RECORDS, Range
from sidecar.model import Record
from sidecar.settings import Settings
from sidecar.spark.source import readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CALL_S: Final = 30.0
TASK_OFFSETS: Final = 1_000_000
"""The most offsets of one task, of a topic whose partitions may be divided."""

Step = Callable[[Iterator[Sequence[Record]]], Iterator[pa.RecordBatch]]
"""Makes a task's rows of its records, which come in the order of offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """What a job reads, and what it makes of it; Spark sends it to the executors."""

    settings: Settings
    ranges: Sequence[Range]
    """One task reads each."""
    step: Step
    schema: str
    """Of the rows, as Spark's DDL."""
    skips_deleted: bool = True
    """Whether records that retention deletes meanwhile are left out; else the job fails."""
    slice_records: int = SLICE_RECORDS


def read_log(session: SparkSession, reading: LogReading) -> DataFrame:
    """Return the rows that a job makes of the records of these ranges."""
    name = f"kafka-log-{next(_numbers)}"
    session.dataSource.register(type("KafkaLog", (_KafkaLog,), {"reading": reading, "format": name}))
    return session.read.format(name).load()


def log_ranges(
    admin: Admin, topic: str, *, since_ms: int | None = None, until_ms: int | None = None, divided: bool = True
) -> list[Range]:
    """Return the ranges of a topic up to what is committed now, without empty ones.

    Args:
        admin: The admin client.
        topic: A topic that exists.
        since_ms: The start: the first record of each partition that is as late or later; None: the beginning.
        until_ms: The end, exclusive: the first record that is as late or later; None: the end.
        divided: Whether several tasks may read one partition.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The topic does not exist, or may not be read.
    """
    deadline = Deadline(CALL_S)
    try:
        numbers = range(admin.partition_count(topic, deadline.left_s))
        firsts, ends = (ask(admin, topic, numbers, deadline) for ask in (first_offsets, end_offsets))
        starts = _at(firsts, ends, {} if since_ms is None else offsets_at(admin, topic, numbers, since_ms, deadline))
        lasts = _at(ends, ends, {} if until_ms is None else offsets_at(admin, topic, numbers, until_ms, deadline))
    except KafkaFailed as error:
        raise CommandFailed(f"topic {topic} cannot be read: {error}") from error
    whole = [Range(topic, number, starts[number], lasts[number]) for number in numbers]
    return [part for each in whole for part in (_parts(each) if divided else [each]) if part.start < part.end]


def _at(plain: Mapping[int, int], ends: Mapping[int, int], asked: Mapping[int, int | None]) -> dict[int, int]:
    """Return the offsets at an instant, the end where no record is as late."""
    if not asked:
        return dict(plain)
    return {number: end if (found := asked[number]) is None else min(found, end) for number, end in ends.items()}


def _parts(whole: Range) -> list[Range]:
    starts = range(whole.start, whole.end, TASK_OFFSETS)
    return [whole._replace(start=start, end=min(start + TASK_OFFSETS, whole.end)) for start in starts]


_numbers = count(1)


class _KafkaLog(DataSource):
    reading: LogReading
    format: str

    @classmethod
    def name(cls) -> str:
        return cls.format

    def schema(self) -> str:
        return self.reading.schema

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the signature is Spark's
        return _LogReader(self.reading)


class _LogReader(DataSourceReader):
    def __init__(self, reading: LogReading) -> None:
        self._reading = reading

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(each) for each in self._reading.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reading, wanted = self._reading, partition.value
        # Without ranges Spark asks for one partition that has no value.
        if wanted is None:
            return
        try:
            slices = readers.reader_of(reading.settings).read(
                wanted, skips_deleted=reading.skips_deleted, slice_records=reading.slice_records
            )
            yield from reading.step(list(each) for each in slices)
        except SidecarError:
            readers.forget()
            raise
