"""Reads the whole status topic and follows it, with a separate, manually assigned consumer of committed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from sidecar.clock import Clock
from sidecar.contract.status import is_signed
from sidecar.errors import KafkaFailed
from sidecar.kafka.input import record_of
from sidecar.kafka.log_reader import End, LogReader, Unread
from sidecar.model import NO_TIMESTAMP, Record

READ_RECORDS: Final = 2_000
LOOK_EVERY_S: Final = 5.0
"""Time between two checks for added partitions."""
LOOK_AGAIN_S: Final = 0.25
"""The same after a failed check."""
LOOK_TIMEOUT_S: Final = 2.0


class StatusRead(NamedTuple):
    """One committed record of the status topic."""

    partition: int
    offset: int
    stamped_ms: int
    """By the broker's clock."""
    key: bytes
    value: bytes
    headers: Mapping[str, bytes | None]
    """The last value of each name."""
    live: bool = False
    """Whether it was written after the reader had caught up."""

    @classmethod
    def of(cls, record: Record, *, live: bool = False) -> StatusRead | None:
        """Return a record that has a key and a value, None for any other."""
        if record.key is None or record.value is None:
            return None
        headers = dict(record.headers or ())
        return cls(record.partition, record.offset, record.timestamp_ms, record.key, record.value, headers, live)

    def is_signed(self, topic: str, token: str | None) -> bool:
        """Return whether the record has a valid signature, see contract/status.py."""
        return is_signed(token, topic, self.partition, self.key, self.value, self.headers, self.stamped_ms)


class StatusReader:
    """Reads all partitions from their start, including partitions added later; used by one thread.

    Args:
        config: From `config.status_reader`.
        topic: The status topic.
        input_topic: The topic whose partitions are counted.
        clock: Schedules metadata requests.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, input_topic: str, clock: Clock) -> None:
        self._topic = topic
        self._input_topic = input_topic
        self._clock = clock
        self._log = LogReader({**config, "error_cb": self._said}, topic, _stamped)
        self._assigned: set[int] = set()
        self._read: set[int] = set()
        self._look_at_s = float("-inf")
        self.input_partitions: int | None = None
        """Number of input partitions; None while unknown."""
        self.cluster_id: str | None = None

    @property
    def error(self) -> str:
        """Why nothing can be read, for people; empty when there is no error."""
        return self._log.error

    @property
    def caught_up(self) -> bool:
        """Whether all records present at the start have been read."""
        return bool(self._assigned) and self._assigned <= self._read

    def read(self, timeout_s: float) -> list[StatusRead]:
        """Return the available records, after at most about `timeout_s` seconds, longer while the brokers are away.

        Raises:
            KafkaFailed: A new reader must take over.
        """
        if self._clock.monotonic_s() >= self._look_at_s:
            self._look()
        records: list[StatusRead] = []
        for read in self._log.read(READ_RECORDS, timeout_s):
            if isinstance(read, End):
                self._read.add(read.partition)
            elif isinstance(read, Unread):
                if read.error.fatal:
                    raise read.error
                # The partition was deleted, or may not be read: refresh the metadata soon.
                self._look_at_s = min(self._look_at_s, self._clock.monotonic_s() + LOOK_AGAIN_S)
            # A timestamp chosen by the writer is useless.
            elif read.timestamp_ms != NO_TIMESTAMP:
                found = StatusRead.of(read, live=read.partition in self._read)
                records += () if found is None else (found,)
        return records

    def close(self) -> None:
        """Close the consumer."""
        self._log.close()

    def _look(self) -> None:
        self._look_at_s = self._clock.monotonic_s() + LOOK_AGAIN_S
        try:
            status = self._partitions(self._topic)
            self.input_partitions = self._partitions(self._input_topic)
        except KafkaFailed as error:
            self._log.error = str(error)
            return
        self._log.error = ""
        self._look_at_s = self._clock.monotonic_s() + LOOK_EVERY_S
        if gone := sorted(self._assigned - set(range(status))):
            self._log.stop(*gone)
        if gained := sorted(set(range(status)) - self._assigned):
            self._log.add(dict.fromkeys(gained, OFFSET_BEGINNING))
        self._assigned = set(range(status))
        self._read &= self._assigned

    def _partitions(self, topic: str) -> int:
        metadata = self._log.metadata(topic, LOOK_TIMEOUT_S)
        self.cluster_id = metadata.cluster_id or self.cluster_id
        found = metadata.topics[topic]
        if found.error is not None:
            raise KafkaFailed(f"topic {topic}: {found.error.str()}")
        return len(found.partitions)

    def _said(self, error: KafkaError) -> None:
        self._log.note(error)


def _stamped(message: Message) -> Record:
    """Return a record, without a timestamp unless it is the broker's."""
    record = record_of(message)
    return record if message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME else record._replace(timestamp_ms=NO_TIMESTAMP)
