"""A source without records: reading it starts the processes and loads the code that a query's own source needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sidecar.spark.source import stream
from sidecar.spark.stream.ingest import CHUNK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = f"{stream.NAME}-warm-up"


def read_nothing(session: SparkSession) -> None:
    """Read the source once. Spark keeps the processes and gives them to the source of the query."""
    session.dataSource.register(_Nothing)
    session.read.format(NAME).load().collect()


class _Nothing(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return CHUNK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the signature is Spark's
        return _NoRecords()


class _NoRecords(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as above
        return iter(())
