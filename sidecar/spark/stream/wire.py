"""The rows that travel between the operators of the query: few rows with many records in each."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from sidecar.changelog.entry import LASTING, payload
from sidecar.engine.items import Arrival
from sidecar.engine.ports import Outgoing
from sidecar.model import Headers, Record
from sidecar.spark.open_files import OpenFiles

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
ROW_RECORDS_MAX: Final = 2_000
"""The most outgoing records of a row."""
LATE_STEP_MS: Final = 25

PlainOutgoing = tuple[str, int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int, bytes]
"""The fields of an `Outgoing`."""


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
    ahead: bool = False
    """Whether it is what the next step begins with, and the state does not have it yet."""
    release_ms: int = 0
    """The instant before which it is not sent, by the broker's clock; 0: at once."""


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
    late_ahead: dict[int, int] = {}
    """The same for what was handed out ahead, when it is sent with its plan."""
    open_files: Mapping[str, OpenFiles] = {}
    """Those of the processes of this task, with the first step of a task that counts anything."""


_encode = msgspec.msgpack.Encoder().encode
_FIRST: Final = Struct(">Q")
_LENGTHS: Final = Struct(">II")
"""In front of a row: the length of the part without its records, and the number of these."""
_ARRAY: Final = Struct(">BI")
_chunk: msgspec.msgpack.Decoder[Chunk] = msgspec.msgpack.Decoder(Chunk)
_plain: msgspec.msgpack.Decoder[list[PlainOutgoing]] = msgspec.msgpack.Decoder(list[PlainOutgoing])
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
    return _chunk.decode(value[_FIRST.size :])


class Packed(NamedTuple):
    """Outgoing records as they travel: packed one after the other, without a list around them."""

    total: int
    content: memoryview

    def plain(self) -> list[PlainOutgoing]:
        """Return the fields of each record, which cost a third less than named ones."""
        return _plain.decode(_list_of(self.total, self.content))

    def records(self) -> list[Outgoing]:
        return [Outgoing._make(each) for each in self.plain()]


def pack(records: Sequence[Outgoing]) -> Packed:
    """Return records as they travel."""
    return Packed(len(records), unframed(records))


def unframed(values: Sequence[Any]) -> memoryview:
    """Return the bytes of all values without the length of the list in front of them, which depends on the cut."""
    length = len(values)
    return memoryview(_encode(values))[1 if length < 16 else 3 if length < 65_536 else 5 :]


def _list_of(count: int, content: memoryview) -> bytes:
    return b"".join((_ARRAY.pack(0xDD, count), content))


def rows_of(part: OutputPart) -> Iterator[str]:
    """Yield the rows that a part travels in; only the last one has what ends it.

    They are text, because Spark hands binary columns to a sink in Python byte by byte, which takes three times as long.
    """
    *firsts, last = _cut(part.records) or [pack(())]
    for packed in firsts:
        yield _row(replace(part, records=[], status_records=[], closings=[], ends=False, last=False), packed)
    yield _row(replace(part, records=[]), last)


def read_row(row: str) -> tuple[OutputPart, Packed]:
    """Return a part, and apart from it its records as they came."""
    content = memoryview(a2b_base64(row))
    length, count = _LENGTHS.unpack_from(content)
    end = _LENGTHS.size + length
    return _output_part.decode(content[_LENGTHS.size : end]), Packed(count, content[end:])


def _row(part: OutputPart, packed: Packed) -> str:
    head = _encode(part)
    content = b"".join((_LENGTHS.pack(len(head), packed.total), head, packed.content))
    return b2a_base64(content, newline=False).decode("ascii")


def _cut(records: Sequence[Outgoing]) -> list[Packed]:
    """Return records in parts of at most CHUNK_BYTES_MAX, or of one record."""
    found: list[Packed] = []
    for at in range(0, len(records), ROW_RECORDS_MAX):
        found += _halved(records[at : at + ROW_RECORDS_MAX])
    return found


def _halved(records: Sequence[Outgoing]) -> list[Packed]:
    packed = pack(records)
    if len(packed.content) <= CHUNK_BYTES_MAX or packed.total == 1:
        return [packed]
    middle = packed.total // 2
    return [*_halved(records[:middle]), *_halved(records[middle:])]


def encode_tally(tally: Tally) -> str:
    return _tally_encoder.encode(tally).decode()


def decode_tally(value: str) -> Tally:
    return _tally.decode(value)


def record_of(partition: int, arrival: Arrival) -> Record:
    """Return the record that an arrival was made from."""
    _, timestamp_ms, _, _, _, _, origin_length, retry_id_length = LASTING.unpack_from(arrival.lasting)
    key, value, headers = payload(arrival.lasting, LASTING.size + origin_length + retry_id_length)
    return Record(partition, arrival.offset, timestamp_ms, key, value, headers)


def record_bytes(record: Record) -> int:
    """Return the approximate size of a record of the input in a chunk."""
    headers = sum([len(name) + len(value or b"") for name, value in record.headers or ()])
    return len(record.key or b"") + len(record.value or b"") + headers + 100
