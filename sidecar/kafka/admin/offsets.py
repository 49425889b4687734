"""The queries of a recovery: stable committed offsets, then the bounds of the logs. Nothing here blocks."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from sidecar.kafka.errors import failed
from sidecar.kafka.tokens import made

REQUEST_TIMEOUT_S: Final = 5.0
TOGETHER_S: Final = 3.0
"""How long all partitions of a query may take together; then each is asked for by itself."""
SINGLE_S: Final = 1.0
LATE_MAX: Final = 4
"""Most partitions without an answer in one query; the rest is left for the next one."""


class Bounds(NamedTuple):
    """First offset of a log and the offset after its last, at any isolation level."""

    start: int
    end: int


class Committed(NamedTuple):
    """The committed offset of a partition."""

    offset: int
    metadata: str


def _passes(error: KafkaError) -> bool:
    """Return whether no broker answers or a transaction is open."""
    return failed(error).away or error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT


def _refusal(what: str, error: KafkaError) -> str:
    """Return the error text; empty while no broker answers or a transaction is open."""
    return "" if _passes(error) else f"{what}: {error.str()}"


class CommittedOffsets:
    """A query for the committed offsets of a group, answered only when no transaction is open on them.

    It uses a new consumer outside the group, in a separate thread because the call blocks. The admin client would not
    block, but it ends the process while a coordinator is loading (librdkafka 2.16.0), and after its coordinator went
    away it may query the old one forever (librdkafka #5511).
    """

    def __init__(self, config: Mapping[str, Any], topic: str, partitions: Sequence[int]) -> None:
        """Args:
        config: From `config.committed_reader`.
        topic: The input topic.
        partitions: Partitions of the topic.
        """
        self.errors: dict[int, str] = {}
        """Why a partition is not in the result; empty text if it only needs to wait."""
        self._group = str(config["group.id"])
        self._partitions = tuple(partitions)
        self._future: Future[list[TopicPartition]] = Future()
        wanted = [TopicPartition(topic, each) for each in partitions]
        threading.Thread(target=self._ask, args=(dict(config), wanted), name="committed", daemon=True).start()

    def _ask(self, config: dict[str, Any], wanted: list[TopicPartition]) -> None:
        try:
            with made(Consumer, config) as consumer:
                answer = _answered(consumer, wanted)
        except BaseException as failure:  # noqa: BLE001 - handed to whoever asks for the result
            self._future.set_exception(failure)
        else:
            self._future.set_result(answer)

    def done(self) -> bool:
        """Return whether `result` can be called."""
        return self._future.done()

    def result(self) -> dict[int, Committed | None]:
        """Return the offset of each partition with an answer, None where nothing was committed yet."""
        try:
            answer = self._future.result()
        except KafkaException as cause:
            said = _refusal(f"committed offsets of group {self._group}", cause.args[0])
            self.errors = dict.fromkeys(self._partitions, said)
            return {}
        offsets: dict[int, Committed | None] = {}
        for each in answer:
            if each.error is not None:
                what = f"committed offsets of group {self._group} for topic {each.topic}"
                self.errors[each.partition] = _refusal(what, each.error)
            else:
                found = Committed(each.offset, each.metadata or "")
                offsets[each.partition] = found if each.offset >= 0 else None
        for number in self._partitions:
            if number not in offsets:
                self.errors.setdefault(number, "")
        return offsets


def _answered(consumer: Consumer, wanted: list[TopicPartition]) -> list[TopicPartition]:
    """Return what is committed, or if that takes long, only the partitions on which no transaction is open.

    The library answers for all partitions or for none.
    """
    try:
        return committed_of(consumer, wanted, REQUEST_TIMEOUT_S if len(wanted) == 1 else TOGETHER_S)
    except KafkaException as cause:
        if len(wanted) == 1 or not _passes(cause.args[0]):
            raise
        late, answers = [cause], list[TopicPartition]()
    for each in random.sample(wanted, len(wanted)):  # else late ones at the front would hide the others
        try:
            answers += committed_of(consumer, [each], SINGLE_S)
        except KafkaException as cause:
            late.append(cause)
        if len(late) > LATE_MAX:
            break
    if not answers:
        raise late[-1]
    return answers


def committed_of(
    consumer: Consumer, wanted: list[TopicPartition], timeout_s: float = REQUEST_TIMEOUT_S
) -> list[TopicPartition]:
    """Return the committed offsets of the consumer's group. Raises KafkaException, with the reason if there is one."""
    try:
        return consumer.committed(wanted, timeout_s)
    except KafkaException:
        # For a group that may not be described the call only times out; the reason comes as a message.
        if (message := consumer.poll(0)) is not None and (error := message.error()) is not None:
            raise KafkaException(error) from None
        raise


class LogBounds:
    """A query for the bounds of partitions of several topics, at any isolation level."""

    def __init__(self, admin: AdminClient, partitions: Mapping[str, Sequence[int]]) -> None:
        self.errors: dict[int, str] = {}
        """As in `CommittedOffsets`, by partition number."""
        tps = [TopicPartition(topic, each) for topic, numbers in partitions.items() for each in numbers]
        ask: Any = admin.list_offsets
        spec: Any = OffsetSpec
        options = {"isolation_level": IsolationLevel.READ_UNCOMMITTED, "request_timeout": REQUEST_TIMEOUT_S}
        self._starts: dict[TopicPartition, Future[Any]] = ask({tp: spec.earliest() for tp in tps}, **options)
        self._ends: dict[TopicPartition, Future[Any]] = ask({tp: spec.latest() for tp in tps}, **options)

    def done(self) -> bool:
        """Return whether `result` can be called."""
        return all(future.done() for futures in (self._starts, self._ends) for future in futures.values())

    def result(self) -> dict[tuple[str, int], Bounds]:
        """Return bounds by (topic, partition) for those with an answer."""
        starts, ends = self._offsets(self._starts), self._offsets(self._ends)
        return {key: Bounds(start, ends[key]) for key, start in starts.items() if key in ends}

    def _offsets(self, asked: Mapping[TopicPartition, Future[Any]]) -> dict[tuple[str, int], int]:
        offsets, errors = {}, {}
        for tp, future in asked.items():
            try:
                offset = future.result().offset
            except KafkaException as cause:
                errors[tp.topic, tp.partition] = cause.args[0]
                continue
            if offset == OFFSET_INVALID:  # the library's "unknown", which it gives while a leader moves
                self.errors[tp.partition] = ""
            else:
                offsets[tp.topic, tp.partition] = offset
        for (topic, number), error in errors.items():
            what = f"bounds of topic {topic}, partition {number}"
            # If other partitions have an answer, the brokers are not away as a whole.
            self.errors[number] = f"{what}: {error.str()}" if offsets else _refusal(what, error)
        return offsets


class TopicsNow:
    """A query for the current ids of topics, which change when a topic is recreated, and for their leaders."""

    def __init__(self, admin: AdminClient, topics: Sequence[str]) -> None:
        asked: Any = admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_TIMEOUT_S)
        self._futures: Mapping[str, Future[Any]] = asked

    def done(self) -> bool:
        """Return whether there is something to say."""
        return all(future.done() for future in self._futures.values())

    def id_of(self, topic: str) -> str:
        """Return the id of a topic; empty when no broker says."""
        try:
            return str(self._futures[topic].result().topic_id)
        except KafkaException:
            return ""

    def errors(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the partitions that cannot be used, and why; empty text if they only need to wait."""
        found: dict[int, str] = {}
        for topic, future in self._futures.items():
            try:
                described = future.result()
            except KafkaException as cause:
                return dict.fromkeys(numbers, _refusal(f"id of topic {topic}", cause.args[0]))
            led = {each.id for each in described.partitions if each.leader is not None and each.leader.id >= 0}
            for number in set(numbers) - led:
                found[number] = f"partition {number} of topic {topic} has no leader"
        return found


class Brokers:
    """Asks the brokers what a restore begins with."""

    def __init__(self, admin: AdminClient, committed_reader: Mapping[str, Any]) -> None:
        """Args:
        admin: Of the cluster.
        committed_reader: From `config.committed_reader`.
        """
        self._admin = admin
        self._committed_reader = committed_reader

    def committed(self, topic: str, partitions: Sequence[int]) -> CommittedOffsets:
        """Ask what the group has committed."""
        return CommittedOffsets(self._committed_reader, topic, partitions)

    def topics(self, names: Sequence[str]) -> TopicsNow:
        """Ask for ids and leaders."""
        return TopicsNow(self._admin, names)

    def bounds(self, partitions: Mapping[str, Sequence[int]]) -> LogBounds:
        """Ask for the bounds of partitions, by topic."""
        return LogBounds(self._admin, partitions)
