"""The rows of the local store. The first byte names the kind, the next four the partition.

    t | due u64 | offset u64                     → entry          a timer; these rows sort in the order of firing
    b | slot end u64 | sequence u64 | part u16   → nothing        directory of blocks in the changelog
    v | due u64 | offset u64                     → nothing        a removed timer key
    o | offset u64 | first due u64               → due u64        stored due of a timer, iff it is not the first due
    k | lane | offset u64 | first due u64        → due u64        stored due of an ordered timer
    n | length u16 | retry id | offset | first   → due u64        timers of a retry id
    c | counter                                  → u64            see wheel/counts.py
    m                                            → Meta           one row: where the store stands
    e                                            → ms u64         one row: since when another instance has the partition

All of them are a cache of the committed changelog.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from sidecar.changelog.codec import BlockKey, Checkpoint
from sidecar.errors import FormatUnknown, RecordCorrupt
from sidecar.model import StoredOffset

FORMAT: Final = 2

KIND: Final = slice(0, 1)
BEHIND_PARTITION: Final = slice(5, None)
"""In a `t` and a `v` row this is the timer's key."""
LEADING_OFFSET: Final = slice(5, 13)
"""In an `o` row."""
NAMED_OFFSET: Final = slice(-16, -8)
"""In an `n` and a `k` row."""
LANE_BYTES: Final = 16
LANE: Final = slice(5, 5 + LANE_BYTES)
"""In a `k` row."""

_BLOCK: Final = Struct(">QQH")
_PAIR: Final = Struct(">QQ")
_DUE: Final = Struct(">Q")
_LENGTH: Final = Struct(">H")


class Identity(NamedTuple):
    """Identifies the changelog that the rows are a cache of."""

    cluster_id: str
    changelog_topic_id: str
    changelog_topic: str = ""

    def of(self, checkpoint: Checkpoint) -> Identity:
        """Return the identity of the changelog that has what a checkpoint stands for."""
        return self._replace(changelog_topic_id=checkpoint.changelog_topic_id or self.changelog_topic_id)


NOT_RESTORED: Final = -1
"""The changelog offset of rows that are of no use without others that are not there: it is outside of any log."""


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """The changelog offset that the rows of a partition reflect, and the identity of the changelog."""

    format: int
    cluster_id: str
    changelog_topic_id: str
    changelog_offset: int
    """The next changelog offset to read."""
    checkpoint: Checkpoint
    restored: bool = True
    """False during a restore: rows at or below the watermark are still in the counters."""
    to_confirm: int = -1
    """Changelog offset of the last checkpoint applied after the broker reported it as committed; -1 when it was read
    from the log."""
    changelog_topic: str = ""
    """The changelog's name."""


def lane_of(origin: str, key: bytes) -> bytes:
    """Return the digest that stands for an origin and a key in the index of lanes."""
    # No topic name has a zero byte.
    return blake2b(origin.encode() + b"\0" + key, digest_size=LANE_BYTES).digest()


class Rows:
    """Encodes and decodes the row keys of a partition."""

    __slots__ = ("block", "counter", "elsewhere", "lane", "meta", "moved", "named", "removed", "timer")

    def __init__(self, partition: int) -> None:
        number = partition.to_bytes(4, "big")
        self.timer = b"t" + number
        self.block = b"b" + number
        self.removed = b"v" + number
        self.moved = b"o" + number
        self.named = b"n" + number
        self.lane = b"k" + number
        self.counter = b"c" + number
        self.meta = b"m" + number
        self.elsewhere = b"e" + number

    def ranges(self) -> list[tuple[bytes, bytes]]:
        """Return all row ranges of the partition, to wipe it."""
        prefixes = (getattr(self, name) for name in self.__slots__)
        return [(prefix, after(prefix)) for prefix in prefixes]

    def block_row(self, key: BlockKey) -> bytes:
        return self.block + _BLOCK.pack(*key)

    def block_of(self, row: bytes) -> BlockKey:
        return BlockKey(*_BLOCK.unpack(row[BEHIND_PARTITION]))

    def removed_row(self, due_ms: int, offset: StoredOffset) -> bytes:
        return self.removed + _PAIR.pack(due_ms, offset)

    def removed_timer_of(self, row: bytes) -> tuple[int, StoredOffset]:
        """Return due and offset of a `v` row."""
        due_ms, offset = _PAIR.unpack(row[BEHIND_PARTITION])
        return due_ms, offset

    def moved_row(self, offset: StoredOffset, first_ms: int) -> bytes:
        return self.moved + _PAIR.pack(offset, first_ms)

    def named_prefix(self, retry_id: bytes) -> bytes:
        return self.named + _LENGTH.pack(len(retry_id)) + retry_id

    def named_row(self, retry_id: bytes, offset: StoredOffset, first_ms: int) -> bytes:
        return self.named_prefix(retry_id) + _PAIR.pack(offset, first_ms)

    def lane_row(self, lane: bytes, offset: int, first_ms: int = 0) -> bytes:
        """Return the row of an ordered timer; with a first due of 0, the start of the rows of the offset."""
        return self.lane + lane + _PAIR.pack(offset, first_ms)

    def lane_end(self, lane: bytes) -> bytes:
        """Return the end of the rows of a lane."""
        return self.lane + lane + b"\xff" * 8


def retry_id_of_row(row: bytes) -> bytes:
    """Return the retry id of an `n` row, or of a bound in a range of them."""
    behind = row[BEHIND_PARTITION]
    (length,) = _LENGTH.unpack_from(behind)
    return behind[_LENGTH.size : _LENGTH.size + length]


def timer_of_named_row(row: bytes) -> tuple[StoredOffset, int]:
    """Return (offset, first due) of an `n` or a `k` row."""
    offset, first_ms = _PAIR.unpack(row[-_PAIR.size :])
    return offset, first_ms


def encode_due(due_ms: int) -> bytes:
    return _DUE.pack(due_ms)


def decode_due(value: bytes) -> int:
    return int.from_bytes(value, "big")


def after(prefix: bytes) -> bytes:
    """Return the least key above all keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


_meta_encoder = msgspec.msgpack.Encoder()
_meta_decoder = msgspec.msgpack.Decoder(Meta)


def encode_meta(meta: Meta) -> bytes:
    return _meta_encoder.encode(meta)


def decode_meta(value: bytes) -> Meta:
    """Return the meta row. Raises FormatUnknown, RecordCorrupt."""
    try:
        meta = _meta_decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise RecordCorrupt(f"the meta row of a partition does not decode: {cause}") from cause
    if meta.format != FORMAT:
        raise FormatUnknown(f"rows of format {meta.format}; this version reads {FORMAT}")
    return meta


def meta_row(
    identity: Identity, checkpoint: Checkpoint, changelog_offset: int, *, restored: bool = True, to_confirm: int = -1
) -> bytes:
    """Return the meta row; it is written with every batch, so it is never ahead of the rows."""
    cluster_id, topic_id, topic = identity
    return encode_meta(Meta(FORMAT, cluster_id, topic_id, changelog_offset, checkpoint, restored, to_confirm, topic))
