"""The keys and values of the three kinds of changelog records.

Key, by kind (big-endian; the first byte names the kind):

    checkpoint   ┌───┐
                 │'c'│
    block        ├───┼───────────────┬──────────────┬──────────┐
                 │'b'│ slot end u64  │ sequence u64 │ part u16 │
    removed      ├───┼───────────────┼──────────────┼──────────┘
                 │'r'│ offset u64    │ due u64      │
                 └───┴───────────────┴──────────────┘
Value, whatever the kind (a tombstone has none):

    ┌────────────┬───────────────────────┬──────┐
    │ version u8 │ CRC-32 of the body u32│ body │
    └────────────┴───────────────────────┴──────┘
Body of a checkpoint: MessagePack array, the fields of `Checkpoint` in their order; the Spark engine adds its mark.
Body of a block (n entries of k origins):

    ┌──────────┬───────┬───────┬──────────────────────────────────────────────┬──────────────────┬─────────────┐
    │ level u8 │ n u32 │ k u16 │ k × (length u16, origin, count u32,          │ n × length u32   │ n × entry   │
    │          │       │       │      of these deferred u32)                  │                  │             │
    └──────────┴───────┴───────┴──────────────────────────────────────────────┴──────────────────┴─────────────┘
Body of a removed record: empty. Its key names a timer key that is no longer pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from struct import Struct, error, pack, unpack_from
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from sidecar.changelog.entry import HEAD
from sidecar.errors import FormatUnknown, RecordCorrupt, invariant
from sidecar.model import StoredOffset

VERSION: Final = 1
BLOCK_BYTES_MAX: Final = 512 * 1024
FORMER_ASSIGNMENTS_MAX: Final = 16
REBUILT_FROM_MAX: Final = 16

CHECKPOINT_KEY: Final = b"c"
_BLOCK_KEY: Final = Struct(">cQQH")
_REMOVED_KEY: Final = Struct(">cQQ")
_FRAME: Final = Struct(">BI")
_BLOCK_HEAD: Final = Struct(">BIH")
_ORIGIN_LENGTH: Final = Struct(">H")
_ORIGIN_COUNTS: Final = Struct(">II")


class Engine(StrEnum):
    """The engine that wrote a checkpoint: the other never continues from it without a handover."""

    EMBEDDED = "embedded"
    SPARK = "spark"


class Closure(StrEnum):
    """The reason why an origin is not open."""

    PAUSED = "paused"
    UNAUTHORISED = "unauthorised"
    VANISHED = "vanished"
    UNREACHABLE = "unreachable"


class Closed(msgspec.Struct, frozen=True, array_like=True):
    """An origin that is not open, and since when (epoch ms)."""

    why: Closure
    since_ms: int


class NextTurn(msgspec.Struct, frozen=True, array_like=True):
    """The next turn of an origin that has a rate, and the time between two of them (nanoseconds, from the epoch)."""

    next_ns: int
    every_ns: int

    def behind(self, now_ms: int) -> int:
        """Return how many timers are held: each one has taken a turn that is still to come."""
        return max(0, -(-(self.next_ns - now_ms * 1_000_000) // self.every_ns) - 1)


class Unfinished(msgspec.Struct, frozen=True, array_like=True):
    """A control record in progress: it acts on more timers than one transaction may."""

    control_offset: int
    acted: int = 0
    skipped: int = 0
    """Not fired, because their origin is not open."""
    dead: int = 0
    """The number of those acted on that went to the DLQ."""
    seen_offset: int = -1
    """With `seen_first_ms` the id of the last timer that was looked at; ids rise. -1: none."""
    seen_first_ms: int = -1


class Acted(msgspec.Struct, frozen=True, array_like=True):
    """A command that a partition has acted on, and its outcome: see engine/repeats.py."""

    control_id: bytes
    """A digest of it."""
    command: bytes
    """A digest of what it asks for."""
    until_ms: int
    """How long it is remembered."""
    outcome: str
    timers: int
    """As in the outcome."""


class FormerAssignment(msgspec.Struct, frozen=True, array_like=True):
    """An assignment that is over."""

    number: int
    last_sequence: int
    """Of its last committed checkpoint."""


class FormerChangelog(msgspec.Struct, frozen=True, array_like=True):
    """A changelog that is gone, whose rows were written to the present one."""

    topic_id: str
    next_offset: int
    """Of the first record that those rows may lack."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """The state of a partition after one transaction; the last one in the log holds."""

    engine: Engine = Engine.EMBEDDED
    sequence: int = 0
    """Increases by one with every committed transaction of the partition, across owners."""
    watermark_ms: int = 0
    watermark_offset: int = 0
    """No timer with a key (due, offset) at or below the watermark is pending."""
    next_input_offset: int = 0
    """In the topic of `input_topic_id`, as Kafka counts."""
    highest_input_offset: int = 0
    """The greatest next_input_offset ever in this topic: a record below it has been seen before."""
    input_topic_id: str = ""
    wall_ms: int = 0
    closed: Mapping[str, Closed] = {}
    unfinished: Unfinished | None = None
    """The control record at `next_input_offset`, when it is partly done."""
    offset_base: int = 0
    """Added to an offset of this topic to get its stored offset: those of all former topics lie below."""
    has_fired: bool = False
    """Whether the partition has ever fired anything."""
    turns: Mapping[str, NextTurn] = {}
    """The next turn of each origin that has a rate, where that is not over."""
    assignment: int = 0
    """Random number of the assignment that wrote it; 0: none has."""
    former: tuple[FormerAssignment, ...] = ()
    """The assignments before it that committed something, oldest first, at most FORMER_ASSIGNMENTS_MAX."""
    stopped: bool = False
    """Whether the pause of all origins in `closed` is a stop."""
    acted: tuple[Acted, ...] = ()
    """The latest commands that the partition has acted on, oldest first."""
    changelog_topic_id: str = ""
    """The changelog that has everything up to here, as far as its writer knew; empty: not noted. In one that was made
    anew under a running instance, the first checkpoints name the former topic."""
    rebuilt_from: tuple[FormerChangelog, ...] = ()
    """The changelogs from whose rows this one was written again, oldest first, at most REBUILT_FROM_MAX."""

    @property
    def fired_to_ms(self) -> int | None:
        """Everything due up to here has fired; None before the first fire. The watermark moves before it too."""
        return self.watermark_ms if self.has_fired else None

    def assigned(self, number: int) -> Checkpoint:
        """Return the checkpoint that a new assignment continues from.

        Args:
            number: Of the assignment; not used before.
        """
        former = self.former
        if self.assignment:
            former = (*former, FormerAssignment(self.assignment, self.sequence))[-FORMER_ASSIGNMENTS_MAX:]
        return msgspec.structs.replace(self, assignment=number, former=former)

    def follows(self, earlier: Checkpoint) -> bool:
        """Return whether another checkpoint is proven to have been committed before this one, or to be it.

        An assignment continues from what it read in the log, and names its predecessor and how far that had come. Of
        an assignment that had come to a sequence, everything up to it was committed.
        """
        if self == earlier:
            return True
        lasts = {each.number: each.last_sequence for each in self.former} | {self.assignment: self.sequence}
        return bool(earlier.assignment) and earlier.sequence <= lasts.get(earlier.assignment, -1)

    def rebuilt(self, topic_id: str, former_id: str, next_offset: int) -> Checkpoint:
        """Return this checkpoint as the first one of a changelog that is written again from rows.

        Args:
            topic_id: Of the changelog that is written.
            former_id: Of the changelog that the rows are of; it can be the same one.
            next_offset: Of the first record in it that the rows may lack.
        """
        ends = {each.topic_id: each.next_offset for each in self.rebuilt_from}
        if former_id != topic_id:
            ends[former_id] = max(next_offset, ends.pop(former_id, 0))
        latest = tuple(FormerChangelog(*each) for each in ends.items())[-REBUILT_FROM_MAX:]
        return msgspec.structs.replace(self, changelog_topic_id=topic_id, rebuilt_from=latest)

    def has(self, topic_id: str, next_offset: int) -> bool:
        """Return whether it has what a former changelog had below an offset."""
        return any(each.topic_id == topic_id and next_offset <= each.next_offset for each in self.rebuilt_from)

    def stored_offset(self, input_offset: int) -> StoredOffset:
        """Return the stored offset of timers, from an offset in the input topic."""
        return StoredOffset(self.offset_base + input_offset)

    def input_offset(self, stored_offset: StoredOffset) -> int | None:
        """Return the offset of a timer's record in the input topic; None when it was in a former topic."""
        return stored_offset - self.offset_base if stored_offset >= self.offset_base else None

    def meets(self, topic_id: str) -> bool:
        """Return whether its input offsets belong to the topic with this id."""
        return self.input_topic_id in {"", topic_id}

    def offsets_meant(self, offset: int) -> tuple[StoredOffset, ...]:
        """Return the stored offsets that a timer id may speak of, the likelier one first.

        Ids that the sidecar gave have the stored offset. Who made one from a delivery report has an input offset.
        """
        given = StoredOffset(offset)
        return (given, self.stored_offset(offset)) if self.offset_base else (given,)

    def of_topic(self, topic_id: str, start: int) -> Checkpoint:
        """Return the checkpoint to continue from with the current input topic.

        A recreated topic counts from 0 again. Its records get stored offsets above all former ones, so that none is
        mistaken for a timer, a removed record or a tie at the watermark of a former topic.

        Args:
            topic_id: The current id of the topic.
            start: First offset of the log, where reading a recreated topic begins.
        """
        if self.meets(topic_id):
            return msgspec.structs.replace(self, input_topic_id=topic_id)
        return msgspec.structs.replace(
            self,
            next_input_offset=start,
            highest_input_offset=start,
            input_topic_id=topic_id,
            unfinished=None,
            offset_base=self.stored_offset(self.highest_input_offset),
        )


class BlockKey(NamedTuple):
    """`part` counts all blocks of one slot end in the transaction, whatever their level."""

    slot_end_ms: int
    sequence: int
    part: int


class RemovedKey(NamedTuple):
    """The key of a timer that is no longer pending."""

    offset: StoredOffset
    due_ms: int


class Block(NamedTuple):
    """The timers that one transaction stores in one slot."""

    level: int
    origins: Mapping[str, tuple[int, int]]
    """Per origin: how many entries, and how many of these are deferred."""
    entries: Sequence[bytes]


class BlockHead(NamedTuple):
    """A block without its entries, and where they are in the record's value."""

    level: int
    origins: Mapping[str, tuple[int, int]]
    """As in `Block`."""
    lengths: Sequence[int]
    """Of each entry, in bytes; at least its fixed part."""
    entries_at: int
    """Where the first one begins; the last one ends with the value."""


AnyCheckpoint = TypeVar("AnyCheckpoint", bound=Checkpoint)

_checkpoint_encoder = msgspec.msgpack.Encoder()
_checkpoint_decoder = msgspec.msgpack.Decoder(Checkpoint)


def block_key(key: BlockKey) -> bytes:
    """Return the record key of a block."""
    return _BLOCK_KEY.pack(b"b", *key)


def removed_key(offset: StoredOffset, due_ms: int) -> bytes:
    """Return the record key of a removed timer key."""
    return _REMOVED_KEY.pack(b"r", offset, due_ms)


def decode_key(key: bytes | None) -> BlockKey | RemovedKey | None:
    """Return what a record key names, None for the checkpoint. Raises FormatUnknown."""
    if key == CHECKPOINT_KEY:
        return None
    if key and key[:1] == b"b" and len(key) == _BLOCK_KEY.size:
        return BlockKey(*_BLOCK_KEY.unpack(key)[1:])
    if key and key[:1] == b"r" and len(key) == _REMOVED_KEY.size:
        return RemovedKey(*_REMOVED_KEY.unpack(key)[1:])
    raise FormatUnknown(f"the key {key!r} is of no kind that this version knows")


def _framed(body: bytes) -> bytes:
    return _FRAME.pack(VERSION, crc32(body)) + body


def _body(value: bytes) -> memoryview:
    if not value:
        raise RecordCorrupt("the value is empty")
    if value[0] != VERSION:
        raise FormatUnknown(f"format version {value[0]}; this version reads {VERSION}: run the version that wrote it")
    if len(value) < _FRAME.size:
        raise RecordCorrupt(f"{len(value)} bytes are too short for a value")
    body = memoryview(value)[_FRAME.size :]
    if crc32(body) != _FRAME.unpack_from(value)[1]:
        raise RecordCorrupt("the checksum does not match")
    return body


REMOVED: Final = _framed(b"")
"""The record value of a removed timer key."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the record value of a checkpoint."""
    least = min(
        checkpoint.sequence,
        checkpoint.watermark_ms,
        checkpoint.watermark_offset,
        checkpoint.next_input_offset,
        checkpoint.highest_input_offset,
        checkpoint.offset_base,
    )
    invariant(least >= 0, "a checkpoint has a negative offset, time or sequence", checkpoint=checkpoint)
    return _framed(_checkpoint_encoder.encode(checkpoint))


def decode_checkpoint(value: bytes) -> Checkpoint:
    """Return the checkpoint. Raises FormatUnknown, RecordCorrupt."""
    return decode_checkpoint_as(value, _checkpoint_decoder)


def decode_checkpoint_as(value: bytes, decoder: msgspec.msgpack.Decoder[AnyCheckpoint]) -> AnyCheckpoint:
    """Return the checkpoint with what an engine adds to it. Raises FormatUnknown, RecordCorrupt.

    Args:
        value: The record's value.
        decoder: Of a kind of `Checkpoint` that has more fields behind the others.
    """
    try:
        return decoder.decode(_body(value))
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise RecordCorrupt(f"the checkpoint does not decode: {cause}") from cause


def check_removed(value: bytes) -> None:
    """Raise FormatUnknown or RecordCorrupt unless it is the record value of a removed timer key."""
    if body := _body(value):
        raise RecordCorrupt(f"{len(body)} bytes in a removed record, which says all in its key")


def encode_block(level: int, origins: Mapping[str, tuple[int, int]], entries: Sequence[bytes]) -> bytes:
    """Return the record value of a block."""
    invariant(bool(entries), "a block has no timers", level=level)
    counted = sum([count for count, _ in origins.values()])
    invariant(
        counted == len(entries),
        "a block counts other timers than it has",
        level=level,
        counted=counted,
        timers=len(entries),
    )
    more = [name for name, (count, deferred) in origins.items() if deferred > count]
    invariant(not more, "a block counts more deferred timers than timers", level=level, origins=more[:3])
    parts = [_BLOCK_HEAD.pack(level, len(entries), len(origins))]
    for origin, counts in origins.items():
        name = origin.encode()
        parts += (_ORIGIN_LENGTH.pack(len(name)), name, _ORIGIN_COUNTS.pack(*counts))
    parts.append(pack(f">{len(entries)}I", *map(len, entries)))
    parts += entries
    return _framed(b"".join(parts))


def decode_block_head(value: bytes) -> BlockHead:
    """Return everything of a block but its entries. Raises FormatUnknown, RecordCorrupt."""
    body = _body(value)
    try:
        level, count, origin_count = _BLOCK_HEAD.unpack_from(body)
        at = _BLOCK_HEAD.size
        origins: dict[str, tuple[int, int]] = {}
        for _ in range(origin_count):
            (length,) = _ORIGIN_LENGTH.unpack_from(body, at)
            at += _ORIGIN_LENGTH.size
            name = str(body[at : at + length], "utf-8")
            at += length
            origins[name] = _ORIGIN_COUNTS.unpack_from(body, at)
            at += _ORIGIN_COUNTS.size
        lengths = unpack_from(f">{count}I", body, at)
    except (error, UnicodeDecodeError) as cause:
        raise RecordCorrupt(f"the head of a block does not decode: {cause}") from cause
    at += 4 * count
    if at + sum(lengths) != len(body):
        raise RecordCorrupt(f"a block of {len(body)} bytes has entries of {sum(lengths)} bytes behind {at}")
    if count and min(lengths) < HEAD.size:
        raise RecordCorrupt(f"an entry of {min(lengths)} bytes is too short; at least {HEAD.size} are needed")
    return BlockHead(level, origins, lengths, _FRAME.size + at)


def entries_of(value: bytes, head: BlockHead) -> list[bytes]:
    """Return the entries of a block with this head."""
    at = head.entries_at
    entries = []
    for length in head.lengths:
        entries.append(value[at : at + length])
        at += length
    return entries


def decode_block(value: bytes) -> Block:
    """Return the block. Raises FormatUnknown, RecordCorrupt."""
    head = decode_block_head(value)
    return Block(head.level, head.origins, entries_of(value, head))
