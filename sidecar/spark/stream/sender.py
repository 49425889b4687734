"""Sends whole plans of one state partition, each once: in Kafka transactions with marks.

A transaction commits the records with a checkpoint for the changelog of each input partition, whose mark says how far
the partition step got and has a digest of what it sent. When Spark runs a micro-batch again, the sender recognises what
was committed by the one, checks it against the other, and does not write it twice. The group's offsets are committed
too, for lag tools; nothing reads them back.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, Closure, Engine, encode_checkpoint
from sidecar.changelog.entry import offset_of
from sidecar.clock import SystemClock
from sidecar.contract import fit_dead_letter, render_dead_letter
from sidecar.engine.ports import Outgoing
from sidecar.errors import KafkaFailed, TransactionFailed
from sidecar.kafka import config
from sidecar.kafka.bounded import bounded
from sidecar.kafka.producer import Refusal, Refused, TransactionalProducer, Waits, rejected_of
from sidecar.kafka.writer import Writer
from sidecar.model import ANY_PARTITION, NO_TIMESTAMP, Reason, Record
from sidecar.settings import Settings
from sidecar.spark.checkpoints import CheckpointReader
from sidecar.spark.marks import Mark, MarkedCheckpoint, TopicsRefuse
from sidecar.spark.stream.input_records import read_input_records
from sidecar.spark.stream.lookup import BrokerLookup
from sidecar.spark.stream.outputs import PlanOutput
from sidecar.spark.stream.progress import Progress

TRIES: Final = 8
INIT_TIMEOUT_S: Final = 40.0
"""The time within which a transaction that a killed process left open is settled."""
STABLE_S: Final = 15.0
"""The longest wait for the end of the changelog, which a transaction of another program holds back while it is open."""
STATUS_S: Final = 5.0
_PAUSE_S: Final = 0.5
_CLOSURES: Final[Mapping[Refusal, Closure]] = {
    Refusal.DENIED: Closure.UNAUTHORISED,
    Refusal.GONE: Closure.VANISHED,
    Refusal.SILENT: Closure.UNREACHABLE,
}


class Unfireable(NamedTuple):
    """A delivery that its origin refuses."""

    topic: str
    reason: Reason
    said: str
    """The broker's reason."""
    came: Record | None
    """The message; None when the retry topic does not have it any more."""
    offset: int | None
    """The offset in the retry topic; None: the message was in a former topic of this name."""
    bare: bool = False
    """Whether the DLQ accepts only its coordinates and the reason."""


class Sender:
    """Sends for one state partition; lives as long as its worker process.

    Args:
        settings: The settings of its clients.
        checkpoint: The id of the Spark checkpoint.
        state_partition: The state partition, which gives it its transactional id.
        siblings: The input partitions of this state partition.
    """

    def __init__(self, settings: Settings, checkpoint: str, state_partition: int, siblings: Iterable[int]) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._transactional_id = transactional_id(settings, state_partition)
        self._siblings = frozenset(siblings)
        self._writer = uuid.uuid4().hex[:8]
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._producer: TransactionalProducer | None = None
        self._status: Writer | None = None
        self._lookup: BrokerLookup | None = None
        self._batch_bytes = config.BATCH_BYTES
        self._reader = CheckpointReader(settings)
        self._standing: dict[int, MarkedCheckpoint] = {}
        """The last checkpoints in the changelog, as long as the producer is not fenced."""

    def deliver(self, batch: int, outputs: Sequence[PlanOutput], former: str = "") -> None:
        """Commit all outputs in one transaction, except those that were committed before.

        Args:
            batch: The micro-batch.
            outputs: Whole outputs, in order.
            former: The version that began the micro-batch, if it was another one.

        Raises:
            CommandFailed: The outputs contradict what was committed; another try does not help.
            TopicsRefuse: Some topics refuse records: the micro-batch has to be decided again, with these closed.
            TransactionFailed: All tries failed.
        """
        if not any(output.moves for output in outputs):
            self._publish(outputs)
            return
        unfireable: dict[tuple[int, bytes], Unfireable] = {}
        failure: TransactionFailed | None = None
        for attempt in range(TRIES):
            try:
                self._try(batch, outputs, unfireable, former, traced=attempt > 0)
            except TransactionFailed as error:
                failure = error
                try:
                    self._handle_refusals(outputs, unfireable, attempt)
                finally:
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
        self,
        batch: int,
        outputs: Sequence[PlanOutput],
        unfireable: Mapping[tuple[int, bytes], Unfireable],
        former: str,
        *,
        traced: bool,
    ) -> None:
        producer = self._ready(outputs)
        progress = Progress(self._settings, self._checkpoint)
        waiting, passed = list[PlanOutput](), list[PlanOutput]()
        for output in outputs:
            mark = self._standing[output.partition].mark
            if not progress.is_sent(batch, output, self._standing[output.partition], former):
                waiting.append(output)
            elif output.last and mark is not None and mark.batch != batch:
                # Sent ahead as a whole: its counts were not, and from here on the mark is the one of this micro-batch.
                passed.append(output)
        if waiting or passed:
            self._write(batch, waiting, producer, unfireable, traced=traced, passed=passed)

    def _write(
        self,
        batch: int,
        outputs: Sequence[PlanOutput],
        producer: TransactionalProducer,
        unfireable: Mapping[tuple[int, bytes], Unfireable],
        *,
        traced: bool,
        passed: Sequence[PlanOutput] = (),
    ) -> None:
        """Commit outputs, and of those that are sent already the marks and status records."""
        moving = [*passed, *(output for output in outputs if output.moves)]
        marked = {
            output.partition: replace(
                self._standing[output.partition], engine=Engine.SPARK, mark=self._mark(batch, output)
            )
            for output in moving
        }
        # Whatever ends the call, what is known is true or nothing is.
        known, self._standing = self._standing, {}
        self._commit(outputs, moving, marked, producer, unfireable, traced=traced, passed=passed)
        self._standing = {**known, **marked}

    def _commit(
        self,
        outputs: Sequence[PlanOutput],
        moving: Sequence[PlanOutput],
        marked: Mapping[int, MarkedCheckpoint],
        producer: TransactionalProducer,
        unfireable: Mapping[tuple[int, bytes], Unfireable],
        *,
        traced: bool,
        passed: Sequence[PlanOutput],
    ) -> None:
        producer.begin()
        if moving:
            # First, because it waits for an answer: when another worker had this state partition in between, this
            # producer is fenced.
            topic, membership = self._settings.input_topic, self._reader.membership()
            offsets = {output.partition: output.next_input_offset for output in moving}
            bounded(lambda: producer.send_offsets(topic, offsets, membership), "send_offsets_to_transaction")
        for number, checkpoint in marked.items():
            record = CHECKPOINT_KEY, encode_checkpoint(checkpoint)
            _exhaust(producer.write_changelog(self._settings.changelog_topic, number, [record]))
        for output in outputs:
            for packed in output.packed:
                records: Iterable[Any] = packed.records() if traced or unfireable else packed.plain()
                if unfireable:
                    records = [self._replaced(output.partition, each, unfireable) for each in records]
                _exhaust(producer.write_outgoing(output.partition, records, traced=traced))
        for output in (*passed, *outputs):
            status_records = [(each.key, each.value, each.headers) for each in output.status_records]
            _exhaust(producer.write_outcomes(self._settings.status_topic, output.partition, status_records))
        if producer.refused:
            raise TransactionFailed(producer.refused[0].text, unknown=False, replace=True)
        producer.commit()

    # Ahead

    def prepare(self, handed: Sequence[tuple[int, PlanOutput]]) -> list[tuple[int, PlanOutput]]:
        """Return what is still to be sent ahead, for `send_prepared`; this may fence other workers.

        Args:
            handed: Outputs and their micro-batches, in the order of each partition.

        Raises:
            TransactionFailed: No answer.
        """
        self._ready([output for _, output in handed])
        left = list[tuple[int, PlanOutput]]()
        ends: dict[int, int] = {}
        for batch, output in handed:
            number, standing = output.partition, self._standing[output.partition]
            at, mark = ends.get(number, standing.reached), standing.mark
            # Whatever else was sent meanwhile, the next step decides what follows it.
            ours = mark is None or (mark.checkpoint == self._checkpoint and mark.batch <= batch)
            if ours and output.before == at:
                left.append((batch, output))
                ends[number] = output.after
        return left

    def send_prepared(self, batch: int, outputs: Sequence[PlanOutput]) -> None:
        """Commit outputs in one transaction, in one try; afterwards nothing is known if it fails.

        No marks are read: had another worker sent for this state partition since `prepare`, it would have fenced this
        one.

        Raises:
            TransactionFailed: They are not committed, or it is unknown; this sender can be used as if nothing was.
        """
        if self._producer is None:
            raise TransactionFailed("the producer is gone", unknown=False, replace=True)
        committed = False
        try:
            self._write(batch, outputs, self._producer, {}, traced=False)
            committed = True
        finally:
            if not committed:
                self._forget_producer()

    def _mark(self, batch: int, output: PlanOutput) -> Mark:
        mark = Mark(
            output.after,
            self._checkpoint,
            batch,
            output.digest,
            self._writer,
            output.closings,
            next_input_offset=output.next_input_offset,
        )
        if not output.ahead:
            return mark
        return replace(
            mark,
            sequence=output.began,
            digest=output.step_digest,
            ahead=output.after - output.began,
            ahead_digest=output.digest,
            ahead_ms=output.release_ms,
        )

    def _ready(self, outputs: Sequence[PlanOutput]) -> TransactionalProducer:
        """Return a producer; the last checkpoints are known then, read when no other producer could commit any more.

        Spark gives a state partition to any worker process, and the producer of the former one is fenced. It notices
        that by a step which begins behind what it knows of, and otherwise when its transaction is refused.
        """
        if self._producer is not None and all(self._knows(output) for output in outputs):
            return self._producer
        self._forget_producer()
        self._producer = producer = self._fencing()
        asked = {*self._siblings, *(output.partition for output in outputs)}
        self._standing = {**dict.fromkeys(asked, MarkedCheckpoint()), **self._last(asked)}
        return producer

    def _fencing(self) -> TransactionalProducer:
        """Return a new producer, after fencing all former ones of this state partition. Raises TransactionFailed."""
        properties = config.transactional_producer(self._settings, self._transactional_id, self._batch_bytes)
        producer = TransactionalProducer({**properties, "logger": config.quiet_logger()}, self._clock)
        producer.init(INIT_TIMEOUT_S)
        return producer

    def _knows(self, output: PlanOutput) -> bool:
        """Return whether the last checkpoint of a partition is known, and none was written since."""
        standing = self._standing.get(output.partition)
        return standing is not None and output.began <= standing.reached

    def _forget_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _last(self, partitions: Iterable[int]) -> dict[int, MarkedCheckpoint]:
        try:
            return self._reader.last(partitions, STABLE_S)
        except KafkaFailed as error:
            text = f"what was sent is not known: {self._settings.changelog_topic}: {error}"
            raise TransactionFailed(text, unknown=False, replace=False) from error

    def _publish(self, outputs: Sequence[PlanOutput]) -> None:
        """Publish counts, which change no state: no transaction is needed."""
        if self._status is None:
            self._status = Writer(config.status_producer(self._settings))
        topic = self._settings.status_topic
        for output in outputs:
            for each in output.status_records:
                try:
                    self._status.write(topic, each.key, each.value, partition=output.partition, headers=each.headers)
                except (KafkaFailed, BufferError):
                    self._status.partition_count(topic, STATUS_S)
        self._status.flush(STATUS_S)

    def _handle_refusals(
        self, outputs: Sequence[PlanOutput], unfireable: dict[tuple[int, bytes], Unfireable], attempt: int
    ) -> None:
        """Remember the records that the broker refuses. Raises TopicsRefuse for topics that refuse all."""
        producer = self._producer
        if producer is None or not attempt:
            return
        if not producer.refused:
            self._find_closed_topics(outputs)
            return
        closed: dict[str, str] = {}
        rejected = {_record_key(each) for each in rejected_of(producer.refused, producer.accepted)}
        refused_records: list[Refused] = []
        written = sum(output.count for output in outputs)
        # When nothing at all was written, the cause may lie outside of a topic; the group has answered, though.
        patient = len(producer.refused) == written and attempt < 2
        for refused in producer.refused:
            topic = refused.outgoing.topic
            why = _CLOSURES.get(refused.why)
            known = unfireable.get(_record_key(refused))
            if why is Closure.UNREACHABLE and patient:
                continue
            if why is None and _record_key(refused) not in rejected and self._batch_bytes > 1:
                self._batch_bytes = 1  # the refusal is for a whole batch: with batches of one it names its record
                return
            if topic == self._settings.dlq_topic and refused.why is Refusal.LARGE and not (known and known.bare):
                known = known or Unfireable(topic, Reason.TOO_LARGE, refused.text, None, None)
                unfireable[_record_key(refused)] = known._replace(bare=True)
                continue
            if why is not None or topic == self._settings.dlq_topic:
                closed[topic] = (why or Closure.UNREACHABLE).value
                if known is not None:
                    # Its dead letter cannot be written: what is due for the origin waits with the DLQ.
                    closed[known.topic] = Closure.UNREACHABLE.value
                continue
            refused_records.append(refused)
        if closed:
            raise TopicsRefuse(closed, producer.refused[0].text)
        bases = {output.partition: output.offset_base for output in outputs}
        offsets = {_record_key(each): _input_offset(each, bases) for each in refused_records}
        came = read_input_records(
            self._settings, ((number, offset) for (number, _), offset in offsets.items() if offset is not None)
        )
        for each in refused_records:
            said, offset = f"{each.outgoing.topic}: {each.text}", offsets[_record_key(each)]
            record = None if offset is None else came.get((each.partition, offset))
            reason = Reason.TOO_LARGE if each.why is Refusal.LARGE else Reason.UNFIREABLE
            unfireable[_record_key(each)] = Unfireable(each.outgoing.topic, reason, said, record, offset)

    def _find_closed_topics(self, outputs: Sequence[PlanOutput]) -> None:
        """Look for a missing permission: it fails a transaction as a whole, and names no record."""
        if self._lookup is None:
            self._lookup = BrokerLookup(self._settings)
        topics = self._lookup({record.topic for output in outputs for record in output.records()})
        closed = {name: topic.closure or Closure.VANISHED.value for name, topic in topics.items() if topic.closed}
        if closed:
            raise TopicsRefuse(closed, "the topic may not be written to, or does not exist")

    def _replaced(
        self, partition: int, outgoing: Outgoing, unfireable: Mapping[tuple[int, bytes], Unfireable]
    ) -> Outgoing:
        """Return a record, or the dead letter that replaces it when its topic refuses it."""
        found = unfireable.get((partition, outgoing.source)) if unfireable and outgoing.source else None
        if found is None:
            return outgoing
        if outgoing.topic == self._settings.dlq_topic:
            return _bare(outgoing) if found.bare else outgoing
        came = found.came
        headers = render_dead_letter(
            outgoing.headers if came is None else came.headers,
            reason=found.reason,
            detail=found.said,
            topic=self._settings.input_topic,
            partition=partition,
            offset=found.offset,
            timestamp_ms=NO_TIMESTAMP if came is None else came.timestamp_ms,
            connector_name=self._settings.streams_app_id,
            stage="fire",
        )
        dead_letter = outgoing._replace(topic=self._settings.dlq_topic, partition=ANY_PARTITION, headers=headers)
        return _bare(dead_letter) if found.bare else dead_letter


def _bare(dead_letter: Outgoing) -> Outgoing:
    """Return a dead letter with only its coordinates and the reason."""
    key, value, headers = fit_dead_letter(dead_letter.key, dead_letter.value, dead_letter.headers, 0)
    return dead_letter._replace(key=key, value=value, headers=headers)


def transactional_id(settings: Settings, state_partition: int) -> str:
    """Return the transactional id of a state partition."""
    return f"{settings.transactional_id_prefix}spark-{state_partition}"


def _exhaust(waits: Waits) -> None:
    """Complete all waits: this thread may block."""
    deque(waits, maxlen=0)


def _input_offset(refused: Refused, bases: Mapping[int, int]) -> int | None:
    stored = offset_of(refused.outgoing.source)
    return Checkpoint(offset_base=bases[refused.partition]).input_offset(stored)


def _record_key(refused: Refused) -> tuple[int, bytes]:
    return refused.partition, refused.outgoing.source
