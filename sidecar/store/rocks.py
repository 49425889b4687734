"""RocksDB as a cache of the committed changelog.

One column family and no write-ahead log: a crash loses the write buffer, whole batches at a time and in order, and the
changelog tail is read again. Rows of several column families would be flushed at different times.

The library keeps the interpreter's lock while it writes a batch. So large changes are written as several batches, which
the write buffer has room for: nothing is flushed between two of them, and they are lost together. A row that goes ahead
of them says that they are of no use by themselves, should they be found nevertheless.
"""

from __future__ import annotations

import itertools
import math
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from sidecar.engine.ports import Mutations, Prepared, SortedRows
from sidecar.errors import InvariantViolated, invariant
from sidecar.store.classify import classify

WRITE_BUFFER_BYTES: Final = 32 * 1024 * 1024
"""Half as many files to merge as with 16 MiB: that took half of the processor time that merging takes."""
CACHE_BYTES: Final = 32 * 1024 * 1024
OPEN_FILES_MAX: Final = 256
TARGET_FILE_BYTES: Final = 32 * 1024 * 1024
DEFAULT_FAMILY: Final = "default"
INGESTED: Final = "ingested"
"""Folder, in that of the database, of files that are not a part of it yet."""
INGEST_STEP_ROWS: Final = 1_000
UNMERGED_FILES: Final = 16
"""How many new files are merged at once: each time, the whole level below is merged with them."""
UNMERGED_FILES_INGESTING: Final = 1536
"""The same while files are ingested: all that is in the store already is merged again with them."""
LEVEL_BYTES: Final = 512 * 1024 * 1024
"""Merging also begins when unmerged files have so many bytes."""
LEVEL_BYTES_INGESTING: Final = 1024 * 1024 * 1024 * 1024
"""The same while files are ingested: their number decides."""
UNMERGED_FILES_PAUSE: Final = 1792
"""From here on a restore waits for merging, and everything else goes on."""
WRITE_BUFFERS: Final = 3
"""How many there may be, with those that are being flushed."""
FLUSH_LOOK_S: Final = 0.001
FLUSH_LOOKS_MAX: Final = 2_000
"""So often the store looks whether one is flushed; then the library waits, and keeps the interpreter's lock."""
WRITE_ROWS: Final = 2_500
"""Most rows of a batch where changes may be cut: two milliseconds."""
ARENA_BYTES: Final = 1024 * 1024
"""The write buffer grows by so much. It is flushed when another one does not fit in."""
ROW_BYTES: Final = 128
"""What a row takes in the write buffer beside its key and value, at most."""
UNMERGED_FILES_MAX: Final = 2048
"""From here on writes wait; the library keeps the interpreter's lock meanwhile, so everything else waits too."""


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_arena_block_size(ARENA_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_target_file_size_base(TARGET_FILE_BYTES)
    options.set_max_background_jobs(2)
    options.set_level_zero_file_num_compaction_trigger(UNMERGED_FILES)
    options.set_max_bytes_for_level_base(LEVEL_BYTES)
    options.set_level_zero_slowdown_writes_trigger(UNMERGED_FILES_MAX)
    options.set_level_zero_stop_writes_trigger(UNMERGED_FILES_MAX)
    options.set_max_open_files(OPEN_FILES_MAX)
    # What is flushed or merged once is merged again or fired soon. Compressing it would cost half a microsecond a row.
    options.set_compression_per_level([DBCompressionType.none()] * 2 + [DBCompressionType.lz4()] * 5)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * 1024 * 1024)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    table.set_block_size(16 * 1024)
    options.set_block_based_table_factory(table)
    return options


class _Changes:
    """Implements `engine.ports.Prepared`: batches that are written one after the other."""

    __slots__ = ("batches", "bytes")

    def __init__(self) -> None:
        self.batches = [WriteBatch(raw_mode=True)]
        self.bytes = 0
        """What they take in the write buffer, at most."""

    def put(self, row: bytes, value: bytes) -> None:
        self.batches[-1].put(row, value)
        self.bytes += ROW_BYTES + len(row) + len(value)

    def add(self, changes: Mutations, rows_max: float) -> None:
        """Add changes; begin another batch after so many rows."""
        batch = self.batches[-1]
        put, delete = batch.put, batch.delete
        for start, end in changes.ranges:
            invariant(start < end, "a range to delete ends before it begins", start=start, end=end)
            batch.delete_range(start, end)
        left, size = rows_max, 0
        for row, value in changes.rows.items():
            if value is None:
                delete(row)
            else:
                put(row, value)
                size += len(value)
            left -= 1
            if not left:
                batch, left = WriteBatch(raw_mode=True), rows_max
                put, delete = batch.put, batch.delete
                self.batches.append(batch)
        self.bytes += size + sum(map(len, changes.rows)) + ROW_BYTES * (len(changes.rows) + len(changes.ranges))


class RocksStore:
    """The rows of all partitions that this instance owns or has owned. Implements `engine.ports.Store`.

    Raises StoreFailed (locked, full, not writable) and StoreCorrupt from every method.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._write = WriteOptions()
        # A property at run time, whatever the stub file says.
        self._write.disable_wal = True  # type: ignore[method-assign,assignment]
        with self._classified():
            folder.mkdir(parents=True, exist_ok=True)
            options = _options()
            # Without a map of the families, a reopened database silently falls back to default options.
            self._db = Rdict(str(folder), options=options, column_families={DEFAULT_FAMILY: options})
            # Of a process that was killed; none other has the folder while the database is open.
            shutil.rmtree(folder / INGESTED, ignore_errors=True)
        self._between_batches = threading.Lock()
        self._files = itertools.count()
        self._merges_at = UNMERGED_FILES

    @contextmanager
    def _classified(self) -> Iterator[None]:
        try:
            yield
        except InvariantViolated:
            raise
        except Exception as cause:
            raise classify(cause, str(self.folder)) from cause

    def get(self, row: bytes) -> bytes | None:
        with self._classified():
            value: bytes | None = self._db.get(row)
            return value

    def first(self, lower: bytes, upper: bytes) -> bytes | None:
        found = self.keys(lower, upper, limit=1)
        return found[0] if found else None

    def seeker(self) -> Callable[[bytes], bytes | None]:
        with self._classified():
            rows = self._db.iter(ReadOptions())

        def find(lower: bytes) -> bytes | None:
            try:  # a context costs as much as the seek
                rows.seek(lower)
                found: bytes | None = rows.key() if rows.valid() else None
                rows.status()
            except Exception as cause:
                raise classify(cause, str(self.folder)) from cause
            return found

        return find

    def last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        with self._classified():
            rows = self._db.iter(ReadOptions())
            rows.seek_for_prev(upper)
            if rows.valid() and rows.key() >= upper:
                rows.prev()
            found = (rows.key(), rows.value()) if rows.valid() and rows.key() >= lower else None
            rows.status()
        return found

    def keys(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[bytes]:
        found: list[bytes] = []
        with self._classified():
            rows = self._seek(lower, upper)
            while len(found) < limit and rows.valid():
                found.append(rows.key())
                rows.next()
            rows.status()  # an iterator ends in silence where a block is damaged
        return found

    def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        found: list[bytes] = []
        size = 0
        with self._classified():
            rows = self._seek(lower, upper)
            valid, value, advance = rows.valid, rows.value, rows.next
            while len(found) < limit and size < limit_bytes and valid():
                row = value()
                found.append(row)
                size += len(row)
                advance()
            rows.status()
        return found

    scan = values

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        with self._classified():
            rows = self._seek(lower, upper)
            while len(found) < limit and rows.valid():
                found.append((rows.key(), rows.value()))
                rows.next()
            rows.status()
        return found

    def _seek(self, lower: bytes, upper: bytes) -> RdictIter:
        invariant(lower <= upper, "a scan ends before it begins", lower=lower, upper=upper)
        # A lower bound is never set: the library writes it over the upper one. The seek does its work.
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(upper)
        rows = self._db.iter(bounds)
        rows.seek(lower)
        return rows

    def prepare(self, mutations: Sequence[Mutations], unfinished: tuple[bytes, bytes] | None = None) -> _Changes:
        changes = _Changes()
        rows_max = math.inf
        if unfinished is not None and sum(len(each.rows) for each in mutations) > WRITE_ROWS:
            changes.put(*unfinished)
            rows_max = WRITE_ROWS
        for each in mutations:
            changes.add(each, rows_max)
        return changes

    def write(self, prepared: Prepared) -> None:
        invariant(isinstance(prepared, _Changes), "changes that another store prepared")
        assert isinstance(prepared, _Changes)
        with self._classified(), self._between_batches:
            held = self._number("rocksdb.cur-size-active-mem-table")
            if held + prepared.bytes + 2 * ARENA_BYTES > WRITE_BUFFER_BYTES:
                self._begin_buffer()
            for batch in prepared.batches:
                self._db.write(batch, self._write)

    def _begin_buffer(self) -> None:
        """Begin another write buffer, as soon as there may be one."""
        for _ in range(FLUSH_LOOKS_MAX):
            if self._number("rocksdb.num-immutable-mem-table") < WRITE_BUFFERS - 1:
                break
            time.sleep(FLUSH_LOOK_S)
        self._db.flush(False)

    def apply(self, mutations: Sequence[Mutations]) -> None:
        self.write(self.prepare(mutations))

    def ingest(self, rows: SortedRows) -> Generator[None]:
        if not rows:
            return
        file = self.folder / INGESTED / f"{next(self._files)}.sst"
        with self._classified():
            try:
                file.parent.mkdir(exist_ok=True)
                self._merge_at(UNMERGED_FILES_INGESTING)
                while self._number("rocksdb.num-files-at-level0") >= UNMERGED_FILES_PAUSE:
                    yield
                options = _options()
                # Merging compresses them, in other threads. A writer takes the compression of the last level.
                options.set_compression_per_level([DBCompressionType.none()])
                writer = SstFileWriter(options)
                writer.open(str(file))
                yield
                for at, (row, value) in enumerate(rows, 1):
                    if value is None:
                        del writer[row]
                    else:
                        writer[row] = value
                    if not at % INGEST_STEP_ROWS:
                        yield
                yield
                writer.finish()
                how = IngestExternalFileOptions()
                how.set_move_files(True)
                with self._between_batches:  # it may flush
                    self._db.ingest_external_file([str(file)], how)
            finally:
                file.unlink(missing_ok=True)

    def _merge_at(self, files: int) -> None:
        if self._merges_at != files:
            level_bytes = LEVEL_BYTES if files == UNMERGED_FILES else LEVEL_BYTES_INGESTING
            self._db.set_options(
                {"level0_file_num_compaction_trigger": str(files), "max_bytes_for_level_base": str(level_bytes)}
            )
            self._merges_at = files

    def flush(self) -> None:
        with self._classified(), self._between_batches:
            self._db.flush(True)

    def merge(self) -> None:
        with self._classified():
            self._merge_at(UNMERGED_FILES)

    def size_bytes(self) -> int:
        with self._classified():
            files = self._number("rocksdb.total-sst-files-size")
            return files + self._number("rocksdb.cur-size-all-mem-tables")

    def _number(self, name: str) -> int:
        value: Any = self._db.property_int_value(name)
        return int(value or 0)

    def close(self) -> None:
        """Flush what is in the write buffer and release the folder."""
        with self._classified():
            try:
                self._db.flush(True)
            finally:
                # On a full disk too: a folder that stays locked could not be opened again when there is space.
                self._db.close()
