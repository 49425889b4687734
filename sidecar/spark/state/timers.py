"""Timers of a checkpoint's state and of the changelog as tables, decoded block by block on the executors.

A timer is pending iff it is in a block, the watermark has not passed it, and it was not removed. Tasks stream: none
holds more than an Arrow batch, and the order and number of blocks do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sidecar.changelog.codec import BlockKey, Checkpoint, RemovedKey, check_removed, decode_key
from sidecar.changelog.entry import KEY, LEVEL_AT
from sidecar.errors import CommandFailed
from sidecar.spark.handover.changelog import slot_end_of, timers_of
from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.state.entries import META, PAGE, Meta, decode_meta
from sidecar.spark.state.pages import removed_of
from sidecar.spark.stream.placement import partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS: Final = ["partition", "due", "offset"]
TIMER: Final = "partition int, due long, offset long"
STORED: Final = f"{TIMER}, slot_end long, level int, entry binary"

Watermarks = Mapping[int, bytes]
"""The key of the watermark by partition: no timer up to it is pending."""


def read_state(session: SparkSession, query_folder: str) -> DataFrame:
    """Return the state of a checkpoint: the partition's key, state key and value. Raises CommandFailed."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - PySpark is an extra
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    # Reading a state asks the coordinator of streaming queries, which the first access to `streams` creates.
    _ = session.streams.active
    try:
        state = session.read.format("statestore").option("stateVarName", "cells").load(query_folder)
    except PySparkException as cause:
        raise CommandFailed(
            f"{query_folder} has no completed micro-batch, so it has no state: start `spark run` and wait until it is "
            f"ready ({cause.getCondition() or cause})"
        ) from cause
    return state.select(
        f.col("key.key").alias("key"),
        f.col("user_map_key.cell").alias("cell"),
        f.col("user_map_value.value").alias("value"),
    )


def metas(state: DataFrame) -> dict[int, Meta]:
    """Return the position of each partition of a state."""
    rows = _of_kind(state, "cell", META).select("key", "value").collect()
    return {partition_of(row["key"]): decode_meta(bytes(row["value"])) for row in rows}


def watermarks(checkpoints: Mapping[int, Checkpoint]) -> dict[int, bytes]:
    """Return the key of the watermark by partition."""
    return {number: KEY.pack(each.watermark_ms, each.watermark_offset) for number, each in checkpoints.items()}


def pending_in_state(state: DataFrame, passed: Watermarks, *, entries: bool) -> DataFrame:
    """Return the pending timers of a state.

    Args:
        state: A state from `read_state`.
        passed: The watermarks of the state's checkpoints.
        entries: Whether to return their slots and entries too.
    """
    blocks, pages = _of_kind(state, "cell", b"b"), _of_kind(state, "cell", b"p")
    timers = blocks.mapInArrow(_Decode(_StoredIn(passed), entries).__call__, STORED if entries else TIMER)
    return timers.join(pages.mapInArrow(_Decode(_removed_in, False).__call__, TIMER), KEYS, "left_anti")


def removed_records(state: DataFrame) -> DataFrame:
    """Return partition, key and value of the changelog records for the removed timers of a state."""
    return _of_kind(state, "cell", b"p").mapInArrow(_removed_records, "partition int, key binary, value binary")


def known_in_changelog(changelog: DataFrame, passed: Watermarks) -> DataFrame:
    """Return the timers in blocks of the changelog, removed or not.

    Args:
        changelog: Partition, key and value of its records.
        passed: The watermarks of the last checkpoints.
    """
    return _of_kind(changelog, "key", b"b").mapInArrow(_Decode(_InBlock(passed), False).__call__, TIMER)


def pending_in_changelog(changelog: DataFrame, passed: Watermarks) -> DataFrame:
    """Return the pending timers of the changelog; see `known_in_changelog`."""
    return known_in_changelog(changelog, passed).join(removed_in_changelog(changelog), KEYS, "left_anti")


def removed_in_changelog(changelog: DataFrame) -> DataFrame:
    """Return the timers that the changelog has as removed; see `known_in_changelog`."""
    return _of_kind(changelog, "key", b"r").mapInArrow(_Decode(_removed_by, False).__call__, TIMER)


def _of_kind(table: DataFrame, column: str, kind: bytes) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    return table.filter((f.substring(f.col(column), 1, 1) == f.lit(bytearray(kind))) & f.col("value").isNotNull())


class _Decode:
    """Makes an Arrow batch of the timers in each value.

    Args:
        timers: Yields the rows of one value, given the first column, the key in the second, and the value.
        entries: Whether the rows are STORED; else they are TIMER.
    """

    def __init__(self, timers: Callable[[int, bytes, bytes], Iterator[tuple[Any, ...]]], entries: bool) -> None:
        self._timers = timers
        self._entries = entries

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = schema_of(STORED if self._entries else TIMER)
        for batch in batches:
            # One row at a time becomes Python objects: together they are as large as the batch.
            for number, key, value in zip(*_columns(batch), strict=True):
                rows = self._timers(number.as_py(), key.as_py(), value.as_py())
                yield from batch_of((row[: len(schema)] for row in rows), schema)


def _columns(batch: pa.RecordBatch) -> list[pa.Array]:
    names = ("key", "cell", "value") if "cell" in batch.schema.names else ("partition", "key", "value")
    return [batch.column(name) for name in names]


class _StoredIn:
    """Yields the timers in a block of the state."""

    def __init__(self, passed: Watermarks) -> None:
        self._passed = passed

    def __call__(self, number: int, _cell: bytes, value: bytes) -> Iterator[tuple[Any, ...]]:
        partition = partition_of(number)
        for entry in timers_of(value, self._passed.get(partition, b"")):
            yield partition, *KEY.unpack_from(entry), slot_end_of(entry), entry[LEVEL_AT], entry


class _InBlock:
    """Yields the timers in a block of the changelog."""

    def __init__(self, passed: Watermarks) -> None:
        self._passed = passed

    def __call__(self, partition: int, key: bytes, value: bytes) -> Iterator[tuple[Any, ...]]:
        if isinstance(decode_key(key), BlockKey):
            for entry in timers_of(value, self._passed.get(partition, b"")):
                yield partition, *KEY.unpack_from(entry)


def _removed_by(partition: int, key: bytes, value: bytes) -> Iterator[tuple[Any, ...]]:
    decoded = decode_key(key)
    if isinstance(decoded, RemovedKey):
        check_removed(value)
        yield partition, decoded.due_ms, decoded.offset


def _removed_in(number: int, _cell: bytes, value: bytes) -> Iterator[tuple[Any, ...]]:
    for key, record in removed_of(PAGE.decode(value)):
        yield from _removed_by(partition_of(number), key, record)


def _removed_records(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = schema_of("partition int, key binary, value binary")
    for batch in batches:
        for number, _, value in zip(*_columns(batch), strict=True):
            partition = partition_of(number.as_py())
            rows = ((partition, key, record) for key, record in removed_of(PAGE.decode(value.as_py())))
            yield from batch_of(rows, schema)
