"""A state folder with a real RocksDB in it, of which a process that dies leaves what was on disk at that moment."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

from sidecar.clock import Clock
from sidecar.engine.ports import Prepared, SortedRows
from sidecar.errors import StoreCorrupt, StoreFailed
from sidecar.runtime.state import LocalState
from sidecar.store.folder import DATABASE, StateFolder
from sidecar.store.rocks import RocksStore, _Changes
from tests.simulation.fakes.local import Faults, Killed, foreign

LEFT: Final = "left"
COPIES_MAX: Final = 5
"""So often a copy is tried: merging may delete a file meanwhile."""


class RocksDisk(Faults):
    """Outlives the processes that use it, like `fakes.local.Disk`, and has the same faults."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home
        self._folder: _Folder | None = None

    def state(self, clock: Clock) -> LocalState:
        """Return the state of a process that starts."""
        self._folder = _Folder(self._home, self)
        return LocalState(self._folder, clock)

    def flush(self) -> None:
        """The store flushes by itself."""
        if self._folder is not None and self._folder.store is not None:
            self._folder.store.flush()

    def crash(self) -> None:
        """The process dies: what was not flushed is gone."""
        folder, self._folder = self._folder, None
        if folder is None or (store := folder.store) is None:
            return
        left = self._home / LEFT
        for tries in range(COPIES_MAX):
            try:
                shutil.copytree(store.folder, left, copy_function=shutil.copy)
                break
            except shutil.Error:
                shutil.rmtree(left)
                assert tries < COPIES_MAX - 1, "files of the store keep vanishing while they are copied"
        store.close()
        shutil.rmtree(store.folder)
        left.rename(store.folder)

    def make_foreign(self) -> None:
        """The folder is that of another cluster; no process uses it."""
        store = RocksStore(self._home / DATABASE)
        store.apply([foreign(store)])
        store.close()

    def wipe(self) -> None:
        """The next process starts on an empty disk."""
        shutil.rmtree(self._home / DATABASE, ignore_errors=True)


class _Folder(StateFolder):
    def __init__(self, path: Path, disk: RocksDisk) -> None:
        super().__init__(path)
        self._disk = disk
        self.store: _Store | None = None

    def open(self) -> RocksStore:
        if self._disk.is_full:
            raise StoreFailed("no space left on device")
        self.store = _Store(self.path / DATABASE, self)
        return self.store

    def quarantine(self) -> Path:
        self._disk.is_corrupt = self._disk.is_full = False
        return super().quarantine()

    def fail(self) -> None:
        """Raise StoreFailed while the disk is full."""
        if self._disk.is_full:
            raise StoreFailed("no space left on device")

    def is_corrupt(self) -> bool:
        return self._disk.is_corrupt

    def ingested(self) -> None:
        """Die if this was the last file."""
        self._disk.ingested()

    def torn_after(self, batches: int) -> int | None:
        """Return behind which of so many batches the process dies, None when it does not."""
        return self._disk.torn_after(batches)


class _Store(RocksStore):
    def __init__(self, path: Path, folder: _Folder) -> None:
        self._owner = folder
        super().__init__(path)

    def write(self, prepared: Prepared) -> None:
        self._owner.fail()
        assert isinstance(prepared, _Changes)
        if len(prepared.batches) > 1 and (torn := self._owner.torn_after(len(prepared.batches))) is not None:
            for batch in prepared.batches[:torn]:
                self._db.write(batch, self._write)
            self.flush()
            raise Killed
        super().write(prepared)

    def ingest(self, rows: SortedRows) -> Generator[None]:
        self._owner.fail()
        yield from super().ingest(rows)
        self._owner.ingested()

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        if self._owner.is_corrupt():
            raise StoreCorrupt("a block does not match its checksum")
        return super().items(lower, upper, limit=limit)

    def close(self) -> None:
        self._owner.store = None
        super().close()
