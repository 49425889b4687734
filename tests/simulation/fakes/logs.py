"""Topics of the simulated cluster: their logs, what is committed in them, their limits and rights."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from sidecar.contract.sizes import BATCH_BYTES, record_bytes
from sidecar.model import Headers


class Fate(Enum):
    """The result of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Row(NamedTuple):
    """A record that a client hands to the library."""

    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of one producer."""

    transactional_id: str
    began_s: float
    fate: Fate = Fate.OPEN
    answered_commit: bool = False
    """The coordinator said that it is committed; its markers are not written yet."""
    ends_s: float = float("inf")
    """When they are."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Of the input topic."""
    metadata: dict[int, str] = field(default_factory=dict)
    """Of the offsets, by partition."""
    keeps_offsets: bool = True
    """False: an ABORT marker ends it where the offsets are, whatever its fate elsewhere."""
    writes: list[tuple[str, int, Entry]] = field(default_factory=list)
    logs: dict[Log, int] = field(default_factory=dict)
    """By log, the first offset."""
    began_ms: int = 0
    """By its producer's clock, when it was committed."""


@dataclass(slots=True, eq=False)
class Entry:
    """A record in a log."""

    offset: int
    row: Row
    timestamp_ms: int
    transaction: Transaction | None = None
    is_rolled_back: bool = False
    """An ABORT marker in this partition alone ended its transaction, which is committed elsewhere."""

    @property
    def is_visible(self) -> bool:
        """Whether a reader of committed records gets it, once it is below the last stable offset."""
        committed = self.transaction is None or self.transaction.fate is Fate.COMMITTED
        return committed and not self.is_rolled_back


class Log:
    """One partition. Offsets are never used twice; compaction and markers leave holes."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.entries: list[Entry] = []
        self.open: dict[Transaction, int] = {}
        self.has_leader = True
        self.takes_writes = True
        """False: too few replicas are in sync, of which metadata says nothing."""

    def append(self, rows: Iterable[Row], timestamp_ms: int, transaction: Transaction | None) -> int:
        """Append, and return the first offset."""
        first = self.end
        if transaction is not None and transaction not in self.open:
            self.open[transaction] = transaction.logs[self] = first
        for row in rows:
            self.entries.append(Entry(self.end, row, timestamp_ms, transaction))
            self.end += 1
        return first

    def mark(self, transaction: Transaction) -> None:
        """Write the marker that ends a transaction."""
        if self.open.pop(transaction, None) is not None:
            self.end += 1

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)

    def read(self, position: int, limit: int) -> tuple[list[Entry], int]:
        """Return up to `limit` committed records from a position on, and the position behind them."""
        stable = self.stable_end
        found: list[Entry] = []
        for entry in self.entries[self._at(position) :]:
            if entry.offset >= stable:
                break
            if len(found) == limit:
                return found, entry.offset
            if entry.is_visible:
                found.append(entry)
        return found, max(position, stable)

    def _at(self, offset: int) -> int:
        low, high = 0, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def compact(self, rng: random.Random) -> None:
        """Clean as Kafka may: superseded records below the last stable offset, each or not; old tombstones too."""
        below = [each for each in self.entries if each.offset < self.stable_end]
        last = {each.row.key: each.offset for each in below if each.is_visible}
        kept: list[Entry] = []
        kept_keys: set[bytes | None] = set()
        for each in self.entries:
            if each.offset < self.stable_end:
                if not each.is_visible:
                    continue
                superseded = each.offset < last[each.row.key]
                bare = each.row.value is None and not superseded and each.row.key not in kept_keys
                if (superseded or bare) and rng.random() < 0.7:
                    continue
                kept_keys.add(each.row.key)
            kept.append(each)
        self.entries = kept

    def cut(self, start: int) -> None:
        """Delete what is below an offset, as retention does."""
        self.start = max(self.start, min(start, self.stable_end))
        self.entries = [each for each in self.entries if each.offset >= self.start]


class Topic:
    """A topic as operators see it."""

    def __init__(self, name: str, number: int, partitions: int, max_bytes: int, *, compacted: bool = False) -> None:
        self.name = name
        self.id = f"{name}#{number}"
        self.logs = [Log() for _ in range(partitions)]
        self.max_bytes = max_bytes
        self.compacted = compacted
        self.may_write = self.may_describe = self.may_read = True

    def grow(self, partitions: int) -> None:
        """Add partitions up to this number."""
        self.logs += [Log() for _ in range(partitions - len(self.logs))]

    def refusal_of(self, rows: list[Row], *, compressed: bool) -> str:
        """Return why a batch is refused, empty when it is not."""
        if not self.may_write:
            return "TOPIC_AUTHORIZATION_FAILED"
        if batch_bytes(rows, compressed=compressed) > self.max_bytes:
            return "MSG_SIZE_TOO_LARGE"
        if self.compacted and any(row.key is None for row in rows):
            return "INVALID_RECORD"  # of the whole batch
        return ""


def row_bytes(row: Row) -> int:
    """Return what a record takes in a batch, uncompressed; an upper bound."""
    return record_bytes(row.key, row.value, row.headers) - BATCH_BYTES


def batch_bytes(rows: list[Row], *, compressed: bool) -> int:
    """Return what a batch takes on the wire: brokers judge that."""
    if not compressed:
        return BATCH_BYTES + sum(map(row_bytes, rows))
    # Some more than the best compression there is, and never more than without.
    content = b"".join(part for row in rows for part in _parts(row))
    packed = len(zlib.compress(content, 1)) + 8 * len(rows)
    return BATCH_BYTES + min(packed, sum(map(row_bytes, rows)))


def _parts(row: Row) -> Iterator[bytes]:
    yield row.key or b""
    yield row.value or b""
    for name, value in row.headers:
        yield name.encode()
        yield value or b""
