"""Reads partitions of one topic from offsets that the caller names, as no member of any group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sidecar.errors import KafkaFailed
from sidecar.kafka.cluster import partition_count
from sidecar.kafka.config import quiet_logger
from sidecar.kafka.errors import failed, translated
from sidecar.kafka.input import record_of
from sidecar.kafka.offsets import Bounds
from sidecar.kafka.poll_batch import poll_batch
from sidecar.model import Record


class End(NamedTuple):
    """All that a partition holds has been read."""

    partition: int


class Unread(NamedTuple):
    """Why nothing is read, of one partition or of all."""

    partition: int | None
    error: KafkaFailed


class Committed(NamedTuple):
    """What a group has committed for a partition."""

    offset: int
    metadata: str


class LogReader:
    """A consumer that is assigned by hand and never commits; used by one thread.

    Args:
        config: From `kafka.config`. Errors are returned and not logged, unless it has a logger.
        topic: What is read.
    """

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._consumer = Consumer({"logger": quiet_logger(), "error_cb": self._heard, **config})
        self.trouble = ""
        """The last error that passes, in the library's words."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def start(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        self._consumer.assign([TopicPartition(self._topic, each, offset) for each, offset in offsets.items()])

    def stop(self, partition: int) -> None:
        """Read this partition no more."""
        self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def read(self, limit: int, timeout_s: float) -> Iterator[Record | End | Unread]:
        """Yield what has come, at most `limit`, waiting so long for the first.

        `End` comes only with `enable.partition.eof`.

        Raises:
            KafkaFailed: The consumer cannot be used any more.
        """
        for message in poll_batch(self._consumer, limit - 1, timeout_s):
            if (error := message.error()) is None:
                yield record_of(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                yield End(message.partition() or 0)
            else:
                self._heard(error)
                yield Unread(message.partition(), failed(error))

    def partition_count(self, timeout_s: float) -> int:
        """Return how many partitions the topic has. Raises KafkaFailed."""
        return partition_count(self._consumer, self._topic, timeout_s)

    def bounds(self, partition: int, timeout_s: float) -> Bounds:
        """Return where a partition begins, and ends for this reader's isolation level. Raises KafkaFailed."""
        with translated():
            found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout_s)
        if found is None:
            raise KafkaFailed(f"no answer within {timeout_s:g} s", away=True)
        return Bounds(*found)

    def offsets_at(self, partitions: Iterable[int], at_ms: int, timeout_s: float) -> dict[int, int]:
        """Return the offset of the first record that is not older, by partition; the end's mark where there is none.

        Raises:
            KafkaFailed: They are not told.
        """
        with translated():
            found = self._consumer.offsets_for_times(
                [TopicPartition(self._topic, each, at_ms) for each in partitions], timeout_s
            )
        return {each.partition: each.offset for each in found}

    # The group

    def committed(self, partitions: Iterable[int], timeout_s: float) -> dict[int, Committed]:
        """Return what the group has committed, of partitions for which it has, once no transaction is open on them.

        Raises:
            KafkaFailed: They are not told in time, or one of them is not.
        """
        with translated():
            found = self._consumer.committed([TopicPartition(self._topic, each) for each in partitions], timeout_s)
            if (error := next((each.error for each in found if each.error is not None), None)) is not None:
                raise KafkaException(error)
        return {each.partition: Committed(each.offset, each.metadata or "") for each in found if each.offset >= 0}

    def membership(self) -> bytes:
        """Return what names the group to a transaction; it has no members."""
        named: Any = self._consumer.consumer_group_metadata()
        return bytes(named)

    def _heard(self, error: KafkaError) -> None:
        self.trouble = error.str()
