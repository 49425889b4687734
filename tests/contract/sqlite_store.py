"""The local store on SQLite: what takes RocksDB's place if its binding is given up; see docs/adr/0030-store-plan-b.md.

A table in the order of its key, a connection that writes and one that reads what is committed. As with RocksDB, a crash
loses the newest batches, whole and in order, and the changelog's tail is read again.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sidecar.engine.ports import Mutations, Prepared, SortedRows
from sidecar.errors import InvariantViolated, StoreCorrupt, StoreFailed, invariant

PAGE_BYTES: Final = 16 * 1024
"""A row above a quarter of a page would be spread over pages of its own."""
CACHE_BYTES: Final = 32 * 1024 * 1024
LOG_PAGES: Final = 4_096
"""The log is written back to the table at this length."""
PRAGMAS: Final = (
    f"PRAGMA page_size = {PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    f"PRAGMA cache_size = -{CACHE_BYTES // 1024}",
    f"PRAGMA wal_autocheckpoint = {LOG_PAGES}",
)
INGEST_STEP_ROWS: Final = 1_000
FAILED: Final = ("disk is full", "unable to open", "readonly", "disk I/O error", "locked", "Permission denied")

_TABLE: Final = "CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_PUT: Final = "INSERT INTO rows VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_DELETE: Final = "DELETE FROM rows WHERE key = ?"
_DELETE_RANGE: Final = "DELETE FROM rows WHERE key >= ? AND key < ?"
_FROM: Final = "SELECT key FROM rows WHERE key >= ? ORDER BY key LIMIT 1"
_LAST: Final = "SELECT key, value FROM rows WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT 1"
_RANGE: Final = "FROM rows WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"


class Changes(Prepared):
    """Ranges to delete and rows to write, in order."""

    def __init__(self) -> None:
        self.parts: list[tuple[list[tuple[bytes, bytes]], dict[bytes, bytes | None]]] = [([], {})]

    def put(self, row: bytes, value: bytes) -> None:
        self.parts[-1][1][row] = value


class SqliteStore:
    """Implements `engine.ports.Store`. Raises StoreFailed (in use, full, not writable) and StoreCorrupt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = threading.Lock()
        with self._classified(), ExitStack() as opened:
            folder.mkdir(parents=True, exist_ok=True)
            lock = opened.enter_context((folder / "lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._writer, self._reader = (opened.enter_context(closing(self._connect())) for _ in range(2))
            for pragma in PRAGMAS:
                self._writer.execute(pragma).fetchall()
                self._reader.execute(pragma).fetchall()
            self._writer.execute(_TABLE)
            self._opened = opened.pop_all()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "rows.sqlite", isolation_level=None, check_same_thread=False)

    @contextmanager
    def _classified(self) -> Iterator[None]:
        try:
            yield
        except InvariantViolated:
            raise
        except BlockingIOError as cause:
            raise StoreFailed(f"{self.folder} is in use by another process: stop it") from cause
        except (sqlite3.Error, OSError) as cause:
            if isinstance(cause, OSError) or any(sign in str(cause) for sign in FAILED):
                raise StoreFailed(f"{self.folder} cannot be used: {cause}") from cause
            raise StoreCorrupt(f"{self.folder} is damaged: {cause}") from cause

    def get(self, row: bytes) -> bytes | None:
        with self._classified():
            found = self._reader.execute("SELECT value FROM rows WHERE key = ?", (row,)).fetchone()
        return None if found is None else found[0]

    def first(self, lower: bytes, upper: bytes) -> bytes | None:
        found = self.keys(lower, upper, limit=1)
        return found[0] if found else None

    def seeker(self) -> Callable[[bytes], bytes | None]:
        def find(lower: bytes) -> bytes | None:
            with self._classified():
                row = self._reader.execute(_FROM, (lower,)).fetchone()
            return None if row is None else row[0]

        return find

    def last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        with self._classified():
            row: tuple[bytes, bytes] | None = self._reader.execute(_LAST, (lower, upper)).fetchone()
        return row

    def keys(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[bytes]:
        return [key for (key,) in self._select("key", lower, upper, limit)]

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        return self._select("key, value", lower, upper, limit)

    def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        invariant(lower <= upper, "a scan ends before it begins", lower=lower, upper=upper)
        found: list[bytes] = []
        size = 0
        with self._classified():
            rows = self._reader.execute(f"SELECT value {_RANGE}", (lower, upper, limit))
            while size < limit_bytes and (row := rows.fetchone()) is not None:
                found.append(row[0])
                size += len(row[0])
            rows.close()
        return found

    scan = values

    def _select(self, columns: str, lower: bytes, upper: bytes, limit: int) -> list[Any]:
        invariant(lower <= upper, "a scan ends before it begins", lower=lower, upper=upper)
        with self._classified():
            return self._reader.execute(f"SELECT {columns} {_RANGE}", (lower, upper, limit)).fetchall()

    def prepare(self, mutations: Sequence[Mutations], unfinished: tuple[bytes, bytes] | None = None) -> Changes:
        changes = Changes()
        for each in mutations:
            for start, end in each.ranges:
                invariant(start < end, "a range to delete ends before it begins", start=start, end=end)
            if each.ranges:
                changes.parts.append((each.ranges, {}))
            changes.parts[-1][1].update(each.rows)
        return changes

    def write(self, prepared: Prepared) -> None:
        invariant(isinstance(prepared, Changes), "changes that another store prepared")
        assert isinstance(prepared, Changes)
        with self._classified(), self._transaction():
            for ranges, rows in prepared.parts:
                self._writer.executemany(_DELETE_RANGE, ranges)
                self._put(rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def _put(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._writer.executemany(_PUT, [item for item in rows.items() if item[1] is not None])
        self._writer.executemany(_DELETE, [(row,) for row, value in rows.items() if value is None])

    def apply(self, mutations: Sequence[Mutations]) -> None:
        self.write(self.prepare(mutations))

    def ingest(self, rows: SortedRows) -> Generator[None]:
        """Write rows in order. The steps read; the last one writes all rows, because readers see a part otherwise."""
        left, ordered = iter(rows), dict[bytes, bytes | None]()
        while part := dict(islice(left, INGEST_STEP_ROWS)):
            yield
            ordered.update(part)
        with self._classified(), self._transaction():
            self._put(ordered)

    def flush(self) -> None:
        with self._classified(), self._writing:
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def merge(self) -> None:
        """There is nothing to merge."""

    def size_bytes(self) -> int:
        with self._classified():
            return sum(each.stat().st_size for each in self.folder.glob("rows.sqlite*"))

    def close(self) -> None:
        """Write the log back to the table and release the folder."""
        with self._classified(), self._writing:
            self._opened.close()
