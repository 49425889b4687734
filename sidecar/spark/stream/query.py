"""The streaming query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sidecar.settings import Settings
from sidecar.spark.manifest import CheckpointFolder, Manifest
from sidecar.spark.marks import ReplayClosings
from sidecar.spark.reads.questions import BoardAddress
from sidecar.spark.stream.ingest import CHUNK_SCHEMA, COLUMNS, Pack
from sidecar.spark.stream.placement import key_of
from sidecar.spark.stream.processor import OUTPUT_SCHEMA, WheelProcessor
from sidecar.spark.stream.sink import TransactionalSink
from sidecar.spark.stream.step import Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INITIAL_SCHEMA: Final = "key int, record binary, value binary"
OBSERVATION: Final = "turns"
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
    rows = [(key_of(partition, state_partitions), bytearray(key), bytearray(value)) for partition, key, value in first]
    return session.createDataFrame(rows, INITIAL_SCHEMA)


def start_query(
    session: SparkSession,
    settings: Settings,
    rules: Rules,
    manifest: Manifest,
    folder: CheckpointFolder,
    source: Mapping[str, str],
    initial: DataFrame,
    trigger: str,
    *,
    replay: Replay | None = None,
    board: BoardAddress | None = None,
) -> StreamingQuery:
    """Start the query and return it.

    Args:
        session: A session with as many shuffle partitions as the manifest has state partitions.
        settings: The settings of the clients on the executors.
        rules: The rules of the partition steps.
        manifest: The manifest of the checkpoint.
        folder: The folder of the checkpoint.
        source: Options of the Kafka source.
        initial: The first state; only the first micro-batch of a checkpoint reads it.
        trigger: The least time between the starts of two micro-batches, such as `500 milliseconds`.
        replay: How the first micro-batch runs, if Spark runs it again.
        board: Where the driver asks for single messages.
    """
    replay_closings, former, alone = replay or Replay()
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    records = session.readStream.format("kafka").options(**source).load()
    chunks = records.select(*COLUMNS[:-1], f.current_timestamp().alias(COLUMNS[-1])).mapInArrow(
        Pack(rules, manifest.state_partitions).__call__, CHUNK_SCHEMA
    )
    output = chunks.groupBy("key").transformWithStateInPandas(
        WheelProcessor(rules, settings, replay_closings, board),
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
