"""The store of one partition on cells: reads as plan() asks for them, and what a plan changes.

Timers are never rewritten when they fire, are cancelled or move: a timer of a block is pending iff its key is above the
watermark and its due is not among the removed ones of its offset, as in the changelog. Blocks go as a whole when the
watermark has passed their slot. A coarse slot is split into finer ones when its first timer is due, so each timer is
rewritten at most once a level.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sidecar.changelog.codec import (
    BLOCK_BYTES_MAX,
    REMOVED,
    BlockKey,
    RemovedKey,
    decode_block,
    decode_key,
    decode_removed_list,
    encode_block,
    removed_key,
)
from sidecar.changelog.entry import (
    DEFERRED,
    FLAGS_AT,
    HEAD,
    KEY,
    KEY_BYTES,
    ORIGIN_LENGTH,
    head,
    retry_id_of,
)
from sidecar.engine.plan import PartitionPlan
from sidecar.engine.rows import Rows, decode_due, encode_due
from sidecar.spark import names
from sidecar.spark.cells import (
    PAGE_SHIFT,
    Cells,
    Meta,
    NameRun,
    Page,
    Slot,
    Span,
    Spans,
    block_cell,
    decode_page,
    decode_spans,
    encode,
    names_cell,
    page_cell,
    spans_cell,
)
from sidecar.wheel.geometry import LEVELS, WIDTHS_MS, level_ends_ms, slot_end_ms, slot_start_ms

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
SPLIT_BYTES_MAX: Final = 64 * 1024 * 1024
"""So much of coarse slots is split in one turn; what is due behind it waits for the next."""

_PAGED: Final = frozenset({b"v", b"r", b"o"})
"""Kinds of rows that are kept in pages, by their offset."""

Place = tuple[int, int]
"""Level and slot."""


class ShardStore:
    """Reads and writes the timers of one partition; made anew for each turn."""

    def __init__(self, cells: Cells, meta: Meta, partition: int) -> None:
        self._cells = cells
        self._meta = meta
        self._rows = Rows(partition)
        self._slots: dict[Place, Slot] = {(slot.level, slot.slot): slot for slot in meta.slots}
        self._spans: dict[Place, Spans] = {}
        self._changed_spans: set[Place] = set()
        self._pages: dict[int, Page] = {}
        self._changed_pages: set[int] = set()
        self._runs: dict[int, bytes] = {}
        self._blocks: OrderedDict[bytes, dict[bytes, bytes]] = OrderedDict()
        self._cached_bytes = 0
        self._due: list[bytes] = []
        self._due_slots: set[int] = set()

    # The reads of plan()

    def get(self, row: bytes) -> bytes | None:
        kind = row[:1]
        if kind == b"t":
            return self._entry(row[5:])
        if kind in _PAGED:
            page = _offset_of(row) >> PAGE_SHIFT
            return self._page(page).get(row) if page in self._meta.pages else None
        return None

    def first(self, lower: bytes, upper: bytes) -> bytes | None:  # noqa: ARG002 - see Reader
        """Return None: no part of a plan asks for it."""
        return None

    def keys(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[bytes]:  # noqa: ARG002 - see Reader
        """Return nothing: there are no tombstones to write, so no directory of what waits for one."""
        return ()

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Return rows of one retry id; nothing else is asked for in this way."""
        length = int.from_bytes(lower[5:7], "big")
        retry_id = lower[7 : 7 + length]
        rows = {}
        for run in self._meta.names:
            for named in names.found(self._run(run.number), retry_id):
                row = self._rows.named_row(retry_id, named.offset, named.first_ms)
                if lower <= row < upper and self._is_named(retry_id, named):
                    rows[row] = encode_due(named.due_ms)
        return sorted(rows.items())[:limit]

    def values(self, lower: bytes, upper: bytes, *, limit: int, limit_bytes: int) -> Sequence[bytes]:
        """Return what is due in key order; every coarse slot that holds any of it has been split before."""
        least, end = _least_entry(lower[5:]), upper[5:]
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
        """Hold the timers of the next fine slot that begins before `end`; return False when there is none."""
        slots = [slot for level, slot in self._slots if level == 0 and slot not in self._due_slots]
        if not slots or KEY.pack(slot_start_ms(min(slots), 0), 0) >= end:
            return False
        slot = min(slots)
        # What lies before has fired.
        del self._due[: bisect_left(self._due, least)]
        watermark = self._watermark
        self._due += [entry for entry in self._entries_of((0, slot)) if entry[:KEY_BYTES] > watermark]
        self._due.sort()
        self._due_slots.add(slot)
        return True

    # Splitting

    def split_due(self, now_ms: int) -> int:
        """Split the coarse slots of which something is due, first ones first.

        Returns:
            The instant up to which everything due can be read: `now_ms`, unless there was too much to split at once.
        """
        split = 0
        while (slot := self._least(coarse=True)) is not None and slot.least_due_ms <= now_ms:
            if split >= SPLIT_BYTES_MAX:
                return min(now_ms, slot.least_due_ms - 1)
            split += self._split((slot.level, slot.slot), now_ms)
        return now_ms

    def _split(self, place: Place, now_ms: int) -> int:
        groups: dict[Place, list[bytes]] = {}
        sizes: dict[Place, int] = {}
        size, ends_ms = 0, level_ends_ms(now_ms)
        for span in self._spans_of(place):
            entries = self._read_block(place, span.number)
            for entry in self._pending(entries):
                size += len(entry)
                due_ms = int.from_bytes(entry[:8], "big")
                level = min(bisect_right(ends_ms, due_ms), place[0] - 1)
                target = (level, due_ms // WIDTHS_MS[level])
                groups.setdefault(target, []).append(entry)
                sizes[target] = sizes.get(target, 0) + len(entry) + 4
                if sizes[target] >= BLOCK_BYTES_MAX:
                    self._add(target, groups.pop(target))
                    del sizes[target]
        for target, entries in groups.items():
            self._add(target, entries)
        self._drop(place)
        return size

    def _pending(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        watermark = self._watermark
        for entry in entries:
            if entry[:KEY_BYTES] > watermark and not self._is_removed(entry):
                yield entry

    # Writes

    def apply(self, part: PartitionPlan) -> None:
        """Take over what a plan changes, its blocks as they are."""
        for key, value in part.records:
            decoded = decode_key(key)
            if isinstance(decoded, BlockKey) and value is not None:
                block = decode_block(value)
                slot = decoded.slot_end_ms // WIDTHS_MS[block.level] - 1
                self._add((block.level, slot), block.entries, value)
        named = []
        for row, content in part.mutations.rows.items():
            kind = row[:1]
            if kind in _PAGED:
                self._set_row(row, content)
            elif kind == b"n" and content is not None:
                retry_id = row[7 : 7 + int.from_bytes(row[5:7], "big")]
                offset, first_ms = int.from_bytes(row[-16:-8], "big"), int.from_bytes(row[-8:], "big")
                named.append(names.row_of(retry_id, names.Named(offset, first_ms, decode_due(content))))
        if named:
            self._add_names(named)

    def import_block(self, value: bytes, slot_end_ms: int) -> None:
        """Take over a block of the changelog; `settle` counts its timers."""
        block = decode_block(value)
        self._add((block.level, slot_end_ms // WIDTHS_MS[block.level] - 1), block.entries, value)

    def import_removed(self, key: RemovedKey, value: bytes) -> None:
        """Take over a removed record of the changelog."""
        if key.due_ms is None:
            self._set_row(self._rows.removed_list_row(key.offset), value)
        else:
            self._set_row(self._rows.removed_row(key.due_ms, key.offset), b"")

    def settle(self) -> None:
        """Count what is pending in imported blocks, and index its retry ids and moved timers."""
        counts = self._meta.counts()
        named = []
        for place in list(self._slots):
            least_ms = None
            for entry in self._pending(self._entries_of(place)):
                fixed = head(entry)
                slot = (fixed.level, fixed.due_ms // WIDTHS_MS[fixed.level])
                origin = entry[HEAD.size : HEAD.size + fixed.origin_length].decode()
                counts.slots[slot] = counts.slots.get(slot, 0) + 1
                counts.origins[origin] = counts.origins.get(origin, 0) + 1
                if fixed.flags:
                    counts.deferred[origin] = counts.deferred.get(origin, 0) + 1
                if fixed.due_ms != fixed.first_ms:
                    self._set_row(self._rows.moved_row(fixed.offset, fixed.first_ms), encode_due(fixed.due_ms))
                if (retry_id := retry_id_of(entry, fixed)) is not None:
                    named.append(names.row_of(retry_id, names.Named(fixed.offset, fixed.first_ms, fixed.due_ms)))
                least_ms = fixed.due_ms if least_ms is None else min(least_ms, fixed.due_ms)
            if least_ms is None:
                self._drop(place)
            else:
                self._slots[place].least_due_ms = least_ms
        if named:
            self._add_names(named)
        self._meta.count(counts)
        self._meta.settled = True

    def finish(self) -> None:
        """Let go of what the watermark has passed, and save."""
        watermark_ms = self._meta.checkpoint.watermark_ms
        for place, slot in list(self._slots.items()):
            level, number = place
            if slot_end_ms(number, level) <= watermark_ms:
                self._drop(place)
            elif level == 0 and number in self._due_slots:
                self._look_behind_the_watermark(slot)
        for page, until_ms in list(self._meta.pages.items()):
            if until_ms < watermark_ms:
                self._changed_pages.discard(page)
                self._cells.remove(page_cell(page))
                del self._meta.pages[page]
        for run in list(self._meta.names):
            if run.greatest_due_ms < watermark_ms:
                self._cells.remove(names_cell(run.number))
                self._meta.names.remove(run)
        self.save()

    def save(self) -> None:
        """Write what changed."""
        for place in self._changed_spans:
            self._cells.put(spans_cell(*place), encode(self._spans[place]))
        for page in self._changed_pages:
            self._cells.put(page_cell(page), encode(self._pages[page]))
        self._meta.slots = list(self._slots.values())

    def _look_behind_the_watermark(self, slot: Slot) -> None:
        left = self._due[bisect_left(self._due, _least_entry(self._watermark + b"\0")) :]
        upper = KEY.pack(slot_end_ms(slot.slot, 0), 0)
        alive = (entry for entry in left if entry[:KEY_BYTES] < upper and not self._is_removed(entry))
        first = next(alive, None)
        if first is None:
            self._drop((0, slot.slot))
        else:
            slot.least_due_ms = int.from_bytes(first[:8], "big")

    def next_due_ms(self) -> int | None:
        """Return the least due of all that may be pending."""
        return min((slot.least_due_ms for slot in self._slots.values()), default=None)

    def entries(self) -> Iterator[bytes]:
        """Yield all that is pending, slot by slot."""
        for place in sorted(self._slots):
            yield from self._pending(self._entries_of(place))

    def removed(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of the changelog records that say what was removed."""
        for page in sorted(self._meta.pages):
            for row, value in self._page(page).items():
                if row[:1] == b"r":
                    yield removed_key(_offset_of(row), None), value
                elif row[:1] == b"v":
                    due_ms, offset = self._rows.pair_of(row)
                    yield removed_key(offset, due_ms), REMOVED

    # Blocks

    def _add(self, place: Place, entries: Sequence[bytes], value: bytes | None = None) -> None:
        slot = self._slots.get(place)
        if slot is None:
            slot = self._slots[place] = Slot(*place, next_block=0, least_due_ms=2**63)
            self._spans[place] = []
        keys = [KEY.unpack_from(entry) for entry in entries]
        offsets = [offset for _, offset in keys]
        least_ms = min(due_ms for due_ms, _ in keys)
        self._spans_of(place).append(Span(slot.next_block, min(offsets), max(offsets), least_ms))
        self._changed_spans.add(place)
        body = value if value is not None else encode_block(place[0], by_origin(entries), entries)
        self._cells.put(block_cell(*place, slot.next_block), body)
        slot.next_block += 1
        slot.least_due_ms = min(slot.least_due_ms, least_ms)
        if place[0] == 0 and place[1] in self._due_slots:
            self._due = sorted([*self._due, *entries])

    def _drop(self, place: Place) -> None:
        for span in self._spans_of(place):
            self._cells.remove(block_cell(*place, span.number))
        self._cells.remove(spans_cell(*place))
        self._changed_spans.discard(place)
        del self._slots[place], self._spans[place]

    def _spans_of(self, place: Place) -> Spans:
        spans = self._spans.get(place)
        if spans is None:
            spans = self._spans[place] = decode_spans(self._cells.get(spans_cell(*place)))
        return spans

    def _entries_of(self, place: Place) -> Iterator[bytes]:
        for span in self._spans_of(place):
            yield from self._read_block(place, span.number)

    def _read_block(self, place: Place, number: int) -> Sequence[bytes]:
        value = self._cells.get(block_cell(*place, number))
        return () if value is None else decode_block(value).entries

    def _least(self, *, coarse: bool) -> Slot | None:
        slots = (slot for slot in self._slots.values() if (slot.level > 0) == coarse)
        return min(slots, key=lambda slot: slot.least_due_ms, default=None)

    # Single timers

    def _entry(self, key: bytes) -> bytes | None:
        due_ms, offset = KEY.unpack(key)
        if key <= self._watermark or self._is_removed(key):
            return None
        for level in range(LEVELS):
            place = (level, due_ms // WIDTHS_MS[level])
            if place not in self._slots:
                continue
            for span in self._spans_of(place):
                if span.least_offset <= offset <= span.greatest_offset:
                    entry = self._block(place, span.number).get(key)
                    if entry is not None:
                        return entry
        return None

    def _block(self, place: Place, number: int) -> dict[bytes, bytes]:
        """Return a block by the keys of its timers; those used last are kept for the turn."""
        cell = block_cell(*place, number)
        block = self._blocks.get(cell)
        if block is None:
            block = {entry[:KEY_BYTES]: entry for entry in self._read_block(place, number)}
            self._blocks[cell] = block
            self._cached_bytes += sum(map(len, block.values()))
            while self._cached_bytes > CACHE_BYTES_MAX and len(self._blocks) > 1:
                _, oldest = self._blocks.popitem(last=False)
                self._cached_bytes -= sum(map(len, oldest.values()))
        else:
            self._blocks.move_to_end(cell)
        return block

    @property
    def _watermark(self) -> bytes:
        checkpoint = self._meta.checkpoint
        return KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset)

    def _is_removed(self, entry: bytes) -> bool:
        """Return whether the timer at an entry's key was taken away."""
        if not self._meta.pages:
            return False
        due_ms, offset = KEY.unpack_from(entry)
        if offset >> PAGE_SHIFT not in self._meta.pages:
            return False
        page = self._page(offset >> PAGE_SHIFT)
        if self._rows.removed + entry[:KEY_BYTES] in page:
            return True
        listed = page.get(self._rows.removed_list_row(offset))
        return listed is not None and due_ms in decode_removed_list(listed)

    # Pages and names

    def _page(self, page: int) -> Page:
        rows = self._pages.get(page)
        if rows is None:
            rows = self._pages[page] = decode_page(self._cells.get(page_cell(page)))
        return rows

    def _set_row(self, row: bytes, value: bytes | None) -> None:
        page = _offset_of(row) >> PAGE_SHIFT
        if value is None:
            if page in self._meta.pages and self._page(page).pop(row, None) is not None:
                self._changed_pages.add(page)
            return
        if page not in self._meta.pages:
            self._pages[page] = {}
        # The greatest due of a list comes last, and a stored due is all there is.
        until_ms = int.from_bytes(row[5:13] if row[:1] == b"v" else value[-8:], "big")
        self._meta.pages[page] = max(self._meta.pages.get(page, 0), until_ms)
        self._page(page)[row] = value
        self._changed_pages.add(page)

    def _add_names(self, rows: Iterable[bytes]) -> None:
        meta = self._meta
        self._put_run(b"".join(sorted(rows)))
        if (count := names.to_merge(meta.names)) > 1:
            old = meta.names[-count:]
            run = names.merged([self._run(each.number) for each in old], meta.checkpoint.watermark_ms)
            for each in old:
                self._cells.remove(names_cell(each.number))
                meta.names.remove(each)
            self._put_run(run)

    def _put_run(self, run: bytes) -> None:
        meta = self._meta
        meta.names.append(NameRun(meta.next_names, len(run) // names.ROW.size, names.greatest_due_ms(run)))
        self._cells.put(names_cell(meta.next_names), run)
        self._runs[meta.next_names] = run
        meta.next_names += 1

    def _run(self, number: int) -> bytes:
        if number not in self._runs:
            self._runs[number] = self._cells.get(names_cell(number)) or b""
        return self._runs[number]

    def _is_named(self, retry_id: bytes, named: names.Named) -> bool:
        entry = self._entry(KEY.pack(named.due_ms, named.offset))
        if entry is None:
            return False
        fixed = head(entry)
        return fixed.first_ms == named.first_ms and retry_id_of(entry, fixed) == retry_id


def _offset_of(row: bytes) -> int:
    """Return the offset that a row of a page is about."""
    return int.from_bytes(row[13:21] if row[:1] == b"v" else row[5:13], "big")


def _least_entry(lower: bytes) -> bytes:
    """Return where the entries of a range begin: behind all of a key that the range excludes by a byte more."""
    return lower if len(lower) <= KEY_BYTES else lower[:KEY_BYTES] + b"\xff"  # no requested due begins so


def by_origin(entries: Iterable[bytes]) -> dict[str, tuple[int, int]]:
    """Count the entries of a block per origin, and how many of these are deferred."""
    totals: dict[bytes, list[int]] = {}
    for entry in entries:
        name = entry[HEAD.size : HEAD.size + int.from_bytes(entry[ORIGIN_LENGTH], "big")]
        total = totals.setdefault(name, [0, 0])
        total[0] += 1
        total[1] += entry[FLAGS_AT] & DEFERRED
    return {name.decode(): (total, deferred) for name, (total, deferred) in totals.items()}
