"""The offsets of the streaming source, as Spark keeps them in its checkpoint, and what a micro-batch admits of a log.

A micro-batch reads from the offsets of the one before to its own. They also have the instant by which its records are
judged, so a micro-batch that Spark runs again judges alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final, NamedTuple

EARLIEST: Final = -2
"""The start of a partition, whatever it is."""
_NOW: Final = "now_ms"
_OFFSETS: Final = "offsets"


class Position(NamedTuple):
    """The end of a micro-batch."""

    offsets: Mapping[int, int]
    """The next offset by partition."""
    now_ms: int
    """The instant by which its records are judged."""


class Limits(NamedTuple):
    """The most that one micro-batch reads, about."""

    records: int
    bytes: int


def encode_position(position: Position) -> dict[str, Any]:
    """Return a position as Spark keeps it; equal ones give equal JSON."""
    offsets = {str(number): offset for number, offset in sorted(position.offsets.items())}
    return {_NOW: position.now_ms, _OFFSETS: offsets}


def decode_position(kept: Mapping[str, Any]) -> Position:
    """Return a position that Spark has kept."""
    return Position({int(number): offset for number, offset in kept[_OFFSETS].items()}, kept[_NOW])


def admitted(
    starts: Mapping[int, int], ends: Mapping[int, int], limits: Limits, bytes_each: Callable[[int, int, int], float]
) -> dict[int, int]:
    """Return where a micro-batch ends in each partition: each has the same part of what is there.

    Args:
        starts: The next offset by partition; a new partition begins at 0.
        ends: The ends of the log, none before its start.
        limits: The most that it reads.
        bytes_each: Returns about the bytes of a record, given a partition, the next offset and the end of the log; not
            asked for few records.
    """
    ahead = {number: end - starts.get(number, 0) for number, end in ends.items()}
    records = sum(ahead.values())
    if records <= limits.records and records * _LARGE_BYTES <= limits.bytes:
        return dict(ends)
    size = sum(
        count * bytes_each(number, starts.get(number, 0), ends[number]) for number, count in ahead.items() if count
    )
    part = min(1.0, limits.records / records, limits.bytes / max(size, 1.0))
    return {number: starts.get(number, 0) + min(count, ceil(count * part)) for number, count in ahead.items()}


_LARGE_BYTES: Final = 1024 * 1024
"""The size of a large record: few records are not estimated."""
