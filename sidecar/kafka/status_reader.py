"""Reads the whole status topic and follows it, with a separate, manually assigned consumer of committed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)

from sidecar.clock import Clock
from sidecar.contract.status import is_signed
from sidecar.errors import KafkaFailed
from sidecar.kafka.errors import failed, translated
from sidecar.kafka.input import record_of
from sidecar.kafka.poll_batch import poll_batch
from sidecar.kafka.tokens import made
from sidecar.model import Record

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
        with translated():
            self._consumer = made(Consumer, {**config, "error_cb": self._said})
        self._assigned: set[int] = set()
        self._read: set[int] = set()
        self._look_at_s = float("-inf")
        self.input_partitions: int | None = None
        """Number of input partitions; None while unknown."""
        self.cluster_id: str | None = None
        self.error = ""
        """Why nothing can be read, for people; empty when there is no error."""

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
        records = []
        for message in poll_batch(self._consumer, READ_RECORDS, timeout_s):
            if (error := message.error()) is not None:
                self._failed(error, message.partition())
            elif (record := self._record(message)) is not None:
                records.append(record)
        return records

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _record(self, message: Message) -> StatusRead | None:
        # A timestamp chosen by the writer is useless.
        if message.timestamp()[0] != TIMESTAMP_LOG_APPEND_TIME:
            return None
        return StatusRead.of(record_of(message), live=message.partition() in self._read)

    def _look(self) -> None:
        self._look_at_s = self._clock.monotonic_s() + LOOK_AGAIN_S
        try:
            status = self._partitions(self._topic)
            self.input_partitions = self._partitions(self._input_topic)
        except KafkaFailed as error:
            self.error = str(error)
            return
        self.error = ""
        self._look_at_s = self._clock.monotonic_s() + LOOK_EVERY_S
        if gone := sorted(self._assigned - set(range(status))):
            self._consumer.incremental_unassign([TopicPartition(self._topic, number) for number in gone])
        if gained := sorted(set(range(status)) - self._assigned):
            begin = [TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in gained]
            self._consumer.incremental_assign(begin)
        self._assigned = set(range(status))
        self._read &= self._assigned

    def _partitions(self, topic: str) -> int:
        with translated():
            metadata = self._consumer.list_topics(topic, LOOK_TIMEOUT_S)
        self.cluster_id = metadata.cluster_id or self.cluster_id
        found = metadata.topics[topic]
        if found.error is not None:
            raise KafkaFailed(f"topic {topic}: {found.error.str()}")
        return len(found.partitions)

    def _failed(self, error: KafkaError, partition: int | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._read.add(-1 if partition is None else partition)
        elif error.fatal():
            raise failed(error)
        else:
            # The partition was deleted, or may not be read: refresh the metadata soon.
            self._said(error)
            self._look_at_s = min(self._look_at_s, self._clock.monotonic_s() + LOOK_AGAIN_S)

    def _said(self, error: KafkaError) -> None:
        self.error = error.str()
