"""rocksdict raises plain Exception: this is the one place that reads its texts."""

from __future__ import annotations

from typing import Final

from sidecar.errors import StoreCorrupt, StoreFailed

_LOCKED: Final = ("lock hold by", "While lock file", "No locks available", "Resource temporarily unavailable")
_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")
_DENIED: Final = ("Permission denied", "Read-only file system", "Operation not permitted")


def classify(cause: BaseException, folder: str) -> StoreFailed:
    """Return the error for an exception of the storage library; its text names `folder`."""
    text = str(cause)
    if any(sign in text for sign in _LOCKED):
        return StoreFailed(f"{folder} is in use by another process: stop it, or set STATE_DIR to another folder")
    if any(sign in text for sign in _FULL):
        return StoreFailed(f"no space left for {folder}: free some, it goes on by itself ({text})")
    if any(sign in text for sign in _DENIED):
        return StoreFailed(f"{folder} cannot be written: give this user permission, or set STATE_DIR ({text})")
    return StoreCorrupt(f"{folder} is damaged: {text}")
