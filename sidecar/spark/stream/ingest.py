"""The first step on the executors: records of the input become few rows of packed, examined records.

Parsing and policy happen here, with the core's own functions. What depends on the origin topic is left to the turn,
which decides by what its state knows of it: so a micro-batch that runs again decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from sidecar.contract import dialects_of
from sidecar.engine.ingest import Intake
from sidecar.engine.items import Arrival
from sidecar.engine.ports import Origin
from sidecar.model import NO_TIMESTAMP, Headers, Record
from sidecar.policy import Policy
from sidecar.spark.stream.placement import key_of
from sidecar.spark.stream.step import Rules
from sidecar.spark.stream.wire import CHUNK_BYTES_MAX, Chunk, encode_chunk, record_bytes

COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers", "now")
"""What is taken of the source; `now` is the instant of the micro-batch."""
CHUNK_SCHEMA: Final = "key int, payload binary"
_ARROW: Final = pa.schema([("key", pa.int32()), ("payload", pa.binary())])
_REPLACED: Final = "\ufffd"
"""What Kafka's Java client makes of bytes in a header key that are not UTF-8."""


class _Any(Mapping[str, Origin]):
    """Says of each topic that it takes everything."""

    def __getitem__(self, name: str) -> Origin:
        return Origin(2**31 - 1, 2**31 - 1)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 - the signature of every mapping
        return self[key]

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Pack:
    """Examines and packs the records of a source partition."""

    def __init__(self, rules: Rules, state_partitions: int) -> None:
        self._rules = rules
        self._state_partitions = state_partitions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rules = self._rules
        intake = Intake(
            Policy(rules.policy),
            dialects_of(rules.profiles),
            _Any(),
            (),
            input_topic=rules.policy.input_topic,
            app_id=rules.app_id,
            api_token=rules.api_token,
        )
        for batch in batches:
            keys: list[int] = []
            payloads: list[bytes] = []
            for partition, payload in _pack(intake, batch):
                keys.append(key_of(partition, self._state_partitions))
                payloads.append(payload)
            if keys:
                yield pa.RecordBatch.from_arrays(
                    [pa.array(keys, pa.int32()), pa.array(payloads, pa.binary())], schema=_ARROW
                )


def _pack(intake: Intake, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Yield partition and chunk, cut by partition and size."""
    arrivals: list[Arrival] = []
    records: list[Record] = []
    size, last = 0, -1
    now_ms = batch.column("now")[0].value // 1000 if batch.num_rows else 0
    for record in records_of(batch):
        if (record.partition != last or size > CHUNK_BYTES_MAX) and (arrivals or records):
            yield last, encode_chunk(Chunk(arrivals, records))
            arrivals, records, size = [], [], 0
        last = record.partition
        item = intake.examine(record, now_ms)
        if type(item) is Arrival:
            arrivals.append(item)
            size += len(item.lasting) + 64
        else:
            records.append(record)
            size += record_bytes(record)
    if arrivals or records:
        yield last, encode_chunk(Chunk(arrivals, records))


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of a batch of the source, as a Kafka client would have read them."""
    columns = [batch.column(name) for name in ("partition", "offset", "key", "value")]
    partitions, offsets, keys, values = (column.to_pylist() for column in columns)
    # Microseconds, as numbers: dates would be made of them otherwise, one by one.
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for partition, offset, key, value, stamp, headers in zip(
        partitions, offsets, keys, values, stamps, _headers(batch.column("headers")), strict=True
    ):
        timestamp_ms = NO_TIMESTAMP if stamp is None or stamp < 0 else stamp // 1000
        yield Record(partition, offset, timestamp_ms, key, value, headers)


def _headers(column: pa.ListArray) -> Iterator[Headers | None]:
    """Yield the headers of each record; None when a key is not UTF-8."""
    structs = column.values
    names = structs.field("key").to_pylist()
    pairs = list(zip(names, structs.field("value").to_pylist(), strict=True))
    strange = any(_REPLACED in name for name in set(names))
    ends = column.offsets.to_pylist()
    for start, end in pairwise(ends):
        headers = pairs[start:end]
        yield None if strange and any(_REPLACED in name for name, _ in headers) else headers
