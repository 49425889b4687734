"""What was consumed and is not yet in a transaction, per partition: items, and records that can not be examined yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sidecar.engine.intake import Intake
from sidecar.engine.items import Arrival, Dead, Item
from sidecar.model import Record

RECORD_BYTES: Final = 200
"""What a record takes besides what its sender put into it."""
AHEAD_MAX: Final = 2_000
"""Most records of a partition whose origins are asked for in one breath."""


@dataclass(slots=True)
class _Partition:
    records: deque[Record] = field(default_factory=deque)
    items: deque[Item] = field(default_factory=deque)
    expected: int = 0
    looked_behind: int = -1
    """Offset of the first waiting record at which the origins of those behind it were looked up."""
    bytes: int = 0
    """Of the records by their values alone, of the items by all that they carry: each as it is taken away again."""


class Held:
    """Owned by the loop. Everything in it is dropped when a partition's tenure ends."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._partitions: dict[int, _Partition] = {}

    def begin(self, partition: int, next_offset: int) -> None:
        """Hold what comes of a partition from this offset on."""
        self._partitions[partition] = _Partition(expected=next_offset)

    def drop(self, partition: int) -> None:
        """Forget a partition and all that is held of it."""
        self._partitions.pop(partition, None)

    @property
    def ready(self) -> int:
        """Items that a plan can take."""
        return sum(len(each.items) for each in self._partitions.values())

    @property
    def waits(self) -> bool:
        """Whether records wait to be examined: an answer of the broker is on its way."""
        return any(each.records for each in self._partitions.values())

    @property
    def bytes(self) -> int:
        """About how much memory all of it takes."""
        return sum(each.bytes for each in self._partitions.values())

    def lags(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return how many offsets lie between what is held and the end of the log, by partition."""
        held = self._partitions
        return {number: max(0, end - held[number].expected) for number, end in ends.items() if number in held}

    def take_in(self, records: Iterable[Record], arrived_ms: int) -> set[str]:
        """Examine records as they were consumed; return the origins that the broker must be asked for.

        Behind a record whose origin is not known its partition's records wait: they keep their order. Records of
        partitions that are not held are dropped.
        """
        unresolved: set[str] = set()
        examine, partitions = self._intake.examine, self._partitions
        for record in records:
            number, offset, _, _, _, _ = record
            held = partitions.get(number)
            if held is None or offset < held.expected:
                continue
            held.expected = offset + 1
            if not held.records:
                item = examine(record, arrived_ms)
                if type(item) is not str:
                    held.items.append(item)  # type: ignore[arg-type]  # no text here
                    held.bytes += _size(item)  # type: ignore[arg-type]  # no text here
                    continue
                unresolved.add(item)
            held.records.append(record)
            held.bytes += _size_of_record(record)
        return unresolved

    def examine(self, arrived_ms: int, limit: int) -> set[str]:
        """Examine again up to `limit` records of each partition that wait; return the origins to be asked for."""
        unresolved: set[str] = set()
        for held in self._partitions.values():
            for _ in range(min(limit, len(held.records))):
                item = self._intake.examine(held.records[0], arrived_ms)
                if isinstance(item, str):
                    unresolved.add(item)
                    unresolved |= self._look_ahead(held, arrived_ms)
                    break
                held.items.append(item)
                held.bytes += _size(item) - _size_of_record(held.records.popleft())
        return unresolved

    def _look_ahead(self, held: _Partition, arrived_ms: int) -> set[str]:
        """Return the origins that the records behind the first one will ask for, once for each first one."""
        if held.looked_behind == held.records[0].offset:
            return set()
        held.looked_behind = held.records[0].offset
        items = [self._intake.examine(record, arrived_ms) for record in islice(held.records, 1, AHEAD_MAX)]
        return {item for item in items if isinstance(item, str)}

    def batches(self, partitions: Sequence[int], limit: int, limit_bytes: int) -> Mapping[int, Sequence[Item]]:
        """Take items out for one plan: a fair share of each of these partitions."""
        waiting = [number for number in partitions if (held := self._partitions.get(number)) and held.items]
        batches: dict[int, Sequence[Item]] = {}
        for at, number in enumerate(waiting):
            share = limit // (len(waiting) - at)
            share_bytes = limit_bytes // (len(waiting) - at)
            taken, size = _take(self._partitions[number], share, share_bytes)
            batches[number] = taken
            limit -= len(taken)
            limit_bytes -= size
        return batches

    def give_back(self, left: Mapping[int, Sequence[Item]]) -> None:
        """Hold items that were taken out for a plan and are not part of it: they come first in the next one."""
        for number, items in left.items():
            held = self._partitions[number]
            held.items.extendleft(reversed(items))
            held.bytes += sum(map(_size, items))


def _take(held: _Partition, limit: int, limit_bytes: int) -> tuple[list[Item], int]:
    items = held.items
    taken: list[Item] = []
    size = 0
    if len(items) <= limit and held.bytes <= limit_bytes and not held.records:
        size, held.bytes = held.bytes, 0
        taken = list(items)
        items.clear()
        return taken, size
    while items and len(taken) < limit and (size < limit_bytes or not taken):
        item = items.popleft()
        taken.append(item)
        size += _size(item)
    held.bytes -= size
    return taken, size


def _size_of_record(record: Record) -> int:
    return RECORD_BYTES + len(record.value or b"")


def _size(item: Item) -> int:
    if type(item) is Arrival:
        return RECORD_BYTES + len(item.lasting)
    if type(item) is Dead:
        headers = sum([len(name) + len(value or b"") for name, value in item.headers])
        return RECORD_BYTES + len(item.value or b"") + len(item.key or b"") + headers
    return RECORD_BYTES
