"""What a reset asks the broker: stable committed offsets, then the bounds of the logs. Nothing here blocks."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

REQUEST_TIMEOUT_S: Final = 5.0


class Bounds(NamedTuple):
    """First offset of a log, and one more than its last, whatever the isolation."""

    start: int
    end: int


class CommittedOffsets:
    """One question for the committed offsets of a group, answered only when no transaction is open on them.

    A consumer that is no member asks, made for this question, in a thread of its own because it waits. The admin
    client could ask without: but while a coordinator is loading it ends the process (librdkafka 2.16.0), and one that
    saw its coordinator go away may ask the one that is gone for ever (librdkafka #5511).
    """

    def __init__(self, config: Mapping[str, Any], topic: str, partitions: Sequence[int]) -> None:
        """Args:
        config: From `config.committed_reader`.
        topic: The input topic.
        partitions: Of it.
        """
        self._future: Future[list[TopicPartition]] = Future()
        wanted = [TopicPartition(topic, each) for each in partitions]
        threading.Thread(target=self._ask, args=(dict(config), wanted), name="committed", daemon=True).start()

    def _ask(self, config: dict[str, Any], wanted: list[TopicPartition]) -> None:
        try:
            with Consumer(config) as consumer:
                answer = consumer.committed(wanted, REQUEST_TIMEOUT_S)
        except BaseException as failure:  # noqa: BLE001 - handed to whoever asks for the result
            self._future.set_exception(failure)
        else:
            self._future.set_result(answer)

    def done(self) -> bool:
        """Return whether `result` has something to say."""
        return self._future.done()

    def result(self) -> dict[int, int | None] | None:
        """Return offset by partition (None: nothing was committed yet); None as a whole when it must be asked again."""
        try:
            answer = self._future.result()
        except KafkaException:
            return None
        offsets: dict[int, int | None] = {}
        for each in answer:
            if each.error is not None:
                return None
            offsets[each.partition] = each.offset if each.offset >= 0 else None
        return offsets


class LogBounds:
    """One question for the bounds of partitions of several topics, seen by nobody's isolation level."""

    def __init__(self, admin: AdminClient, partitions: Mapping[str, Sequence[int]]) -> None:
        tps = [TopicPartition(topic, each) for topic, numbers in partitions.items() for each in numbers]
        ask: Any = admin.list_offsets
        spec: Any = OffsetSpec
        options = {"isolation_level": IsolationLevel.READ_UNCOMMITTED, "request_timeout": REQUEST_TIMEOUT_S}
        self._starts: dict[TopicPartition, Future[Any]] = ask({tp: spec.earliest() for tp in tps}, **options)
        self._ends: dict[TopicPartition, Future[Any]] = ask({tp: spec.latest() for tp in tps}, **options)

    def done(self) -> bool:
        """Return whether `result` has something to say."""
        return all(future.done() for futures in (self._starts, self._ends) for future in futures.values())

    def result(self) -> dict[tuple[str, int], Bounds] | None:
        """Return bounds by (topic, partition); None when it must be asked again."""
        try:
            starts = {(tp.topic, tp.partition): future.result().offset for tp, future in self._starts.items()}
            ends = {(tp.topic, tp.partition): future.result().offset for tp, future in self._ends.items()}
        except KafkaException:
            return None
        return {key: Bounds(start, ends[key]) for key, start in starts.items()}


class TopicId:
    """One question for the id that a topic has now: one that was deleted and made anew has another."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        answers = admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S)
        self._future: Future[Any] = answers[topic]

    def done(self) -> bool:
        """Return whether `result` has something to say."""
        return self._future.done()

    def result(self) -> str | None:
        """Return the id; None when it must be asked again."""
        try:
            return str(self._future.result().topic_id)
        except KafkaException:
            return None
