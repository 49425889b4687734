"""The entries in the state of one input partition, each a small key and bytes.

    m                               → Meta            where the partition stands; each step reads and writes it
    b | level | slot u64 | n u64    → block           timers, in the bytes of a changelog block
    d | level | slot u64            → Directory       the latest blocks of a slot, and which pages name the others
    s | level | slot u64 | n u64    → BlockRefs       a page of the directory: full blocks
    q | group u64                   → PageGroup       which of 256 pages there are
    p | page u64                    → Page            rows by offset: removed timers, and stored dues of moved ones
    n | depth u8 | prefix u64       → node            part of the index of retry ids, see retry_ids.py
    w                               → WaitingIndex    which chunks of records wait for ingest
    i | number u64                  → chunk           records that wait
    x                               → Stopped         why the partition cannot go on; read apart from all else

Spark's map state has no ranges: Meta, or an entry that Meta names, names everything that must be found, and nothing is
ever iterated. What a step reads and writes whole has a bound that depends neither on the number of steps before nor on
the number of pending timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.errors import FormatUnknown, RecordCorrupt, invariant
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.wheel.counts import Counts

_SLOT: Final = Struct(">cBQ")
_BLOCK: Final = Struct(">cBQQ")
_NUMBERED: Final = Struct(">cQ")

FORMAT: Final = 5
META: Final = b"m"
INDEX: Final = b"w"
STOPPED: Final = b"x"
ROOT: Final = _SLOT.pack(b"n", 0, 0)
"""The root of the index of retry ids."""
PAGE_SHIFT: Final = 12
"""The bits of an offset within a page: a page has the rows of 4,096 offsets."""
GROUP_SHIFT: Final = 8
"""The bits of a page number within a group: 256 pages, a million offsets."""


class StoredEntries(Protocol):
    """The state of one partition, as Spark or a dict keeps it."""

    def get_all(self, state_keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of entries, None for each that does not exist, in few round trips."""
        ...

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write entries, and delete those without a value, in few round trips."""
        ...


class StateEntries(Protocol):
    """The state of one partition, as a partition step reads and writes it."""

    def get(self, state_key: bytes) -> bytes | None:
        """Return the value of an entry, None when there is none."""
        ...

    def put(self, state_key: bytes, value: bytes) -> None:
        """Write an entry."""
        ...

    def put_new(self, state_key: bytes, value: bytes) -> None:
        """Write an entry that does not exist."""
        ...

    def remove(self, state_key: bytes) -> None:
        """Delete an entry, if there is one."""
        ...

    def fetch(self, state_keys: Iterable[bytes]) -> None:
        """Read entries ahead, in few round trips: each for one `get` that follows."""
        ...


class Slot(msgspec.Struct, array_like=True):
    """A slot that has blocks."""

    level: int
    """The level of the slot that has the blocks now. A timer keeps the level that it was counted at."""
    slot: int
    next_block: int
    least_due_ms: int
    """A bound: no pending timer of the slot is due before it."""
    bytes: int = 0
    """The size of its blocks."""


class BlockRef(NamedTuple):
    """The reference to one block of a slot."""

    number: int
    least_offset: int
    greatest_offset: int
    bytes: int
    lane: int
    """0: all offsets are greater than those before, as messages arrive; 1: out of order, after a split or a move."""


BlockRefs = list[BlockRef]


class Directory(msgspec.Struct, array_like=True):
    """The blocks of one slot."""

    refs: BlockRefs
    """The blocks that are in no page, in the order in which they were written."""
    pages: list[tuple[int, int]]
    """The least and greatest offset of each page."""
    first_page: int = 0
    """The number of the first page."""
    greatest_offset: int = -1
    """The greatest offset in lane 0."""


class Meta(msgspec.Struct, array_like=True, kw_only=True):
    """The position, counts and directories of a partition."""

    format: int = FORMAT
    checkpoint: Checkpoint = msgspec.field(default_factory=lambda: Checkpoint(engine=Engine.SPARK))
    counted_slots: list[tuple[int, int, int]] = []
    """(level, slot, count), by the levels of the timers."""
    counted_origins: dict[str, int] = {}
    counted_deferred: dict[str, int] = {}
    slots: list[Slot] = []
    groups: dict[int, int] = {}
    """The groups of pages, each with the due up to which its rows matter."""
    names_swept: int = 0
    """The digits up to which the index of retry ids was swept."""
    topics: dict[str, TopicMetadata] = {}
    wakes_ms: int = 0
    """The expiry of the timer that is registered; 0: none."""
    last_step_ms: int = -1
    """The instant of the last step."""
    published_ms: int = 0
    """The instant at which counts were last published."""
    settled: bool = True
    """False until the timers of all imported blocks are counted."""
    full_names: list[tuple[int, int]] = []
    """Full nodes of the index of retry ids (depth, prefix), which wait to be spread over their children."""
    pages_swept: int = 0
    """The page up to which expired rows were removed."""
    uncounted: list[tuple[int, int]] = []
    """While not settled: level and slot of imported blocks of which some are not counted yet."""
    counted_blocks: int = 0
    """The number of counted blocks in the first of these slots."""
    ahead_ms: int = 0
    """The instant up to which the last step planned ahead: the next one begins with the same plans. 0: it did not."""
    next_topics: dict[str, TopicMetadata] = {}
    """While planned ahead: the metadata of the topics after these plans."""
    paces_ms: list[int] = []
    """The times between the last steps."""

    def counts(self) -> Counts:
        """Return the counters."""
        slots = {(level, slot): count for level, slot, count in self.counted_slots}
        return Counts(slots, self.counted_origins, self.counted_deferred)

    def count(self, counts: Counts) -> None:
        """Store the counters."""
        self.counted_slots = [(level, slot, count) for (level, slot), count in counts.slots.items()]
        self.counted_origins = counts.origins
        self.counted_deferred = counts.deferred


PageGroup = dict[int, int]
"""Page to the due up to which its rows matter."""


class ChunkRef(NamedTuple):
    """The reference to a chunk that waits."""

    first: int
    """The least offset in the chunk."""
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
    """The instant of the last try."""
    wakes_ms: int
    """The expiry of the timer that is registered."""


Page = dict[bytes, bytes]
"""A row of the store (removed or moved timer) to its value."""

_encode = msgspec.msgpack.Encoder().encode
_meta: msgspec.msgpack.Decoder[Meta] = msgspec.msgpack.Decoder(Meta)
_T = TypeVar("_T")


class EntryDecoder(Generic[_T]):
    """Decodes the entries of one kind.

    Args:
        kind: The type of their value.
        name: The name of the kind in an error.
    """

    def __init__(self, kind: type[_T], name: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._name = name

    def decode(self, value: bytes) -> _T:
        """Return the value of an entry. Raises RecordCorrupt."""
        try:
            return self._decoder.decode(value)
        except msgspec.DecodeError as cause:
            raise RecordCorrupt(f"{self._name} does not decode: {cause}") from cause


DIRECTORY: Final = EntryDecoder(Directory, "the directory of a slot's blocks")
BLOCK_REFS: Final = EntryDecoder(BlockRefs, "a page of a slot's blocks")
GROUP: Final = EntryDecoder(PageGroup, "a group of pages")
PAGE: Final = EntryDecoder(Page, "a page of rows")
WAITING: Final = EntryDecoder(WaitingIndex, "the list of records that wait for ingest")
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


def chunk_state_key(number: int) -> bytes:
    return _NUMBERED.pack(b"i", number)


def encode(value: Meta | Directory | BlockRefs | PageGroup | Page | WaitingIndex | Stopped) -> bytes:
    """Return the bytes of an entry."""
    return _encode(value)


def decode_meta(value: bytes) -> Meta:
    """Return where the partition stands. Raises FormatUnknown, RecordCorrupt."""
    try:
        meta = _meta.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise RecordCorrupt(f"the state of a partition does not decode: {cause}") from cause
    if meta.format != FORMAT:
        raise FormatUnknown(f"state of format {meta.format}; this version reads {FORMAT}")
    checkpoint = meta.checkpoint
    invariant(
        checkpoint.engine is Engine.SPARK or not checkpoint.sequence,
        "the state of a partition has a checkpoint of the other engine",
        engine=checkpoint.engine.value,
        sequence=checkpoint.sequence,
    )
    return meta


class WrittenEntries:
    """Entries that are read ahead, and written at once.

    Args:
        stored: The entries as Spark or a dict keeps them.
    """

    def __init__(self, stored: StoredEntries) -> None:
        self._stored = stored
        self._ahead: dict[bytes, bytes | None] = {}

    def buffered(self) -> BufferedEntries:
        """Return the same entries, with what was read ahead, whose changes are written at the end, or never."""
        entries = BufferedEntries(self._stored)
        entries._ahead = self._ahead  # noqa: SLF001 - of its own kind
        return entries

    def get(self, state_key: bytes) -> bytes | None:
        if state_key in self._ahead:
            return self._ahead.pop(state_key)
        return self._stored.get_all((state_key,))[0]

    def put(self, state_key: bytes, value: bytes) -> None:
        self._ahead.pop(state_key, None)
        self._stored.write({state_key: value})

    def put_new(self, state_key: bytes, value: bytes) -> None:
        self.put(state_key, value)

    def remove(self, state_key: bytes) -> None:
        self._ahead.pop(state_key, None)
        self._stored.write({state_key: None})

    def fetch(self, state_keys: Iterable[bytes]) -> None:
        wanted = [state_key for state_key in dict.fromkeys(state_keys) if state_key not in self._ahead]
        if wanted:
            self._ahead.update(zip(wanted, self._stored.get_all(wanted), strict=True))


class BufferedEntries(WrittenEntries):
    """Entries that are read ahead, and whose changes are written at the end, or never."""

    def __init__(self, stored: StoredEntries) -> None:
        super().__init__(stored)
        self._changed: dict[bytes, bytes | None] = {}
        self._new: set[bytes] = set()

    def copied(self) -> BufferedEntries:
        """Return the same entries with their changes so far; what is changed in the one is not in the other."""
        entries = BufferedEntries(self._stored)
        entries._changed, entries._new = dict(self._changed), set(self._new)
        return entries

    def get(self, state_key: bytes) -> bytes | None:
        return self._changed[state_key] if state_key in self._changed else super().get(state_key)

    def put(self, state_key: bytes, value: bytes) -> None:
        self._changed[state_key] = value

    def put_new(self, state_key: bytes, value: bytes) -> None:
        if state_key not in self._changed:
            self._new.add(state_key)
        self._changed[state_key] = value

    def remove(self, state_key: bytes) -> None:
        if state_key in self._new:
            # It was never stored.
            self._new.remove(state_key)
            del self._changed[state_key]
        else:
            self._changed[state_key] = None

    def fetch(self, state_keys: Iterable[bytes]) -> None:
        super().fetch(state_key for state_key in state_keys if state_key not in self._changed)

    def flush(self) -> None:
        """Write what changed."""
        self._stored.write(self._changed)
        self._ahead.clear()
        self._changed.clear()
        self._new.clear()
