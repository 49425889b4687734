"""Import of the changelog into a new checkpoint, and export of a checkpoint to the changelog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec.structs import replace

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, Engine, encode_checkpoint
from sidecar.errors import CommandFailed, KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.writer import Writer, Written
from sidecar.model import OFFSET_MAX, Record
from sidecar.settings import Settings
from sidecar.spark.handover.changelog import sorted_blocks
from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.marks import Mark, MarkedCheckpoint
from sidecar.spark.source.batch import LogReading, log_ranges, read_log
from sidecar.spark.state.entries import Meta
from sidecar.spark.state.timers import (
    KEYS,
    known_in_changelog,
    metas,
    pending_in_state,
    read_state,
    removed_records,
    watermarks,
)
from sidecar.spark.stream.placement import key_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RECORDS_SCHEMA: Final = "partition int, key binary, value binary"
_LOG_SCHEMA: Final = "partition int, offset long, key binary, value binary"
WRITE_S: Final = 60.0
"""The longest wait for the writes of a batch."""


def changelog_records(
    session: SparkSession,
    settings: Settings,
    admin: Admin,
    checkpoints: Mapping[int, Checkpoint],
    state_partitions: int,
) -> DataFrame:
    """Return the blocks and removed records that still matter, as the first state of a query.

    Args:
        session: The session whose executors read.
        settings: The settings, which name the changelog.
        admin: The admin client.
        checkpoints: The last checkpoint of each partition.
        state_partitions: The state partitions of the query.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    count = max(checkpoints) + 1
    keys = [key_of(number, state_partitions) for number in range(count)]
    watermarks = [
        bytearray(checkpoints.get(number, Checkpoint()).watermark_ms.to_bytes(8, "big")) for number in range(count)
    ]

    def of_partition(values: list[Any]) -> Column:
        return f.element_at(f.array(*[f.lit(value) for value in values]), f.col("partition") + 1)

    kind = f.substring(f.col("key"), 1, 1)
    slot_end = f.substring(f.col("key"), 2, 8)
    matters = (kind == f.lit(bytearray(b"r"))) | (
        (kind == f.lit(bytearray(b"b"))) & (slot_end > of_partition(watermarks))
    )
    return (
        read_changelog(session, settings, admin)
        .filter(f.col("value").isNotNull() & matters)
        .select(of_partition(keys).cast("int").alias("key"), f.col("key").alias("record"), "value")
    )


def export(
    session: SparkSession,
    settings: Settings,
    admin: Admin,
    query_folder: str,
    before: Mapping[int, MarkedCheckpoint],
) -> tuple[int, dict[int, Checkpoint]]:
    """Write the state of a stopped query to the changelog; return the pending count and the checkpoints to write.

    The embedded engine restores nothing of it until its checkpoints are written, so the export can be repeated after a
    failure.

    Args:
        session: A session with as many shuffle partitions as the query.
        settings: The settings, which name the changelog.
        admin: The admin client.
        query_folder: The folder of Spark's checkpoint.
        before: The last checkpoint of each partition in the changelog, with the mark of what was sent.

    Raises:
        CommandFailed: The query was not stopped cleanly; start and stop it once more.
    """

    state = read_state(session, query_folder)
    standing = metas(state)
    for number, meta in standing.items():
        meta.checkpoint = with_what_is_sent(meta.checkpoint, before.get(number, MarkedCheckpoint()).mark)
    require_sent(standing, before)
    # Older records of the changelog stay: a timer is in one block only, and the watermark has passed those that are
    # not pending, or a removed record names them.
    write_records(settings, removed_records(state))
    passed = watermarks({number: meta.checkpoint for number, meta in standing.items()})
    known = known_in_changelog(read_changelog(session, settings, admin), passed)
    sequences = {number: meta.checkpoint.sequence + 1 for number, meta in standing.items()}
    blocks = pending_in_state(state, passed, entries=True).join(known, KEYS, "left_anti")
    write_entries(settings, blocks, sequences)
    pending = pending_in_state(state, passed, entries=False).count()
    return pending, {
        number: replace(
            meta.checkpoint,
            engine=Engine.EMBEDDED,
            sequence=meta.checkpoint.sequence + 1,
            # The query went on with the last assignment's sequences: no state folder may be taken for a part of them.
            assignment=0,
            former=(),
            changelog_topic_id="",  # whatever topic it is: it has everything now
        )
        for number, meta in standing.items()
    }


def with_what_is_sent(checkpoint: Checkpoint, mark: Mark | None) -> Checkpoint:
    """Return the checkpoint of a state after what was sent ahead of it, which is all that was due by an instant."""
    if mark is None or not mark.ahead or mark.sequence != checkpoint.sequence:
        return checkpoint
    return replace(
        checkpoint,
        sequence=mark.reached,
        watermark_ms=mark.ahead_ms,
        watermark_offset=OFFSET_MAX,
        has_fired=True,
    )


def require_sent(standing: Mapping[int, Meta], before: Mapping[int, MarkedCheckpoint]) -> None:
    """Raise CommandFailed if a state does not meet what the changelog says was sent."""
    for number, meta in standing.items():
        state, sent = meta.checkpoint.sequence, before.get(number, MarkedCheckpoint()).reached
        if state == sent:
            continue
        cut_off = "the query was cut off. Start `spark run` again"
        lost = "the changelog was deleted, created again or cut off. Start `spark run` once with --restore-marks"
        raise CommandFailed(
            f"partition {number} of the checkpoint is at sequence {state} and the sent records at {sent}: "
            f"{cut_off if state < sent else lost} and stop it with SIGTERM"
        )


def write_entries(settings: Settings, timers: DataFrame, sequences: Mapping[int, int]) -> None:
    """Write timers to the changelog, in blocks.

    Args:
        settings: The settings, which name the changelog.
        timers: Timers with their slots and entries; none may be in a block of the changelog.
        sequences: The sequence of the next checkpoint by partition, which names the blocks.
    """
    blocks = (
        timers.select("partition", "slot_end", "level", "entry")
        .repartition("partition", "slot_end")
        .sortWithinPartitions("partition", "slot_end", "level", "entry")
        .mapInArrow(_Blocks(sequences).__call__, RECORDS_SCHEMA)
    )
    write_records(settings, blocks)


def initial_records(checkpoints: Mapping[int, Checkpoint]) -> list[tuple[int, bytes, bytes]]:
    """Return the checkpoint records that partitions begin with."""
    return [(number, CHECKPOINT_KEY, encode_checkpoint(each)) for number, each in checkpoints.items()]


class _Blocks:
    """Packs sorted entries into blocks, one at a time."""

    def __init__(self, sequences: Mapping[int, int]) -> None:
        self._sequences = sequences

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = schema_of(RECORDS_SCHEMA)
        entries = (
            (partition.as_py(), entry.as_py())
            for batch in batches
            for partition, entry in zip(batch.column("partition"), batch.column("entry"), strict=True)
        )
        for record in sorted_blocks(entries, self._sequences):
            yield from batch_of([record], schema)


def read_changelog(session: SparkSession, settings: Settings, admin: Admin) -> DataFrame:
    """Return partition, key and value of the last record of each key of the changelog. Raises CommandFailed."""
    ranges = log_ranges(admin, settings.changelog_topic)
    return last_of_each_key(
        read_log(
            session,
            LogReading(settings=settings, ranges=ranges, step=_rows, schema=_LOG_SCHEMA, skips_deleted=False),
        )
    )


def last_of_each_key(records: DataFrame) -> DataFrame:
    """Return what compaction leaves of a changelog, which it may not have done yet.

    A repair that is repeated writes the blocks of the one before again, under their keys.

    Args:
        records: Partition, offset, key and value.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    return records.groupBy("partition", "key").agg(f.max_by("value", "offset").alias("value"))


def _rows(slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
    schema = schema_of(_LOG_SCHEMA)
    for records in slices:
        yield from batch_of(((each.partition, each.offset, each.key, each.value) for each in records), schema)


def write_records(settings: Settings, records: DataFrame) -> None:
    """Write partition, key and value to the changelog. Raises CommandFailed."""
    records.mapInArrow(_Write(settings).__call__, "written long").collect()


class _Write:
    """Writes the rows of a task, and yields their number."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        topic, written = self._settings.changelog_topic, 0
        writer = Writer(config.retry_producer(self._settings))
        problems: list[KafkaFailed] = []

        def report(result: Written | KafkaFailed) -> None:
            if isinstance(result, KafkaFailed):
                problems.append(result)

        for batch in batches:
            for row in zip(*(batch.column(name) for name in ("partition", "key", "value")), strict=True):
                partition, key, value = (each.as_py() for each in row)
                writer.write(topic, key, value, partition=partition, report=report)
                written += 1
            # All of a batch is in the queue at most.
            if writer.flush(WRITE_S) or problems:
                said = problems[0] if problems else f"no answer within {WRITE_S:g} s"
                raise CommandFailed(f"the changelog {topic} cannot be written: {said}")
        yield from batch_of([(written,)], schema_of("written long"))
