"""Handover between the engines: the changelog read into a new checkpoint, and a checkpoint written to the changelog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
from msgspec.structs import replace

from sidecar.changelog.codec import (
    CHECKPOINT_KEY,
    BlockKey,
    Checkpoint,
    Engine,
    decode_block,
    decode_key,
    encode_checkpoint,
)
from sidecar.changelog.entry import KEY_BYTES
from sidecar.errors import CommandFailed
from sidecar.settings import Settings
from sidecar.spark.cells import META, decode_meta
from sidecar.spark.handover import block_records, pending_entries, removed_records
from sidecar.spark.marks import Mark
from sidecar.spark.placement import key_of, partition_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RECORDS_SCHEMA: Final = "partition int, key binary, value binary"
TIMERS_SCHEMA: Final = "partition int, timer binary, entry binary"
KNOWN_SCHEMA: Final = "partition int, timer binary"


def changelog_records(
    session: SparkSession,
    settings: Settings,
    source: Mapping[str, str],
    checkpoints: Mapping[int, Checkpoint],
    state_partitions: int,
) -> DataFrame:
    """Return the blocks and removed records that still matter, as the first state of a query.

    Args:
        session: Reads on its executors.
        settings: Names the changelog.
        source: Options of the Kafka source, as for the input.
        checkpoints: The last one of each partition.
        state_partitions: Of the query.
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
        _changelog(session, settings, source)
        .filter(f.col("value").isNotNull() & matters)
        .select(of_partition(keys).cast("int").alias("key"), f.col("key").alias("record"), "value")
    )


def export(
    session: SparkSession,
    settings: Settings,
    source: Mapping[str, str],
    query_folder: str,
    marks: Mapping[int, tuple[int, Mark | None]],
) -> tuple[int, dict[int, Checkpoint]]:
    """Write the state of a stopped query to the changelog; return how much is pending, and the checkpoints to write.

    Until the checkpoints of the embedded engine are written nothing is restored from it, so this can be done again
    after a failure.

    Args:
        session: With the number of shuffle partitions of the query.
        settings: Names the changelog.
        source: Options of the Kafka source, as for the input.
        query_folder: Of Spark's checkpoint.
        marks: The committed offsets and marks of the group.

    Raises:
        CommandFailed: The query was not stopped in order; start and stop it once more.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    cells = read_cells(session, query_folder)
    standing = cells.filter(f.col("cell") == f.lit(bytearray(META))).select("key", "value").collect()
    metas = {partition_of(row["key"]): decode_meta(bytes(row["value"])) for row in standing}
    for number, meta in metas.items():
        _, mark = marks.get(number, (0, None))
        if meta.checkpoint.sequence != (mark.sequence if mark is not None else meta.checkpoint.sequence):
            raise CommandFailed(
                f"partition {number} of the checkpoint stands at {meta.checkpoint.sequence} and what was sent at "
                f"{mark.sequence if mark else 0}: the query was cut off. Start `spark run` again and end it by SIGTERM"
            )
    # What the changelog has of before stays: a timer is in one block only, and what of it is no longer pending lies
    # behind the watermark, or is among the removed.
    removed = cells.groupBy("key").applyInPandas(_removed, RECORDS_SCHEMA)
    _write(settings, source, removed)
    timers = cells.groupBy("key").applyInPandas(_timers, TIMERS_SCHEMA)
    known = _changelog(session, settings, source).mapInArrow(_known, KNOWN_SCHEMA)
    sequences = {number: meta.checkpoint.sequence + 1 for number, meta in metas.items()}
    blocks = (
        timers.join(known, ["partition", "timer"], "left_anti")
        .groupBy("partition")
        .applyInPandas(partial(_blocks, sequences), RECORDS_SCHEMA)
    )
    _write(settings, source, blocks)
    pending = sum(sum(meta.counted_origins.values()) for meta in metas.values())
    return pending, {
        number: replace(meta.checkpoint, engine=Engine.EMBEDDED, sequence=meta.checkpoint.sequence + 1)
        for number, meta in metas.items()
    }


def initial_records(checkpoints: Mapping[int, Checkpoint]) -> list[tuple[int, bytes, bytes]]:
    """Return the checkpoint records that partitions begin with."""
    return [(number, CHECKPOINT_KEY, encode_checkpoint(each)) for number, each in checkpoints.items()]


def _removed(frame: pd.DataFrame) -> pd.DataFrame:
    partition, cells = state_of(frame)
    return _records(partition, list(removed_records(partition, cells)))


def _timers(frame: pd.DataFrame) -> pd.DataFrame:
    partition, cells = state_of(frame)
    entries = list(pending_entries(partition, cells))
    numbers = pd.Series([partition] * len(entries), dtype="int32")
    return pd.DataFrame({"partition": numbers, "timer": [entry[:KEY_BYTES] for entry in entries], "entry": entries})


def _blocks(sequences: Mapping[int, int], frame: pd.DataFrame) -> pd.DataFrame:
    partition = int(frame["partition"].iloc[0])
    entries = sorted(bytes(entry) for entry in frame["entry"])
    return _records(partition, list(block_records(entries, sequences[partition])))


def _known(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the timers that are in blocks of the changelog."""
    for batch in batches:
        numbers: list[int] = []
        timers: list[bytes] = []
        columns = [batch.column(name).to_pylist() for name in ("partition", "key", "value")]
        for partition, key, value in zip(*columns, strict=True):
            if value is not None and isinstance(decode_key(key), BlockKey):
                found = [entry[:KEY_BYTES] for entry in decode_block(value).entries]
                timers += found
                numbers += [partition] * len(found)
        yield pa.RecordBatch.from_arrays(
            [pa.array(numbers, pa.int32()), pa.array(timers, pa.binary())], names=["partition", "timer"]
        )


def _records(partition: int, records: list[tuple[bytes, bytes]]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "partition": pd.Series([partition] * len(records), dtype="int32"),
            "key": [key for key, _ in records],
            "value": [value for _, value in records],
        }
    )


def state_of(frame: pd.DataFrame) -> tuple[int, dict[bytes, bytes]]:
    """Return the partition that a frame of `read_cells` holds, and its cells."""
    cells = {bytes(cell): bytes(value) for cell, value in zip(frame["cell"], frame["value"], strict=True)}
    return partition_of(int(frame["key"].iloc[0])), cells


def read_cells(session: SparkSession, query_folder: str) -> DataFrame:
    """Return the state that a checkpoint has: the partition's key, cell and value."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    # Reading a state asks the coordinator of streaming queries, which is there once somebody has asked for queries.
    _ = session.streams.active
    try:
        state = session.read.format("statestore").option("stateVarName", "cells").load(query_folder)
    except PySparkException as cause:
        raise CommandFailed(
            f"{query_folder} has no micro-batch that came to its end, so there is no state: start `spark run` and wait "
            f"until it is ready ({cause.getCondition() or cause})"
        ) from cause
    return state.select(
        f.col("key.key").alias("key"),
        f.col("user_map_key.cell").alias("cell"),
        f.col("user_map_value.value").alias("value"),
    )


def _changelog(session: SparkSession, settings: Settings, source: Mapping[str, str]) -> DataFrame:
    options = {name: value for name, value in source.items() if name.startswith("kafka.")}
    reading = {"subscribe": settings.changelog_topic, "startingOffsets": "earliest", "endingOffsets": "latest"}
    return session.read.format("kafka").options(**options, **reading).load()


def _write(settings: Settings, source: Mapping[str, str], records: DataFrame) -> None:
    options = {name: value for name, value in source.items() if name.startswith("kafka.") and "isolation" not in name}
    writer = records.write.format("kafka").options(**options, **{"kafka.max.request.size": str(64 * 1024 * 1024)})
    writer.option("topic", settings.changelog_topic).save()
