"""A timer as bytes: encoded once at ingest, then copied unchanged (block, row, memory) until it fires.

    0        8         16           24     25     26
    ┌────────┬─────────┬────────────┬──────┬──────┐
    │ due    │ offset  │ requested  │level │flags │   changes when the timer is moved
    │ u64    │ u64     │ due u64    │ u8   │ u8   │   flags: see below
    ├────────┼─────────┼────────────┴──────┴──────┘
    26       34        42        44      46        47          51        53         55
    ├────────┬─────────┬─────────┬───────┬─────────┬───────────┬─────────┬──────────┐
    │ first  │timestamp│ attempt │ limit │ dialect │ origin    │ length  │ length of│   stays for the life
    │ due u64│ i64     │ u16     │ u16   │ u8      │ part. i32 │ of      │ retry id │   of the timer
    │        │         │         │       │         │           │ origin  │ u16      │
    ├────────┴─────┬───┴─────────┴──┬────┴─────────┴───────────┴─u16─────┴──────────┘
    │ origin UTF-8 │ retry id UTF-8 │ MessagePack [key, value, [[header, value], …]] │
    └──────────────┴────────────────┴────────────────────────────────────────────────┘

The flags are DEFERRED, HELD, ORDERED and BEHIND; ORDERED stays for the life of the timer too.

Big-endian throughout, so the first sixteen bytes are the timer's key: they sort as (due, offset). A null key, value or
header value is MessagePack nil, so it stays distinct from an empty one. A retry id of no length is none.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Final, NamedTuple, cast

import msgspec

from sidecar.errors import RecordCorrupt
from sidecar.model import ANY_PARTITION, Headers, StoredOffset

DEFERRED: Final = 1
"""A flag: the timer came due and was stored again."""
HELD: Final = 2
"""A flag besides DEFERRED: its stored due is the turn that it has under its origin's rate."""
ORDERED: Final = 4
"""A flag: the timer does not fire before an earlier one of its origin and key."""
BEHIND: Final = 8
"""A flag besides DEFERRED and ORDERED: its stored due is that of the timer that it waits behind."""

KEY: Final = Struct(">QQ")
MOVING: Final = Struct(">QQQBB")
LASTING: Final = Struct(">QqHHBiHH")
HEAD: Final = Struct(">QQQBBQqHHBiHH")

KEY_BYTES: Final = KEY.size
DUE: Final = slice(0, 8)
"""Of an entry or of a timer key, like the next. Slices, for those who cannot afford a call for each entry."""
OFFSET: Final = slice(8, 16)
FIRST_DUE: Final = slice(26, 34)
LASTING_ORIGIN_PARTITION: Final = slice(21, 25)
"""Of the part that stays, by itself."""
LEVEL_AT: Final = 24
FLAGS_AT: Final = 25
ORIGIN_LENGTH: Final = slice(51, 53)
RETRY_ID_LENGTH: Final = slice(53, 55)
NO_RETRY_ID: Final = b"\0\0"

decode_offset: Final = cast("Callable[[bytes, str], StoredOffset]", int.from_bytes)
"""From eight bytes and their order, at the cost of the built-in alone."""

encode_payload: Final = msgspec.msgpack.Encoder().encode
Payload = tuple[bytes | None, bytes | None, Headers]
_decoder: msgspec.msgpack.Decoder[Payload] = msgspec.msgpack.Decoder(Payload)
_decode_payload = _decoder.decode


class Head(NamedTuple):
    """The fixed part of an entry, in the order of its bytes."""

    due_ms: int
    """The stored due: where the timer stands in the wheel. Not below the requested one."""
    offset: StoredOffset
    requested_ms: int
    level: int
    flags: int
    first_ms: int
    """The due of the timer id."""
    timestamp_ms: int
    attempt: int
    limit: int
    dialect: int
    origin_partition: int
    origin_length: int
    retry_id_length: int


def lasting(  # noqa: PLR0917 - positional in the hot path of ingest
    first_ms: int,
    timestamp_ms: int,
    attempt: int,
    limit: int,
    dialect: int,
    origin: bytes,
    retry_id: bytes | None,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    origin_partition: int = ANY_PARTITION,
) -> bytes:
    """Return the part of an entry that stays for the life of the timer."""
    named = retry_id or b""
    return (
        LASTING.pack(first_ms, timestamp_ms, attempt, limit, dialect, origin_partition, len(origin), len(named))
        + origin
        + named
        + encode_payload((key, value, headers))
    )


def due_ms_of(entry: bytes) -> int:
    """Return the stored due of an entry or of a timer key."""
    return int.from_bytes(entry[DUE], "big")


def offset_of(entry: bytes) -> StoredOffset:
    """Return the stored offset of an entry or of a timer key."""
    return decode_offset(entry[OFFSET], "big")


def head(entry: bytes) -> Head:
    """Return the fixed part. Raises RecordCorrupt when the entry is too short for it."""
    try:
        return Head._make(HEAD.unpack_from(entry))
    except error as cause:
        raise RecordCorrupt(f"an entry of {len(entry)} bytes is too short; at least {HEAD.size} are needed") from cause


def origin_of(entry: bytes, fixed: Head) -> str:
    """Return the origin topic. Raises RecordCorrupt."""
    name = entry[HEAD.size : HEAD.size + fixed.origin_length]
    try:
        return name.decode()
    except UnicodeDecodeError as cause:
        raise RecordCorrupt(f"the origin {name!r} of an entry is not UTF-8") from cause


def retry_id_of(entry: bytes, fixed: Head) -> bytes | None:
    """Return the caller's own id, None when it gave none."""
    start = HEAD.size + fixed.origin_length
    return entry[start : start + fixed.retry_id_length] or None


def payload(entry: bytes, start: int) -> Payload:
    """Return key, value and headers; `start` is the end of the retry id. Raises RecordCorrupt."""
    try:
        return _decode_payload(entry[start:])
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise RecordCorrupt(f"the payload of an entry does not decode: {cause}") from cause


def payload_of(entry: bytes, fixed: Head) -> Payload:
    """Return key, value and headers. Raises RecordCorrupt."""
    return payload(entry, HEAD.size + fixed.origin_length + fixed.retry_id_length)


def moved(entry: bytes, *, due_ms: int, requested_ms: int, level: int, flags: int = 0) -> bytes:
    """Return the entry at another place in the wheel; `flags` is DEFERRED with what goes with it, 0 for neither."""
    flags = entry[FLAGS_AT] & ORDERED | flags
    return MOVING.pack(due_ms, offset_of(entry), requested_ms, level, flags) + entry[MOVING.size :]
