"""What the engine and the runtime ask of the outside; the adapters live in `store/` and `kafka/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sidecar.model import Headers


class Mutations:
    """Changes to the local store, applied as one: first the ranges are deleted, then the rows are written."""

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
        """Return the least row key of a range."""
        ...

    def keys(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[bytes]:
        """Return the first `limit` row keys of a range, in order."""
        ...

    def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        """Return the values of the first rows of a range, in order, until one of the limits is reached."""
        ...

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Return the first `limit` rows of a range, in order."""
        ...


class Prepared(Protocol):
    """Changes in the form in which a store writes them."""

    def put(self, row: bytes, value: bytes) -> None:
        """Write one more row with them."""
        ...


class Store(StoreReader, Protocol):
    """The local store: a cache of the committed changelog, lost and rebuilt at any time."""

    def prepare(self, mutations: Sequence[Mutations]) -> Prepared:
        """Return changes that `write` takes; nothing is written yet."""
        ...

    def write(self, prepared: Prepared) -> None:
        """Write all of it or nothing. Raises StoreFailed (full, read-only) or StoreCorrupt."""
        ...

    def apply(self, mutations: Sequence[Mutations]) -> None:
        """Prepare and write."""
        ...

    def flush(self) -> None:
        """Make what was applied outlive the process."""
        ...

    def size_bytes(self) -> int:
        """Return what the store takes on disk and in its write buffer."""
        ...


class Origin(NamedTuple):
    """What is known of a topic that timers fire to, from a definite answer of the broker."""

    partitions: int
    max_message_bytes: int


class Outgoing(NamedTuple):
    """A record that leaves: a fire or a dead letter."""

    topic: str
    partition: int
    """ANY_PARTITION: by key."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    due_ms: int
    """The requested due of a fire, 0 for a dead letter that never was a timer."""
    source: bytes
    """Key (due, offset) of the timer; of what never was one, its offset behind a due of 0."""
