"""The streaming source: reads the retry topic on the executors, and examines and packs records as they are read.

The driver plans a micro-batch by the ends of the log. A task reads one range, so a micro-batch that Spark runs again
reads the same records, and cuts them into the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from sidecar.clock import SystemClock
from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed, SidecarError
from sidecar.interpreter import collect_rarely
from sidecar.kafka.admin.cluster import Admin, Deadline, end_offsets, first_offsets
from sidecar.kafka.range_reader import Range
from sidecar.settings import Settings
from sidecar.spark.source import readers
from sidecar.spark.source.offsets import EARLIEST, Limits, Position, admitted, decode_position, encode_position
from sidecar.spark.stream.ingest import CHUNK_SCHEMA, pack
from sidecar.spark.stream.placement import key_of
from sidecar.spark.stream.step import Rules
from sidecar.spark.stream.wire import record_bytes

NAME: Final = "retry-topic"
CALL_S: Final = 10.0
SAMPLE_RECORDS: Final = 64
SAMPLE_EVERY_S: Final = 10.0
"""The time for which the estimate of a partition's records is kept."""
UNKNOWN_BYTES: Final = 1_000.0
"""The size of a record that could not be read for the estimate."""
_ARROW: Final = pa.schema([("key", pa.int32()), ("payload", pa.binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read, and how; Spark sends it to the executors."""

    settings: Settings
    rules: Rules
    state_partitions: int
    starts: Mapping[int, int]
    """Where a new checkpoint begins, by partition; EARLIEST is an offset too. A partition without one begins at 0."""
    limits: Limits


class _Part(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range, now_ms: int) -> None:
        super().__init__(tuple(wanted))
        self.wanted = wanted
        self.now_ms = now_ms


def source_of(reading: Reading) -> type[DataSource]:
    """Return the source, to be registered in a session. Its settings are no options, which Spark would show."""
    return type("RetryTopic", (_RetryTopic,), {"reading": reading})


class _RetryTopic(DataSource):
    reading: Reading

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return CHUNK_SCHEMA

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: ARG002, N802 - the name is Spark's
        return StreamReader(self.reading)


class StreamReader(DataSourceStreamReader):
    """Plans micro-batches in a process beside the driver, and reads them in the workers of executors."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._topic = reading.settings.input_topic
        self._admin: Admin | None = None
        self._latest: Position | None = None
        self._bytes: dict[int, tuple[float, float]] = {}
        """By partition the estimate of a record's bytes, and when it was made."""

    # The plan of a micro-batch

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name is Spark's
        starts = dict(self._reading.starts)
        if unknown := [number for number, offset in starts.items() if offset == EARLIEST]:
            starts |= first_offsets(self._cluster(), self._topic, unknown, Deadline(CALL_S))
        return encode_position(Position(starts, SystemClock().wall_ms()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - as above
        return ReadMaxRows(self._reading.limits.records)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - as above
        """Return the end of the next micro-batch, its start when nothing new is there or no broker answers."""
        starts = decode_position(start).offsets
        try:
            ends = self._ends(starts)
        except BrokerUnavailable:
            return start  # due messages wait for the broker too, and what sends them says so
        if ends == starts:
            return start
        if not isinstance(limit, ReadAllAvailable):
            ends = admitted(starts, ends, self._reading.limits, self._bytes_each)
        return encode_position(Position(ends, SystemClock().wall_ms()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begins, ends = decode_position(start), decode_position(end)
        ranges = [
            Range(self._topic, number, begins.offsets.get(number, 0), offset)
            for number, offset in sorted(ends.offsets.items())
        ]
        return [_Part(each, ends.now_ms) for each in ranges if each.start < each.end]

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - as above
        """Return the ends of the log as they were last seen, for the lag."""
        return None if self._latest is None else encode_position(self._latest)

    def stop(self) -> None:
        readers.forget()

    def _ends(self, starts: Mapping[int, int]) -> dict[int, int]:
        """Return the last stable offset of each partition. Raises BrokerUnavailable, CommandFailed."""
        admin, deadline = self._cluster(), Deadline(CALL_S)
        try:
            numbers = range(admin.partition_count(self._topic, deadline.left_s))
            ends = end_offsets(admin, self._topic, numbers, deadline)
        except KafkaFailed as error:
            if error.away:
                raise BrokerUnavailable(str(error)) from error
            raise CommandFailed(f"{self._topic} (INPUT_TOPIC) cannot be read: {error}") from error
        for number, offset in starts.items():
            if ends.get(number, -1) < offset:
                raise CommandFailed(
                    f"{self._topic}, partition {number}: offset {offset} is to be read, and the log ends at "
                    f"{ends.get(number, 0)}: the topic was deleted and created again, or a broker has lost records"
                )
        self._latest = Position(ends, SystemClock().wall_ms())
        return ends

    def _bytes_each(self, number: int, offset: int, end: int) -> float:
        now_s = SystemClock().monotonic_s()
        known, made_s = self._bytes.get(number, (UNKNOWN_BYTES, float("-inf")))
        if now_s - made_s < SAMPLE_EVERY_S:
            return known
        wanted, sizes = Range(self._topic, number, offset, min(offset + SAMPLE_RECORDS, end)), list[int]()
        # What is wrong with the log shows where it is read.
        try:
            for records in islice(readers.reader_of(self._reading.settings).read(wanted), 1):
                sizes = [record_bytes(record) for record in records]
        except SidecarError:
            readers.forget()
        found = sum(sizes) / len(sizes) if sizes else known
        self._bytes[number] = found, now_s
        return found

    def _cluster(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._reading.settings)
        return self._admin

    # A task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        collect_rarely()
        reading, wanted = self._reading, partition.wanted
        key = key_of(wanted.partition, reading.state_partitions)
        try:
            slices = readers.reader_of(reading.settings).read(wanted)
            for payload in pack(reading.rules, slices, partition.now_ms):
                yield pa.RecordBatch.from_arrays(
                    [pa.array([key], pa.int32()), pa.array([payload], pa.binary())], schema=_ARROW
                )
        except SidecarError:
            readers.forget()
            raise
