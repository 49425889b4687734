"""Recounts a store from its timers, and compares it with what the changelog says: every row must follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sidecar.changelog.entry import (
    BEHIND,
    DEFERRED,
    HEAD,
    HELD,
    KEY,
    ORDERED,
    Head,
    head,
    origin_of,
    payload,
    retry_id_of,
)
from sidecar.engine.overlay import Overlay
from sidecar.engine.partition import Partition
from sidecar.engine.ports import StoreReader
from sidecar.engine.rows import Rows, after, decode_meta, lane_of
from sidecar.wheel.counts import Counts
from sidecar.wheel.geometry import slot_of
from tests.fold import Folded
from tests.simulation.reference import Id

ALL = 1_000_000
Truth = Mapping[Id, tuple[int, str, bytes | None]]


def rows_of(store: StoreReader, prefix: bytes) -> dict[bytes, bytes]:
    """Return the rows of one kind, without their prefix."""
    return {row[len(prefix) :]: value for row, value in store.items(prefix, after(prefix), limit=ALL)}


def timers_of(store: StoreReader, rows: Rows) -> dict[Id, tuple[int, str, bytes | None]]:
    """Return requested due, origin and retry id of every timer in the store."""
    found: dict[Id, tuple[int, str, bytes | None]] = {}
    for entry in rows_of(store, rows.timer).values():
        fixed = head(entry)
        timer_id = (fixed.offset, fixed.first_ms)
        assert timer_id not in found, ("two timers of one id", timer_id)
        found[timer_id] = (fixed.requested_ms, origin_of(entry, fixed), retry_id_of(entry, fixed))
    return found


def check_rows(partition: Partition, store: StoreReader) -> None:
    """Recount counters and pointers from the timers, and what the partition holds in memory from the rows."""
    own = partition.rows
    counts, moved, named, lanes = Counts(), {}, {}, {}
    timers = rows_of(store, own.timer)
    for key, entry in timers.items():
        fixed = head(entry)
        assert key == entry[:16] == KEY.pack(fixed.due_ms, fixed.offset), ("a row under a strange key", key, entry)
        assert key > partition.watermark, ("a row at or below the watermark", fixed)
        origin, slot = origin_of(entry, fixed), (fixed.level, slot_of(fixed.due_ms, fixed.level))
        counts.slots[slot] = counts.slots.get(slot, 0) + 1
        counts.origins[origin] = counts.origins.get(origin, 0) + 1
        if fixed.flags & DEFERRED:
            counts.deferred[origin] = counts.deferred.get(origin, 0) + 1
        due = fixed.due_ms.to_bytes(8, "big")
        if fixed.due_ms != fixed.first_ms:
            moved[own.moved_row(fixed.offset, fixed.first_ms)[5:]] = due
        if (retry_id := retry_id_of(entry, fixed)) is not None:
            named[own.named_row(retry_id, fixed.offset, fixed.first_ms)[5:]] = due
        if fixed.flags & ORDERED:
            assert key_of(entry, fixed) is not None, ("a timer without a key is ordered", fixed)
            lane = lane_of(origin, key_of(entry, fixed) or b"")
            lanes[own.lane_row(lane, fixed.offset, fixed.first_ms)[5:]] = due
    stored = Counts()
    for suffix, value in rows_of(store, own.counter).items():
        stored.load(suffix, value)
    _same("counters in memory", partition.counts, counts)
    _same("counters in rows", stored, counts)
    _same("moved rows", rows_of(store, own.moved), moved)
    _same("named rows", rows_of(store, own.named), named)
    _same("lane rows", rows_of(store, own.lane), lanes)
    _check_memory(partition, store, list(timers))


def key_of(entry: bytes, fixed: Head) -> bytes | None:
    """Return the message's own key."""
    key, _, _ = payload(entry, HEAD.size + fixed.origin_length + fixed.retry_id_length)
    return key


def check_deferrals(store: StoreReader, rows: Rows, latest_ms: int, bumps_ms: int) -> None:
    """No timer waits longer than a deferral, unless it has a turn or an earlier one of its lane is pending."""
    timers = [(head(entry), entry) for entry in rows_of(store, rows.timer).values()]
    first: dict[tuple[str, bytes | None], int] = {}
    for fixed, entry in timers:
        if fixed.flags & ORDERED:
            lane = (origin_of(entry, fixed), key_of(entry, fixed))
            first[lane] = min(first.get(lane, fixed.offset), fixed.offset)
    for fixed, entry in timers:
        if fixed.flags & BEHIND and first[origin_of(entry, fixed), key_of(entry, fixed)] < fixed.offset:
            continue
        soon = fixed.due_ms <= max(fixed.requested_ms + bumps_ms, latest_ms)
        assert fixed.flags & HELD or soon, ("put off too far", fixed)


def _check_memory(partition: Partition, store: StoreReader, keys: list[bytes]) -> None:
    own = partition.rows
    _same("next due", partition.next_due_ms, int.from_bytes(min(keys)[:8], "big") if keys else None)
    ends = [own.block_of(own.block + row).slot_end_ms for row in rows_of(store, own.block)]
    _same("next slot end", partition.next_slot_end_ms, min(ends, default=None))
    removed = rows_of(store, own.removed)
    _same("removed that is passed", partition.removed_passed, any(row <= partition.watermark for row in removed))
    wakes_ms = partition.wakes_at_ms()
    assert not partition.removed_passed or wakes_ms == 0, ("it would not wake for what was removed", wakes_ms)
    meta = decode_meta(store.get(own.meta) or b"")
    assert meta.restored
    assert meta.changelog_offset == partition.changelog_offset


def check_fold(partition: Partition, store: StoreReader, folded: Folded) -> None:
    """Compare with the changelog; only what the watermark covers may linger in one and not in the other."""
    own, watermark = partition.rows, partition.watermark
    _same("timers of the log", rows_of(store, own.timer), folded.pending)
    removed = {key for key in rows_of(store, own.removed) if key > watermark}
    _same("removed of the log", removed, {key for key in folded.removed if key > watermark})
    blocks = {own.block_of(own.block + row) for row in rows_of(store, own.block)}
    now_ms = partition.checkpoint.watermark_ms
    _same(
        "blocks of the log",
        {block for block in blocks if block.slot_end_ms > now_ms},
        {block for block in folded.blocks if block.slot_end_ms > now_ms},
    )
    ours, theirs = partition.checkpoint, folded.checkpoint
    _same("sequence", ours.sequence, theirs.sequence)
    _same("watermark", watermark, KEY.pack(theirs.watermark_ms, theirs.watermark_offset))
    if theirs.meets(ours.input_topic_id):  # else no transaction knows yet that the topic was made anew
        _same("highest", ours.highest_input_offset, theirs.highest_input_offset)
        _same("offset base", ours.offset_base, theirs.offset_base)
    _same("closed", ours.closed, theirs.closed)
    _same("turns", ours.turns, theirs.turns)


def _same(what: str, ours: object, theirs: object) -> None:
    assert ours == theirs, (what + " differs", ours, theirs)


def check_names(overlay: Overlay, truth: Truth, retry_ids: Iterable[bytes]) -> None:
    """Every timer is found under its retry id, and no other."""
    for retry_id in retry_ids:
        keys, _ = overlay.named_keys(retry_id, None, ALL)
        named = [(fixed.offset, fixed.first_ms) for fixed in map(head, map(overlay.pending_at, keys))]
        assert sorted(named) == sorted(key for key, timer in truth.items() if timer[2] == retry_id), retry_id
