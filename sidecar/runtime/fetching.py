"""From the consumer into the buffer: polls, examines, and fetches only partitions of which more may come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sidecar.clock import Clock
from sidecar.engine.partition import Partition
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.ports import Consumer

POLL_RECORDS: Final = 500
EXAMINE_MAX: Final = 5_000


class Fetching:
    """Owns the pauses of the consumer.

    Args:
        consumer: Its partitions come paused.
        held: What is consumed goes there.
        clock: For the time of arrival.
        ingests: False: the input topic is not read.
    """

    def __init__(self, consumer: Consumer, buffer: Buffer, clock: Clock, *, ingests: bool) -> None:
        self._consumer = consumer
        self._buffer = buffer
        self._clock = clock
        self._ingests = ingests
        self._fetched: set[int] = set()
        self.lag: Mapping[int, int] = {}
        """Input records of each partition that are not yet consumed, at the last look."""

    def poll(self, timeout_s: float) -> set[str]:
        """Consume and examine, waiting at most so long; return the origins that the broker must be asked for."""
        unresolved: set[str] = set()
        for records in self._consumer.poll(POLL_RECORDS, timeout_s):
            # Read when they are here: an instant before it would make their timestamps ones of the future.
            unresolved |= self._buffer.ingest(records, self._clock.wall_ms())
        return unresolved | self._buffer.examine(self._clock.wall_ms(), EXAMINE_MAX)

    def pause(self, partitions: Collection[int]) -> None:
        """Fetch no more of these until `adjust` says otherwise."""
        self._consumer.pause(self._fetched & set(partitions))

    def drop(self, partition: int) -> None:
        """Forget a partition: it is no longer ours, or it is paused and begins from the start."""
        self._fetched.discard(partition)

    def adjust(self, running: Iterable[Partition], owned: Collection[int]) -> None:
        """Pause and resume by what is true now, so that no pause outlives its reason."""
        wanted = self._buffer.room() & {each.number for each in running} if self._ingests else set()
        if wanted == self._fetched:
            return
        if paused := self._fetched - wanted:
            self._consumer.pause(paused & set(owned))
        if resumed := wanted - self._fetched:
            self._consumer.resume(resumed)
        self._fetched = wanted

    def measure_lag(self) -> None:
        """Measure the lag."""
        self.lag = self._buffer.lags(self._consumer.end_offsets())
