"""A producer of single records, outside of any transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, Producer

from sidecar.errors import KafkaFailed
from sidecar.kafka.cluster import partition_count
from sidecar.kafka.config import quiet_logger
from sidecar.kafka.errors import failed, translated
from sidecar.model import ANY_PARTITION


class Written(NamedTuple):
    """Where a record lies."""

    partition: int
    offset: int
    broker_ms: int | None
    """When the broker appended it, by its own clock; None in a topic without `LogAppendTime`."""


Report = Callable[[Written | KafkaFailed], None]
"""Told what became of a record."""


class Writer:
    """Writes records; any thread may call it.

    Args:
        config: From `kafka.config`. Errors are reported and not logged, unless it has a logger.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._producer = Producer({"logger": quiet_logger(), **config})

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int = ANY_PARTITION,
        headers: Sequence[tuple[str, bytes | None]] = (),
        report: Report | None = None,
    ) -> None:
        """Put a record into the queue.

        Args:
            topic: Where to.
            key: Of the record.
            value: None is a tombstone.
            partition: The key chooses one unless it is given.
            headers: Of the record.
            report: Called from `poll` and `flush`, once.

        Raises:
            BufferError: The queue is full: poll, and try again.
            KafkaFailed: The library does not take it.
        """
        given: Any = list(headers)
        told: Any = None if report is None else partial(_tell, report)
        with translated():
            self._producer.produce(topic, value, key, partition, headers=given, on_delivery=told)

    def poll(self, timeout_s: float) -> None:
        """Call the reports that have come, waiting at most so long for the first one."""
        self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Wait at most so long until all is written, calling the reports; return how many records are not."""
        return self._producer.flush(timeout_s)

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """Return how many partitions a topic has; the producer knows all of them from then on. Raises KafkaFailed."""
        return partition_count(self._producer, topic, timeout_s)


def _tell(report: Report, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        report(failed(error))
        return
    kind, stamped_ms = message.timestamp()
    broker_ms = stamped_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None
    report(Written(message.partition() or 0, message.offset() or 0, broker_ms))
