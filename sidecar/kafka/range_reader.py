"""Reads ranges of offsets, one after the other, outside of any consumer group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message

from sidecar.clock import Clock, SystemClock
from sidecar.errors import CommandFailed, KafkaFailed
from sidecar.kafka.errors import failed
from sidecar.kafka.input import records_of
from sidecar.kafka.log_reader import LOST, LogReader
from sidecar.model import Record

SLICE_RECORDS: Final = 2_000
STALL_S: Final = 60.0
POLL_S: Final = 0.5
CALL_S: Final = 10.0


class Range(NamedTuple):
    """The offsets of a partition from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int


class RangeReader:
    """A consumer for one range at a time; used by one thread.

    It stops by position: aborted records, transaction markers and compacted records are offsets without a record. The
    end of a range must not lie behind the last stable offset.

    Args:
        config: From `kafka.config.range_reader`.
        clock: The clock of the waits.
        stall_s: The longest wait without a record, an end or a definite error.
    """

    def __init__(self, config: Mapping[str, Any], clock: Clock | None = None, *, stall_s: float = STALL_S) -> None:
        self._clock = clock or SystemClock()
        self._stall_s = stall_s
        self._log = LogReader(config, "")
        self._known: set[str] = set()
        self._reads = 0

    def close(self) -> None:
        """Close the consumer."""
        self._log.close()

    def read(
        self, wanted: Range, *, skips_deleted: bool = False, slice_records: int = SLICE_RECORDS
    ) -> Iterator[Iterable[Record]]:
        """Yield the records of a range in slices; a slice is iterated before the next one is asked for.

        Args:
            wanted: The range.
            skips_deleted: Whether records that retention has deleted are left out. Otherwise they are an error.
            slice_records: The most records of a slice.

        Raises:
            CommandFailed: Records were deleted before they were read, or the log ends before the range does.
            KafkaFailed: The broker refuses, or there is nothing new for `stall_s`.
        """
        at, until_s = wanted.start, self._clock.monotonic_s() + self._stall_s
        self._reads += 1
        this = self._reads
        self._start(wanted, at)
        try:
            while at < wanted.end:
                messages = self._log.poll(slice_records, POLL_S)
                seen = _Tail(wanted)
                while messages and seen.takes(messages[-1]):
                    messages.pop()
                progressed = bool(messages)
                if messages:
                    at = (messages[-1].offset() or 0) + 1
                    yield records_of(messages, self._raise)
                if seen.error is not None:
                    self._raise(seen.error)
                reached = max(at, seen.at)
                if seen.lost:
                    reached = self._after_loss(wanted, at, skips_deleted=skips_deleted)
                progressed, at = progressed or reached > at, reached
                if not progressed:
                    self._require_time(wanted, at, until_s)
                    continue
                until_s = self._clock.monotonic_s() + self._stall_s
        finally:
            # One that was abandoned may be closed when another range is being read.
            if this == self._reads:
                self._log.start({})

    def _start(self, wanted: Range, at: int) -> None:
        self._log.topic = wanted.topic
        if wanted.topic not in self._known:
            self._log.partition_count(CALL_S)  # asks who leads them, see `LogReader.learn`
            self._known.add(wanted.topic)
        self._log.start({wanted.partition: at})

    def _require_time(self, wanted: Range, at: int, until_s: float) -> None:
        if self._clock.monotonic_s() > until_s:
            said = f", the last error: {self._log.error}" if self._log.error else ""
            raise KafkaFailed(
                f"{wanted.topic}, partition {wanted.partition}: nothing came for {self._stall_s:g} s from offset {at} "
                f"on, of the range that ends at {wanted.end}{said}",
                away=True,
            )

    def _after_loss(self, wanted: Range, at: int, *, skips_deleted: bool) -> int:
        """Return where to go on when the log does not have an offset any more. Raises CommandFailed."""
        first, end = self._log.bounds(wanted.partition, CALL_S)
        if at > end:
            raise CommandFailed(
                f"{wanted.topic}, partition {wanted.partition}: offset {at} is to be read, and the log ends at {end}: "
                "the topic was deleted and created again, or a broker has lost records"
            )
        if at < first and not skips_deleted:
            raise CommandFailed(
                f"{wanted.topic}, partition {wanted.partition}: offset {at} is to be read, and the first one kept is "
                f"{first}: retention has deleted the records in between before they were read. Give the topic a longer "
                "retention (retention.ms, retention.bytes) than the longest outage"
            )
        at = max(at, first)
        if at < wanted.end:
            self._start(wanted, at)
        return at

    def _raise(self, error: KafkaError, _partition: int | None = None) -> None:
        """Raise a definite error, and remember another one. Raises KafkaFailed."""
        found = failed(error)
        if found.fatal or found.denied:
            raise found
        self._log.note(error)


class _Tail:
    """What follows the last record of a range in a batch of messages."""

    def __init__(self, wanted: Range) -> None:
        self._wanted = wanted
        self.at = -1
        """The position that was reached without a record."""
        self.lost = False
        self.error: KafkaError | None = None

    def takes(self, message: Message) -> bool:
        """Note an error, the end of the log, or a record behind the range; return whether it was one."""
        error = message.error()
        if error is None:
            behind = (message.offset() or 0) >= self._wanted.end
            if behind:
                self.at = self._wanted.end
            return behind
        if (message.topic(), message.partition()) not in {(self._wanted.topic, self._wanted.partition), (None, -1)}:
            return True  # of a former range
        if error.code() == KafkaError._PARTITION_EOF:
            self.at = max(self.at, min(message.offset() or 0, self._wanted.end))
        elif error.code() in LOST:
            self.lost = True
        else:
            self.error = error
        return True
