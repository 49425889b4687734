"""Moves records from the consumer into the buffer, and pauses partitions whose buffer is full."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import structlog

from sidecar.clock import Clock
from sidecar.engine.partition import Partition
from sidecar.errors import KafkaFailed
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.ports import Consumer

log = structlog.get_logger(__name__)

POLL_RECORDS: Final = 500
EXAMINE_MAX: Final = 5_000


class Fetching:
    """Polls, examines, pauses and resumes.

    Args:
        consumer: Assigns partitions paused.
        buffer: Receives what is consumed.
        clock: Gives the arrival time.
        ingests: False: the input topic is not read.
    """

    def __init__(self, consumer: Consumer, buffer: Buffer, clock: Clock, *, ingests: bool) -> None:
        self._consumer = consumer
        self._buffer = buffer
        self._clock = clock
        self._ingests = ingests
        self._fetched: set[int] = set()
        self.lag: Mapping[int, int] = {}
        """Input records that are not consumed yet, by partition, when last measured."""

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS) -> set[str]:
        """Consume at most about `records_max` records, waiting at most `timeout_s`, and examine them.

        Returns:
            The origins that must be looked up.
        """
        unresolved: set[str] = set()
        for records in self._consumer.poll(records_max, timeout_s):
            # Read after the poll: an earlier instant would put the timestamps of new records into the future.
            unresolved |= self._buffer.ingest(records, self._clock.wall_ms())
        return unresolved | self._buffer.examine(self._clock.wall_ms(), EXAMINE_MAX)

    def pause(self, partitions: Collection[int]) -> None:
        """Pause these until `adjust` resumes them."""
        self._consumer.pause(self._fetched & set(partitions))

    def drop(self, partition: int) -> None:
        """Forget a partition that was released or restarts paused."""
        self._fetched.discard(partition)

    def go_on(self, running: Iterable[Partition], closed_dlqs: Collection[str]) -> set[int]:
        """Buffer the partitions again whose DLQ is not closed any more; return those that cannot be read."""
        lost = set[int]()
        for number in {each.number for each in running} & self._buffer.blocked.keys():
            dlq, next_offset = self._buffer.blocked[number]
            if dlq in closed_dlqs:
                continue
            try:
                self._consumer.seek(number, next_offset)
            except KafkaFailed as error:
                log.warning("seek_failed", partition=number, reason=str(error))
                lost.add(number)
            else:
                self._buffer.begin(number, next_offset)
        return lost

    def adjust(self, running: Iterable[Partition], owned: Collection[int]) -> None:
        """Pause and resume partitions to match the current state."""
        wanted = self._buffer.room() & {each.number for each in running} if self._ingests else set()
        if wanted == self._fetched:
            return
        if paused := self._fetched - wanted:
            self._consumer.pause(paused & set(owned))
        if resumed := wanted - self._fetched:
            self._consumer.resume(resumed)
        self._fetched = wanted

    def measure_lag(self) -> None:
        """Update `lag` from the last known log ends."""
        self.lag = self._buffer.lags(self._consumer.end_offsets())
