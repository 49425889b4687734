"""What the state of one input partition is made of: cells, each a small key and bytes.

    m                               → Meta            where the partition stands; read and written by each turn
    b | level | slot u64 | n u64    → block           timers, in the bytes of a changelog block
    d | level | slot u64            → Directory       the latest blocks of a slot, and which pages name the others
    s | level | slot u64 | n u64    → Spans           a page of the directory: full blocks
    q | group u64                   → Group           which of 256 pages there are
    p | page u64                    → Page            rows by offset: removed timers, and stored dues of moved ones
    n | depth u8 | prefix u64       → node            part of the index of retry ids, see names.py
    w                               → Index           which chunks of records wait to be taken in
    i | number u64                  → chunk           records that wait
    h | number u64                  → chunk           the same, as former versions kept them
    x                               → Stopped         why the partition cannot go on; it is read apart from all else

Spark's map state has no ranges: what must be found is named in Meta or in a cell that Meta names, and nothing is ever
iterated. Whatever a turn reads and writes whole has a bound that depends neither on how many turns there were nor on
how many timers wait.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.errors import FormatUnknown, RecordCorrupt
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.wheel.counts import Counts

FORMAT: Final = 3
FORMER: Final = frozenset({1, 2})
"""A list of all blocks of a slot, a list of all pages in Meta, and runs of retry ids: the first turn converts them."""
META: Final = b"m"
INDEX: Final = b"w"
STOPPED: Final = b"x"
PAGE_SHIFT: Final = 12
"""A page has the rows of so many bits of offsets: 4,096 of them."""
GROUP_SHIFT: Final = 8
"""A group has so many bits of pages: 256 of them, a million offsets."""

_SLOT: Final = Struct(">cBQ")
_BLOCK: Final = Struct(">cBQQ")
_NUMBERED: Final = Struct(">cQ")


class StateEntries(Protocol):
    """The state of one partition, as Spark or a dict keeps it."""

    def get(self, state_key: bytes) -> bytes | None:
        """Return the value of a cell, None when there is none."""
        ...

    def put(self, state_key: bytes, value: bytes) -> None:
        """Write a cell."""
        ...

    def remove(self, state_key: bytes) -> None:
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
    bytes: int = 0
    """Of its blocks."""


class BlockRef(NamedTuple):
    """One block of a slot."""

    number: int
    least_offset: int
    greatest_offset: int
    bytes: int
    lane: int
    """0: behind all offsets that came before, as messages arrive; 1: out of their order, as what was split or moved."""


BlockRefs = list[BlockRef]


class Directory(msgspec.Struct, array_like=True):
    """The blocks of one slot."""

    refs: BlockRefs
    """Those that are in no page, in the order in which they were written."""
    pages: list[tuple[int, int]]
    """Least and greatest offset of each page."""
    first_page: int = 0
    """Number of the first of them."""
    greatest_offset: int = -1
    """Of lane 0."""


class NameRun(msgspec.Struct, array_like=True, frozen=True):
    """One part of the index of retry ids in the former layout."""

    number: int
    names: int
    greatest_due_ms: int


class Meta(msgspec.Struct, array_like=True, kw_only=True):
    """Where a partition stands."""

    format: int = FORMAT
    checkpoint: Checkpoint = msgspec.field(default_factory=lambda: Checkpoint(engine=Engine.SPARK))
    counted_slots: list[tuple[int, int, int]] = []
    """(level, slot, count), by the levels of the entries."""
    counted_origins: dict[str, int] = {}
    counted_deferred: dict[str, int] = {}
    slots: list[Slot] = []
    groups: dict[int, int] = {}
    """Groups of pages there are, each with a due up to which its rows matter; in the former layout pages."""
    former_names: list[NameRun] = []
    """Runs of retry ids that are still to be moved into the index."""
    names_swept: int = 0
    """The digits up to which the index of retry ids was swept."""
    held: tuple[int, int] = (0, 0)
    """First and next number of the chunks that wait from a former version."""
    topics: dict[str, TopicMetadata] = {}
    wakes_ms: int = 0
    """The expiry of the timer that is registered; 0: none."""
    last_step_ms: int = -1
    """The instant of the last turn."""
    published_ms: int = 0
    """When counts were last published."""
    settled: bool = True
    """False while the counts of imported blocks are still to be made."""
    full_names: list[tuple[int, int]] = []
    """Nodes of the index of retry ids (depth, prefix) that are to be spread over their children."""
    pages_swept: int = 0
    """The page up to which rows that matter no more were let go."""
    uncounted: list[tuple[int, int]] = []
    """While not settled, once it was begun: level and slot of imported blocks of which some are still to be counted."""
    counted_blocks: int = 0
    """Of the first of these slots."""

    def counts(self) -> Counts:
        """Return the counters."""
        slots = {(level, slot): count for level, slot, count in self.counted_slots}
        return Counts(slots, self.counted_origins, self.counted_deferred)

    def count(self, counts: Counts) -> None:
        """Take the counters over."""
        self.counted_slots = [(level, slot, count) for (level, slot), count in counts.slots.items()]
        self.counted_origins = counts.origins
        self.counted_deferred = counts.deferred


PageGroup = dict[int, int]
"""Page to a due up to which its rows matter."""


class ChunkRef(NamedTuple):
    """A chunk that waits."""

    first: int
    """Its least offset."""
    number: int
    size: int


class WaitingIndex(msgspec.Struct, array_like=True):
    """The chunks that wait, in the order of their offsets."""

    refs: list[ChunkRef] = []
    next_number: int = 0


class Stopped(msgspec.Struct, array_like=True):
    """A partition that cannot go on."""

    reason: str
    since_ms: int
    tried_ms: int
    """When it was last tried."""
    wakes_ms: int
    """The expiry of the timer that is registered."""


Page = dict[bytes, bytes]
"""Row of the store (removed or moved) to its value."""
FormerBlockRefs = list[tuple[int, int, int, int]]
"""Number, least and greatest offset, least due of each block of a slot."""

_encode = msgspec.msgpack.Encoder().encode
_meta: msgspec.msgpack.Decoder[Meta] = msgspec.msgpack.Decoder(Meta)
_T = TypeVar("_T")


class EntryDecoder(Generic[_T]):
    """Reads the cells of one kind.

    Args:
        kind: The type of what is in them.
        name: For a person.
    """

    def __init__(self, kind: type[_T], name: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._name = name

    def decode(self, value: bytes) -> _T:
        """Return what is in a cell. Raises RecordCorrupt."""
        try:
            return self._decoder.decode(value)
        except msgspec.DecodeError as cause:
            raise RecordCorrupt(f"{self._name} does not decode: {cause}") from cause


DIRECTORY: Final = EntryDecoder(Directory, "the directory of a slot's blocks")
BLOCK_REFS: Final = EntryDecoder(BlockRefs, "a page of a slot's blocks")
FORMER_BLOCK_REFS: Final = EntryDecoder(FormerBlockRefs, "the list of a slot's blocks")
GROUP: Final = EntryDecoder(PageGroup, "a group of pages")
PAGE: Final = EntryDecoder(Page, "a page of rows")
WAITING: Final = EntryDecoder(WaitingIndex, "the list of what waits to be taken in")
REASON: Final = EntryDecoder(Stopped, "the reason why a partition has stopped")


def block_state_key(level: int, slot: int, number: int) -> bytes:
    return _BLOCK.pack(b"b", level, slot, number)


def directory_state_key(level: int, slot: int) -> bytes:
    return _SLOT.pack(b"d", level, slot)


def directory_page_state_key(level: int, slot: int, page: int) -> bytes:
    return _BLOCK.pack(b"s", level, slot, page)


def page_group_state_key(group: int) -> bytes:
    return _NUMBERED.pack(b"q", group)


def page_state_key(page: int) -> bytes:
    return _NUMBERED.pack(b"p", page)


def node_state_key(depth: int, prefix: int) -> bytes:
    return _SLOT.pack(b"n", depth, prefix)


def former_run_state_key(number: int) -> bytes:
    return _NUMBERED.pack(b"n", number)


def former_chunk_state_key(number: int) -> bytes:
    return _NUMBERED.pack(b"h", number)


def chunk_state_key(number: int) -> bytes:
    return _NUMBERED.pack(b"i", number)


def encode(value: Meta | Directory | BlockRefs | PageGroup | Page | WaitingIndex | Stopped) -> bytes:
    """Return the bytes of a cell."""
    return _encode(value)


def decode_meta(value: bytes) -> Meta:
    """Return where the partition stands. Raises FormatUnknown, RecordCorrupt."""
    try:
        meta = _meta.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise RecordCorrupt(f"the state of a partition does not decode: {cause}") from cause
    if meta.format != FORMAT and meta.format not in FORMER:
        raise FormatUnknown(f"state of format {meta.format}; this version reads up to {FORMAT}")
    return meta


class BufferedEntries:
    """Cells whose changes are written at the end, or never."""

    def __init__(self, state: StateEntries) -> None:
        self._state = state
        self._changed: dict[bytes, bytes | None] = {}

    def get(self, state_key: bytes) -> bytes | None:
        return self._changed[state_key] if state_key in self._changed else self._state.get(state_key)

    def put(self, state_key: bytes, value: bytes) -> None:
        self._changed[state_key] = value

    def remove(self, state_key: bytes) -> None:
        self._changed[state_key] = None

    def flush(self) -> None:
        """Write what changed."""
        for state_key, value in self._changed.items():
            if value is None:
                self._state.remove(state_key)
            else:
                self._state.put(state_key, value)
