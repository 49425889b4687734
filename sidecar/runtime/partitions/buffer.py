"""Buffers, per partition, what was consumed and is not in a transaction yet: items, and records not examined yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Dead, Item, Ordered
from sidecar.errors import invariant
from sidecar.model import Record

BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
"""At this size no partition is fetched."""
BUFFER_ITEMS_MAX: Final = 50_000
"""The same, by number."""
AMPLE_BYTES: Final = BUFFER_BYTES_MAX * 3 // 4
AMPLE_ITEMS: Final = BUFFER_ITEMS_MAX * 4 // 5
"""From here on the buffer is ample for some transactions."""
WAITING_BYTES_MAX: Final = BUFFER_BYTES_MAX // 2
"""How much of it may be records that cannot be examined yet: an equal share for each partition."""
RECORD_BYTES: Final = 200
"""Memory of a record besides its content."""
HEADER_BYTES: Final = 160
"""Memory of a header's objects, besides its text."""
AHEAD_MAX: Final = 2_000
"""Most waiting records of a partition whose origins are looked up together."""


class _Packed(NamedTuple):
    """A record or dead letter as bytes: its headers would take many times as much memory as objects."""

    offset: int
    data: bytes
    headers: int
    """Number of headers."""


class Blocked(NamedTuple):
    """A partition that waits for a DLQ: nothing of it is buffered or fetched."""

    dlq: str
    next_offset: int
    """It goes on with this record."""


class _Waiting(NamedTuple):
    """A record that cannot be examined yet, or an item behind one."""

    origin: str
    """The origin to look up; empty for an item, which only keeps its place in the order."""
    what: Item | _Packed


@dataclass(slots=True)
class _PartitionBuffer:
    items: list[Item | _Packed] = field(default_factory=list)
    waiting: deque[_Waiting] = field(default_factory=deque)
    expected: int = 0
    packed: int = 0
    """Dead letters among the items."""
    bytes: int = 0
    waiting_bytes: int = 0
    """The part of `bytes` that waits."""
    asked_ahead: int = -1
    """Offset of the first waiting record when the origins behind it were last looked up."""


_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_dead = msgspec.msgpack.Decoder(Dead).decode


class Buffer:
    """The buffers of all partitions; owned by the loop. A partition's buffer is dropped when its assignment ends."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        self._partitions: dict[int, _PartitionBuffer] = {}
        self.blocked: dict[int, Blocked] = {}
        """Partitions that are buffered again when their DLQ may be tried."""

    def begin(self, partition: int, next_offset: int) -> None:
        """Start to buffer a partition at an offset."""
        invariant(partition not in self._partitions, "a partition is buffered twice", partition=partition)
        self.blocked.pop(partition, None)
        self._partitions[partition] = _PartitionBuffer(expected=next_offset)

    def drop(self, partition: int) -> None:
        """Forget a partition and its buffer."""
        self._partitions.pop(partition, None)
        self.blocked.pop(partition, None)

    def block(self, partition: int, dlq: str, next_offset: int) -> None:
        """Drop what is buffered of a partition whose next record must go to a closed DLQ, until `begin`.

        However much of it there is, it takes no room from the other partitions.
        """
        self.drop(partition)
        self.blocked[partition] = Blocked(dlq, next_offset)

    @property
    def ready(self) -> int:
        """How many items a plan can take."""
        return sum(len(each.items) for each in self._partitions.values())

    def ready_of(self, partition: int) -> int:
        """Return how many items of a partition a plan can take."""
        buffer = self._partitions.get(partition)
        return 0 if buffer is None else len(buffer.items)

    @property
    def waits(self) -> bool:
        """Whether records wait for the lookup of their origin."""
        return any(each.waiting for each in self._partitions.values())

    @property
    def bytes(self) -> int:
        """Estimated memory of all buffers."""
        return sum(each.bytes for each in self._partitions.values())

    @property
    def ample(self) -> bool:
        """Whether the next transactions are buffered, so that records can wait in the client library."""
        return self.bytes > AMPLE_BYTES or self.ready > AMPLE_ITEMS

    def room(self) -> set[int]:
        """Return the partitions that may be fetched; one that waits for a lookup does not stop the others."""
        if self.bytes > BUFFER_BYTES_MAX or self.ready > BUFFER_ITEMS_MAX:
            return set()
        share = WAITING_BYTES_MAX // max(1, len(self._partitions))
        return {number for number, buffer in self._partitions.items() if buffer.waiting_bytes <= share}

    def lags(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return the number of offsets between the buffer and the end of the log, by partition."""
        nexts = {number: each.next_offset for number, each in self.blocked.items()}
        nexts.update((number, each.expected) for number, each in self._partitions.items())
        return {number: max(0, end - nexts[number]) for number, end in ends.items() if number in nexts}

    def ingest(self, records: Iterable[Record], arrived_ms: int) -> set[str]:
        """Examine consumed records; return the origins that must be looked up.

        Records behind one with an unknown origin wait, to keep the order of the partition. Records of partitions
        without a buffer are dropped.
        """
        unresolved: set[str] = set()
        examine, partitions = self._ingest.examine, self._partitions
        if (plain := self._ingest.plain) is not None:
            # Up to the next record that is not plain, None at the end.
            records = iter(partial(plain.take, iter(records), partitions, arrived_ms, RECORD_BYTES), None)
        for record in records:
            number, offset, _, _, _, _ = record
            buffer = partitions.get(number)
            if buffer is None or offset < buffer.expected:
                continue
            buffer.expected = offset + 1
            item = examine(record, arrived_ms)
            if type(item) is Arrival and not buffer.waiting:
                buffer.items.append(item)
                buffer.bytes += RECORD_BYTES + len(item.lasting)
            elif type(item) is str:
                unresolved.add(item)
                _wait(buffer, _Waiting(item, _packed(record)))
            elif buffer.waiting:
                _wait(buffer, _Waiting("", _compact(item)))  # type: ignore[arg-type]  # no text here
            else:
                _append(buffer, _compact(item))  # type: ignore[arg-type]  # no text here
        return unresolved

    def examine(self, arrived_ms: int, limit: int) -> set[str]:
        """Examine up to `limit` waiting records of each partition; return the origins that must be looked up."""
        unresolved: set[str] = set()
        for buffer in self._partitions.values():
            for _ in range(min(limit, len(buffer.waiting))):
                origin, what = buffer.waiting[0]
                if origin:
                    assert type(what) is _Packed
                    item = self._examine(origin, what, arrived_ms)
                    if isinstance(item, str):
                        unresolved.add(item)
                        unresolved |= _origins_ahead(buffer)
                        break
                    _promote(buffer, _compact(item))
                else:
                    _promote(buffer, what)
        return unresolved

    def _examine(self, origin: str, packed: _Packed, arrived_ms: int) -> Item | str:
        if not self._ingest.knows(origin):
            return origin
        return self._ingest.examine(_decode_record(packed.data), arrived_ms)

    def batches(self, partitions: Sequence[int], limit: int, limit_bytes: int) -> Mapping[int, Sequence[Item]]:
        """Take items out for one plan: a fair share of each partition."""
        waiting = [number for number in partitions if (buffer := self._partitions.get(number)) and buffer.items]
        batches: dict[int, Sequence[Item]] = {}
        for at, number in enumerate(waiting):
            if batches and limit_bytes <= 0:
                break  # a record with very many headers used it up: the others come first in the next plans
            share = limit // (len(waiting) - at)
            share_bytes = limit_bytes // (len(waiting) - at)
            taken, size = _take(self._partitions[number], share, share_bytes)
            _check_taken(number, self._partitions[number], taken)
            batches[number] = taken
            limit -= len(taken)
            limit_bytes -= size
        return batches

    def put_back(self, left: Mapping[int, Sequence[Item]]) -> None:
        """Put back items that a plan left over; they come first in the next one."""
        for number, items in left.items():
            buffer = self._partitions[number]
            invariant(
                not buffer.items or items[-1].offset < buffer.items[0].offset,
                "messages are put back behind later ones",
                partition=number,
                offset=items[-1].offset,
                first=buffer.items[0].offset if buffer.items else None,
            )
            compact = [_compact(item) for item in items]
            buffer.items[:0] = compact
            buffer.bytes += sum(map(_size, compact))
            buffer.packed += sum(type(item) is _Packed for item in compact)


def _append(buffer: _PartitionBuffer, item: Item | _Packed) -> None:
    buffer.items.append(item)
    buffer.bytes += _size(item)
    buffer.packed += type(item) is _Packed


def _wait(buffer: _PartitionBuffer, waiting: _Waiting) -> None:
    buffer.waiting.append(waiting)
    size = _size(waiting.what)
    buffer.bytes += size
    buffer.waiting_bytes += size


def _promote(buffer: _PartitionBuffer, item: Item | _Packed) -> None:
    """Replace the first waiting record by its item."""
    size = _size(buffer.waiting.popleft().what)
    buffer.bytes -= size
    buffer.waiting_bytes -= size
    _append(buffer, item)


def _origins_ahead(buffer: _PartitionBuffer) -> set[str]:
    """Return the origins of the records behind the first waiting one, once for each first one."""
    first = buffer.waiting[0].what.offset
    if buffer.asked_ahead == first:
        return set()
    buffer.asked_ahead = first
    return {each.origin for each in islice(buffer.waiting, AHEAD_MAX) if each.origin}


def _take(buffer: _PartitionBuffer, limit: int, limit_bytes: int) -> tuple[list[Item], int]:
    items = buffer.items
    if len(items) <= limit and buffer.bytes <= limit_bytes and not buffer.waiting and not buffer.packed:
        size, buffer.bytes, buffer.items = buffer.bytes, 0, []
        return items, size  # type: ignore[return-value]  # none is packed
    taken: list[Item] = []
    weight = 0
    for held in islice(items, limit):
        if taken and weight >= limit_bytes:
            break
        size = _size(held)
        buffer.bytes -= size
        weight += size
        if type(held) is _Packed:
            buffer.packed -= 1
            weight += HEADER_BYTES * held.headers
            taken.append(_decode_dead(held.data))
        else:
            taken.append(held)  # type: ignore[arg-type]  # it is not packed
    del items[: len(taken)]
    return taken, weight


def _check_taken(number: int, buffer: _PartitionBuffer, taken: Sequence[Item]) -> None:
    """Raise InvariantViolated if a batch is out of order, or the buffer has lost count of its size."""
    first, last = (taken[0].offset, taken[-1].offset) if taken else (0, -1)
    invariant(
        last - first >= len(taken) - 1,
        "a batch is not in the order of its offsets",
        partition=number,
        first=first,
        last=last,
        messages=len(taken),
    )
    left = len(buffer.items) + len(buffer.waiting)
    invariant(
        0 <= buffer.waiting_bytes <= buffer.bytes
        and 0 <= buffer.packed <= len(buffer.items)
        and bool(left) == bool(buffer.bytes),
        "a buffer has lost count of its size",
        partition=number,
        messages=left,
        bytes=buffer.bytes,
        waiting_bytes=buffer.waiting_bytes,
        dead_letters=buffer.packed,
    )


def _packed(what: Record | Dead) -> _Packed:
    return _Packed(what.offset, _encode(what), len(what.headers or ()))


def _compact(item: Item) -> Item | _Packed:
    return _packed(item) if type(item) is Dead else item


def _size(item: Item | _Packed) -> int:
    if type(item) is Ordered:
        return RECORD_BYTES + len(item.arrival.lasting)
    if type(item) is Arrival:
        return RECORD_BYTES + len(item.lasting)
    if type(item) is _Packed:
        return RECORD_BYTES + len(item.data)
    return RECORD_BYTES
