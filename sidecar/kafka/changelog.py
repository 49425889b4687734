"""Reads committed changelog records with a separate, manually assigned consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.engine.restore import ChangelogRead
from sidecar.errors import invariant
from sidecar.kafka.log_reader import End, LogReader

SLICE_BYTES: Final = 1024 * 1024
SLICE_RECORDS_MAX: Final = 2_000


class ChangelogReader:
    """Reads any number of partitions; used by one thread."""

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._config = config
        self._topic = topic
        self._topic_id = ""
        self._assigned: dict[int, int] = {}
        """The partitions that are read, and where each began."""
        self._lost: set[int] = set()
        self._errors: dict[int, str] = {}
        self._limit = 16
        self._log = self._connected()

    def _connected(self) -> LogReader:
        log = LogReader(self._config, self._topic)
        log.learn()
        return log

    def _meet(self, topic_id: str) -> None:
        """Read the topic with this id from now on.

        The library goes on to ask the former leaders of a topic that was made anew: the new leaders' epochs are lower
        than those that it knows, so it takes them for outdated (librdkafka #4898). A new client knows nothing.
        """
        if self._topic_id and topic_id and topic_id != self._topic_id:
            places = {number: max(began, self.position(number)) for number, began in self._assigned.items()}
            self.close()
            self._log = self._connected()
            if places:
                self._log.add(places)
        self._topic_id = topic_id or self._topic_id

    def start(self, partition: int, offset: int, topic_id: str = "") -> None:
        """Read a partition from `offset` on, of the topic with this id; empty: not known."""
        invariant(
            offset >= 0, "the changelog is to be read from an offset that is none", partition=partition, offset=offset
        )
        self.stop(partition)
        self._meet(topic_id)
        self._log.add({partition: offset})
        self._assigned[partition] = offset

    def stop(self, partition: int) -> None:
        """Stop reading a partition."""
        if partition in self._assigned:
            del self._assigned[partition]
            self._errors.pop(partition, None)
            self._log.stop(partition)

    def read(self, timeout_s: float) -> dict[int, list[ChangelogRead]]:
        """Return the next slice, about SLICE_BYTES, by partition.

        Raises:
            KafkaFailed: The consumer cannot be used any more.
        """
        slices: dict[int, list[ChangelogRead]] = {}
        size = count = 0
        records, others = self._log.read_many(self._limit, timeout_s)
        for other in others:
            if isinstance(other, End):
                continue
            if other.error.fatal:
                raise other.error
            if other.partition in self._assigned:
                if other.lost:
                    self._lost.add(other.partition)
                else:
                    self._errors[other.partition] = str(other.error)
        for record in records:
            if record.partition not in self._assigned:
                continue
            key, value = record.key, record.value
            slices.setdefault(record.partition, []).append(ChangelogRead(record.offset, key, value))
            size += len(value or b"") + len(key or b"")
            count += 1
        for partition in slices:
            self._errors.pop(partition, None)
        if count:
            self._limit = max(1, min(SLICE_RECORDS_MAX, SLICE_BYTES * count // max(1, size)))
        return slices

    def take_lost(self) -> list[int]:
        """Return, once, the partitions whose position is not in the log any more."""
        lost = [each for each in self._lost if each in self._assigned]
        self._lost.clear()
        return lost

    def error_of(self, partition: int) -> str:
        """Return the library's error text if a partition cannot be read now, else empty text."""
        return self._errors.get(partition, "")

    def position(self, partition: int) -> int:
        """Return the next offset to be read; negative before the first one."""
        return self._log.position(partition)

    def close(self) -> None:
        """Close the consumer."""
        self._log.close()
