"""Reads committed changelog records with a separate, manually assigned consumer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sidecar.engine.restore import ChangelogRead
from sidecar.errors import invariant
from sidecar.kafka.errors import failed, translated
from sidecar.kafka.poll_batch import poll_batch
from sidecar.kafka.tokens import made

SLICE_BYTES: Final = 1024 * 1024
SLICE_RECORDS_MAX: Final = 2_000
METADATA_S: Final = 5.0


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
        self._connect()

    def _connect(self) -> None:
        with translated():
            self._consumer = made(Consumer, self._config)
        # Of a topic that it does not know yet, the library looks for the leaders only once a second.
        self._learning = threading.Thread(target=self._learn, name="changelog", daemon=True)
        self._learning.start()

    def _meet(self, topic_id: str) -> None:
        """Read the topic with this id from now on.

        The library goes on to ask the former leaders of a topic that was made anew: the new leaders' epochs are lower
        than those that it knows, so it takes them for outdated (librdkafka #4898). A new client knows nothing.
        """
        if self._topic_id and topic_id and topic_id != self._topic_id:
            places = [
                TopicPartition(self._topic, number, max(began, self.position(number)))
                for number, began in self._assigned.items()
            ]
            self.close()
            self._connect()
            if places:
                self._consumer.incremental_assign(places)
        self._topic_id = topic_id or self._topic_id

    def _learn(self) -> None:
        with contextlib.suppress(KafkaException):  # reading shows what is wrong
            self._consumer.list_topics(self._topic, METADATA_S)

    def start(self, partition: int, offset: int, topic_id: str = "") -> None:
        """Read a partition from `offset` on, of the topic with this id; empty: not known."""
        invariant(
            offset >= 0, "the changelog is to be read from an offset that is none", partition=partition, offset=offset
        )
        self.stop(partition)
        self._meet(topic_id)
        self._consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])
        self._assigned[partition] = offset

    def stop(self, partition: int) -> None:
        """Stop reading a partition."""
        if partition in self._assigned:
            del self._assigned[partition]
            self._errors.pop(partition, None)
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def read(self, timeout_s: float) -> dict[int, list[ChangelogRead]]:
        """Return the next slice, about SLICE_BYTES, by partition.

        Raises:
            KafkaFailed: The consumer cannot be used any more.
        """
        slices: dict[int, list[ChangelogRead]] = {}
        size = count = 0
        for message in poll_batch(self._consumer, self._limit - 1, timeout_s):
            partition = message.partition() or 0
            if (error := message.error()) is not None:
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    self._lost.add(partition)
                elif error.code() == KafkaError._FATAL:
                    raise failed(error)
                elif partition in self._assigned and message.topic() == self._topic:
                    self._errors[partition] = error.str()
                continue
            if partition not in self._assigned:
                continue
            key: Any = message.key()
            value: Any = message.value()
            slices.setdefault(partition, []).append(ChangelogRead(message.offset() or 0, key, value))
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
        return self._consumer.position([TopicPartition(self._topic, partition)])[0].offset

    def close(self) -> None:
        """Close the consumer."""
        self._learning.join()
        self._consumer.close()
