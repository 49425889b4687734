"""The lifecycle of the local store: opened, failed, quarantined, opened again, flushed."""

from __future__ import annotations

from typing import Final

import structlog

from sidecar.clock import Clock
from sidecar.engine.ports import Store
from sidecar.errors import StoreCorrupt, StoreFailed
from sidecar.store.folder import FREE_BYTES_MIN, StateFolder
from sidecar.store.rocks import RocksStore

log = structlog.get_logger(__name__)

OPEN_AGAIN_S: Final = 5.0
FLUSH_EVERY_S: Final = 600.0


class LocalState:
    """Owns the database of a state folder."""

    def __init__(self, folder: StateFolder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._store: RocksStore | None = folder.open()
        self.instance_id = folder.instance_id()
        self._error = ""
        self._open_at_s = 0.0
        self._flushed_s = clock.monotonic_s()
        self.free_bytes = folder.free_bytes()
        """Free disk space when last checked."""

    @property
    def store(self) -> Store | None:
        """The store, None while it cannot be used."""
        return self._store

    @property
    def quarantines(self) -> int:
        """How often the database was quarantined."""
        return self._folder.quarantines

    def blocker(self) -> str | None:
        """Return why no transaction may begin, None when one may."""
        if self._store is None:
            return f"the state folder cannot be used: {self._error}"
        if self.free_bytes < FREE_BYTES_MIN:
            least = f"{FREE_BYTES_MIN // 1024**2} MiB"
            return f"the disk of STATE_DIR {self._folder.path} has less than {least} left: free some"
        return None

    def failed(self, error: StoreFailed) -> None:
        """Close the store: quarantine a damaged one at once, retry any other later."""
        self._close()
        self._error = str(error)
        self._open_at_s = self._clock.monotonic_s() + OPEN_AGAIN_S
        if isinstance(error, StoreCorrupt):
            try:
                log.error("store_quarantined", folder=str(self._folder.quarantine()), reason=str(error))
            except StoreFailed as worse:
                self._error = str(worse)
            self._open_at_s = 0.0

    def maintain(self, committing: bool) -> None:
        """Open the store again when it is time, check the disk, flush periodically.

        Raises:
            StoreFailed: The open store cannot be trusted; its users must stop using it, then call `failed`.
        """
        now_s = self._clock.monotonic_s()
        if self._store is None and now_s >= self._open_at_s and not committing:
            self._open_at_s = now_s + OPEN_AGAIN_S
            try:
                self._store = self._folder.open()
                log.info("store_opened", folder=str(self._folder.path))
            except StoreFailed as error:
                self._error = str(error)
        try:
            self.free_bytes = self._folder.free_bytes()
        except StoreFailed as error:
            if self._store is not None:
                raise
            self._error = str(error)
        if self._store is not None and now_s - self._flushed_s > FLUSH_EVERY_S:
            self._flushed_s = now_s
            self._store.flush()

    def distrust(self) -> None:
        """Have the next start set the database aside and build another one from the changelog."""
        try:
            self._folder.distrust()
        except StoreFailed as error:
            log.error("store_failed", reason=str(error))

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except StoreFailed as error:
                log.warning("store_not_closed", reason=str(error))

    def close(self) -> None:
        """Flush and release the folder."""
        self._close()
