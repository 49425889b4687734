"""Finds the timers whose place a message with `retry-replace` takes."""

from __future__ import annotations

from typing import Final

from sidecar.changelog.entry import head, origin_of, payload_of
from sidecar.contract.dead_letter import group_of
from sidecar.engine.overlay import Overlay
from sidecar.engine.selection import in_scope
from sidecar.model import Scope, StoredOffset

REPLACED_MAX: Final = 1_000
"""Most timers that a message can replace."""
READS_MAX: Final = 10_000
"""Most timers of any origin that are read for a message: others can use its id too."""
FOREIGN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes that are read of timers that are not replaced."""
TOO_MANY: Final = f"allowed are {REPLACED_MAX:,} of its origin, and {READS_MAX:,} or 16 MiB of all others"


def replaced(overlay: Overlay, retry_id: bytes, by: bytes) -> tuple[list[bytes] | None, int]:
    """Return the entries that a message replaces, None when they are too many, and the number of rows read.

    They are pending under its id, of its origin and, if it names a group, of that group: who may write to the retry
    topic cannot take away what waits for another origin.

    Args:
        overlay: The partition as the plan changes it.
        retry_id: The id of the message.
        by: The entry that the message becomes.
    """
    fixed = head(by)
    scope = Scope(origin_of(by, fixed), group_of(payload_of(by, fixed)[2]) or None)
    entries: list[bytes] = []
    rows = foreign_bytes = 0
    seen: tuple[StoredOffset, int] | None = None
    while len(entries) <= REPLACED_MAX and rows < READS_MAX and foreign_bytes <= FOREIGN_BYTES_MAX:
        keys, cost = overlay.named_keys(retry_id, seen, REPLACED_MAX + 1)
        rows += cost
        for key in keys:
            entry = overlay.pending_at(key)
            fixed = head(entry)
            seen = (fixed.offset, fixed.first_ms)
            if in_scope(entry, fixed, scope):
                entries.append(entry)
            else:
                foreign_bytes += len(entry)
                if foreign_bytes > FOREIGN_BYTES_MAX:
                    break
        if len(keys) <= REPLACED_MAX and foreign_bytes <= FOREIGN_BYTES_MAX:
            return entries, rows
    return None, rows
