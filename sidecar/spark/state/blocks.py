"""The blocks of slots: written as they come, merged until they are large, found by offset, taken from the front.

Each partition step adds a small block to each slot that it stores to. MERGED blocks of about one size become one, so a
timer is rewritten a few times until it is in a full block, and a slot has few blocks that are not full. Pages of the
slot's directory name the full ones; a page is read only when one of its blocks is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from sidecar.changelog.codec import BLOCK_BYTES_MAX, decode_block, encode_block
from sidecar.changelog.entry import DEFERRED, FLAGS_AT, HEAD, KEY, KEY_BYTES, OFFSET, ORIGIN_LENGTH, offset_of
from sidecar.spark.state.entries import (
    BLOCK_REFS,
    DIRECTORY,
    BlockRef,
    BlockRefs,
    Directory,
    Meta,
    Slot,
    StateEntries,
    block_state_key,
    directory_page_state_key,
    directory_state_key,
    encode,
)

CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
AHEAD_BYTES: Final = 4 * 1024 * 1024
"""The approximate size of blocks that are read at once."""
FULL_BYTES: Final = BLOCK_BYTES_MAX // 2
"""The size from which a block is not merged."""
MERGED: Final = 8
"""The number of blocks of one size that become one."""
PAGE_REFS: Final = 64

_NEW: Final = -1
"""The number of a block that is not written yet."""

SlotKey = tuple[int, int]
"""Level and slot."""


class Blocks:
    """The blocks of one partition.

    Args:
        state: Entries of the partition.
        meta: Position and directories of the partition.
        pending: Filters timers, keeping the pending ones.
    """

    def __init__(self, state: StateEntries, meta: Meta, pending: Callable[[Iterable[bytes]], Iterator[bytes]]) -> None:
        self.slots: dict[SlotKey, Slot] = {(slot.level, slot.slot): slot for slot in meta.slots}
        self._state = state
        self._meta = meta
        self._pending = pending
        self._directories: dict[SlotKey, Directory] = {}
        self._pages: dict[bytes, BlockRefs] = {}
        self._changed: set[SlotKey] = set()
        self._read: OrderedDict[bytes, dict[bytes, bytes]] = OrderedDict()
        self._read_bytes = 0

    def directories(self, slot_keys: Iterable[SlotKey]) -> Iterator[bytes]:
        """Yield the keys of the directories of these slots."""
        wanted = sorted(slot_key for slot_key in slot_keys if slot_key in self.slots)
        return (directory_state_key(*each) for each in wanted if each not in self._directories)

    def first_blocks(self, slot_keys: Iterable[SlotKey]) -> Iterator[bytes]:
        """Yield the keys of the first blocks of these slots, as many as are read at once."""
        refs = ((each, ref) for each in sorted(slot_keys) for ref in self._refs(each))
        size = 0
        for slot_key, ref in refs:
            yield block_state_key(*slot_key, ref.number)
            size += ref.bytes
            if size >= AHEAD_BYTES:
                return

    def read_merged(self, added: Sequence[tuple[SlotKey, Sequence[bytes], bytes]]) -> None:
        """Read the blocks that adding these ones will merge, each with its slot, its entries and its bytes."""
        self._state.fetch(self.directories({slot_key for slot_key, _, _ in added}))
        wanted: list[bytes] = []
        for slot_key, entries, value in added:
            if slot_key in self.slots:
                directory = self._directory(slot_key)
                offsets = [offset_of(entry) for entry in entries]
                lane = 0 if min(offsets) > directory.greatest_offset else 1
                new = BlockRef(_NEW, min(offsets), max(offsets), len(value), lane)
                merged = _to_merge([*(ref for ref in directory.refs if ref.lane == lane), new])
                wanted += [block_state_key(*slot_key, ref.number) for ref in merged if ref is not new]
        self._state.fetch(wanted)

    def add(self, slot_key: SlotKey, entries: Sequence[bytes], value: bytes | None = None) -> None:
        """Add a block.

        Args:
            slot_key: The slot.
            entries: Timers of the block, at least one.
            value: The block, if it is encoded already.
        """
        slot = self.slots.get(slot_key)
        if slot is None:
            slot = self.slots[slot_key] = Slot(*slot_key, next_block=0, least_due_ms=2**63)
            self._directories[slot_key] = Directory([], [])
        directory = self._directory(slot_key)
        keys = [KEY.unpack_from(entry) for entry in entries]
        offsets = [offset for _, offset in keys]
        lane = 0 if min(offsets) > directory.greatest_offset else 1
        if lane == 0:
            directory.greatest_offset = max(offsets)
        least_ms, _ = min(keys)
        slot.least_due_ms = min(slot.least_due_ms, least_ms)
        directory.refs.append(self._write(slot, entries, lane, value))
        self._changed.add(slot_key)
        while merging := _to_merge([ref for ref in directory.refs if ref.lane == lane]):
            self._merge(slot, directory, merging)
        self._page_out(slot, directory, lane)

    def entries(self, slot_key: SlotKey) -> Iterator[bytes]:
        """Yield all entries of a slot, pending or not."""
        for block in self.each(slot_key):
            yield from block

    def each(self, slot_key: SlotKey, start: int = 0) -> Iterator[Sequence[bytes]]:
        """Yield the entries of each block of a slot from block `start` on; the blocks before it are not read."""
        rest = islice(self._refs(slot_key), start, None)
        for some in _parts(rest, AHEAD_BYTES):
            self._read_blocks(slot_key, some)
            for ref in some:
                yield self._block(slot_key, ref.number)

    def find(self, slot_key: SlotKey, key: bytes) -> bytes | None:
        """Return the entry with this timer key, None when the slot has none."""
        offset = offset_of(key)
        for ref in self._covering(slot_key, offset):
            entry = self._by_key(slot_key, ref.number).get(key)
            if entry is not None:
                return entry
        return None

    def take(self, slot_key: SlotKey, limit_bytes: int) -> list[bytes]:
        """Remove a slot's first blocks, as many as reach the limit, and return their entries.

        A slot without blocks is removed.
        """
        slot, directory = self.slots[slot_key], self._directory(slot_key)
        taken: list[bytes] = []
        took = 0
        while took < limit_bytes and (directory.pages or directory.refs):
            left = list(self._page(slot_key, directory.first_page) if directory.pages else directory.refs)
            self._read_blocks(slot_key, next(_parts(left, limit_bytes - took), ()))
            while left and took < limit_bytes:
                ref = left.pop(0)
                entries = self._block(slot_key, ref.number)
                taken += entries
                took += ref.bytes
                self._remove(slot, ref)
            if not directory.pages:
                directory.refs = left
            elif left:
                self._put_refs(slot_key, directory.first_page, left)
            else:
                self._remove_refs(slot_key, directory.first_page)
                directory.first_page += 1
                del directory.pages[0]
        self._changed.add(slot_key)
        if not directory.pages and not directory.refs:
            self.drop(slot_key)
        return taken

    def drop(self, slot_key: SlotKey) -> None:
        """Remove a slot with all its blocks."""
        directory, slot = self._directory(slot_key), self.slots[slot_key]
        for page in range(directory.first_page, directory.first_page + len(directory.pages)):
            for ref in self._page(slot_key, page):
                self._remove(slot, ref)
            self._remove_refs(slot_key, page)
        for ref in directory.refs:
            self._remove(slot, ref)
        self._state.remove(directory_state_key(*slot_key))
        self._changed.discard(slot_key)
        del self.slots[slot_key], self._directories[slot_key]

    def save(self) -> None:
        """Write what changed."""
        for slot_key in self._changed:
            self._state.put(directory_state_key(*slot_key), encode(self._directories[slot_key]))
        self._changed.clear()
        self._meta.slots = list(self.slots.values())

    # One block

    def _write(self, slot: Slot, entries: Sequence[bytes], lane: int, value: bytes | None = None) -> BlockRef:
        body = value if value is not None else encode_block(slot.level, by_origin(entries), entries)
        offsets = [int.from_bytes(entry[OFFSET], "big") for entry in entries]
        ref = BlockRef(slot.next_block, min(offsets), max(offsets), len(body), lane)
        self._state.put_new(block_state_key(slot.level, slot.slot, ref.number), body)
        slot.next_block += 1
        slot.bytes += ref.bytes
        return ref

    def _remove(self, slot: Slot, ref: BlockRef) -> None:
        self._state.remove(block_state_key(slot.level, slot.slot, ref.number))
        slot.bytes -= ref.bytes

    def _read_blocks(self, slot_key: SlotKey, refs: Iterable[BlockRef]) -> None:
        self._state.fetch(block_state_key(*slot_key, ref.number) for ref in refs)

    def _block(self, slot_key: SlotKey, number: int) -> Sequence[bytes]:
        value = self._state.get(block_state_key(*slot_key, number))
        return () if value is None else decode_block(value).entries

    def _by_key(self, slot_key: SlotKey, number: int) -> dict[bytes, bytes]:
        """Return a block by the keys of its timers; the blocks used last are cached for the partition step."""
        state_key = block_state_key(*slot_key, number)
        block = self._read.get(state_key)
        if block is None:
            block = {entry[:KEY_BYTES]: entry for entry in self._block(slot_key, number)}
            self._read[state_key] = block
            self._read_bytes += sum(map(len, block.values()))
            while self._read_bytes > CACHE_BYTES_MAX and len(self._read) > 1:
                _, oldest = self._read.popitem(last=False)
                self._read_bytes -= sum(map(len, oldest.values()))
        else:
            self._read.move_to_end(state_key)
        return block

    # Directories

    def _merge(self, slot: Slot, directory: Directory, refs: BlockRefs) -> None:
        """Replace these blocks by one that has their pending timers."""
        slot_key = (slot.level, slot.slot)
        self._read_blocks(slot_key, refs)
        entries = [entry for ref in refs for entry in self._pending(self._block(slot_key, ref.number))]
        for ref in refs:
            self._remove(slot, ref)
        merged = [self._write(slot, entries, refs[0].lane)] if entries else []
        at = directory.refs.index(refs[0])
        gone = set(refs)
        directory.refs = [
            *directory.refs[:at],
            *merged,
            *(ref for ref in directory.refs[at:] if ref not in gone),
        ]

    def _page_out(self, slot: Slot, directory: Directory, lane: int) -> None:
        full = [ref for ref in directory.refs if ref.lane == lane and ref.bytes >= FULL_BYTES]
        if len(full) >= PAGE_REFS:
            gone = set(full)
            directory.refs = [ref for ref in directory.refs if ref not in gone]
            self._put_page(slot, directory, full)

    def _put_page(self, slot: Slot, directory: Directory, refs: BlockRefs) -> None:
        page = directory.first_page + len(directory.pages)
        self._put_refs((slot.level, slot.slot), page, refs)
        directory.pages.append((min(ref.least_offset for ref in refs), max(ref.greatest_offset for ref in refs)))

    def _covering(self, slot_key: SlotKey, offset: int) -> Iterator[BlockRef]:
        directory = self._directory(slot_key)
        for at, (least, greatest) in enumerate(directory.pages):
            if least <= offset <= greatest:
                yield from _covering(self._page(slot_key, directory.first_page + at), offset)
        yield from _covering(directory.refs, offset)

    def _refs(self, slot_key: SlotKey) -> Iterator[BlockRef]:
        directory = self._directory(slot_key)
        for page in range(directory.first_page, directory.first_page + len(directory.pages)):
            yield from self._page(slot_key, page)
        yield from directory.refs

    def _page(self, slot_key: SlotKey, page: int) -> BlockRefs:
        state_key = directory_page_state_key(*slot_key, page)
        refs = self._pages.get(state_key)
        if refs is None:
            value = self._state.get(state_key)
            refs = self._pages[state_key] = [] if value is None else BLOCK_REFS.decode(value)
        return refs

    def _put_refs(self, slot_key: SlotKey, page: int, refs: BlockRefs) -> None:
        state_key = directory_page_state_key(*slot_key, page)
        self._state.put(state_key, encode(refs))
        self._pages[state_key] = refs

    def _remove_refs(self, slot_key: SlotKey, page: int) -> None:
        state_key = directory_page_state_key(*slot_key, page)
        self._state.remove(state_key)
        self._pages.pop(state_key, None)

    def _directory(self, slot_key: SlotKey) -> Directory:
        directory = self._directories.get(slot_key)
        if directory is None:
            value = self._state.get(directory_state_key(*slot_key))
            directory = self._directories[slot_key] = Directory([], []) if value is None else DIRECTORY.decode(value)
        return directory


def by_origin(entries: Iterable[bytes]) -> dict[str, tuple[int, int]]:
    """Return the number of entries of a block per origin, and how many of these are deferred."""
    totals: dict[bytes, list[int]] = {}
    for entry in entries:
        name = entry[HEAD.size : HEAD.size + int.from_bytes(entry[ORIGIN_LENGTH], "big")]
        total = totals.setdefault(name, [0, 0])
        total[0] += 1
        total[1] += entry[FLAGS_AT] & DEFERRED
    return {name.decode(): (total, deferred) for name, (total, deferred) in totals.items()}


def _parts(refs: Iterable[BlockRef], limit_bytes: int) -> Iterator[BlockRefs]:
    """Yield blocks in groups of about this size, which are read at once."""
    part: BlockRefs = []
    size = 0
    for ref in refs:
        part.append(ref)
        size += ref.bytes
        if size >= limit_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def _to_merge(lane: BlockRefs) -> BlockRefs:
    """Return the blocks of a lane to merge: the last ones of one size, or all small ones if they make a full block."""
    small = [ref for ref in lane if ref.bytes < FULL_BYTES]
    if len(small) > 1 and sum(ref.bytes for ref in small) >= FULL_BYTES:
        return small
    alike = 0
    for ref in reversed(small):
        if _size_class(ref.bytes) > _size_class(small[-1].bytes):
            break
        alike += 1
    return small[-alike:] if alike >= MERGED else []


def _size_class(size: int) -> int:
    """Return 0 below 1 KiB, 1 below 8 KiB, 2 below 64 KiB, else 3."""
    return max(0, size.bit_length() - 8) // 3


def _covering(refs: BlockRefs, offset: int) -> Iterator[BlockRef]:
    return (ref for ref in refs if ref.least_offset <= offset <= ref.greatest_offset)
