"""What the state of one input partition is made of: cells, each a small key and bytes.

    m                               → Meta            where the partition stands; read and written by each turn
    b | level | slot u64 | n u64    → block           timers, in the bytes of a changelog block
    d | level | slot u64            → Spans           the blocks of a slot, and which offsets are in each
    p | page u64                    → Page            rows by offset: removed timers, and stored dues of moved ones
    n | number u64                  → names           part of the index of retry ids, see names.py
    h | number u64                  → chunk           records that wait for what the broker says of an origin

Spark's map state has no ranges: what must be found is named in Meta or Spans, and nothing is ever iterated.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, Protocol

import msgspec

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.errors import FormatUnknown, RecordCorrupt
from sidecar.spark.facts import Fact
from sidecar.wheel.counts import Counts

FORMAT: Final = 2
FORMATS_READ: Final = frozenset({1, FORMAT})
META: Final = b"m"
PAGE_SHIFT: Final = 12
"""A page has the rows of so many bits of offsets: 4,096 of them."""

_SLOT: Final = Struct(">cBQ")
_BLOCK: Final = Struct(">cBQQ")
_NUMBERED: Final = Struct(">cQ")


class Cells(Protocol):
    """The state of one partition, as Spark or a dict keeps it."""

    def get(self, cell: bytes) -> bytes | None:
        """Return the value of a cell, None when there is none."""
        ...

    def put(self, cell: bytes, value: bytes) -> None:
        """Write a cell."""
        ...

    def remove(self, cell: bytes) -> None:
        """Delete a cell; there is nothing to do when there is none."""
        ...


class Slot(msgspec.Struct, array_like=True):
    """What Meta says of one slot that has blocks."""

    level: int
    """Of the slot that the blocks are in now. An entry keeps the level that it was counted at."""
    slot: int
    next_block: int
    least_due_ms: int
    """No pending timer of the slot is due before."""


class Span(NamedTuple):
    """One block of a slot."""

    number: int
    least_offset: int
    greatest_offset: int
    least_due_ms: int


class NameRun(msgspec.Struct, array_like=True, frozen=True):
    """One part of the index of retry ids."""

    number: int
    names: int
    greatest_due_ms: int
    """When the watermark has passed it, the part can go."""


class Meta(msgspec.Struct, array_like=True, kw_only=True):
    """Where a partition stands."""

    format: int = FORMAT
    checkpoint: Checkpoint = msgspec.field(default_factory=lambda: Checkpoint(engine=Engine.SPARK))
    counted_slots: list[tuple[int, int, int]] = []
    """(level, slot, count), by the levels of the entries."""
    counted_origins: dict[str, int] = {}
    counted_deferred: dict[str, int] = {}
    slots: list[Slot] = []
    pages: dict[int, int] = {}
    """Pages there are, each with a due up to which its rows matter."""
    names: list[NameRun] = []
    next_names: int = 0
    held: tuple[int, int] = (0, 0)
    """First and next number of the chunks that wait."""
    facts: dict[str, Fact] = {}
    wakes_ms: int = 0
    """The expiry of the timer that is registered; 0: none."""
    turned_ms: int = -1
    """The instant of the last turn."""
    published_ms: int = 0
    """When counts were last published."""
    settled: bool = True
    """False while the counts of imported blocks are still to be made."""

    def counts(self) -> Counts:
        """Return the counters."""
        slots = {(level, slot): count for level, slot, count in self.counted_slots}
        return Counts(slots, self.counted_origins, self.counted_deferred)

    def count(self, counts: Counts) -> None:
        """Take the counters over."""
        self.counted_slots = [(level, slot, count) for (level, slot), count in counts.slots.items()]
        self.counted_origins = counts.origins
        self.counted_deferred = counts.deferred


Spans = list[Span]
Page = dict[bytes, bytes]
"""Row of the store (removed or moved) to its value."""


class _Packed:
    def __init__(self) -> None:
        self.encode = msgspec.msgpack.Encoder().encode
        self.meta: msgspec.msgpack.Decoder[Meta] = msgspec.msgpack.Decoder(Meta)
        self.spans: msgspec.msgpack.Decoder[Spans] = msgspec.msgpack.Decoder(Spans)
        self.page: msgspec.msgpack.Decoder[Page] = msgspec.msgpack.Decoder(Page)


_packed = _Packed()


def block_cell(level: int, slot: int, number: int) -> bytes:
    return _BLOCK.pack(b"b", level, slot, number)


def spans_cell(level: int, slot: int) -> bytes:
    return _SLOT.pack(b"d", level, slot)


def page_cell(page: int) -> bytes:
    return _NUMBERED.pack(b"p", page)


def names_cell(number: int) -> bytes:
    return _NUMBERED.pack(b"n", number)


def held_cell(number: int) -> bytes:
    return _NUMBERED.pack(b"h", number)


def encode(value: Meta | Spans | Page) -> bytes:
    """Return the bytes of a cell."""
    return _packed.encode(value)


def decode_meta(value: bytes) -> Meta:
    """Return where the partition stands. Raises FormatUnknown, RecordCorrupt."""
    try:
        meta = _packed.meta.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise RecordCorrupt(f"the state of a partition does not decode: {cause}") from cause
    if meta.format not in FORMATS_READ:
        raise FormatUnknown(f"state of format {meta.format}; this version reads up to {FORMAT}")
    meta.format = FORMAT
    return meta


def decode_spans(value: bytes | None) -> Spans:
    """Return the blocks of a slot. Raises RecordCorrupt."""
    try:
        return [] if value is None else _packed.spans.decode(value)
    except msgspec.DecodeError as cause:
        raise RecordCorrupt(f"the list of a slot's blocks does not decode: {cause}") from cause


def decode_page(value: bytes | None) -> Page:
    """Return the rows of a page. Raises RecordCorrupt."""
    try:
        return {} if value is None else _packed.page.decode(value)
    except msgspec.DecodeError as cause:
        raise RecordCorrupt(f"a page of rows does not decode: {cause}") from cause
