"""The ports of the engine; the adapters are in `store/` and `kafka/`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple, Protocol

from sidecar.model import Headers


class Mutations:
    """Changes to the local store: first the ranges are deleted, then the rows are written. See `Store.prepare`."""

    __slots__ = ("ranges", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        """Row to its new value; None deletes it."""
        self.ranges: list[tuple[bytes, bytes]] = []
        """Inclusive start, exclusive end."""


class StoreReader(Protocol):
    """Reads of the local store. Ranges are [lower, upper). Every method may raise StoreFailed or StoreCorrupt."""

    def get(self, row: bytes) -> bytes | None:
        """Return the value of a row, None when there is none."""
        ...

    def first(self, lower: bytes, upper: bytes) -> bytes | None:
        """Return the first row key of a range, None when it is empty."""
        ...

    def seeker(self) -> Callable[[bytes], bytes | None]:
        """Return what finds the first row key from a key on, in the store as it is now.

        It is cheaper than `first`, and for a short time only. It reads over deleted rows without a bound, so there must
        be a row close behind the key.
        """
        ...

    def last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row of a range, None when it is empty: then rows that were deleted below may be read over."""
        ...

    def keys(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[bytes]:
        """Return the first `limit` row keys of a range, in order."""
        ...

    def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        """Return the values of the first rows of a range, in order, until one of the limits is reached."""
        ...

    def scan(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        """Do the same as `values` for timers that need not be due."""
        ...

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Return the first `limit` rows of a range, in order."""
        ...


class Prepared(Protocol):
    """Changes in the form that a store writes."""

    def put(self, row: bytes, value: bytes) -> None:
        """Add a row."""
        ...


class SortedRows(Protocol):
    """Rows and their new values in key order, each row once; None deletes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]: ...


class Store(StoreReader, Protocol):
    """The local store: a cache of the committed changelog that can be rebuilt at any time."""

    def prepare(self, mutations: Sequence[Mutations], unfinished: tuple[bytes, bytes] | None = None) -> Prepared:
        """Return changes for `write`; nothing is written yet.

        Args:
            mutations: The changes, in order.
            unfinished: Without it they are written atomically. With it, other readers may see a part of them, and after
                a failure or a crash a part may be there: then this row with this value is there too. `Prepared.put`
                must write the row anew.
        """
        ...

    def write(self, prepared: Prepared) -> None:
        """Write the changes. Raises StoreFailed (full, read-only) or StoreCorrupt."""
        ...

    def apply(self, mutations: Sequence[Mutations]) -> None:
        """Prepare and write."""
        ...

    def ingest(self, rows: SortedRows) -> Generator[None]:
        """Write rows as a file, in steps of a few milliseconds.

        They are there, and on disk, after the last step; an iterator that is closed before it leaves nothing. They hold
        over all that was written before.
        """
        ...

    def flush(self) -> None:
        """Persist what was applied."""
        ...

    def merge(self) -> None:
        """Merge ingested files from here on, in the background, until the next one is ingested."""
        ...

    def size_bytes(self) -> int:
        """Return the size of the store on disk and in its write buffer."""
        ...


class Origin(NamedTuple):
    """What is known about an origin topic from a definite answer of the broker."""

    partitions: int
    max_message_bytes: int


class Outgoing(NamedTuple):
    """A record to be written: a delivery or a dead letter."""

    topic: str
    partition: int
    """ANY_PARTITION: by key."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    due_ms: int
    """Requested due of a timer; 0 for a dead letter that never was one."""
    source: bytes
    """Key (due, offset) of the timer; for a record that never was one, due 0 and its offset."""
