"""The state folder: the instance id, the database, and what to do when it cannot be trusted."""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar.errors import StoreCorrupt, StoreFailed
from sidecar.store.rocks import RocksStore

DATABASE: Final = "rocksdb"
INSTANCE_ID: Final = "instance-id"
QUARANTINE: Final = "quarantined"
GIVEN_UP: Final = "given-up"
DISTRUSTED: Final = "distrusted"
"""A file with this name says that the process before found the program wrong, and so may be the database."""
FREE_BYTES_MIN: Final = 128 * 1024 * 1024
"""Below this much free disk no transaction is begun: RocksDB must be able to flush what it is given."""


class StateFolder:
    """STATE_DIR of one instance."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.quarantines = 0
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as cause:
            raise StoreFailed(
                f"STATE_DIR {path} cannot be written ({cause.strerror}): give this user permission, or set another"
            ) from cause

    def instance_id(self) -> str:
        """Return the instance id in this folder, which the first start creates."""
        file = self.path / INSTANCE_ID
        try:
            if file.exists() and (kept := file.read_text().strip()):
                return kept
            made = uuid.uuid4().hex[:12]
            file.write_text(made + "\n")
        except OSError as cause:
            raise StoreFailed(f"{file} cannot be read or written: {cause.strerror}") from cause
        return made

    def open(self) -> RocksStore:
        """Open the database; one that is damaged, strange or distrusted is set aside first. Raises StoreFailed."""
        if (self.path / DISTRUSTED).exists():
            self._forget_distrusted()
        try:
            return RocksStore(self.path / DATABASE)
        except StoreCorrupt:
            self.quarantine()
            return RocksStore(self.path / DATABASE)

    def distrust(self) -> None:
        """Have the next `open` set the database aside. Raises StoreFailed."""
        try:
            (self.path / DISTRUSTED).touch()
        except OSError as cause:
            raise StoreFailed(f"{self.path / DISTRUSTED} cannot be written: {cause.strerror}") from cause

    def _forget_distrusted(self) -> None:
        if (self.path / DATABASE).exists():
            self.quarantine()
        try:
            (self.path / DISTRUSTED).unlink()
        except OSError as cause:
            raise StoreFailed(f"{self.path / DISTRUSTED} cannot be deleted: {cause.strerror}") from cause

    def quarantine(self) -> Path:
        """Set the database aside for a person to look at; only the newest one is kept."""
        target = self.path / f"{DATABASE}.{QUARANTINE}"
        try:
            if target.exists():
                shutil.rmtree(target)
            (self.path / DATABASE).rename(target)
        except OSError as cause:
            raise StoreFailed(f"{self.path / DATABASE} cannot be set aside: {cause.strerror}") from cause
        self.quarantines += 1
        return target

    def give_up(self) -> Path | None:
        """Set the database aside, as its rows are given up; None: there is none. Raises StoreFailed."""
        database, target = self.path / DATABASE, self.path / f"{DATABASE}.{GIVEN_UP}"
        if not database.exists():
            return None
        if target.exists():
            raise StoreFailed(f"{target} is there from before: look whether it is still needed, and delete it first")
        with suppress(StoreCorrupt):  # it is only moved
            RocksStore(database).close()  # no instance uses it
        try:
            database.rename(target)
        except OSError as cause:
            raise StoreFailed(f"{database} cannot be set aside: {cause.strerror}") from cause
        return target

    def free_bytes(self) -> int:
        """Return the free disk space. Raises StoreFailed."""
        try:
            return shutil.disk_usage(self.path).free
        except OSError as cause:
            raise StoreFailed(
                f"STATE_DIR {self.path} cannot be reached ({cause.strerror}): mount it or make it again"
            ) from cause
