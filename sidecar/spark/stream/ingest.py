"""Parses the records of the input on the executors and packs them into few rows, one for each chunk.

Parsing and policy run here, with the core's functions. What depends on the origin topic is left to the partition step,
which decides by the metadata in its state: so a micro-batch that runs again decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa

from sidecar.contract import Dialect, dialects_of, parse
from sidecar.engine.ingest import arrival_of
from sidecar.engine.items import Arrival
from sidecar.model import NO_TIMESTAMP, Headers, Record, Request, Schedule
from sidecar.policy import Policy
from sidecar.spark.stream.placement import key_of
from sidecar.spark.stream.step import Rules
from sidecar.spark.stream.wire import CHUNK_BYTES_MAX, Chunk, encode_chunk, record_bytes
from sidecar.spark.worker import collect_rarely

COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers", "now")
"""The columns that are read from the source; `now` is the instant of the micro-batch."""
CHUNK_SCHEMA: Final = "key int, payload binary"
_ARROW: Final = pa.schema([("key", pa.int32()), ("payload", pa.binary())])
_REPLACED: Final = "\ufffd"
"""The character that Kafka's Java client puts for bytes of a header key that are not UTF-8."""


class Pack:
    """Parses and packs the records of a source partition.

    Args:
        rules: The rules of the partition steps.
        state_partitions: The state partitions of the stateful operator.
    """

    def __init__(self, rules: Rules, state_partitions: int) -> None:
        self._rules = rules
        self._state_partitions = state_partitions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collect_rarely()
        policy, dialects = Policy(self._rules.policy), dialects_of(self._rules.profiles)
        for batch in batches:
            keys: list[int] = []
            payloads: list[bytes] = []
            for partition, payload in _pack(policy, dialects, batch):
                keys.append(key_of(partition, self._state_partitions))
                payloads.append(payload)
            if keys:
                yield pa.RecordBatch.from_arrays(
                    [pa.array(keys, pa.int32()), pa.array(payloads, pa.binary())], schema=_ARROW
                )


def _pack(policy: Policy, dialects: Sequence[Dialect], batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
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
        request = parse(record, dialects)
        verdict = None
        if type(request) is Request:
            verdict = policy.decide(request, record.timestamp_ms, now_ms, record.partition, record.offset)
        if type(request) is Request and type(verdict) is Schedule:
            arrival = arrival_of(record, request, verdict)
            arrivals.append(arrival)
            size += len(arrival.lasting) + 64
        else:
            records.append(record)
            size += record_bytes(record)
    if arrivals or records:
        yield last, encode_chunk(Chunk(arrivals, records))


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of a batch of the source, as a Kafka client would have read them."""
    columns = [batch.column(name) for name in ("partition", "offset", "key", "value")]
    partitions, offsets, keys, values = (column.to_pylist() for column in columns)
    # As microseconds: `to_pylist` would make a date of each.
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
    garbled = any(_REPLACED in name for name in set(names))
    ends = column.offsets.to_pylist()
    for start, end in pairwise(ends):
        headers = pairs[start:end]
        yield None if garbled and any(_REPLACED in name for name, _ in headers) else headers
