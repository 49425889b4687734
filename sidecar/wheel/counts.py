"""Counts of pending timers per slot and origin, and of deferred ones per origin: kept by adding, never by scanning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final, TypeVar

from sidecar.errors import RecordCorrupt, invariant

SlotKey = tuple[int, int]
"""(level, slot)."""

_SLOT: Final = Struct(">cBQ")
_COUNT: Final = Struct(">Q")
_K = TypeVar("_K")


class Counts:
    """The counters of one partition. Every count is positive: what falls to zero is dropped."""

    __slots__ = ("deferred", "origins", "slots")

    def __init__(
        self,
        slots: Mapping[SlotKey, int] | None = None,
        origins: Mapping[str, int] | None = None,
        deferred: Mapping[str, int] | None = None,
    ) -> None:
        self.slots = dict(slots or {})
        self.origins = dict(origins or {})
        self.deferred = dict(deferred or {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Counts):
            return NotImplemented
        return (self.slots, self.origins, self.deferred) == (other.slots, other.origins, other.deferred)

    __hash__ = None  # type: ignore[assignment]  # two counters that change are never one key

    def __repr__(self) -> str:
        return f"Counts({self.slots!r}, {self.origins!r}, {self.deferred!r})"

    @property
    def pending(self) -> int:
        """All timers of the partition."""
        return sum(self.origins.values())

    def plus(self, delta: CountsDelta) -> Counts:
        """Return the counters with a delta added. Raises InvariantViolated when one would fall below zero."""
        return Counts(
            _added(self.slots, delta.slots, "slot"),
            _added(self.origins, delta.origins, "origin"),
            _added(self.deferred, delta.deferred, "deferred"),
        )

    def rows(self, delta: CountsDelta) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the row suffixes and values (None: deleted) of the counters that the delta touched."""
        for level, slot in delta.slots:
            yield _SLOT.pack(b"S", level, slot), _value(self.slots.get((level, slot)))
        for origin in delta.origins:
            yield b"O" + origin.encode(), _value(self.origins.get(origin))
        for origin in delta.deferred:
            yield b"D" + origin.encode(), _value(self.deferred.get(origin))

    def as_delta(self) -> CountsDelta:
        """Return the change that makes these counters from empty ones."""
        delta = CountsDelta()
        delta.slots, delta.origins, delta.deferred = dict(self.slots), dict(self.origins), dict(self.deferred)
        return delta

    def load(self, suffix: bytes, value: bytes) -> None:
        """Add one row. Raises RecordCorrupt when it is not a counter row."""
        if len(value) != _COUNT.size:
            raise RecordCorrupt(f"the counter row {suffix!r} has {len(value)} bytes")
        (count,) = _COUNT.unpack(value)
        if suffix[:1] == b"S" and len(suffix) == _SLOT.size:
            _, level, slot = _SLOT.unpack(suffix)
            self.slots[level, slot] = count
        elif suffix[:1] == b"O":
            self.origins[_origin(suffix)] = count
        elif suffix[:1] == b"D":
            self.deferred[_origin(suffix)] = count
        else:
            raise RecordCorrupt(f"the counter row {suffix!r} is of no kind that this version knows")


class CountsDelta:
    """The changes of one step to the counters."""

    __slots__ = ("deferred", "origins", "slots")

    def __init__(self) -> None:
        self.slots: dict[SlotKey, int] = {}
        self.origins: dict[str, int] = {}
        self.deferred: dict[str, int] = {}

    def add(self, slot: SlotKey, origin: str, deferred: bool, by: int) -> None:
        """Count `by` timers of one origin in one slot; negative when they leave."""
        self.slots[slot] = self.slots.get(slot, 0) + by
        self.origins[origin] = self.origins.get(origin, 0) + by
        if deferred:
            self.deferred[origin] = self.deferred.get(origin, 0) + by


def _origin(suffix: bytes) -> str:
    try:
        return suffix[1:].decode()
    except UnicodeDecodeError as cause:
        raise RecordCorrupt(f"the counter row {suffix!r} names no origin: {cause}") from cause


def _value(count: int | None) -> bytes | None:
    return None if count is None else _COUNT.pack(count)


def _added(base: Mapping[_K, int], delta: Mapping[_K, int], what: str) -> dict[_K, int]:
    total = dict(base)
    for key, by in delta.items():
        count = total.get(key, 0) + by
        invariant(count >= 0, "a counter fell below zero", counter=what, key=key, count=count)
        if count:
            total[key] = count
        else:
            total.pop(key, None)
    return total
