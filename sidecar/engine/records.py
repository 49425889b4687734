"""Makes the changelog records of a partition in a transaction, except its checkpoint, and the rows that mirror them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from sidecar.changelog.codec import (
    BLOCK_BYTES_MAX,
    REMOVED,
    BlockKey,
    block_key,
    encode_block,
    removed_key,
)
from sidecar.changelog.entry import DEFERRED, FLAGS_AT, KEY, LEVEL_AT, due_ms_of
from sidecar.engine import hot
from sidecar.engine.overlay import Overlay, SlotEntries
from sidecar.engine.ports import StoreReader
from sidecar.engine.transaction import BLOCK_OVERHEAD_BYTES, ChangelogRecord, Terms
from sidecar.errors import invariant
from sidecar.wheel.geometry import slot_end_ms, slot_of

TOMBSTONES_MAX: Final = 500
"""Most tombstones of each kind in one transaction."""


def block_records(overlay: Overlay, sequence: int, terms: Terms) -> list[ChangelogRecord]:
    """Pack the entries that the plan stores into blocks: about one record per slot, not one per timer."""
    # A block names its origins once more than its entries do, so it is less than twice as large as they are.
    fits = (terms.changelog_max_message_bytes - BLOCK_OVERHEAD_BYTES) // 2
    records: list[ChangelogRecord] = []
    parts: dict[int, int] = {}
    bytes_max = min(BLOCK_BYTES_MAX, terms.block_bytes_max, fits)
    for (level, slot), group in overlay.groups.items():
        end_ms = slot_end_ms(slot, level)
        _check_slot(group, level, slot)
        plain = hot.COMPILED and not group.deferred
        values = hot.blocks.pack(level, group.entries, group.origins, bytes_max) if plain else None
        for value in block_values(level, group, bytes_max) if values is None else values:
            part = parts.get(end_ms, 0)
            parts[end_ms] = part + 1
            key = BlockKey(end_ms, sequence, part)
            records.append((block_key(key), value))
            overlay.mutations.rows[overlay.rows.block_row(key)] = b""
    return records


def block_values(level: int, group: SlotEntries, bytes_max: int) -> Iterator[bytes]:
    """Yield the blocks of a slot: the specification of what is compiled for those without deferred entries."""
    for start, end in _cut(group.entries, bytes_max):
        yield encode_block(level, _by_origin(group, start, end), group.entries[start:end])


def removed_records(overlay: Overlay, watermark: bytes) -> list[ChangelogRecord]:
    """Return records for the timer keys that the plan removed, without those below the watermark."""
    records: list[ChangelogRecord] = []
    for key in sorted(overlay.taken):
        if key > watermark:
            due_ms, offset = KEY.unpack(key)
            records.append((removed_key(offset, due_ms), REMOVED))
            overlay.mutations.rows[overlay.rows.removed + key] = b""
    return records


def tombstones(overlay: Overlay, store: StoreReader, watermark: bytes) -> list[ChangelogRecord]:
    """Return tombstones for blocks (by slot end) and removed records (by key) that the watermark has passed."""
    records: list[ChangelogRecord] = []
    rows, changes = overlay.rows, overlay.mutations.rows
    watermark_ms, _ = KEY.unpack(watermark)
    end_ms = overlay.partition.next_slot_end_ms
    if end_ms is not None and end_ms <= watermark_ms:
        lower = rows.block + end_ms.to_bytes(8, "big")
        upper = rows.block + (watermark_ms + 1).to_bytes(8, "big")
        for row in store.keys(lower, upper, limit=TOMBSTONES_MAX):
            records.append((block_key(rows.block_of(row)), None))
            changes[row] = None
    upper = rows.removed + watermark + b"\0"
    for row in store.keys(rows.removed, upper, limit=TOMBSTONES_MAX):
        due_ms, offset = rows.removed_timer_of(row)
        changes[row] = None
        records.append((removed_key(offset, due_ms), None))
    return records


def _check_slot(group: SlotEntries, level: int, slot: int) -> None:
    """Raise InvariantViolated if a slot has timers without an origin, or its first or last timer belongs elsewhere."""
    entries = group.entries
    invariant(
        len(entries) == len(group.origins),
        "a slot has another number of timers than of origins",
        level=level,
        slot=slot,
        timers=len(entries),
        origins=len(group.origins),
    )
    for entry in (entries[0], entries[-1]) if entries else ():
        due_ms = due_ms_of(entry)
        invariant(
            (entry[LEVEL_AT], slot_of(due_ms, level)) == (level, slot),
            "a timer is in a slot that does not hold its due",
            level=level,
            slot=slot,
            due_ms=due_ms,
            level_of_timer=entry[LEVEL_AT],
        )


def _cut(entries: list[bytes], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each block of a slot; a huge entry is a block by itself."""
    start = size = 0
    for at, entry in enumerate(entries):
        if size + len(entry) > bytes_max and at > start:
            yield start, at
            start, size = at, 0
        size += len(entry) + 4
    if start < len(entries):
        yield start, len(entries)


def _by_origin(group: SlotEntries, start: int, end: int) -> dict[str, tuple[int, int]]:
    """Count the entries of a block, and the deferred ones, per origin."""
    totals, deferred = Counter(group.origins[start:end]), Counter[str]()
    if group.deferred:
        pairs = zip(group.entries[start:end], group.origins[start:end], strict=True)
        deferred.update(origin for entry, origin in pairs if entry[FLAGS_AT] & DEFERRED)
    return {origin: (total, deferred[origin]) for origin, total in totals.items()}
