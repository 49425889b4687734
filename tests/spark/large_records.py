"""A program: hands large records to Python as the query does, and prints the bytes and records of each batch.

It is a process of its own, because a JVM stays for as long as the process that has started it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from sidecar.spark.session import open_session

RECORDS = 300
RECORD_BYTES = 900_000


def _sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [pa.array([batch.num_rows]), pa.array([batch.nbytes])], names=["rows", "bytes"]
        )


def main() -> None:
    session = open_session("large", "local[1]", {"spark.driver.memory": "512m"}, 1)
    records = session.range(0, RECORDS, 1, 1).selectExpr(f"repeat('x', {RECORD_BYTES}) as value")
    sizes = records.mapInArrow(_sizes, "rows long, bytes long").collect()
    session.stop()
    print(json.dumps([[each["rows"], each["bytes"]] for each in sizes]))


if __name__ == "__main__":
    main()
