"""The ingest on the executors: messages are examined, all else is kept as it came, and chunks are cut by records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from sidecar.engine import hot
from sidecar.model import Record
from sidecar.spark.stream import ingest
from sidecar.spark.stream.ingest import Examiner, pack
from sidecar.spark.stream.placement import key_of, partition_of
from sidecar.spark.stream.wire import decode_chunk
from tests.spark.stream.test_partition_step import NOW, RULES

ORIGIN: list[tuple[str, bytes | None]] = [("retry-origin-topic", b"orders"), ("retry-delay-ms", b"5000")]


def record(offset: int, headers: list[tuple[str, bytes | None]] | None = None, value: bytes = b"v") -> Record:
    return Record(1, offset, NOW, b"k", value, ORIGIN if headers is None else headers)


def sliced(records: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    for at in range(0, len(records), size):
        yield records[at : at + size]


def test_messages_are_examined_and_all_else_is_kept_as_it_came() -> None:
    unreadable = Record(1, 10, NOW, None, None, None)
    (payload,) = pack(RULES, [[record(8), record(9, [])], [unreadable, record(11)]], NOW)
    chunk = decode_chunk(payload)
    assert [(each.offset, each.due_ms, each.origin) for each in chunk.arrivals] == [
        (8, NOW + 5000, "orders"),
        (11, NOW + 5000, "orders"),
    ]
    assert chunk.records == [record(9, []), unreadable]


def test_nothing_is_packed_of_nothing() -> None:
    assert list(pack(RULES, [[], []], NOW)) == []


def test_chunks_are_the_same_however_the_records_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch that runs again reads other slices."""
    monkeypatch.setattr(ingest, "PACKED_BYTES", 3_000)
    records = [record(offset, [] if offset % 7 == 3 else None, b"x" * (offset * 37 % 900)) for offset in range(300)]
    expected = list(pack(RULES, [records], NOW))
    assert len(expected) > 10
    for size in (1, 7, 299):
        assert list(pack(RULES, sliced(records, size), NOW)) == expected


@pytest.mark.skipif(not hot.COMPILED, reason="the hot path is not compiled here: it needs a C compiler")
def test_compiled_and_plain_make_the_same_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        record(offset, [*ORIGIN, ("n", b"%d" % offset), ("retry-attempt", b"%d" % (offset % 9))])
        for offset in range(40)
    ]
    compiled = Examiner(RULES)
    found = [compiled.examine(each, NOW) for each in records]
    monkeypatch.setattr(hot, "COMPILED", False)
    plain = Examiner(RULES)
    assert found == [plain.examine(each, NOW) for each in records]
    assert None not in found[:3]


def test_partitions_are_spread_evenly_over_the_tasks() -> None:
    keys = [key_of(partition, 4) for partition in range(16)]
    assert len(set(keys)) == 16
    assert [partition_of(key) for key in keys] == list(range(16))
