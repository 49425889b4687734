"""Inspection of a state folder: opened for reading only, without a change, and its timers counted one by one."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Rdict

from sidecar.changelog.entry import DEFERRED, KEY, KEY_BYTES, head, origin_of
from sidecar.engine.group.view import HORIZONS_MS
from sidecar.engine.ports import Prepared, SortedRows, StoreReader
from sidecar.engine.rows import Meta, Rows, after, decode_due, decode_meta
from sidecar.errors import InvariantViolated, RecordCorrupt, StoreFailed
from sidecar.store.classify import classify
from sidecar.store.folder import DATABASE
from sidecar.store.rocks import DEFAULT_FAMILY, RocksStore, _options
from sidecar.wheel.counts import Counts

CURRENT: Final = "CURRENT"
COPIED: Final = ("CURRENT", "MANIFEST-", "OPTIONS-", "IDENTITY")
"""Beginnings of the names of the small files that say which table files make up the database."""
TABLE: Final = ".sst"
META: Final = b"m"
PARTITIONS_MAX: Final = 1_000_000
COUNTER_ROWS_MAX: Final = 1_000_000
ROWS_MAX: Final = 5_000
BYTES_MAX: Final = 16 * 1024 * 1024


class ReadOnlyStore(RocksStore):
    """The rows that are flushed in a database, which another process may have open.

    The library writes a file into every folder that it opens, even for reading. So it gets a temporary folder with
    copies of the small files and links to the tables, which never change once they are written.

    Args:
        state_dir: A state folder, or a database itself.

    Raises:
        StoreFailed: There is none, or it cannot be read.
    """

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir if (state_dir / CURRENT).exists() else state_dir / DATABASE
        self._shadow = tempfile.TemporaryDirectory(prefix="retry-sidecar-inspect-")
        try:
            self._link()
            options = _options()
            families = {DEFAULT_FAMILY: options}
            with self._classified():
                self._db = Rdict(self._shadow.name, options, families, AccessType.read_only(False))
        except StoreFailed:
            self._shadow.cleanup()
            raise

    def _link(self) -> None:
        shadow = Path(self._shadow.name)
        try:
            if not (self.folder / CURRENT).is_file():
                raise StoreFailed(f"{self.folder} holds no database: name a state folder with --state-dir")
            # The tables last: those that the copied manifest names are among them.
            for file in sorted(self.folder.iterdir(), key=lambda each: each.suffix == TABLE):
                if file.suffix == TABLE:
                    (shadow / file.name).symlink_to(file.absolute())
                elif file.name.startswith(COPIED):
                    shutil.copyfile(file, shadow / file.name)
        except OSError as cause:
            raise StoreFailed(f"{self.folder} cannot be read: {cause.strerror or cause}") from cause

    @contextmanager
    def _classified(self) -> Iterator[None]:
        try:
            yield
        except InvariantViolated:
            raise
        except Exception as cause:
            text = str(cause)
            if "No such file" in text:
                raise StoreFailed(
                    f"a file of {self.folder} is gone: if a sidecar uses the folder then try again, else it is damaged"
                ) from cause
            if "Permission denied" in text:
                raise StoreFailed(f"{self.folder} cannot be read: give this user permission ({text})") from cause
            raise classify(cause, str(self.folder)) from cause

    def write(self, prepared: Prepared) -> None:  # noqa: ARG002  # the port's name
        raise StoreFailed(f"{self.folder} is open for reading only")

    def ingest(self, rows: SortedRows) -> Generator[None]:  # noqa: ARG002  # the port's name
        raise StoreFailed(f"{self.folder} is open for reading only")

    def flush(self) -> None:
        """Do nothing: there is nothing to flush."""

    def merge(self) -> None:
        """Do nothing: there is nothing to merge."""

    def close(self) -> None:
        """Release the folder."""
        self._db.close()
        self._shadow.cleanup()


@dataclass(slots=True)
class Survey:
    """The pending timers of one partition, counted from the timers themselves."""

    partition: int
    meta: Meta
    counted: int
    """The number by its counters; they may differ only while a restore is in progress."""
    elsewhere_ms: int | None
    """The time since which another instance has the partition; None: this one has it, as far as it knew."""
    pending: int = 0
    size_bytes: int = 0
    """The size of the timers, with their payloads."""
    by_origin: Counter[str] = field(default_factory=Counter)
    due_within: dict[str, int] = field(default_factory=dict)
    """The counts of `GET /pending`, but exact."""
    overdue: int = 0
    deferred: int = 0
    next_due_ms: int | None = None
    first: list[bytes] = field(default_factory=list)
    """The entries that come due first."""

    @property
    def agrees(self) -> bool:
        """Whether counters and timers agree, where they must."""
        return not self.meta.restored or self.counted == self.pending


def partitions_of(store: StoreReader) -> list[int]:
    """Return the partitions that the store has rows of."""
    rows = store.keys(META, after(META), limit=PARTITIONS_MAX)
    return [int.from_bytes(row[len(META) :], "big") for row in rows]


def survey(store: StoreReader, partition: int, now_ms: int, *, first: int, seen: Callable[[int], object]) -> Survey:
    """Count the timers of one partition that are above its watermark.

    Args:
        store: Has the partition's rows.
        partition: One of `partitions_of`.
        now_ms: Wall time, from which due times are counted.
        first: The number of entries to keep.
        seen: Called after each batch with the number of its timers.

    Raises:
        PartitionStopped: A row cannot be read.
        StoreFailed: The store cannot be read.
    """
    rows = Rows(partition)
    value = store.get(rows.meta)
    if value is None:
        raise RecordCorrupt("the meta row is gone")
    since = store.get(rows.elsewhere)
    elsewhere_ms = None if since is None else decode_due(since)
    found = Survey(partition, decode_meta(value), _counted(store, rows), elsewhere_ms)
    bounds = [now_ms + horizon_ms - 1 for horizon_ms in HORIZONS_MS.values()]
    tally = [0] * (len(bounds) + 1)
    second_ms = now_ms // 1000 * 1000
    checkpoint = found.meta.checkpoint
    lower = rows.timer + KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset) + b"\0"
    while entries := store.values(lower, after(rows.timer), limit=ROWS_MAX, limit_bytes=BYTES_MAX):
        for entry in entries:
            fixed = head(entry)
            found.by_origin[origin_of(entry, fixed)] += 1
            found.deferred += fixed.flags & DEFERRED
            found.overdue += fixed.requested_ms < second_ms
            found.size_bytes += len(entry)
            # A bound is not within: the last millisecond before it is.
            tally[bisect_left(bounds, fixed.due_ms)] += 1
        if found.next_due_ms is None:
            found.next_due_ms = head(entries[0]).due_ms
        found.first += entries[: first - len(found.first)]
        found.pending += len(entries)
        lower = rows.timer + entries[-1][:KEY_BYTES] + b"\0"
        seen(len(entries))
    sums = accumulate(tally[:-1])
    found.due_within = {**dict(zip(HORIZONS_MS, sums, strict=True)), "later": tally[-1]}
    return found


def _counted(store: StoreReader, rows: Rows) -> int:
    counts = Counts()
    for row, value in store.items(rows.counter, after(rows.counter), limit=COUNTER_ROWS_MAX):
        counts.load(row[len(rows.counter) :], value)
    return counts.pending
