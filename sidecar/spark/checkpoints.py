"""Reads the last checkpoint of changelog partitions, which has the mark of what the Spark engine has sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

from sidecar.changelog.codec import CHECKPOINT_KEY
from sidecar.clock import SystemClock
from sidecar.errors import KafkaFailed
from sidecar.kafka import config
from sidecar.kafka.log_reader import End, LogReader, Unread
from sidecar.model import Record
from sidecar.settings import Settings
from sidecar.spark.marks import MarkedCheckpoint, decode_marked

CALL_S: Final = 10.0
READ_RECORDS: Final = 5_000
TAIL_RECORDS: Final = 32
"""The offsets before the end of a partition that are read first; each further read takes eight times as many."""


class CheckpointReader:
    """Reads last checkpoints, up to an end that no open transaction holds back; used by one thread.

    Args:
        settings: The settings, which name the changelog.

    Raises:
        KafkaFailed: There is no token for its login.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader = LogReader(config.checkpoint_reader(settings), settings.changelog_topic)
        self._clock = SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._reader.close()

    def membership(self) -> bytes:
        """Return the metadata of the group, for a transaction."""
        return self._reader.membership()

    def last(self, partitions: Iterable[int], timeout_s: float) -> dict[int, MarkedCheckpoint]:
        """Return the last checkpoint in each partition that has one.

        Every transaction ends with a checkpoint, so this reads the end of a partition, and more only while it finds
        none.

        Args:
            partitions: Partitions of the changelog.
            timeout_s: The longest time without a record or an end.

        Raises:
            KafkaFailed: No answer in time; or a transaction stays open.
        """
        found: dict[int, MarkedCheckpoint] = {}
        bounds = {each: self._reader.bounds(each, CALL_S) for each in partitions}
        # The first read goes to the end: a checkpoint may have come since, when an open transaction has ended.
        ends, wanted, records = dict[int, int](), set(bounds), TAIL_RECORDS
        try:
            while wanted:
                starts = {each: max(bounds[each].start, ends.get(each, bounds[each].end) - records) for each in wanted}
                found |= self._read(starts, ends, timeout_s)
                # The offsets from `starts` on have been read.
                ends = starts
                wanted = {each for each in wanted if each not in found and starts[each] > bounds[each].start}
                records *= 8
        finally:
            self._reader.start({})
        return found

    def _read(
        self, starts: Mapping[int, int], ends: Mapping[int, int], timeout_s: float
    ) -> dict[int, MarkedCheckpoint]:
        """Return the last checkpoints between offsets; without a second one, up to the stable end of the log."""
        last: dict[int, MarkedCheckpoint] = {}
        unfinished, until_s = set(starts), self._clock.monotonic_s() + timeout_s
        self._reader.start(starts)
        while unfinished:
            came = list(self._reader.read(READ_RECORDS, 0.5))
            for read in came:
                if isinstance(read, Unread):
                    raise read.error
                if isinstance(read, End):
                    if not self._reader.is_held_back(read):
                        unfinished.discard(read.partition)
                    continue
                if read.offset >= ends.get(read.partition, read.offset + 1):
                    unfinished.discard(read.partition)
                elif read.key == CHECKPOINT_KEY and read.value is not None:
                    last[read.partition] = decode_marked(read.value)
            now_s = self._clock.monotonic_s()
            if any(isinstance(read, Record) for read in came):
                until_s = now_s + timeout_s
            elif unfinished and now_s > until_s:
                said = f"no stable end within {timeout_s:g} s: a transaction stays open, or no broker answers"
                raise KafkaFailed(said, away=True)
        return last
