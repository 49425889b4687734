"""The entries of a partition, as they are copied into the state of another query."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.errors import PartitionStopped
from sidecar.spark.state.entries import META, REASON, STOPPED, decode_meta, encode


def copied(entries: Iterable[tuple[bytes, bytes]], wakes_ms: int) -> dict[bytes, bytes | None]:
    """Return entries as they are, except the expiry of the partition's timer.

    Args:
        entries: Some of the partition's entries in the former query.
        wakes_ms: The expiry of the timer that is to be registered, if `asks_for_timer`.
    """
    changes: dict[bytes, bytes | None] = {}
    for each, content in entries:
        state_key, value = bytes(each), bytes(content)
        if state_key == STOPPED:
            stopped = REASON.decode(value)
            stopped.wakes_ms = wakes_ms
            value = encode(stopped)
        elif state_key == META:
            value = _woken(value, wakes_ms)
        changes[state_key] = value
    return changes


def asks_for_timer(changes: dict[bytes, bytes | None]) -> bool:
    """Return whether one of these entries has the expiry of the partition's timer."""
    return META in changes or STOPPED in changes


def _woken(value: bytes, wakes_ms: int) -> bytes:
    try:
        meta = decode_meta(value)
    except PartitionStopped:
        # The partition has stopped, and is woken by that entry.
        return value
    meta.wakes_ms = wakes_ms
    return encode(meta)
