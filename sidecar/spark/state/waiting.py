"""The records of one partition that wait for ingest: in memory up to a bound, in state entries beyond it.

It reads no other part of the state, so records for a stopped partition are kept too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

import msgspec

from sidecar.engine.items import Arrival
from sidecar.errors import RecordCorrupt
from sidecar.model import Record
from sidecar.spark.state.entries import (
    INDEX,
    WAITING,
    ChunkRef,
    StateEntries,
    WaitingIndex,
    chunk_state_key,
    encode,
)
from sidecar.spark.stream.wire import CHUNK_BYTES_MAX, Chunk, decode_chunk, encode_chunk, first_offset, record_bytes


class Waiting:
    """Accepts chunks in any order and yields their records in the order of offsets.

    Args:
        state: Entries of the partition. Nothing is removed from them before `save`.
        limit_bytes: About the most that is held in memory, and that `take` yields at once.
    """

    def __init__(self, state: StateEntries, limit_bytes: int) -> None:
        self._state = state
        self._limit_bytes = limit_bytes
        found = state.get(INDEX)
        self._index = WaitingIndex() if found is None else WAITING.decode(found)
        self._saved_number = self._index.next_number
        self._fresh: list[tuple[int, bytes]] = []
        """A heap with the greatest offset first: beyond the limit the last chunks move into state entries."""
        self._bytes = 0
        self._taken: list[ChunkRef] = []
        self._taken_fresh: list[bytes] = []
        self._left: Sequence[Arrival | Record] = ()

    def __bool__(self) -> bool:
        return bool(self._index.refs or self._fresh or self._left)

    def add(self, chunks: Iterable[bytes]) -> bool:
        """Add chunks; return whether there were any. None of them lies before one that waits already."""
        came = False
        for chunk in chunks:
            came = True
            heappush(self._fresh, (-first_offset(chunk), chunk))
            self._bytes += len(chunk)
            while self._bytes > self._limit_bytes and len(self._fresh) > 1:
                _, last = heappop(self._fresh)
                self._bytes -= len(last)
                self._keep(last)
        return came

    def take(self) -> Iterator[Arrival | Record]:
        """Yield the records of the first chunks, at least one of them."""
        size = 0
        refs, fresh = sorted(self._index.refs, reverse=True), sorted(self._fresh)
        self._index.refs, self._fresh = refs, fresh  # sorted, so it is a heap
        while (refs or fresh) and size < self._limit_bytes:
            if refs and (not fresh or refs[-1].first < -fresh[-1][0]):
                ref = refs.pop()
                self._taken.append(ref)
                size += ref.size
                yield from _records(self._state.get(chunk_state_key(ref.number)))
            else:
                _, chunk = fresh.pop()
                self._taken_fresh.append(chunk)
                size += len(chunk)
                yield from _records(chunk)

    def put_back(self, items: Sequence[Arrival | Record]) -> None:
        """Keep records from `take` for the next step."""
        self._left = items

    def save(self) -> None:
        """Write what waits, and remove what was processed."""
        for ref in self._taken:
            self._state.remove(chunk_state_key(ref.number))
        for chunk in _chunks(self._left):
            self._keep(chunk)
        self._save(changed=bool(self._taken))

    def save_all(self) -> None:
        """Write all chunks, those from `take` too: they were not processed."""
        self._index.refs = sorted({*self._index.refs, *self._taken})
        for chunk in self._taken_fresh:
            self._keep(chunk)
        self._save(changed=False)

    def _save(self, *, changed: bool) -> None:
        for _, chunk in self._fresh:
            self._keep(chunk)
        if changed or self._index.next_number != self._saved_number:
            self._index.refs.sort()
            self._state.put(INDEX, encode(self._index))

    def _keep(self, chunk: bytes) -> None:
        ref = ChunkRef(first_offset(chunk), self._index.next_number, len(chunk))
        self._index.next_number += 1
        self._state.put(chunk_state_key(ref.number), chunk)
        self._index.refs.append(ref)


def _chunks(items: Sequence[Arrival | Record]) -> Iterator[bytes]:
    """Yield chunks of items in the order of their offsets."""
    arrivals: list[Arrival] = []
    records: list[Record] = []
    size = 0
    for item in items:
        if size > CHUNK_BYTES_MAX:
            yield encode_chunk(Chunk(arrivals, records))
            arrivals, records, size = [], [], 0
        if isinstance(item, Arrival):
            arrivals.append(item)
            size += len(item.lasting) + 64
        else:
            records.append(item)
            size += record_bytes(item)
    if arrivals or records:
        yield encode_chunk(Chunk(arrivals, records))


def _records(value: bytes | None) -> Iterator[Arrival | Record]:
    chunk = _decoded(value)
    yield from chunk.arrivals
    yield from chunk.records


def _decoded(value: bytes | None) -> Chunk:
    try:
        return decode_chunk(value or b"")
    except msgspec.DecodeError as cause:
        raise RecordCorrupt(f"records that wait do not decode: {cause}") from cause
