"""A producer of single records, without transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, Producer

from sidecar.errors import KafkaFailed
from sidecar.kafka.admin.cluster import partition_count
from sidecar.kafka.config import quiet_logger
from sidecar.kafka.errors import failed, translated
from sidecar.kafka.tokens import made
from sidecar.model import ANY_PARTITION


class Written(NamedTuple):
    """The location of a written record."""

    partition: int
    offset: int
    broker_ms: int | None
    """When the broker appended it, by its clock; None in a topic without `LogAppendTime`."""


Report = Callable[[Written | KafkaFailed], None]
"""Called with the result of a write."""


class Writer:
    """Writes records; may be called by any thread.

    Args:
        config: From `kafka.config`. Errors are reported and not logged, unless it has a logger.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        with translated():
            self._producer = made(Producer, {"logger": quiet_logger(), **config})

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
        """Queue a record.

        Args:
            topic: The topic to write to.
            key: Key of the record.
            value: Value of the record; None is a tombstone.
            partition: Chosen by key unless given.
            headers: Headers of the record.
            report: Called once, from `poll` or `flush`.

        Raises:
            BufferError: The queue is full: poll, and retry.
            KafkaFailed: The library refuses the record.
        """
        given: Any = list(headers)
        on_delivery: Any = None if report is None else partial(_report, report)
        with translated():
            self._producer.produce(topic, value, key, partition, headers=given, on_delivery=on_delivery)

    def poll(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for the first report, and call the available ones."""
        self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Wait at most `timeout_s` until everything is written; return the number of unwritten records."""
        return self._producer.flush(timeout_s)

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """Return the number of partitions of a topic, and refresh the producer's metadata. Raises KafkaFailed."""
        return partition_count(self._producer, topic, timeout_s)


def _report(report: Report, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        report(failed(error))
        return
    kind, stamped_ms = message.timestamp()
    broker_ms = stamped_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None
    report(Written(message.partition() or 0, message.offset() or 0, broker_ms))
