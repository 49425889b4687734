"""The rows that travel between the operators of the query: few rows with many records in each, bytes to Spark."""

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
    """Records of one input partition, checked as far as possible without the metadata of their origins."""

    arrivals: list[Arrival]
    """The messages that become timers if their origin accepts them."""
    records: list[Record]
    """All other records, as they came."""


class Closing(NamedTuple):
    """A topic that refused records of a partition step, which treats it as closed when it runs again."""

    topic: str
    why: str
    """A `Closure`."""
    sequence: int
    """The sequence from which on it holds; what was committed before was decided without it."""


class StatusRecord(msgspec.Struct, array_like=True, frozen=True):
    """A record for the same partition of the status topic."""

    key: bytes
    value: bytes
    headers: Headers


class OutputPart(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Part of what one plan sends. All parts of a plan are committed together, or none is."""

    partition: int
    """The input partition."""
    before: int
    """The sequence of the checkpoint before the plan."""
    after: int
    """The sequence of the checkpoint after the plan."""
    next_input_offset: int
    records: list[Outgoing]
    """The deliveries and dead letters, in the order in which they are sent."""
    status_records: list[StatusRecord] = []
    ends: bool = True
    """Whether it is the last part of its plan."""
    last: bool = True
    """Whether it is the last part of the partition step."""
    closings: list[Closing] = []
    """The topics that the step treated as closed beside those of its state; with the last part of a plan."""
    offset_base: int = 0
    """The offset base of the checkpoint after the plan."""


class Tally(msgspec.Struct, frozen=True):
    """The counts of one partition step, for the metrics."""

    fired: dict[str, int] = {}
    dead: dict[str, int] = {}
    deferred: dict[str, int] = {}
    stored: int = 0
    dropped: int = 0
    rejected: int = 0
    controls: int = 0
    cancelled: int = 0
    stopped: dict[int, str] = {}
    """The partitions whose state cannot be read, and why."""
    late: dict[int, int] = {}
    """Lateness in ms, rounded up to a multiple of LATE_STEP_MS, to the number of deliveries."""
    held: dict[str, int] = {}
    spent_us: dict[str, int] = {}
    """What the step's parts have taken: `read` and `write` the state, `plan`, `encode` what is sent."""
    round_trips: int = 0
    """The round trips to the state."""


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
    """Return a chunk; one of a former version begins without an offset, and all offsets are below 2**56."""
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
    """Return the approximate size of a record of the input in a chunk."""
    headers = sum([len(name) + len(value or b"") for name, value in record.headers or ()])
    return len(record.key or b"") + len(record.value or b"") + headers + 100


def size_of(record: Outgoing) -> int:
    """Return the approximate size of an outgoing record in a row."""
    headers = sum([len(name) + len(value or b"") for name, value in record.headers])
    return len(record.key or b"") + len(record.value or b"") + headers + 200


def cut(records: Iterable[Outgoing], limit_bytes: int = CHUNK_BYTES_MAX) -> Iterator[list[Outgoing]]:
    """Yield records in lists of about this size; at least one, which may be empty."""
    part: list[Outgoing] = []
    size = 0
    for record in records:
        if size > limit_bytes:
            yield part
            part, size = [], 0
        part.append(record)
        size += size_of(record)
    yield part
