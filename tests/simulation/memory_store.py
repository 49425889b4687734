"""A local store in memory that forgets, when its process dies, what was not flushed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from sidecar.engine.ports import Mutations, Prepared, SortedRows
from sidecar.errors import invariant

WRITE_ROWS: Final = 2
"""Of a batch, where changes may be cut."""


class MemoryBatch(NamedTuple):
    """Implements `sidecar.engine.ports.Prepared`; the last of the mutations are its own."""

    mutations: Sequence[Mutations]
    unfinished: tuple[bytes, bytes] | None = None

    def put(self, row: bytes, value: bytes) -> None:
        self.mutations[-1].rows[row] = value

    def cut(self) -> list[Mutations]:
        """Return the batches of which a part may be found after a crash; a single one where all is written at once."""
        if self.unfinished is None:
            return [Mutations()]
        batches = [Mutations()]
        batches[0].rows = dict([self.unfinished])
        for one in self.mutations:
            batches[-1].ranges += one.ranges
            for row, value in one.rows.items():
                if len(batches[-1].rows) >= WRITE_ROWS:
                    batches.append(Mutations())
                batches[-1].rows[row] = value
        return batches


class MemoryStore:
    """Implements `sidecar.engine.ports.Store`. Batches are lost from the end only, as with one column family."""

    def __init__(self) -> None:
        self.rows: SortedDict[bytes, bytes] = SortedDict()
        self._flushed: SortedDict[bytes, bytes] = SortedDict()

    def get(self, row: bytes) -> bytes | None:
        return self.rows.get(row)

    def first(self, lower: bytes, upper: bytes) -> bytes | None:
        return next(self._range(lower, upper), None)

    def seeker(self) -> Callable[[bytes], bytes | None]:
        return lambda lower: next(self.rows.irange(lower), None)

    def last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        below = self.rows.irange(lower, upper, inclusive=(True, False), reverse=True)
        return next(((row, self.rows[row]) for row in below), None)

    def keys(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[bytes]:
        return [row for row, _ in self.items(lower, upper, limit=limit)]

    def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        found: list[bytes] = []
        size = 0
        for row in self._range(lower, upper):
            if len(found) >= limit or size >= limit_bytes:
                break
            found.append(self.rows[row])
            size += len(self.rows[row])
        return found

    scan = values

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        return [(row, self.rows[row]) for row, _ in zip(self._range(lower, upper), range(limit), strict=False)]

    def prepare(self, mutations: Sequence[Mutations], unfinished: tuple[bytes, bytes] | None = None) -> MemoryBatch:
        for start, end in (each for one in mutations for each in one.ranges):
            invariant(start < end, "a range to delete ends before it begins", start=start, end=end)
        return MemoryBatch([*mutations, Mutations()], unfinished)

    def write(self, prepared: Prepared) -> None:
        invariant(isinstance(prepared, MemoryBatch), "changes that another store prepared")
        assert isinstance(prepared, MemoryBatch)
        for one in prepared.mutations:
            for lower, upper in one.ranges:
                for row in list(self._range(lower, upper)):
                    del self.rows[row]
            for row, value in one.rows.items():
                if value is None:
                    self.rows.pop(row, None)
                else:
                    self.rows[row] = value

    def apply(self, mutations: Sequence[Mutations]) -> None:
        self.write(self.prepare(mutations))

    def ingest(self, rows: SortedRows) -> Generator[None]:
        """What is ingested is on disk at once, unlike what was applied before."""
        yield
        for kept in (self.rows, self._flushed):
            before = b""
            for row, value in rows:
                assert row > before, "rows to ingest are out of order"
                before = row
                if value is None:
                    kept.pop(row, None)
                else:
                    kept[row] = value

    def flush(self) -> None:
        self._flushed = self.rows.copy()

    def merge(self) -> None:
        """There is nothing to merge."""

    def size_bytes(self) -> int:
        return sum(len(row) + len(value) for row, value in self.rows.items())

    def crash(self) -> None:
        """The process dies: what was not flushed is gone."""
        self.rows = self._flushed.copy()

    def _range(self, lower: bytes, upper: bytes) -> Iterator[bytes]:
        invariant(lower <= upper, "a scan ends before it begins", lower=lower, upper=upper)
        return iter(self.rows.irange(lower, upper, inclusive=(True, False)))
