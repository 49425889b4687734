"""Rows as Arrow batches, for the operators of a batch job that run in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

_TYPES: Final = {
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
}


def schema_of(ddl: str) -> pa.Schema:
    """Return the schema of a Spark DDL string, `name type, name type`."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in (each.split() for each in ddl.split(", "))])


def batch_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows as a batch, or nothing when there are none."""
    if columns := list(zip(*rows, strict=True)):
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
