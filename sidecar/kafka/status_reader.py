"""Reads the whole status topic and follows it: a consumer of its own, assigned by hand, of committed records only."""

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
from sidecar.model import Record

READ_RECORDS: Final = 2_000
LOOK_EVERY_S: Final = 5.0
"""Between two looks for partitions that the topics have gained."""
LOOK_AGAIN_S: Final = 0.25
"""The same while they could not be found."""
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
    """The last of each name."""
    live: bool = False
    """It came after all that was there at the start: it was just written."""

    @classmethod
    def of(cls, record: Record, *, live: bool = False) -> StatusRead | None:
        """Return a record that has a key and a value, None for any other."""
        if record.key is None or record.value is None:
            return None
        headers = dict(record.headers or ())
        return cls(record.partition, record.offset, record.timestamp_ms, record.key, record.value, headers, live)

    def is_signed(self, topic: str, token: str | None) -> bool:
        """Return whether the record is to be trusted, see contract/status.py."""
        return is_signed(token, topic, self.partition, self.key, self.value, self.headers, self.stamped_ms)


class StatusReader:
    """Reads all partitions from where they begin, also those that the topic gains later; used by one thread.

    Args:
        config: from `config.status_reader`.
        topic: the status topic.
        input_topic: whose number of partitions is to be known.
        clock: for the looks at the metadata.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, input_topic: str, clock: Clock) -> None:
        self._topic = topic
        self._input_topic = input_topic
        self._clock = clock
        self._consumer = Consumer({**config, "error_cb": self._said})
        self._assigned: set[int] = set()
        self._read: set[int] = set()
        self._look_at_s = float("-inf")
        self.input_partitions: int | None = None
        """How many partitions the input topic has; None while that is unknown."""
        self.cluster_id: str | None = None
        self.error = ""
        """Why nothing can be read, for a person; empty when all is well."""

    @property
    def caught_up(self) -> bool:
        """Whether all that was there at the start has been read."""
        return bool(self._assigned) and self._assigned <= self._read

    def read(self, timeout_s: float) -> list[StatusRead]:
        """Return what has come, after at most about `timeout_s` seconds, longer while the brokers are away.

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
        """Let go of the consumer."""
        self._consumer.close()

    def _record(self, message: Message) -> StatusRead | None:
        # A time that the writer chose says nothing.
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
            # Not there any more, or not ours to read: ask soon what there is.
            self._said(error)
            self._look_at_s = min(self._look_at_s, self._clock.monotonic_s() + LOOK_AGAIN_S)

    def _said(self, error: KafkaError) -> None:
        self.error = error.str()
