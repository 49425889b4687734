"""Writes what a micro-batch sends: one Kafka transaction for each state partition.

With the records the group's offset of each input partition is committed, and in its metadata the sequence that the turn
reached. Spark may run a micro-batch again: what was committed is recognised by it and not written twice.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.changelog.codec import Checkpoint
from sidecar.clock import SystemClock
from sidecar.contract import render_dead_letter
from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed, TransactionFailed, invariant
from sidecar.kafka import config
from sidecar.kafka.bounded import bounded
from sidecar.kafka.producer import CALL_TIMEOUT_S, Refusal, Refused, TransactionalProducer, Waits, guilty_of
from sidecar.model import ANY_PARTITION, NO_TIMESTAMP, Reason, Record
from sidecar.settings import Settings
from sidecar.spark.originals import originals
from sidecar.spark.wire import Delivery, decode_delivery

if TYPE_CHECKING:
    from pyspark.sql import Row

TRIES: Final = 8
INIT_TIMEOUT_S: Final = 40.0
"""A transaction that a killed process left open is settled by then."""
_PAUSE_S: Final = 0.5
_SEND_OFFSETS: Final = "send_offsets_to_transaction"
_OF_A_BATCH: Final = frozenset({Refusal.NAMED, Refusal.RECORD})
_MARK: Final = re.compile(r"spark ([0-9]+) ([0-9a-z-]+)")


class Mark(NamedTuple):
    """What the metadata of a committed offset says."""

    sequence: int
    checkpoint: str
    """The id of the Spark checkpoint that it was written from."""

    def __str__(self) -> str:
        return f"spark {self.sequence} {self.checkpoint}"

    @classmethod
    def parse(cls, metadata: str | None) -> Mark | None:
        """Return the mark, None for metadata that is none of ours."""
        found = _MARK.fullmatch(metadata or "")
        return None if found is None else cls(int(found[1]), found[2])


class Unfireable(NamedTuple):
    """A fire that its origin does not take."""

    said: str
    """By the broker."""
    came: Record | None
    """The message; None when the retry topic does not hold it any more."""
    offset: int | None
    """Of the message in the retry topic; None: it was in one that was deleted and made anew since."""


class MarkingProducer(TransactionalProducer):
    """A transactional producer that commits offsets with marks."""

    def send_marks(self, topic: str, marks: Mapping[int, tuple[int, Mark]], membership: object) -> None:
        """Put the offsets into the transaction, each with its mark. Raises TransactionFailed."""
        named = [TopicPartition(topic, each, offset, metadata=str(mark)) for each, (offset, mark) in marks.items()]
        group: Any = membership
        try:
            bounded(lambda: self._producer.send_offsets_to_transaction(named, group, CALL_TIMEOUT_S), _SEND_OFFSETS)
        except KafkaException as cause:
            text = f"{_SEND_OFFSETS}: {cause.args[0].str()}"
            raise TransactionFailed(text, unknown=False, replace=True) from cause


class Sender:
    """Delivers for one state partition; lives as long as its worker process, or until another one takes over."""

    def __init__(self, settings: Settings, checkpoint: str, state_partition: int) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._transactional_id = f"{settings.transactional_id_prefix}spark-{state_partition}"
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._producer: MarkingProducer | None = None
        self._batch_bytes = config.BATCH_BYTES
        # It subscribes to nothing: it only reads and names the group's offsets.
        self._group = Consumer(dict(config.input_consumer(settings)), logger=config.quiet_logger())

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Commit all of it, unless it was committed before.

        Raises:
            CommandFailed: It can not be done, and trying again does not help.
            TransactionFailed: It could not be done in several tries.
        """
        unfireable: dict[tuple[int, bytes], Unfireable] = {}
        failure: TransactionFailed | None = None
        for attempt in range(TRIES):
            try:
                self._try(deliveries, unfireable, traced=attempt > 0)
            except TransactionFailed as error:
                failure = error
                bases = {each.partition: each.offset_base for each in deliveries}
                self._learn(unfireable, bases, final=attempt >= TRIES // 2)
                self._forget_producer()
                if attempt:
                    self._pause.wait(_PAUSE_S)
            else:
                if self._batch_bytes != config.BATCH_BYTES:
                    self._batch_bytes = config.BATCH_BYTES
                    self._forget_producer()
                return
        assert failure is not None
        raise failure

    def _try(
        self, deliveries: Sequence[Delivery], unfireable: Mapping[tuple[int, bytes], Unfireable], *, traced: bool
    ) -> None:
        producer = self._ready_producer()
        waiting = self._uncommitted(deliveries)
        if not waiting:
            return
        settings = self._settings
        producer.begin()
        marks = {
            each.partition: (each.next_input_offset, Mark(each.after, self._checkpoint))
            for each in waiting
            if each.last and each.after != each.before
        }
        if marks:
            # First, as it waits for an answer: another worker may have had this state partition in between, and then
            # this producer is fenced.
            producer.send_marks(settings.input_topic, marks, self._group.consumer_group_metadata())
        for delivery in waiting:
            records = [self._replaced(delivery.partition, each, unfireable) for each in delivery.records]
            _exhaust(producer.fire(delivery.partition, records, traced=traced))
            notes = [(note.key, note.value, note.headers) for note in delivery.notes]
            _exhaust(producer.write_outcomes(settings.status_topic, delivery.partition, notes))
        if producer.refused:
            raise TransactionFailed(producer.refused[0].text, unknown=False, replace=True)
        producer.commit()

    def _ready_producer(self) -> MarkingProducer:
        if self._producer is None:
            properties = config.transactional_producer(self._settings, self._transactional_id, self._batch_bytes)
            producer = MarkingProducer({**properties, "logger": config.quiet_logger()}, self._clock)
            producer.init(INIT_TIMEOUT_S)
            self._producer = producer
        return self._producer

    def _forget_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _uncommitted(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return what is not committed yet; the producer is ready, so nobody else can be committing."""
        moved = {each.partition: each for each in deliveries if each.after != each.before}
        if not moved:
            return list(deliveries)
        marks = self._marks(moved)
        done = {number for number, each in moved.items() if self._is_done(each, marks[number])}
        return [each for each in deliveries if each.partition not in done]

    def _marks(self, partitions: Iterable[int]) -> dict[int, Mark | None]:
        asked = [TopicPartition(self._settings.input_topic, each) for each in partitions]
        try:
            found = self._group.committed(asked, CALL_TIMEOUT_S)
        except KafkaException as cause:
            text = f"the group's offsets are not known: {cause.args[0].str()}"
            raise TransactionFailed(text, unknown=False, replace=False) from cause
        return {each.partition: Mark.parse(each.metadata) if each.offset >= 0 else None for each in found}

    def _is_done(self, delivery: Delivery, mark: Mark | None) -> bool:
        if mark is None or mark.sequence == delivery.before:
            return False
        if mark.sequence < delivery.before and mark.checkpoint != self._checkpoint:
            return False  # from before the state was handed over
        if mark.sequence == delivery.after and mark.checkpoint == self._checkpoint:
            return True
        raise CommandFailed(
            f"partition {delivery.partition} of {self._settings.input_topic} was committed up to sequence "
            f"{mark.sequence} by checkpoint {mark.checkpoint}, and this micro-batch of {self._checkpoint} goes from "
            f"{delivery.before} to {delivery.after}: another query runs for this application, or the checkpoint "
            "is an old copy. Stop the other one, or go on from the newest checkpoint."
        )

    def _learn(self, unfireable: dict[tuple[int, bytes], Unfireable], bases: Mapping[int, int], *, final: bool) -> None:
        """Keep which records the broker will not have; one that nobody answers for is given up only at the end."""
        producer = self._producer
        if producer is None or not producer.refused:
            return
        guilty = {_place(each) for each in guilty_of(producer.refused, producer.spared)}
        learnt: list[Refused] = []
        for refused in producer.refused:
            if refused.why is Refusal.SILENT and not final:
                continue
            if refused.why in _OF_A_BATCH and _place(refused) not in guilty and self._batch_bytes > 1:
                self._batch_bytes = 1  # it means any one of a batch: each is a batch by itself then
                return
            if refused.outgoing.topic == self._settings.dlq_topic:
                raise CommandFailed(
                    f"{refused.outgoing.topic} (DLQ_TOPIC) can not be written: {refused.text}; "
                    "nothing goes on until it can"
                )
            learnt.append(refused)
        offsets = {_place(each): _input_offset(each, bases) for each in learnt}
        came = originals(
            self._settings, ((number, offset) for (number, _), offset in offsets.items() if offset is not None)
        )
        for each in learnt:
            said, offset = f"{each.outgoing.topic}: {each.text}", offsets[_place(each)]
            record = None if offset is None else came.get((each.partition, offset))
            unfireable[_place(each)] = Unfireable(said, record, offset)

    def _replaced(
        self, partition: int, outgoing: Outgoing, unfireable: Mapping[tuple[int, bytes], Unfireable]
    ) -> Outgoing:
        """Return a record, or the dead letter that it becomes: its turn has decided, and its topic does not take it."""
        found = unfireable.get((partition, outgoing.source)) if unfireable and outgoing.source else None
        if found is None or outgoing.topic == self._settings.dlq_topic:
            return outgoing
        came = found.came
        headers = render_dead_letter(
            outgoing.headers if came is None else came.headers,
            reason=Reason.UNFIREABLE,
            detail=found.said,
            topic=self._settings.input_topic,
            partition=partition,
            offset=found.offset,
            timestamp_ms=NO_TIMESTAMP if came is None else came.timestamp_ms,
            connector_name=self._settings.streams_app_id,
            stage="fire",
        )
        return outgoing._replace(topic=self._settings.dlq_topic, partition=ANY_PARTITION, headers=headers)


def _exhaust(waits: Waits) -> None:
    """Do all of it: this thread may wait."""
    deque(waits, maxlen=0)


def _input_offset(refused: Refused, bases: Mapping[int, int]) -> int | None:
    stored = int.from_bytes(refused.outgoing.source[8:16], "big")
    return Checkpoint(offset_base=bases[refused.partition]).input_offset(stored)


def _place(refused: Refused) -> tuple[int, bytes]:
    return refused.partition, refused.outgoing.source


_senders: dict[tuple[str, str, int], Sender] = {}


class TransactionalSink:
    """What Spark calls for each state partition of a micro-batch; rows are collected and committed at the end."""

    def __init__(self, settings: Settings, checkpoint: str) -> None:
        self._settings = settings
        self._checkpoint = checkpoint

    def open(self, partition_id: int, epoch_id: int) -> bool:  # noqa: ARG002 - Spark's signature
        self._state_partition = partition_id
        self._deliveries: list[Delivery] = []
        return True

    def process(self, row: Row) -> None:
        self._deliveries.append(decode_delivery(bytes(row["payload"])))

    def close(self, error: BaseException | None) -> None:
        """Commit. Spark ends the rows in the same way when the operator before has failed."""
        if error is not None or not self._deliveries:
            return
        whole = {each.partition for each in self._deliveries if each.last}
        invariant(
            all(each.partition in whole for each in self._deliveries),
            "the micro-batch was cut off, so nothing of it is committed",
            state_partition=self._state_partition,
        )
        key = (self._settings.bootstrap_servers, self._settings.streams_app_id, self._state_partition)
        if key not in _senders:
            _senders[key] = Sender(self._settings, self._checkpoint, self._state_partition)
        _senders[key].deliver(self._deliveries)
