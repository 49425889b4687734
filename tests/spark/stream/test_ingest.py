"""The ingest on the executors: rows of Spark's source become the records that a Kafka client would have read."""

from __future__ import annotations

import pyarrow as pa

from sidecar.model import NO_TIMESTAMP, Record
from sidecar.spark.stream.ingest import COLUMNS, Pack, records_of
from sidecar.spark.stream.placement import key_of, partition_of
from sidecar.spark.stream.wire import decode_chunk
from tests.spark.stream.test_partition_step import NOW, RULES

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
STAMP = pa.timestamp("us", tz="UTC")


Row = tuple[int, int, int | None, bytes | None, bytes | None, list[dict[str, object]] | None]


def batch(*rows: Row) -> pa.RecordBatch:
    """Return a batch as the source gives it: partition, offset, timestamp in ms, key, value, headers."""
    in_us = [(*row[:2], None if row[2] is None else row[2] * 1000, *row[3:]) for row in rows]
    types = [pa.int32(), pa.int64(), STAMP, pa.binary(), pa.binary(), HEADERS]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*in_us, strict=True), types, strict=True)]
    arrays.append(pa.array([NOW * 1000] * len(rows), STAMP))
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def header(key: str, value: bytes | None) -> dict[str, object]:
    return {"key": key, "value": value}


def test_keys_values_and_headers_are_what_they_were() -> None:
    headers = [header("a", b"\xff"), header("a", None), header("b", b"")]
    given = batch((0, 5, NOW, None, b"", headers), (0, 6, None, b"k", None, None), (0, 7, -1, b"", b"v", []))
    assert list(records_of(given)) == [
        Record(0, 5, NOW, None, b"", [("a", b"\xff"), ("a", None), ("b", b"")]),
        Record(0, 6, NO_TIMESTAMP, b"k", None, []),
        Record(0, 7, NO_TIMESTAMP, b"", b"v", []),
    ]


def test_a_header_key_that_is_not_utf8_makes_the_headers_unreadable_and_those_of_others_not() -> None:
    given = batch((0, 5, NOW, None, None, [header("a\ufffd", b"x")]), (0, 6, NOW, None, None, [header("a", b"x")]))
    assert [record.headers for record in records_of(given)] == [None, [("a", b"x")]]


def test_a_slice_of_a_batch_has_its_own_headers() -> None:
    given = batch(*((0, n, NOW, None, None, [header("n", b"%d" % n)]) for n in range(5))).slice(2, 2)
    assert [record.headers for record in records_of(given)] == [[("n", b"2")], [("n", b"3")]]


def test_messages_are_examined_and_all_else_is_kept_as_it_came() -> None:
    origin = [header("retry-origin-topic", b"orders"), header("retry-delay-ms", b"5000")]
    given = batch((1, 8, NOW, b"k", b"v", origin), (1, 9, NOW, b"k", b"v", None), (2, 4, NOW, b"k", b"v", origin))
    (out,) = Pack(RULES, 2)(iter([given]))
    chunks = [decode_chunk(payload) for payload in out.column("payload").to_pylist()]
    assert [partition_of(key) for key in out.column("key").to_pylist()] == [1, 2]
    assert [(each.offset, each.due_ms, each.origin) for each in chunks[0].arrivals] == [(8, NOW + 5000, "orders")]
    assert [each.offset for each in chunks[0].records] == [9]
    assert [each.offset for each in chunks[1].arrivals] == [4]


def test_partitions_are_spread_evenly_over_the_tasks() -> None:
    keys = [key_of(partition, 4) for partition in range(16)]
    assert len(set(keys)) == 16
    assert [partition_of(key) for key in keys] == list(range(16))
