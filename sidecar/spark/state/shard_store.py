"""The store of one partition on state entries: the reads of plan(), and the changes of a plan.

Timers are not rewritten when they fire, are cancelled or move: a timer of a block is pending iff its key is above the
watermark and its due is not among the removed ones of its offset, as in the changelog. The blocks of a fine slot are
removed as a whole when the watermark has passed it. A coarse slot is split into finer ones in parts, before its first
timer is due.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from sidecar.changelog.codec import (
    BLOCK_BYTES_MAX,
    BlockKey,
    RemovedKey,
    decode_block,
    decode_key,
)
from sidecar.changelog.entry import DEFERRED, DUE, HEAD, KEY, KEY_BYTES, due_ms_of, head, retry_id_of
from sidecar.engine.rows import (
    BEHIND_PARTITION,
    KIND,
    Rows,
    decode_due,
    encode_due,
    retry_id_of_row,
    timer_of_named_row,
)
from sidecar.engine.transaction import PartitionPlan
from sidecar.spark.state.blocks import Blocks, SlotKey
from sidecar.spark.state.entries import Meta, Slot, StateEntries
from sidecar.spark.state.pages import PAGED, Pages
from sidecar.spark.state.retry_ids import Candidate, RetryIdIndex, row_of
from sidecar.wheel.counts import Counts
from sidecar.wheel.geometry import LEVELS, WIDTHS_MS, level_ends_ms, slot_end_ms, slot_start_ms

SPLIT_BYTES: Final = 2 * 1024 * 1024
"""The part of a coarse slot that one step splits. The split of a large slot begins early enough for this."""
SPLIT_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most of all coarse slots that one step splits; what is due behind it waits for the next step."""
SETTLE_BYTES: Final = 16 * 1024 * 1024
"""The approximate amount of imported blocks that one step counts and indexes."""
STEP_MS_MAX: Final = 5_000
"""The greatest distance of two steps that counts as the pace of micro-batches; a greater one is an interruption."""

_NEVER_MS: Final = 2**63
"""The least due of a slot without a known pending timer."""


class ShardStore:
    """Reads and writes the timers of one partition; each step makes a new one."""

    def __init__(self, state: StateEntries, meta: Meta, partition: int) -> None:
        self._state = state
        self._meta = meta
        self._rows = Rows(partition)
        self._blocks = Blocks(state, meta, self._pending)
        self._pages = Pages(state, meta)
        self._retry_ids = RetryIdIndex(state, meta)
        self._due: list[bytes] = []
        self._due_slots: set[int] = set()
        self._looked_ahead = False

    def read_ahead(self, now_ms: int, *, tidies: bool = True) -> None:
        """Read what the step at this instant needs in any case, in two round trips.

        Args:
            now_ms: The instant up to which it fires.
            tidies: Whether it ends with `finish`.
        """
        due = [slot_key for slot_key, slot in self._blocks.slots.items() if slot.least_due_ms <= now_ms]
        swept = [*self._retry_ids.swept(), *self._pages.swept_group()] if tidies else []
        self._state.fetch([*swept, *self._blocks.directories(due)])
        self._state.fetch([*(self._pages.swept_page() if tidies else ()), *self._blocks.first_blocks(due)])

    # The reads of plan()

    def get(self, row: bytes) -> bytes | None:
        kind = row[KIND]
        if kind == b"t":
            return self._entry(row[BEHIND_PARTITION])
        return self._pages.get(row) if kind in PAGED else None

    def first(self, lower: bytes, upper: bytes) -> bytes | None:  # noqa: ARG002 - see Reader
        """Return None: no plan of this engine reads it."""
        return None

    def seeker(self) -> Callable[[bytes], bytes | None]:
        """Return what finds nothing: this engine keeps no order per key."""
        return lambda _: None

    def last(self, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:  # noqa: ARG002 - see Reader
        """Return None: this engine keeps no order per key."""
        return None

    def keys(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[bytes]:  # noqa: ARG002 - see Reader
        """Return nothing: this engine writes no tombstones, so none are waiting."""
        return ()

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Return rows of one retry id; of an order per key, which this engine does not keep, there are none."""
        if lower[KIND] != b"n":
            return []
        retry_id = retry_id_of_row(lower)
        rows: dict[bytes, bytes] = {}
        for named in self._retry_ids.found(retry_id):
            if len(rows) == limit:
                break
            row = self._rows.named_row(retry_id, named.offset, named.first_ms)
            if lower <= row < upper and self._is_named(retry_id, named):
                rows[row] = encode_due(named.due_ms)
        return list(rows.items())

    def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        """Return due timers in key order; `split_due` has split every coarse slot that holds any of them."""
        least, end = _least_entry(lower[BEHIND_PARTITION]), upper[BEHIND_PARTITION]
        entries, size = self._read(least, end, limit, limit_bytes)
        while len(entries) < limit and size < limit_bytes and self._load_next(least, end):
            entries, size = self._read(least, end, limit, limit_bytes)
        return entries

    def _read(self, least: bytes, end: bytes, limit: int, limit_bytes: int) -> tuple[list[bytes], int]:
        entries: list[bytes] = []
        size = 0
        for at in range(bisect_left(self._due, least), len(self._due)):
            entry = self._due[at]
            if entry[:KEY_BYTES] >= end or len(entries) == limit or size >= limit_bytes:
                break
            if not self._is_removed(entry):
                entries.append(entry)
                size += len(entry)
        return entries, size

    def _load_next(self, least: bytes, end: bytes) -> bool:
        """Load the timers of the next fine slot that begins before `end`; return False when there is none."""
        slots = [slot for level, slot in self._blocks.slots if level == 0 and slot not in self._due_slots]
        if not slots or KEY.pack(slot_start_ms(min(slots), 0), 0) >= end:
            return False
        slot = min(slots)
        # The timers before it have fired.
        del self._due[: bisect_left(self._due, least)]
        watermark = self._watermark
        self._due += [entry for entry in self._blocks.entries((0, slot)) if entry[:KEY_BYTES] > watermark]
        self._due.sort()
        self._due_slots.add(slot)
        return True

    def scan(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        """Return timers of any slots in key order. A slot is in none, so those in which they may be are read whole."""
        least, end = _least_entry(lower[BEHIND_PARTITION]), upper[BEHIND_PARTITION]
        found: list[bytes] = []
        for begin_ms, slot_key in self._slots_between(least, end):
            bound = KEY.pack(begin_ms, 0)
            ready = [entry for entry in found if entry < bound]
            if len(ready) >= limit or sum(map(len, ready)) >= limit_bytes:
                break
            for block in self.pending_in(slot_key):
                found += (entry for entry in block if least <= entry and entry[:KEY_BYTES] < end)
                found = _first(found, limit, limit_bytes)
        return found

    def _slots_between(self, least: bytes, end: bytes) -> list[tuple[int, SlotKey]]:
        """Return the slots that may have timers of a range, by the least due that these may have."""
        (least_ms, _), (end_ms, _) = KEY.unpack_from(least), KEY.unpack_from(end)
        slots = [
            (begin_ms, slot_key)
            for slot_key, slot in self._blocks.slots.items()
            if (begin_ms := max(slot_start_ms(slot.slot, slot.level), slot.least_due_ms)) < end_ms
            and slot_end_ms(slot.slot, slot.level) > least_ms
        ]
        return sorted(slots)

    def read_directories(self, slot_keys: Iterable[SlotKey]) -> None:
        """Read the directories of slots ahead, in few round trips."""
        self._state.fetch(self._blocks.directories(slot_keys))

    def pending_in(self, slot_key: SlotKey) -> Iterator[Iterator[bytes]]:
        """Yield the pending timers of a slot, block by block, in no order."""
        for block in self._blocks.each(slot_key):
            yield self._pending(block)

    # Splitting

    def split_due(self, now_ms: int, *, ahead: bool = True) -> int:
        """Split the coarse slots that have due timers, in the order of their dues, and parts of the next slots.

        Args:
            now_ms: The instant of the plan.
            ahead: Whether to split parts of the next slots, once in a step.

        Returns:
            The instant up to which all due timers can be read: `now_ms`, unless there was too much to split at once.
        """
        split = 0
        if ahead and not self._looked_ahead:
            self._looked_ahead = True
            split = self._split_ahead(now_ms)
        while (slot := self._least_coarse()) is not None and slot.least_due_ms <= now_ms:
            if split >= SPLIT_BYTES_MAX:
                return min(now_ms, slot.least_due_ms - 1)
            split += self._split((slot.level, slot.slot), now_ms)
        return now_ms

    def _split_ahead(self, now_ms: int) -> int:
        """Split a part of each slot whose split needs half of the steps until it is due; return the bytes split."""
        step_ms = min(max(now_ms - self._meta.last_step_ms, 1), STEP_MS_MAX)
        split = 0
        for slot_key, slot in sorted(self._blocks.slots.items(), key=lambda each: each[1].least_due_ms):
            steps = -(-slot.bytes // SPLIT_BYTES)
            if slot_key[0] > 0 and split < SPLIT_BYTES_MAX and slot.least_due_ms - now_ms <= 2 * steps * step_ms:
                split += self._split(slot_key, now_ms)
        return split

    def _split(self, slot_key: SlotKey, now_ms: int) -> int:
        groups: dict[SlotKey, list[bytes]] = {}
        sizes: dict[SlotKey, int] = {}
        ends_ms = level_ends_ms(now_ms)
        before = self._blocks.slots[slot_key].bytes
        taken = self._blocks.take(slot_key, SPLIT_BYTES)
        for entry in self._pending(taken):
            due_ms = int.from_bytes(entry[DUE], "big")
            level = min(bisect_right(ends_ms, due_ms), slot_key[0] - 1)
            target = (level, due_ms // WIDTHS_MS[level])
            groups.setdefault(target, []).append(entry)
            sizes[target] = sizes.get(target, 0) + len(entry) + 4
            if sizes[target] >= BLOCK_BYTES_MAX:
                self._add(target, groups.pop(target))
                del sizes[target]
        for target, entries in groups.items():
            self._add(target, entries)
        left = self._blocks.slots.get(slot_key)
        return before - (left.bytes if left is not None else 0)

    def _pending(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        watermark = self._watermark
        for entry in entries:
            if entry[:KEY_BYTES] > watermark and not self._is_removed(entry):
                yield entry

    # Writes

    def apply(self, part: PartitionPlan) -> None:
        """Apply the changes of a plan; its blocks are stored as they are."""
        blocks: list[tuple[SlotKey, Sequence[bytes], bytes]] = []
        for key, value in part.records:
            decoded = decode_key(key)
            if isinstance(decoded, BlockKey) and value is not None:
                block = decode_block(value)
                slot = decoded.slot_end_ms // WIDTHS_MS[block.level] - 1
                blocks.append(((block.level, slot), block.entries, value))
        self._blocks.read_merged(blocks)
        for slot_key, entries, value in blocks:
            self._add(slot_key, entries, value)
        self._pages.read_ahead(row for row in part.mutations.rows if row[KIND] in PAGED)
        named = []
        taken: defaultdict[int, list[int]] = defaultdict(list)
        for key in part.taken:
            due_ms, offset = KEY.unpack(key)
            taken[offset].append(due_ms)
        for row, content in part.mutations.rows.items():
            kind = row[KIND]
            if kind in PAGED:
                self._pages.put(row, content)
            elif kind == b"n":
                retry_id, (offset, first_ms) = retry_id_of_row(row), timer_of_named_row(row)
                # A row that is added twice is gone; one that was never there does no harm.
                dues = [*taken.get(offset, ()), *(() if content is None else (decode_due(content),))]
                named += [row_of(retry_id, Candidate(offset, first_ms, due_ms)) for due_ms in dues]
        if named:
            self._retry_ids.add(named)

    def import_block(self, value: bytes, slot_end_ms: int) -> None:
        """Store a block of the changelog; `settle` counts its timers."""
        block = decode_block(value)
        self._add((block.level, slot_end_ms // WIDTHS_MS[block.level] - 1), block.entries, value)

    def import_removed(self, key: RemovedKey) -> None:
        """Store a removed record of the changelog."""
        self._pages.put(self._rows.removed_row(key.due_ms, key.offset), b"")

    def settle(self) -> bool:
        """Count the pending timers of the next imported blocks, and index their retry ids and moved timers.

        Returns:
            Whether these were the last blocks. Until then nothing else may be stored or read.
        """
        meta, counts = self._meta, self._meta.counts()
        meta.uncounted = meta.uncounted or list(self._blocks.slots)
        size = 0
        while meta.uncounted and size < SETTLE_BYTES:
            slot_key = meta.uncounted[0]
            slot = self._blocks.slots[slot_key]
            if not meta.counted_blocks:
                slot.least_due_ms = _NEVER_MS
            for block in self._blocks.each(slot_key, meta.counted_blocks):
                meta.counted_blocks += 1
                size += sum(map(len, block))
                self._settle(block, slot, counts)
                if size >= SETTLE_BYTES:
                    break
            else:
                meta.uncounted.pop(0)
                meta.counted_blocks = 0
                if slot.least_due_ms == _NEVER_MS:
                    self._blocks.drop(slot_key)
        self._retry_ids.spread()
        meta.count(counts)
        meta.settled = not meta.uncounted
        return meta.settled

    def _settle(self, block: Sequence[bytes], stored: Slot, counts: Counts) -> None:
        named = []
        for entry in self._pending(block):
            fixed = head(entry)
            slot = (fixed.level, fixed.due_ms // WIDTHS_MS[fixed.level])
            origin = entry[HEAD.size : HEAD.size + fixed.origin_length].decode()
            counts.slots[slot] = counts.slots.get(slot, 0) + 1
            counts.origins[origin] = counts.origins.get(origin, 0) + 1
            if fixed.flags & DEFERRED:
                counts.deferred[origin] = counts.deferred.get(origin, 0) + 1
            if fixed.due_ms != fixed.first_ms:
                self._pages.put(self._rows.moved_row(fixed.offset, fixed.first_ms), encode_due(fixed.due_ms))
            if (retry_id := retry_id_of(entry, fixed)) is not None:
                named.append(row_of(retry_id, Candidate(fixed.offset, fixed.first_ms, fixed.due_ms)))
            stored.least_due_ms = min(stored.least_due_ms, fixed.due_ms)
        self._retry_ids.add(named)

    def finish(self) -> None:
        """Remove what the watermark has passed, and save."""
        watermark_ms = self._meta.checkpoint.watermark_ms
        for slot_key, slot in list(self._blocks.slots.items()):
            level, number = slot_key
            if slot_end_ms(number, level) <= watermark_ms:
                self._blocks.drop(slot_key)
            elif level == 0 and number in self._due_slots:
                self._look_behind_the_watermark(slot)
        self._retry_ids.tidy()
        self._pages.tidy()
        self.save()

    def save(self) -> None:
        """Write what changed."""
        self._blocks.save()
        self._pages.save()

    def _look_behind_the_watermark(self, slot: Slot) -> None:
        left = self._due[bisect_left(self._due, _least_entry(self._watermark + b"\0")) :]
        upper = KEY.pack(slot_end_ms(slot.slot, 0), 0)
        alive = (entry for entry in left if entry[:KEY_BYTES] < upper and not self._is_removed(entry))
        first = next(alive, None)
        if first is None:
            self._blocks.drop((0, slot.slot))
        else:
            slot.least_due_ms = due_ms_of(first)

    def next_due_ms(self) -> int | None:
        """Return the least due of all timers that may be pending."""
        return min((slot.least_due_ms for slot in self._blocks.slots.values()), default=None)

    def bytes_due(self, now_ms: int) -> int:
        """Return the size of all slots in which a timer may be due at an instant."""
        return sum(slot.bytes for slot in self._blocks.slots.values() if slot.least_due_ms <= now_ms)

    # Single timers

    def _add(self, slot_key: SlotKey, entries: Sequence[bytes], value: bytes | None = None) -> None:
        self._blocks.add(slot_key, entries, value)
        if slot_key[0] == 0 and slot_key[1] in self._due_slots:
            self._due = sorted([*self._due, *entries])

    def _least_coarse(self) -> Slot | None:
        slots = (slot for slot in self._blocks.slots.values() if slot.level > 0)
        return min(slots, key=lambda slot: slot.least_due_ms, default=None)

    def _entry(self, key: bytes) -> bytes | None:
        due_ms = due_ms_of(key)
        if key <= self._watermark or self._is_removed(key):
            return None
        for level in range(LEVELS):
            slot_key = (level, due_ms // WIDTHS_MS[level])
            if slot_key in self._blocks.slots and (entry := self._blocks.find(slot_key, key)) is not None:
                return entry
        return None

    @property
    def _watermark(self) -> bytes:
        checkpoint = self._meta.checkpoint
        return KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset)

    def _is_removed(self, entry: bytes) -> bool:
        """Return whether the timer at an entry's key was removed."""
        if not self._meta.groups:
            return False
        return self._pages.get(self._rows.removed + entry[:KEY_BYTES]) is not None

    def _is_named(self, retry_id: bytes, named: Candidate) -> bool:
        entry = self._entry(KEY.pack(named.due_ms, named.offset))
        if entry is None:
            return False
        fixed = head(entry)
        return fixed.first_ms == named.first_ms and retry_id_of(entry, fixed) == retry_id


def _first(entries: list[bytes], limit: int, limit_bytes: int) -> list[bytes]:
    """Return the first entries in key order, up to the one that reaches a limit."""
    entries = sorted(entries)[:limit]
    size = 0
    for at, entry in enumerate(entries, 1):
        size += len(entry)
        if size >= limit_bytes:
            return entries[:at]
    return entries


def _least_entry(lower: bytes) -> bytes:
    """Return where the entries of a range begin: a bound of one byte more excludes all entries of that key."""
    return lower if len(lower) <= KEY_BYTES else lower[:KEY_BYTES] + b"\xff"  # no requested due begins with this byte
