"""The local store: RocksDB, through rocksdict. Nothing else imports that library."""

from sidecar.store.rocks import RocksStore

__all__ = ["RocksStore"]
