"""The streaming query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.manifest import CheckpointFolder, Manifest
from sidecar.spark.marks import ReplayClosings
from sidecar.spark.reads.questions import BoardAddress
from sidecar.spark.source.stream import NAME, Reading, source_of
from sidecar.spark.stream.placement import key_of
from sidecar.spark.stream.processor import OUTPUT_SCHEMA, WheelProcessor
from sidecar.spark.stream.sink import TransactionalSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INITIAL_SCHEMA: Final = "key int, record binary, value binary"
OBSERVATION: Final = "partition_steps"
TALLY_CHARS_MAX: Final = 100_000


class Replay(NamedTuple):
    """The replay of a micro-batch that was planned but not completed."""

    replay_closings: ReplayClosings = ReplayClosings()
    former: str = ""
    """The version that began it, if it was another one."""
    alone: bool = False
    """Whether the query ends after it."""


First = Sequence[tuple[int, bytes, bytes]]
"""The partition, key and value of changelog records."""


def initial_state(session: SparkSession, first: First, state_partitions: int) -> DataFrame:
    """Return the records that a new checkpoint begins with."""
    rows = [(key_of(partition, state_partitions), key, value) for partition, key, value in first]
    # Rows of Python would be converted by workers, which the first micro-batch would wait for.
    schema = schema_of(INITIAL_SCHEMA)
    return session.createDataFrame(pa.Table.from_batches(batch_of(rows, schema), schema), INITIAL_SCHEMA)


def start_query(
    session: SparkSession,
    reading: Reading,
    manifest: Manifest,
    folder: CheckpointFolder,
    initial: DataFrame,
    trigger: str,
    *,
    replay: Replay | None = None,
    board: BoardAddress | None = None,
) -> StreamingQuery:
    """Start the query and return it.

    Args:
        session: A session with as many shuffle partitions as the manifest has state partitions.
        reading: What the query reads, with the settings and rules of all executors.
        manifest: The manifest of the checkpoint.
        folder: The folder of the checkpoint.
        initial: The first state; only the first micro-batch of a checkpoint reads it.
        trigger: The least time between the starts of two micro-batches, such as `500 milliseconds`.
        replay: How the first micro-batch runs, if Spark runs it again.
        board: Where the driver asks for single messages.
    """
    settings, rules = reading.settings, reading.rules
    replay_closings, former, alone = replay or Replay()
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    session.dataSource.register(source_of(reading))
    chunks = session.readStream.format(NAME).load()
    output = chunks.groupBy("key").transformWithStateInPandas(
        WheelProcessor(rules, settings, replay_closings, board, copies=manifest.former is not None),
        OUTPUT_SCHEMA,
        "Append",
        "ProcessingTime",
        initialState=initial.groupBy("key"),
    )
    watched = output.observe(OBSERVATION, f.collect_list("tally").alias("tallies"))
    partitions = rules.input_partitions, manifest.state_partitions
    writer = (
        watched.writeStream.queryName(settings.streams_app_id)
        .foreach(TransactionalSink(settings, manifest.checkpoint, partitions, former))
        .option("checkpointLocation", folder.query)
        .outputMode("append")
    )
    # `once` runs a micro-batch that was not completed, and no other.
    return (writer.trigger(once=True) if alone else writer.trigger(processingTime=trigger)).start()
