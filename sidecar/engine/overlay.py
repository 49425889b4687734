"""A partition as it will be when the current plan is committed: the store plus the plan's changes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Final

from sidecar.changelog.entry import (
    BEHIND,
    DEFERRED,
    FLAGS_AT,
    KEY,
    KEY_BYTES,
    MOVING,
    OFFSET,
    ORDERED,
    Head,
    decode_offset,
    due_ms_of,
    head,
    moved,
    origin_of,
    retry_id_of,
)
from sidecar.engine import hot
from sidecar.engine.items import Arrival, Item, Ordered
from sidecar.engine.lanes import Lanes
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Mutations, StoreReader
from sidecar.engine.rows import NAMED_OFFSET, after, decode_due, encode_due
from sidecar.errors import invariant
from sidecar.model import StoredOffset
from sidecar.wheel.counts import CountsDelta, SlotKey
from sidecar.wheel.geometry import WIDTHS_MS, level_ends_ms, level_of

RANGE_DELETE_MIN: Final = 64
"""From this many fired rows on, one range deletion is cheaper than single ones."""
_DUE_MS_OF: Final = itemgetter(0)


class SlotEntries:
    """The entries that a plan stores in one slot, with the origin of each."""

    __slots__ = ("deferred", "entries", "origins")

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.origins: list[str] = []
        self.deferred = False
        """Whether any entry is deferred."""


class Overlay:
    """Buffers the writes of a plan. Reads see earlier writes of the same plan; nothing reaches the store."""

    def __init__(self, partition: Partition, store: StoreReader, now_ms: int, *, keeps_order: bool = True) -> None:
        self.partition = partition
        self._keeps_order = keeps_order
        self.rows = partition.rows
        self.now_ms = now_ms
        self.watermark = partition.watermark
        self.watermark_ms = partition.checkpoint.watermark_ms
        self.mutations = Mutations()
        self.groups: defaultdict[SlotKey, SlotEntries] = defaultdict(SlotEntries)
        """Entries to be packed into blocks, by (level, slot)."""
        self.taken: set[bytes] = set()
        """Keys of timers that this plan removed."""
        self._store = store
        self._delta = CountsDelta()
        self._fresh: list[tuple[SlotKey, str]] = []
        """Slot and origin of new timers that are not in the delta yet: counting them together takes half the time."""
        self.lanes = Lanes(partition, store, self.watermark)
        if keeps_order:
            self.lanes.begin()
        self.stays_above: bytes | None = None
        """A filter that goes on comes to the timers above this key later: none of them moves to an earlier due."""
        self._level_ends_ms = level_ends_ms(now_ms)
        self._named: dict[bytes, set[bytes]] = {}

    # Reads

    @property
    def is_changed(self) -> bool:
        """Whether the partition is not what the store holds any more."""
        return bool(self.mutations.rows)

    @property
    def delta(self) -> CountsDelta:
        """Changes of the counters so far."""
        if self._fresh:
            for (slot, origin), count in Counter(self._fresh).items():
                self._delta.add(slot, origin, False, count)
            self._fresh.clear()
        return self._delta

    def entry_at(self, key: bytes) -> bytes | None:
        """Return the pending entry at a timer key."""
        row = self.rows.timer + key
        if row in self.mutations.rows:
            return self.mutations.rows[row]
        return None if key <= self.watermark else self._store.get(row)

    def find(self, offset: StoredOffset, first_ms: int) -> bytes | None:
        """Return the pending entry of a timer id, even if it was moved."""
        row = self.rows.moved_row(offset, first_ms)
        value = self.mutations.rows[row] if row in self.mutations.rows else self._store.get(row)
        due_ms = first_ms if value is None else decode_due(value)
        entry = self.entry_at(KEY.pack(due_ms, offset))
        # Another timer of the same offset may have this due under another id.
        return entry if entry is not None and head(entry).first_ms == first_ms else None

    def find_meant(self, offset: int, first_ms: int) -> bytes | None:
        """Return the pending entry of a timer id that has the stored offset, or else the input offset."""
        for meant in self.partition.checkpoint.offsets_meant(offset):
            entry = self.find(meant, first_ms)
            # A removed timer is not pending, and no other one is meant.
            if entry is not None or self._is_used(first_ms, meant):
                return entry
        return None

    def named_keys(self, retry_id: bytes, seen: tuple[StoredOffset, int] | None, limit: int) -> tuple[list[bytes], int]:
        """Return the keys of pending timers of a retry id in the order of their ids, and the number of rows read.

        Args:
            retry_id: The caller's own id.
            seen: Offset and first due of the timer to start after; None: start with the first.
            limit: Most keys.
        """
        prefix = self.rows.named_prefix(retry_id)
        lower = prefix if seen is None else self.rows.named_row(retry_id, *seen) + b"\0"
        dues = self._named_dues(retry_id, lower, limit)
        # Rows that this plan changed are read and discarded, so they cost the same.
        cost = max(1, len(dues)) + len(self._named.get(retry_id, ()))
        return [value + row[NAMED_OFFSET] for row, value in dues], cost

    def pending_at(self, key: bytes) -> bytes:
        """Return the entry at a key that must have one."""
        entry = self.entry_at(key)
        invariant(entry is not None, "no timer is pending at this key", key=key)
        return entry or b""

    def scan(self, lower: bytes, upper: bytes, limit: int, limit_bytes: int) -> Sequence[bytes]:
        """Return the first pending entries of a range of timer keys in key order, until one of the limits is reached.

        Nothing may have been changed.
        """
        invariant(not self.is_changed, "timers are looked through that the plan has changed", lower=lower)
        lower = max(lower, self.watermark + b"\0")
        if lower >= upper:
            return ()
        prefix = self.rows.timer
        return self._store.scan(prefix + lower, prefix + upper, limit=limit, limit_bytes=limit_bytes)

    def _named_dues(self, retry_id: bytes, lower: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first rows of a retry id from `lower` on, with their stored dues."""
        changed = self._named.get(retry_id, set())
        upper = after(self.rows.named_prefix(retry_id))
        stored = self._store.items(lower, upper, limit=limit + len(changed))
        dues = {row: value for row, value in stored if row not in changed}
        for row in changed:
            if row >= lower and (value := self.mutations.rows[row]) is not None:
                dues[row] = value
        return sorted(dues.items())[:limit]

    def _unused_from(self, due_ms: int, offset: StoredOffset) -> int:
        """Return the first due that this offset never had, or one after a run of used ones, with few reads."""
        used, free, step = due_ms - 1, due_ms, 1
        while self._is_used(free, offset):
            used, free, step = free, free + step, step * 2
        while free - used > 1:
            middle = (used + free) // 2
            if self._is_used(middle, offset):
                used = middle
            else:
                free = middle
        return free

    def _is_used(self, due_ms: int, offset: StoredOffset) -> bool:
        """Return whether a timer of the offset has or had this due, unless the watermark has passed it."""
        key = KEY.pack(due_ms, offset)
        removed = key in self.taken or self._store.get(self.rows.removed + key) is not None
        return removed or self.entry_at(key) is not None

    def deferred(self, origin: str) -> int:
        """Return how many timers of an origin are deferred."""
        return self.partition.counts.deferred.get(origin, 0) + self._delta.deferred.get(origin, 0)

    # Writes

    def store_new(
        self,
        offset: StoredOffset,
        due_ms: int,
        lasting: bytes,
        origin: str,
        retry_id: bytes | None,
        lane: bytes | None = None,
    ) -> None:
        """Store a timer of an offset that was never stored before: its key cannot collide. One of a lane is ordered."""
        stored_ms = self._store_new(offset, due_ms, lasting, origin, 0 if lane is None else ORDERED)
        if retry_id is not None:
            self._name(retry_id, offset, due_ms, stored_ms)
        if lane is not None:
            self.lanes.append(lane, (offset, due_ms), stored_ms)

    def _store_new(self, offset: StoredOffset, due_ms: int, lasting: bytes, origin: str, flags: int) -> int:
        """Store a new timer besides its rows in the indexes of retry ids and lanes; return its stored due."""
        stored_ms = due_ms
        if stored_ms <= self.watermark_ms and KEY.pack(stored_ms, offset) <= self.watermark:
            stored_ms = self.watermark_ms + 1  # the clock stepped back: late by at most its error
        level = bisect_right(self._level_ends_ms, stored_ms)
        entry = MOVING.pack(stored_ms, offset, due_ms, level, flags) + lasting
        slot = (level, stored_ms // WIDTHS_MS[level])
        group = self.groups[slot]
        group.entries.append(entry)
        group.origins.append(origin)
        self._fresh.append((slot, origin))
        rows = self.mutations.rows
        rows[self.rows.timer + entry[:KEY_BYTES]] = entry
        if stored_ms != due_ms:
            rows[self.rows.moved_row(offset, due_ms)] = encode_due(stored_ms)
        return stored_ms

    def store_plain(self, batch: Sequence[Item], at: int, seen: int, entry_bytes_max: int) -> int:
        """Store the plain messages from `at` on, as `store_new` does, in the order of their dues.

        The store takes rows in key order in half the time. Returns where the first other item is.

        Args:
            batch: In offset order.
            at: The first one.
            seen: Input offsets below it were stored before.
            entry_bytes_max: What is larger must be looked at.
        """
        base = self.partition.checkpoint.offset_base
        if hot.COMPILED and type(batch) is list:
            ordered: dict[bytes, bytes] = {}
            behind = hot.blocks.store_plain(
                batch,
                at,
                base=base,
                seen=seen,
                now_ms=self.now_ms,
                watermark_ms=self.watermark_ms,
                entry_bytes_max=entry_bytes_max,
                level_ends_ms=self._level_ends_ms,
                prefix=self.rows.timer,
                rows=self.mutations.rows,
                groups=self.groups,
                count=self._count,
                lane_prefix=self.rows.lane,
                ordered=ordered,
                crossings=self.lanes.crossings,
            )
            if ordered:
                self.lanes.add(ordered)
            return behind
        least_ms, bytes_max = max(self.now_ms, self.watermark_ms), entry_bytes_max - MOVING.size
        run: list[tuple[int, StoredOffset, bytes, str, int]] = []
        for item in islice(batch, at, None):
            arrival, lane = (item.arrival, item.lane) if type(item) is Ordered else (item, None)
            if type(arrival) is not Arrival:
                break
            offset, due_ms, origin, lasting, retry_id, replace = arrival
            if due_ms <= least_ms or offset < seen or len(lasting) > bytes_max or retry_id is not None or replace:
                break
            stored: StoredOffset = base + offset  # type: ignore[assignment]  # no call for each message
            run.append((due_ms, stored, lasting, origin, 0 if lane is None else ORDERED))
            if lane is not None:
                self.lanes.append(lane, (stored, due_ms), due_ms)  # in the order of offsets, by which lanes go
        run.sort(key=_DUE_MS_OF)
        for due_ms, stored, lasting, origin, flags in run:
            self._store_new(stored, due_ms, lasting, origin, flags)
        return at + len(run)

    def _count(self, slot: SlotKey, totals: Mapping[str, int]) -> None:
        for origin, total in totals.items():
            self._delta.add(slot, origin, False, total)

    def store_again(self, entry: bytes, due_ms: int, requested_ms: int, flags: int = 0) -> None:
        """Store a timer whose offset was stored before: moved, deferred or replayed. No key is used twice."""
        offset = decode_offset(entry[OFFSET], "big")
        if KEY.pack(due_ms, offset) <= self.watermark:
            due_ms = self.watermark_ms + 1
        due_ms = self._unused_from(due_ms, offset)
        invariant(
            due_ms > self.now_ms and KEY.pack(due_ms, offset) > self.watermark,
            "a timer is stored that is due or passed already",
            offset=offset,
            due_ms=due_ms,
            now_ms=self.now_ms,
            watermark_ms=self.watermark_ms,
        )
        level = level_of(due_ms, self.now_ms)
        entry = moved(entry, due_ms=due_ms, requested_ms=requested_ms, level=level, flags=flags)
        slot = (level, due_ms // WIDTHS_MS[level])
        fixed = head(entry)
        origin = origin_of(entry, fixed)
        group = self.groups[slot]
        group.entries.append(entry)
        group.origins.append(origin)
        group.deferred |= bool(flags)
        self._delta.add(slot, origin, bool(flags), 1)
        self.mutations.rows[self.rows.timer + entry[:KEY_BYTES]] = entry
        if due_ms != fixed.first_ms:
            self.mutations.rows[self.rows.moved_row(offset, fixed.first_ms)] = encode_due(due_ms)
        if (retry_id := retry_id_of(entry, fixed)) is not None:
            self._name(retry_id, offset, fixed.first_ms, due_ms)
        if self.is_ordered(fixed):
            self.lanes.insert(entry, fixed)

    def take(self, entry: bytes) -> None:
        """Remove the key of a pending timer: cancelled, replaced, rescheduled, or fired before its due."""
        fixed = head(entry)
        key = entry[:KEY_BYTES]
        invariant(key not in self.taken, "a timer is removed twice", offset=fixed.offset, due_ms=fixed.due_ms)
        self.count_off(entry, fixed, origin_of(entry, fixed))
        if self.mutations.rows.get(self.rows.timer + key) is not None:  # stored by this plan
            group = self.groups[fixed.level, fixed.due_ms // WIDTHS_MS[fixed.level]]
            at = group.entries.index(entry)
            del group.entries[at], group.origins[at]
        self.mutations.rows[self.rows.timer + key] = None
        self.taken.add(key)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Delete the rows of the first timers behind the watermark, all of which the plan has disposed of."""
        rows, mutations = self.rows, self.mutations
        if len(keys) >= RANGE_DELETE_MIN:
            mutations.ranges.append((rows.timer + self.watermark + b"\0", rows.timer + keys[-1] + b"\0"))
        else:
            mutations.rows.update((rows.timer + key, None) for key in keys)

    def count_off(self, entry: bytes, fixed: Head, origin: str) -> None:
        """Subtract a timer from the counters and remove the rows that point at it; the caller removes its own row."""
        slot = (fixed.level, fixed.due_ms // WIDTHS_MS[fixed.level])
        self._delta.add(slot, origin, bool(fixed.flags & DEFERRED), -1)
        if fixed.due_ms != fixed.first_ms:
            self.mutations.rows[self.rows.moved_row(fixed.offset, fixed.first_ms)] = None
        if fixed.retry_id_length:
            retry_id = retry_id_of(entry, fixed) or b""
            row = self.rows.named_row(retry_id, fixed.offset, fixed.first_ms)
            self.mutations.rows[row] = None
            self._named.setdefault(retry_id, set()).add(row)
        if self.is_ordered(fixed):
            self.lanes.remove(entry, fixed)

    def is_ordered(self, fixed: Head) -> bool:
        """Return whether a timer has a lane."""
        return self._keeps_order and bool(fixed.flags & ORDERED)

    def leaves(self, row: bytes, key: bytes) -> bool:
        """Return whether a due timer that was never moved may fire, and take it out of its lane if so."""
        return not self._keeps_order or self.lanes.leave(row, key)

    def ahead(self, entry: bytes, fixed: Head) -> bytes | None:
        """Return the key of the timer that a due one must wait behind, None when it may fire."""
        return self.lanes.ahead(entry, fixed) if self.is_ordered(fixed) else None

    def next_behind(self, entry: bytes, fixed: Head) -> bytes | None:
        """Return the timer that waits behind one that goes out of turn, None when none does or it is due soon.

        Neither does one that must stay in its place: it is looked at when it comes due there.
        """
        key = self.lanes.next_behind(entry, fixed) if self.is_ordered(fixed) else None
        if key is None or due_ms_of(key) <= self.now_ms + 1:
            return None
        if self.stays_above is not None and key > self.stays_above:
            return None
        waiting = self.pending_at(key)
        return waiting if waiting[FLAGS_AT] & BEHIND else None

    def _name(self, retry_id: bytes, offset: StoredOffset, first_ms: int, due_ms: int) -> None:
        row = self.rows.named_row(retry_id, offset, first_ms)
        self.mutations.rows[row] = encode_due(due_ms)
        self._named.setdefault(retry_id, set()).add(row)


def new_entry(arrival: Arrival, offset: StoredOffset, lane: bytes | None = None) -> bytes:
    """Return the entry of an arrival that is not stored yet."""
    return MOVING.pack(arrival.due_ms, offset, arrival.due_ms, 0, 0 if lane is None else ORDERED) + arrival.lasting
