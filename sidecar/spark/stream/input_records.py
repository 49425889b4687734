"""Reads records of the retry topic again: the dead letter of a refused delivery has them as they came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from sidecar.clock import SystemClock
from sidecar.errors import KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.log_reader import LogReader
from sidecar.model import Record
from sidecar.settings import Settings

WAIT_S: Final = 10.0
"""The time for all of them: a micro-batch for an origin that is gone must not hold up the others for long."""
READ_RECORDS: Final = 500
GAP_RECORDS: Final = 5_000
"""The most other records that are read rather than skipped by a seek."""

Position = tuple[int, int]
"""The partition and offset of a record."""


def read_input_records(settings: Settings, positions: Iterable[Position]) -> dict[Position, Record]:
    """Return the records at these positions, without those that were deleted or could not be read in time."""
    wanted: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(set(positions)):
        wanted[partition].append(offset)
    found: dict[Position, Record] = {}
    until_s = SystemClock().monotonic_s() + WAIT_S
    with LogReader(config.committed_reader(settings), settings.input_topic) as reader, suppress(KafkaFailed):
        for partition, offsets in wanted.items():
            _read(reader, partition, offsets, found, until_s)
    return found


def _read(reader: LogReader, partition: int, offsets: list[int], found: dict[Position, Record], until_s: float) -> None:
    clock, left = SystemClock(), offsets[::-1]
    position: int | None = None
    while left and (left_s := until_s - clock.monotonic_s()) > 0:
        if position is None or left[-1] - position > GAP_RECORDS:
            position = left[-1]
            reader.start({partition: position})
        for read in reader.read(READ_RECORDS, min(left_s, 0.1)):
            if not isinstance(read, Record):
                left.pop()  # retention has deleted it
                position = None
                break
            while left and left[-1] < read.offset:
                left.pop()
            if left and left[-1] == read.offset:
                found[partition, read.offset] = read
                left.pop()
            position = read.offset + 1
