"""What travels between the parts of the query: few rows with many records in each, as bytes to Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

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


class Closing(NamedTuple):
    """A topic that refused records of a turn, which therefore takes it for closed when it runs again."""

    topic: str
    why: str
    """A `Closure`."""
    sequence: int
    """From the step on that begins here; what was committed before was decided without it."""


class StatusRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record for the status topic, of the same partition."""

    key: bytes
    value: bytes
    headers: Headers


class OutputPart(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Part of what one step of a turn sends. All parts of a step are committed together, or none is."""

    partition: int
    """Of the input topic."""
    before: int
    """Sequence of the checkpoint before the step."""
    after: int
    """And behind it."""
    next_input_offset: int
    records: list[Outgoing]
    """Fires and dead letters, in the order in which they are sent."""
    status_records: list[StatusRecord] = []
    ends: bool = True
    """It is the last part of its step."""
    last: bool = True
    """And of the turn."""
    closings: list[Closing] = []
    """What the turn took for closed beside what its state says; said with the last part of a step."""
    offset_base: int = 0
    """Of the checkpoint behind the step."""


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
    stopped: dict[int, str] = {}
    """Partition whose state cannot be read, and why."""
    late: dict[int, int] = {}
    """How many were fired so many milliseconds behind their due, in steps of LATE_STEP_MS, rounded up."""


_encode = msgspec.msgpack.Encoder().encode
_FIRST: Final = Struct(">Q")
_chunk: msgspec.msgpack.Decoder[Chunk] = msgspec.msgpack.Decoder(Chunk)
_output_part: msgspec.msgpack.Decoder[OutputPart] = msgspec.msgpack.Decoder(OutputPart)
_tally_encoder = msgspec.json.Encoder()
_tally: msgspec.json.Decoder[Tally] = msgspec.json.Decoder(Tally)


def encode_chunk(chunk: Chunk) -> bytes:
    """Return the bytes of a chunk that is not empty, its least offset first."""
    first = min(each.offset for part in (chunk.arrivals[:1], chunk.records[:1]) for each in part)
    return _FIRST.pack(first) + _encode(chunk)


def first_offset(value: bytes) -> int:
    """Return the least offset of a chunk."""
    found: int = _FIRST.unpack_from(value)[0]
    return found


def decode_chunk(value: bytes) -> Chunk:
    """Return a chunk; one of a former version begins with none of its offsets, all of which are below 2**56."""
    return _chunk.decode(value[_FIRST.size :] if value[0] == 0 else value)


def encode_output_part(part: OutputPart) -> bytes:
    return _encode(part)


def decode_output_part(value: bytes) -> OutputPart:
    return _output_part.decode(value)


def encode_tally(tally: Tally) -> str:
    return _tally_encoder.encode(tally).decode()


def decode_tally(value: str) -> Tally:
    return _tally.decode(value)


def record_bytes(record: Record) -> int:
    """Return about how many bytes a record of the input takes on its way."""
    headers = sum([len(name) + len(value or b"") for name, value in record.headers or ()])
    return len(record.key or b"") + len(record.value or b"") + headers + 100


def size_of(record: Outgoing) -> int:
    """Return about how many bytes a record takes on its way."""
    headers = sum([len(name) + len(value or b"") for name, value in record.headers])
    return len(record.key or b"") + len(record.value or b"") + headers + 200


def cut(records: Iterable[Outgoing], limit_bytes: int = CHUNK_BYTES_MAX) -> Iterator[list[Outgoing]]:
    """Cut records into lists of about this size; at least one, which may be empty."""
    part: list[Outgoing] = []
    size = 0
    for record in records:
        if size > limit_bytes:
            yield part
            part, size = [], 0
        part.append(record)
        size += size_of(record)
    yield part
