"""What travels between the parts of the query: few rows with many records in each, as bytes to Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sidecar.engine.items import Arrival
from sidecar.engine.ports import Outgoing
from sidecar.model import Headers, Record

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
LATE_STEP_MS: Final = 25


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """Records of one input partition, examined as far as they can be without asking the broker for their origins."""

    arrivals: list[Arrival]
    """Messages that become timers if their origin takes them."""
    records: list[Record]
    """All others, as they came."""


class Note(msgspec.Struct, array_like=True, frozen=True):
    """A record for the status topic, of the same partition."""

    key: bytes
    value: bytes
    headers: Headers


class Delivery(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Part of what one turn of one partition sends. All parts are committed together, or none is."""

    partition: int
    """Of the input topic."""
    before: int
    """Sequence of the checkpoint before the turn."""
    after: int
    """And behind it."""
    next_input_offset: int
    records: list[Outgoing]
    """Fires and dead letters, in the order in which they are sent."""
    notes: list[Note] = []
    last: bool = True
    offset_base: int = 0
    """Of the checkpoint behind the turn."""


class Tally(msgspec.Struct, frozen=True):
    """What one turn did, for the metrics."""

    fired: dict[str, int] = {}
    dead: dict[str, int] = {}
    deferred: dict[str, int] = {}
    stored: int = 0
    dropped: int = 0
    rejected: int = 0
    controls: int = 0
    cancelled: int = 0
    late: dict[int, int] = {}
    """How many were fired so many milliseconds behind their due, in steps of LATE_STEP_MS, rounded up."""


_encode = msgspec.msgpack.Encoder().encode
_chunk: msgspec.msgpack.Decoder[Chunk] = msgspec.msgpack.Decoder(Chunk)
_delivery: msgspec.msgpack.Decoder[Delivery] = msgspec.msgpack.Decoder(Delivery)
_tally_encoder = msgspec.json.Encoder()
_tally: msgspec.json.Decoder[Tally] = msgspec.json.Decoder(Tally)


def encode_chunk(chunk: Chunk) -> bytes:
    return _encode(chunk)


def decode_chunk(value: bytes) -> Chunk:
    return _chunk.decode(value)


def encode_delivery(delivery: Delivery) -> bytes:
    return _encode(delivery)


def decode_delivery(value: bytes) -> Delivery:
    return _delivery.decode(value)


def encode_tally(tally: Tally) -> str:
    return _tally_encoder.encode(tally).decode()


def decode_tally(value: str) -> Tally:
    return _tally.decode(value)


def cut(records: Iterable[Outgoing], limit_bytes: int = CHUNK_BYTES_MAX) -> Iterator[list[Outgoing]]:
    """Cut records into lists of about this size; at least one, which may be empty."""
    part: list[Outgoing] = []
    size = 0
    for record in records:
        if size > limit_bytes:
            yield part
            part, size = [], 0
        part.append(record)
        size += len(record.key or b"") + len(record.value or b"") + 200
    yield part
