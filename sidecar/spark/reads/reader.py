"""Answers a question from the state of one partition, with the store that the partition steps use.

A list is in due order, and a slot of the wheel is not: so a slot is read whole, and slots are read until the page is
full, READ_BYTES_MAX are read or time is up. What a page costs is the slots that it shows, however many messages are
pending.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from sidecar.changelog.entry import HEAD, KEY, KEY_BYTES, head
from sidecar.engine.selection import find_entry, named_entries
from sidecar.errors import RecordCorrupt, StoreFailed
from sidecar.model import OFFSET_MAX, StoredOffset, TimerId
from sidecar.spark.reads.questions import FindNamed, ListPending, PartitionAnswer, Wish
from sidecar.spark.state.entries import META, BufferedEntries, Meta, Slot, StoredEntries, decode_meta
from sidecar.spark.state.shard_store import ShardStore
from sidecar.wheel.geometry import slot_end_ms, slot_start_ms

READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""A page ends with the slot that reaches it."""
PARTITION_MAX: Final = 2**32 - 1


def answer(
    wish: Wish,
    partition: int,
    state: StoredEntries,
    blank: PartitionAnswer,
    out_of_time: Callable[[], bool] = lambda: False,
) -> PartitionAnswer:
    """Return the answer of a partition; nothing is written.

    Args:
        wish: What is asked.
        partition: A partition of the input topic.
        state: Its state.
        blank: The answer without what was found.
        out_of_time: Whether the micro-batch has waited long enough.

    Raises:
        PartitionStopped: The state cannot be read.
        StoreFailed: It cannot be read now.
    """
    entries = BufferedEntries(state)
    value = entries.get(META)
    if value is None:
        return blank
    meta = decode_meta(value)
    if not meta.settled:
        raise StoreFailed(f"partition {partition} is importing its pending messages")
    store = ShardStore(entries, meta, partition)
    checkpoint = meta.checkpoint
    watermark = KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset)
    if isinstance(wish, ListPending):
        return _page(wish, partition, meta, store, blank, out_of_time)
    if isinstance(wish, FindNamed):
        named = named_entries(store, wish.retry_id, [partition], lambda _: watermark)
        return replace(blank, entries=[entry for _, entry in named.entries], truncated=named.truncated)
    timer = TimerId(wish.partition, wish.offset, wish.first_ms)
    entry = find_entry(store, timer, checkpoint.offsets_meant(StoredOffset(wish.offset)), lambda: watermark)
    return replace(blank, entries=[] if entry is None else [entry])


def _page(
    wish: ListPending,
    partition: int,
    meta: Meta,
    store: ShardStore,
    blank: PartitionAnswer,
    out_of_time: Callable[[], bool],
) -> PartitionAnswer:
    lower = max(KEY.pack(wish.due_from_ms, 0), _start(partition, wish))
    upper = KEY.pack(wish.due_to_ms, 0)
    matches = wish.selection.matcher()
    found: list[bytes] = []
    examined = read = 0
    frontier_ms: int | None = None
    more = False
    slots = sorted(_slots(meta, lower, upper), key=lambda each: (each[0], each[1].level))
    store.read_directories((slot.level, slot.slot) for _, slot in slots)
    for begin_ms, slot in slots:
        if _goes_on(lower, begin_ms) and (read >= READ_BYTES_MAX or _ready(found, begin_ms) >= wish.limit):
            frontier_ms = begin_ms
            break
        for block in store.pending_in((slot.level, slot.slot)):
            if out_of_time():
                frontier_ms = begin_ms
                break
            for entry in block:
                if lower <= entry[:KEY_BYTES] < upper:
                    examined += 1
                    if matches(entry, head(entry)):
                        found.append(_without_payload(entry))
        if frontier_ms is not None:
            if not read or not _goes_on(lower, begin_ms):
                raise StoreFailed(f"{slot.bytes} bytes of partition {partition} take too long to read: ask for less")
            break
        read += max(1, slot.bytes)
        if len(found) > wish.limit:
            found, more = heapq.nsmallest(wish.limit, found), True
    found.sort()
    whole = len(found)
    if frontier_ms is not None:
        found = found[: _ready(found, frontier_ms)]
    page = found[: wish.limit]
    reached = None
    if len(page) == wish.limit and (more or len(page) < whole or frontier_ms is not None):
        due_ms, offset = KEY.unpack_from(page[-1])
        reached = (due_ms, partition, offset)
    elif frontier_ms is not None:
        reached = (frontier_ms - 1, PARTITION_MAX, OFFSET_MAX)
    return replace(blank, entries=page, reached=reached, examined=examined)


def _slots(meta: Meta, lower: bytes, upper: bytes) -> list[tuple[int, Slot]]:
    """Return the slots that may have timers of a range, each with the least due that these may have."""
    least_ms, _ = KEY.unpack_from(lower)
    end_ms, _ = KEY.unpack_from(upper)
    return [
        (begin_ms, slot)
        for slot in meta.slots
        if (begin_ms := max(slot_start_ms(slot.slot, slot.level), slot.least_due_ms)) < end_ms
        and slot_end_ms(slot.slot, slot.level) > least_ms
    ]


def _goes_on(lower: bytes, begin_ms: int) -> bool:
    """Return whether a page that ends before this due lets the next one begin further on.

    The slots of several levels may begin at or before the start of the page: all of them are read.
    """
    return begin_ms > 0 and KEY.pack(begin_ms - 1, OFFSET_MAX) > lower


def _ready(found: list[bytes], begin_ms: int) -> int:
    """Return how many of these entries are due before what is not read yet."""
    bound = KEY.pack(begin_ms, 0)
    return sum(entry < bound for entry in found)


def _start(partition: int, wish: ListPending) -> bytes:
    """Return the first key of a partition after a position in the order of all partitions."""
    if wish.after is None:
        return b""
    due_ms, number, offset = wish.after
    if partition == number:
        return KEY.pack(due_ms, offset) + b"\0"
    return KEY.pack(due_ms, 0 if partition > number else OFFSET_MAX) + (b"" if partition > number else b"\0")


def _without_payload(entry: bytes) -> bytes:
    fixed = head(entry)
    end = HEAD.size + fixed.origin_length + fixed.retry_id_length
    if len(entry) < end:
        raise RecordCorrupt(f"an entry of {len(entry)} bytes is too short; {end} are needed")
    return entry[:end]
