"""The streaming query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sidecar.settings import Settings
from sidecar.spark.intake import CHUNK_SCHEMA, COLUMNS, Pack
from sidecar.spark.manifest import CheckpointFolder, Manifest
from sidecar.spark.placement import key_of
from sidecar.spark.processor import OUTPUT_SCHEMA, WheelProcessor
from sidecar.spark.sink import TransactionalSink
from sidecar.spark.turn import Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INITIAL_SCHEMA: Final = "key int, record binary, value binary"
OBSERVATION: Final = "turns"
TALLY_CHARS_MAX: Final = 100_000

First = Sequence[tuple[int, bytes, bytes]]
"""Partition, and key and value of a changelog record."""


def initial_state(session: SparkSession, first: First, state_partitions: int) -> DataFrame:
    """Return what a new checkpoint begins with."""
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
) -> StreamingQuery:
    """Start the query and return it.

    Args:
        session: With as many shuffle partitions as the manifest says.
        settings: For the clients on the executors.
        rules: See there.
        manifest: Of the checkpoint.
        folder: Where it is.
        source: Options of the Kafka source.
        initial: Used by the first micro-batch of a checkpoint only.
        trigger: Least time between the starts of two micro-batches: `500 milliseconds`.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

    records = session.readStream.format("kafka").options(**source).load()
    chunks = records.select(*COLUMNS[:-1], f.current_timestamp().alias(COLUMNS[-1])).mapInArrow(
        Pack(rules, manifest.state_partitions).__call__, CHUNK_SCHEMA
    )
    turns = chunks.groupBy("key").transformWithStateInPandas(
        WheelProcessor(rules, settings),
        OUTPUT_SCHEMA,
        "Append",
        "ProcessingTime",
        initialState=initial.groupBy("key"),
    )
    watched = turns.observe(OBSERVATION, f.collect_list("tally").alias("tallies"))
    return (
        watched.writeStream.queryName(settings.streams_app_id)
        .foreach(TransactionalSink(settings, manifest.checkpoint))
        .option("checkpointLocation", folder.query)
        .outputMode("append")
        .trigger(processingTime=trigger)
        .start()
    )
