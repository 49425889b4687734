"""The blocks of slots: written as they come, merged until they are large, found by offset, taken from the front.

Each turn adds a small block to each slot that it stores to. MERGED blocks of about one size become one, so a timer is
rewritten a few times until it is in a full block, and a slot has few blocks that are not full. Full ones are named in
pages of the slot's directory, which only who looks into them reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from sidecar.changelog.codec import BLOCK_BYTES_MAX, decode_block, encode_block
from sidecar.changelog.entry import DEFERRED, FLAGS_AT, HEAD, KEY, KEY_BYTES, OFFSET, ORIGIN_LENGTH, offset_of
from sidecar.spark.state.entries import (
    DIRECTORY,
    FORMER_SPANS,
    SPANS,
    Cells,
    Directory,
    Meta,
    Slot,
    Span,
    Spans,
    block_cell,
    directory_cell,
    encode,
    spans_cell,
)

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
FULL_BYTES: Final = BLOCK_BYTES_MAX // 2
"""Blocks of this size are merged no more."""
MERGED: Final = 8
"""So many of one size become one."""
PAGE_SPANS: Final = 64
FORMER_BYTES: Final = 8 * 1024
"""What a block of the former layout counts for: it did not say how large they are."""

Place = tuple[int, int]
"""Level and slot."""


class Blocks:
    """The blocks of one partition.

    Args:
        cells: Its state.
        meta: Where it stands.
        pending: Leaves out of entries those that are gone.
    """

    def __init__(self, cells: Cells, meta: Meta, pending: Callable[[Iterable[bytes]], Iterator[bytes]]) -> None:
        self.slots: dict[Place, Slot] = {(slot.level, slot.slot): slot for slot in meta.slots}
        self._cells = cells
        self._meta = meta
        self._pending = pending
        self._directories: dict[Place, Directory] = {}
        self._pages: dict[bytes, Spans] = {}
        self._changed: set[Place] = set()
        self._read: OrderedDict[bytes, dict[bytes, bytes]] = OrderedDict()
        self._read_bytes = 0

    def add(self, place: Place, entries: Sequence[bytes], value: bytes | None = None) -> None:
        """Add a block.

        Args:
            place: Its slot.
            entries: Of the block, at least one.
            value: The block, if it is encoded already.
        """
        slot = self.slots.get(place)
        if slot is None:
            slot = self.slots[place] = Slot(*place, next_block=0, least_due_ms=2**63)
            self._directories[place] = Directory([], [])
        directory = self._directory(place)
        keys = [KEY.unpack_from(entry) for entry in entries]
        offsets = [offset for _, offset in keys]
        lane = 0 if min(offsets) > directory.greatest_offset else 1
        if lane == 0:
            directory.greatest_offset = max(offsets)
        least_ms, _ = min(keys)
        slot.least_due_ms = min(slot.least_due_ms, least_ms)
        directory.spans.append(self._write(slot, entries, lane, value))
        self._changed.add(place)
        while merging := _to_merge([span for span in directory.spans if span.lane == lane]):
            self._merge(slot, directory, merging)
        self._page_out(slot, directory, lane)

    def entries(self, place: Place) -> Iterator[bytes]:
        """Yield all entries of a slot, whether they are pending or not."""
        for block in self.each(place):
            yield from block

    def each(self, place: Place, start: int = 0) -> Iterator[Sequence[bytes]]:
        """Yield the entries of each block of a slot, without those of the first `start` blocks, which are not read."""
        for span in islice(self._spans(place), start, None):
            yield self._block(place, span.number)

    def find(self, place: Place, key: bytes) -> bytes | None:
        """Return the entry with this timer key, None when the slot has none."""
        offset = offset_of(key)
        for span in self._covering(place, offset):
            entry = self._by_key(place, span.number).get(key)
            if entry is not None:
                return entry
        return None

    def take(self, place: Place, limit_bytes: int) -> list[bytes]:
        """Return the entries of a slot's first blocks, as many as reach the limit, and let go of these blocks.

        A slot whose blocks are all taken is gone.
        """
        slot, directory = self.slots[place], self._directory(place)
        taken: list[bytes] = []
        took = 0
        while took < limit_bytes and (directory.pages or directory.spans):
            left = list(self._page(place, directory.first_page) if directory.pages else directory.spans)
            while left and took < limit_bytes:
                span = left.pop(0)
                entries = self._block(place, span.number)
                taken += entries
                took += max(span.bytes, sum(map(len, entries)))
                self._remove(slot, span)
            if not directory.pages:
                directory.spans = left
            elif left:
                self._put_spans(place, directory.first_page, left)
            else:
                self._remove_spans(place, directory.first_page)
                directory.first_page += 1
                del directory.pages[0]
        self._changed.add(place)
        if not directory.pages and not directory.spans:
            self.drop(place)
        return taken

    def drop(self, place: Place) -> None:
        """Let go of a slot with all of its blocks."""
        directory, slot = self._directory(place), self.slots[place]
        for page in range(directory.first_page, directory.first_page + len(directory.pages)):
            for span in self._page(place, page):
                self._remove(slot, span)
            self._remove_spans(place, page)
        for span in directory.spans:
            self._remove(slot, span)
        self._cells.remove(directory_cell(*place))
        self._changed.discard(place)
        del self.slots[place], self._directories[place]

    def save(self) -> None:
        """Write what changed."""
        for place in self._changed:
            self._cells.put(directory_cell(*place), encode(self._directories[place]))
        self._changed.clear()
        self._meta.slots = list(self.slots.values())

    def convert(self) -> None:
        """Take over from the former layout, in which a slot has one list of all its blocks."""
        for place, slot in self.slots.items():
            value = self._cells.get(directory_cell(*place))
            spans = [
                Span(number, least, greatest, FORMER_BYTES, 0)
                for number, least, greatest, _ in ([] if value is None else FORMER_SPANS.decode(value))
            ]
            slot.bytes = FORMER_BYTES * len(spans)
            directory = self._directories[place] = Directory([], [])
            for at in range(0, len(spans), PAGE_SPANS):
                self._put_page(slot, directory, spans[at : at + PAGE_SPANS])
            directory.greatest_offset = max((greatest for _, greatest in directory.pages), default=-1)
            self._changed.add(place)

    # One block

    def _write(self, slot: Slot, entries: Sequence[bytes], lane: int, value: bytes | None = None) -> Span:
        body = value if value is not None else encode_block(slot.level, by_origin(entries), entries)
        offsets = [int.from_bytes(entry[OFFSET], "big") for entry in entries]
        span = Span(slot.next_block, min(offsets), max(offsets), len(body), lane)
        self._cells.put(block_cell(slot.level, slot.slot, span.number), body)
        slot.next_block += 1
        slot.bytes += span.bytes
        return span

    def _remove(self, slot: Slot, span: Span) -> None:
        self._cells.remove(block_cell(slot.level, slot.slot, span.number))
        slot.bytes -= span.bytes

    def _block(self, place: Place, number: int) -> Sequence[bytes]:
        value = self._cells.get(block_cell(*place, number))
        return () if value is None else decode_block(value).entries

    def _by_key(self, place: Place, number: int) -> dict[bytes, bytes]:
        """Return a block by the keys of its timers; those used last are kept for the turn."""
        cell = block_cell(*place, number)
        block = self._read.get(cell)
        if block is None:
            block = {entry[:KEY_BYTES]: entry for entry in self._block(place, number)}
            self._read[cell] = block
            self._read_bytes += sum(map(len, block.values()))
            while self._read_bytes > CACHE_BYTES_MAX and len(self._read) > 1:
                _, oldest = self._read.popitem(last=False)
                self._read_bytes -= sum(map(len, oldest.values()))
        else:
            self._read.move_to_end(cell)
        return block

    # Directories

    def _merge(self, slot: Slot, directory: Directory, spans: Spans) -> None:
        """Put one block in the place of these, without what is gone."""
        place = (slot.level, slot.slot)
        entries = [entry for span in spans for entry in self._pending(self._block(place, span.number))]
        for span in spans:
            self._remove(slot, span)
        merged = [self._write(slot, entries, spans[0].lane)] if entries else []
        at = directory.spans.index(spans[0])
        gone = set(spans)
        directory.spans = [
            *directory.spans[:at],
            *merged,
            *(span for span in directory.spans[at:] if span not in gone),
        ]

    def _page_out(self, slot: Slot, directory: Directory, lane: int) -> None:
        full = [span for span in directory.spans if span.lane == lane and span.bytes >= FULL_BYTES]
        if len(full) >= PAGE_SPANS:
            gone = set(full)
            directory.spans = [span for span in directory.spans if span not in gone]
            self._put_page(slot, directory, full)

    def _put_page(self, slot: Slot, directory: Directory, spans: Spans) -> None:
        page = directory.first_page + len(directory.pages)
        self._put_spans((slot.level, slot.slot), page, spans)
        directory.pages.append((min(span.least_offset for span in spans), max(span.greatest_offset for span in spans)))

    def _covering(self, place: Place, offset: int) -> Iterator[Span]:
        directory = self._directory(place)
        for at, (least, greatest) in enumerate(directory.pages):
            if least <= offset <= greatest:
                yield from _covering(self._page(place, directory.first_page + at), offset)
        yield from _covering(directory.spans, offset)

    def _spans(self, place: Place) -> Iterator[Span]:
        directory = self._directory(place)
        for page in range(directory.first_page, directory.first_page + len(directory.pages)):
            yield from self._page(place, page)
        yield from directory.spans

    def _page(self, place: Place, page: int) -> Spans:
        cell = spans_cell(*place, page)
        spans = self._pages.get(cell)
        if spans is None:
            value = self._cells.get(cell)
            spans = self._pages[cell] = [] if value is None else SPANS.decode(value)
        return spans

    def _put_spans(self, place: Place, page: int, spans: Spans) -> None:
        cell = spans_cell(*place, page)
        self._cells.put(cell, encode(spans))
        self._pages[cell] = spans

    def _remove_spans(self, place: Place, page: int) -> None:
        cell = spans_cell(*place, page)
        self._cells.remove(cell)
        self._pages.pop(cell, None)

    def _directory(self, place: Place) -> Directory:
        directory = self._directories.get(place)
        if directory is None:
            value = self._cells.get(directory_cell(*place))
            directory = self._directories[place] = Directory([], []) if value is None else DIRECTORY.decode(value)
        return directory


def by_origin(entries: Iterable[bytes]) -> dict[str, tuple[int, int]]:
    """Count the entries of a block per origin, and how many of these are deferred."""
    totals: dict[bytes, list[int]] = {}
    for entry in entries:
        name = entry[HEAD.size : HEAD.size + int.from_bytes(entry[ORIGIN_LENGTH], "big")]
        total = totals.setdefault(name, [0, 0])
        total[0] += 1
        total[1] += entry[FLAGS_AT] & DEFERRED
    return {name.decode(): (total, deferred) for name, (total, deferred) in totals.items()}


def _to_merge(lane: Spans) -> Spans:
    """Return the blocks of a lane that are to become one: the last ones of a size, or all that make a full one."""
    small = [span for span in lane if span.bytes < FULL_BYTES]
    if len(small) > 1 and sum(span.bytes for span in small) >= FULL_BYTES:
        return small
    alike = 0
    for span in reversed(small):
        if _size_class(span.bytes) > _size_class(small[-1].bytes):
            break
        alike += 1
    return small[-alike:] if alike >= MERGED else []


def _size_class(size: int) -> int:
    """Return 0 below 1 KiB, 1 below 8 KiB, 2 below 64 KiB, else 3."""
    return max(0, size.bit_length() - 8) // 3


def _covering(spans: Spans, offset: int) -> Iterator[Span]:
    return (span for span in spans if span.least_offset <= offset <= span.greatest_offset)
