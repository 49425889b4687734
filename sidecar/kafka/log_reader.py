"""Reads partitions of a topic from given offsets, outside of any consumer group: the one reader of all logs.

It knows the traps of a manually assigned consumer; what bounds a wait, and what an error means, is its users' business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar.errors import KafkaFailed
from sidecar.kafka.admin.cluster import partition_count
from sidecar.kafka.admin.offsets import Bounds, Committed, committed_of
from sidecar.kafka.config import quiet_logger
from sidecar.kafka.errors import failed, translated
from sidecar.kafka.input import record_of, records_of
from sidecar.kafka.tokens import made
from sidecar.model import Record

LEADERS_S: Final = 5.0
LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
"""What says that a position is not in the log any more."""


class End(NamedTuple):
    """The end of a partition was reached, at this isolation level."""

    partition: int
    offset: int = -1
    """-1: `read_many` does not tell it."""


class Unread(NamedTuple):
    """Why a partition, or all, cannot be read."""

    partition: int | None
    error: KafkaFailed
    lost: bool = False
    """Whether the position is not in the log any more."""


class LogReader:
    """A manually assigned consumer that never commits; used by one thread.

    Args:
        config: From `kafka.config`. Errors are returned and not logged, unless it has a logger.
        topic: The topic to read; another one may be set between two reads.
        record_of: Makes the records of `read`.
    """

    def __init__(
        self, config: Mapping[str, Any], topic: str, record_of: Callable[[Message], Record] = record_of
    ) -> None:
        self.topic = topic
        self._record_of = record_of
        quiet: Mapping[str, Any] = {} if "logger" in config else {"logger": quiet_logger(), "error_cb": self.note}
        with translated():
            self._consumer = made(Consumer, {**quiet, **config})
        self._learning: threading.Thread | None = None
        self.error = ""
        """The library's text of the last transient error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        if self._learning is not None:
            self._learning.join()
        self._consumer.close()

    def learn(self) -> None:
        """Ask who leads the partitions of the topic, beside reading.

        Of a topic that it does not know yet, the library looks for the leaders only once a second. `partition_count`
        asks the same, and waits.
        """
        self._learning = threading.Thread(target=self._learn, name="leaders", daemon=True)
        self._learning.start()

    def _learn(self) -> None:
        with suppress(KafkaException):  # reading shows what is wrong
            self._consumer.list_topics(self.topic, LEADERS_S)

    def start(self, offsets: Mapping[int, int]) -> None:
        """Read only these partitions, from these offsets on."""
        self._consumer.assign(self._places(offsets))

    def add(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions too, from these offsets on."""
        self._consumer.incremental_assign(self._places(offsets))

    def _places(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self.topic, each, offset) for each, offset in offsets.items()]

    def stop(self, *partitions: int) -> None:
        """Stop reading partitions."""
        self._consumer.incremental_unassign([TopicPartition(self.topic, each) for each in partitions])

    def position(self, partition: int) -> int:
        """Return the next offset to be read; negative before the first one."""
        return self._consumer.position([TopicPartition(self.topic, partition)])[0].offset

    def poll(self, limit: int, timeout_s: float) -> list[Message]:
        """Return what `read` yields as the library has it. Raises KafkaFailed."""
        # poll() returns with the first record, consume() only with the last one.
        with translated():
            first = self._consumer.poll(timeout_s)
            return [] if first is None else [first, *self._consumer.consume(limit - 1, 0)]

    def read(self, limit: int, timeout_s: float) -> Iterator[Record | End | Unread]:
        """Yield at most `limit` available items, after waiting for the first one.

        `End` comes only with `enable.partition.eof`.

        Raises:
            KafkaFailed: The consumer cannot be used again.
        """
        for message in self.poll(limit, timeout_s):
            if (error := message.error()) is None:
                yield self._record_of(message)
            else:
                yield self._other(error, message.partition(), message.offset())

    def read_many(self, limit: int, timeout_s: float) -> tuple[list[Record], list[End | Unread]]:
        """Return what `read` yields, the records apart from all else, at less cost for each record.

        Raises:
            KafkaFailed: The consumer cannot be used again.
        """
        others: list[End | Unread] = []
        messages = self.poll(limit, timeout_s)
        records = list(records_of(messages, lambda error, partition: others.append(self._other(error, partition))))
        return records, others

    def _other(self, error: KafkaError, partition: int | None, offset: int | None = None) -> End | Unread:
        if error.code() == KafkaError._PARTITION_EOF:
            return End(partition or 0) if offset is None else End(partition or 0, offset)
        self.note(error)
        return Unread(partition, failed(error), error.code() in LOST)

    def is_held_back(self, end: End) -> bool:
        """Return whether an open transaction holds records back behind an end that `read` has just returned."""
        high = self.high_watermark(end.partition)
        return high is not None and end.offset < high

    def high_watermark(self, partition: int) -> int | None:
        """Return the end of a partition at any isolation level, as it was at the last read; None before the first."""
        known = self._consumer.get_watermark_offsets(TopicPartition(self.topic, partition), cached=True)
        return None if known is None or known[1] < 0 else known[1]

    def partition_count(self, timeout_s: float) -> int:
        """Return the number of partitions. Raises KafkaFailed."""
        return partition_count(self._consumer, self.topic, timeout_s)

    def metadata(self, topic: str, timeout_s: float) -> Any:
        """Return the library's metadata of the cluster and a topic. Raises KafkaFailed."""
        with translated():
            return self._consumer.list_topics(topic, timeout_s)

    def bounds(self, partition: int, timeout_s: float) -> Bounds:
        """Return the first offset of a partition, and its end at this isolation level. Raises KafkaFailed."""
        with translated():
            found = self._consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout_s)
        if found is None:
            raise KafkaFailed(f"{self.topic}, partition {partition}: no answer within {timeout_s:g} s", away=True)
        return Bounds(*found)

    def offsets_at(self, partitions: Iterable[int], at_ms: int, timeout_s: float) -> dict[int, int]:
        """Return the offset of the first record that is not older, by partition; the end's mark where there is none.

        Raises:
            KafkaFailed: They cannot be read.
        """
        with translated():
            found = self._consumer.offsets_for_times(
                [TopicPartition(self.topic, each, at_ms) for each in partitions], timeout_s
            )
        return {each.partition: each.offset for each in found}

    # The group

    def committed(self, partitions: Iterable[int], timeout_s: float) -> dict[int, Committed]:
        """Return the group's stable committed offsets, without partitions that have none.

        Raises:
            KafkaFailed: They, or one of them, cannot be read in time.
        """
        with translated():
            found = committed_of(self._consumer, [TopicPartition(self.topic, each) for each in partitions], timeout_s)
            if (error := next((each.error for each in found if each.error is not None), None)) is not None:
                raise KafkaException(error)
        return {each.partition: Committed(each.offset, each.metadata or "") for each in found if each.offset >= 0}

    def membership(self) -> bytes:
        """Return the metadata of the group, which has no members, for a transaction."""
        named: Any = self._consumer.consumer_group_metadata()
        return bytes(named)

    def note(self, error: KafkaError) -> None:
        """Keep the text of a transient error."""
        self.error = error.str()
