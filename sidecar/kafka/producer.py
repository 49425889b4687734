"""The transactional producer: one transaction at a time, with a meaning for each of its errors.

librdkafka uses the older transaction protocol, in which a late response can affect a later transaction. So after an
unknown outcome, and after the broker refused a record, this producer is not used again: a new one with the same
transactional id fences it, and the log shows what was committed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from sidecar.clock import Clock
from sidecar.engine.ports import Outgoing
from sidecar.errors import TransactionFailed, invariant
from sidecar.kafka.errors import OF_THE_PRODUCER
from sidecar.kafka.tokens import made
from sidecar.model import ANY_PARTITION, Headers

CALL_TIMEOUT_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 20.0
FLUSH_S: Final = 0.2
"""Longest wait in a call of flush: a refused transaction does not wait for the rest of its records."""
FEW: Final = 2_000
"""Up to so many records are written before the offsets are sent; of more, that would cost throughput."""
QUEUE_TIMEOUT_S: Final = 15.0
METADATA_TIMEOUT_S: Final = 2.0
_BLAMELESS: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._INVALID_DIFFERENT_RECORD}
)
"""Errors with another cause: the abort, or another record of the same batch."""


Waits = Generator[None, None, None]
"""Continues to the next point where it would wait."""


class Refusal(StrEnum):
    """Why a record could not be written."""

    DENIED = "denied"
    """This client may not write to the topic."""
    GONE = "gone"
    """The topic or the partition does not exist."""
    SILENT = "silent"
    """No answer in time."""
    NAMED = "named"
    """The broker rejects this record, and names each rejected record of the batch."""
    LARGE = "large"
    """The compressed batch is larger than the topic allows."""
    RECORD = "record"
    """The broker rejects this record, or another one of the same batch."""


_REFUSALS: Final[Mapping[int, Refusal]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Refusal.DENIED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Refusal.DENIED,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Refusal.GONE,
    KafkaError._UNKNOWN_TOPIC: Refusal.GONE,
    KafkaError._UNKNOWN_PARTITION: Refusal.GONE,
    KafkaError._MSG_TIMED_OUT: Refusal.SILENT,
    KafkaError._TIMED_OUT: Refusal.SILENT,
    KafkaError._TRANSPORT: Refusal.SILENT,
    KafkaError.REQUEST_TIMED_OUT: Refusal.SILENT,
    KafkaError.LEADER_NOT_AVAILABLE: Refusal.SILENT,
    KafkaError.NOT_ENOUGH_REPLICAS: Refusal.SILENT,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Refusal.SILENT,
    KafkaError.INVALID_RECORD: Refusal.NAMED,
    KafkaError.INVALID_TIMESTAMP: Refusal.NAMED,
    KafkaError.MSG_SIZE_TOO_LARGE: Refusal.LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: Refusal.LARGE,
}

_FENCES: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})

_PLACED: Final = frozenset({Refusal.NAMED, Refusal.LARGE, Refusal.SILENT})
"""Refusals that depend on the partition of the topic."""

_MEMBERSHIP: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
"""Refusals by the group, after which the producer can be used again. Any other can belong to a record; then the next
transaction of this producer would fail with a sequence error."""


class Refused(NamedTuple):
    """A record that could not be written, with the error."""

    partition: int
    """Input partition that the timer or record belongs to."""
    outgoing: Outgoing
    why: Refusal
    text: str
    target: int = ANY_PARTITION
    """Partition of the origin that refused it, if the broker did."""


class Unwritten(NamedTuple):
    """A record of the changelog or the status topic that was too large for its topic."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class TransactionalProducer:
    """Owns one librdkafka producer; used by one thread at a time."""

    def __init__(self, config: Mapping[str, Any], clock: Clock, client: Any = Producer) -> None:
        self.batch_bytes = int(config["batch.size"])
        self._clock = clock
        try:
            self._producer: Producer = made(client, config)
        except KafkaException as cause:  # it has no token for its login
            raise TransactionFailed(cause.args[0].str(), unknown=False, replace=True) from cause
        self._refused: list[Refused] = []
        self._unwritten: list[Unwritten] = []
        self._delivered_to = set[tuple[str, int]]()
        self._accepted = Counter[tuple[str, int]]()
        self._changelog_error: KafkaError | None = None
        self._status_error: KafkaError | None = None
        self._producer_error: KafkaError | None = None
        self._unwritten_for: dict[int, str] = {}
        self._next_changelog_offsets: dict[int, int] = {}
        self._written = Counter[int]()
        """Records of the changelog in this transaction, by partition, and those that the broker acknowledged."""
        self._acknowledged = Counter[int]()
        self._fenced_others = self._open = False
        self._claim_lock = threading.Lock()
        self._claimed = self._given_up = False

    def init(self, timeout_s: float) -> None:
        """Fence older producers with this transactional id and end their transactions. Raises TransactionFailed."""
        try:
            self._producer.init_transactions(timeout_s)
        except KafkaException as cause:
            raise _failed("init_transactions", cause.args[0], replace=True) from cause
        self._fenced_others = True

    def begin(self) -> None:
        """Begin a transaction. Raises TransactionFailed."""
        invariant(self._fenced_others, "a transaction begins before older producers are fenced")
        invariant(not self._open, "a transaction begins while the one before is open or its outcome is unknown")
        blame = self._blame()
        invariant(not blame, "a producer goes on after a record was refused", refused=blame)
        self._open = True
        self._claimed = False
        self._written = Counter()
        self._acknowledged = Counter()
        self._refused = []
        self._unwritten = []
        self._delivered_to = set()
        self._accepted = Counter()
        self._changelog_error = self._status_error = self._producer_error = None
        self._unwritten_for = {}
        self._next_changelog_offsets = {}
        try:
            self._producer.begin_transaction()
        except KafkaException as cause:
            raise _failed("begin_transaction", cause.args[0], replace=True) from cause

    # Each of these yields before it would wait, so that the loop's thread can hand it to the commit thread.

    def write_changelog(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> Waits:
        """Write changelog records. Raises TransactionFailed."""
        self._require_open("write_changelog")
        self._written[partition] += len(records)
        delivered = self._changelog_delivered
        for key, value in records:
            yield from self._write_own(topic, value, key, partition=partition, on_delivery=delivered)

    def write_outcomes(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, Headers]]) -> Waits:
        """Write outcomes of control records to the status topic. Raises TransactionFailed."""
        self._require_open("write_outcomes")
        delivered = self._outcome_delivered
        for key, value, headers in records:
            yield from self._write_own(topic, value, key, headers=headers, partition=partition, on_delivery=delivered)

    def _write_own(self, topic: str, value: bytes | None, key: bytes, **more: Any) -> Waits:
        """Write to an internal topic, which must accept the record."""
        try:
            yield from self._produce(topic, value, key, **more)
        except KafkaException as cause:
            _raise_if_of_the_producer(cause)
            # A new partition is known to this producer only after a metadata request.
            yield
            try:
                self._producer.list_topics(topic, METADATA_TIMEOUT_S)
                yield from self._produce(topic, value, key, **more)
            except KafkaException as cause:
                _raise_if_of_the_producer(cause)
                text = f"{topic}, partition {more['partition']}, cannot be written: {cause.args[0].str()}"
                self._unwritten_for[more["partition"]] = text
                raise TransactionFailed(text, unknown=False, replace=True) from cause

    def write_outgoing(self, partition: int, records: Iterable[Outgoing], *, traced: bool) -> Waits:
        """Write deliveries or dead letters; refused records are kept in `refused`. Raises TransactionFailed.

        Args:
            partition: Of the input topic.
            records: In the order of their writing; plain tuples of the same fields do unless they are traced.
            traced: Request a delivery report for each, which names refused records. It costs a sixth of the work of a
                delivery, and a refusal fails the transaction without it too, so it is requested only after a failure.
        """
        self._require_open("write_outgoing")
        produce, delivered = self._producer.produce, self._delivered
        report: Any = None
        for outgoing in records:
            topic, target, key, value, headers, _, _ = outgoing
            if traced:
                report = partial(delivered, partition, outgoing)
            try:
                # Positional, since keyword arguments cost a third of the call. The report is `callback`, which has
                # precedence over `on_delivery`. ANY_PARTITION has the same value in the library.
                produce(topic, value, key, target, report, None, 0, headers)  # type: ignore[arg-type]
            except BufferError:
                yield from self._write_slowly(partition, Outgoing._make(outgoing), report)
            except KafkaException as cause:
                _raise_if_of_the_producer(cause)
                yield from self._write_slowly(partition, Outgoing._make(outgoing), report, cause)

    def _write_slowly(self, partition: int, outgoing: Outgoing, report: Any, cause: Any = None) -> Waits:
        """Write what was not queued at once, after a metadata request if its partition is new; or note the refusal."""
        where = {} if outgoing.partition < 0 else {"partition": outgoing.partition}
        more = {"headers": outgoing.headers, "on_delivery": report, **where}
        asked = False
        while cause is None or (cause.args[0].code() == KafkaError._UNKNOWN_PARTITION and not asked):
            try:
                if cause is not None:
                    asked = True
                    yield
                    self._producer.list_topics(outgoing.topic, METADATA_TIMEOUT_S)
                yield from self._produce(outgoing.topic, outgoing.value, outgoing.key, **more)
            except KafkaException as refusal:
                _raise_if_of_the_producer(refusal)
                cause = refusal
            else:
                return
        self._refused.append(_refused(partition, outgoing, cause.args[0]))

    def _produce(self, topic: str, value: bytes | None, key: bytes | None, **more: Any) -> Waits:
        deadline_s = self._clock.monotonic_s() + QUEUE_TIMEOUT_S
        while True:
            try:
                self._producer.produce(topic, value, key, **more)
            except BufferError:
                if self._clock.monotonic_s() > deadline_s:
                    raise TransactionFailed("the producer's queue stays full", unknown=False, replace=True) from None
                yield
                self._producer.poll(0.05)
            else:
                return

    def _delivered(self, partition: int, outgoing: Outgoing, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._delivered_to.add((outgoing.topic, message.partition() or 0))
            return
        if self._blames(error):
            refused = _refused(partition, outgoing, error)
            if refused.why in _PLACED:
                refused = refused._replace(target=message.partition() or 0)
            self._refused.append(refused)
        elif error.code() == KafkaError._INVALID_DIFFERENT_RECORD:
            self._accepted[outgoing.topic, message.partition() or 0] += 1

    def _changelog_delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self._blames(error):
                self._changelog_error = error
                self._note_unwritten(error, message)
            return
        partition, offset = message.partition() or 0, message.offset() or 0
        self._acknowledged[partition] += 1
        if offset >= self._next_changelog_offsets.get(partition, 0):
            self._next_changelog_offsets[partition] = offset + 1

    def _outcome_delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._blames(error):
            self._status_error = error
            self._note_unwritten(error, message)

    def _blames(self, error: KafkaError) -> bool:
        """Return whether a delivery report's error is about its record or topic; note one about the producer."""
        if error.code() in OF_THE_PRODUCER:
            self._producer_error = self._producer_error or error
            return False
        return error.code() not in _BLAMELESS

    def _note_unwritten(self, error: KafkaError, message: Message) -> None:
        if _REFUSALS.get(error.code()) is Refusal.LARGE:
            key, value = message.key() or b"", message.value() or b""
            self._unwritten.append(Unwritten(message.topic() or "", message.partition() or 0, key, value))
        else:
            self._unwritten_for[message.partition() or 0] = f"{message.topic()} cannot be written: {error.str()}"

    @property
    def refused(self) -> Sequence[Refused]:
        """The records of this transaction that could not be written."""
        return self._refused

    @property
    def unwritten(self) -> Sequence[Unwritten]:
        """The records of the changelog and the status topic that were too large."""
        return self._unwritten

    @property
    def delivered_to(self) -> frozenset[tuple[str, int]]:
        """Topic partitions that accepted a record whose delivery was traced."""
        return frozenset(self._delivered_to)

    @property
    def unwritten_for(self) -> Mapping[int, str]:
        """Error text by input partition whose changelog or status partition accepts no record of any size."""
        return self._unwritten_for

    @property
    def accepted(self) -> Mapping[tuple[str, int], int]:
        """By topic and partition, how many records the broker accepted when it rejected others of their batch."""
        return self._accepted

    @property
    def next_changelog_offsets(self) -> Mapping[int, int]:
        """The changelog offset after the last one that this transaction wrote, by partition."""
        return self._next_changelog_offsets

    def send_offsets(
        self, topic: str, offsets: Mapping[int, int], membership: bytes, metadata: Mapping[int, str] = {}
    ) -> None:
        """Add the input offsets to the transaction, with the membership that fences it. Raises TransactionFailed.

        Args:
            topic: The input topic.
            offsets: The next offset of each partition.
            membership: From the consumer.
            metadata: Metadata to commit with the offset, by partition.
        """
        self._require_open("send_offsets")
        # Of none, or of a position that is not known (-1001), the broker would check nothing.
        invariant(
            bool(offsets) and all(each >= 0 for each in offsets.values()),
            "a transaction commits no offsets, or offsets that are none",
            offsets=offsets,
        )
        named = [
            TopicPartition(topic, each, offset, metadata=metadata[each])
            if each in metadata
            else TopicPartition(topic, each, offset)
            for each, offset in offsets.items()
        ]
        group: Any = membership
        try:
            # Offsets that come while the broker adds partitions to the transaction are refused, and the library sends
            # them again after retry.backoff.ms. All partitions are added when all records are written.
            if len(self._producer) <= FEW:
                self._producer.flush(FLUSH_S)
            self._producer.send_offsets_to_transaction(named, group, CALL_TIMEOUT_S)
        except KafkaException as cause:
            raise self._transaction_failed("send_offsets_to_transaction", cause.args[0]) from cause

    def commit(self) -> None:
        """Commit.

        Raises:
            TransactionFailed: Has whether the outcome is known.
        """
        self._require_open("commit")
        deadline_s = self._clock.monotonic_s() + COMMIT_TIMEOUT_S
        # With several batches in flight the library waits for those after a refused one until they time out.
        try:
            while self._producer.flush(FLUSH_S) and not self._blame() and self._clock.monotonic_s() <= deadline_s:
                pass
        except KafkaException as cause:
            # It raises what became fatal meanwhile, such as a fence.
            raise _failed("flush", cause.args[0], replace=True) from cause
        while True:
            try:
                self._producer.commit_transaction(CALL_TIMEOUT_S)
            except KafkaException as cause:
                error: KafkaError = cause.args[0]
                if error.retriable() and not error.fatal() and self._clock.monotonic_s() < deadline_s:
                    continue  # the library asks to call again
                raise self._transaction_failed("commit_transaction", error) from cause
            else:
                self._committed()
                return

    def _committed(self) -> None:
        self._open = False
        blame = self._blame()
        invariant(not blame, "a transaction was committed without a record that was refused", refused=blame)
        invariant(
            self._acknowledged == self._written,
            "a transaction was committed without all of its changelog records",
            written=dict(self._written),
            acknowledged=dict(self._acknowledged),
        )

    def _blame(self) -> str:
        """Return what was refused in the current or last transaction; empty when nothing was."""
        if self._refused:
            return f"{len(self._refused)} records, the first: {self._refused[0].text}"
        error = self._changelog_error or self._status_error or self._producer_error
        return "" if error is None else error.str()

    def _require_open(self, call: str) -> None:
        invariant(self._open, "a call needs a transaction, and none is open", call=call)

    def _transaction_failed(self, call: str, error: KafkaError) -> TransactionFailed:
        if self._changelog_error is not None:
            error = self._changelog_error
            return TransactionFailed(f"the changelog cannot be written: {error.str()}", unknown=False, replace=True)
        if self._status_error is not None:
            said = self._status_error.str()
            return TransactionFailed(f"the status topic cannot be written: {said}", unknown=False, replace=True)
        if self._refused and error.txn_requires_abort():
            return TransactionFailed(
                f"{len(self._refused)} records were refused, the first: {self._refused[0].text}",
                unknown=False,
                replace=True,
            )
        return _failed(call, error, replace=error.code() not in _MEMBERSHIP)

    def abort(self) -> None:
        """Abort. Raises TransactionFailed; the producer cannot be used again then."""
        self._require_open("abort")
        try:
            self._producer.abort_transaction(CALL_TIMEOUT_S)
        except KafkaException as cause:
            raise _failed("abort_transaction", cause.args[0], replace=True) from cause
        self._open = False
        if self._producer_error is not None:
            raise TransactionFailed(f"abort_transaction: {self._producer_error.str()}", unknown=False, replace=True)

    def give_up(self) -> bool:
        """Abandon the thread that waits in a call of this producer; called by another thread.

        Returns False when the transaction was claimed before: its thread is past all calls that can hang.
        """
        with self._claim_lock:
            self._given_up = not self._claimed
            return self._given_up

    def claim(self) -> bool:
        """Claim the committed transaction; return False when it was given up before."""
        with self._claim_lock:
            self._claimed = not self._given_up
            return self._claimed

    def close(self) -> None:
        """Release the producer without waiting."""
        self._producer.purge()


def rejected_of(refused: Sequence[Refused], accepted: Mapping[tuple[str, int], int]) -> list[Refused]:
    """Return the records that the broker rejected by name.

    Args:
        refused: Refused records of a transaction.
        accepted: See `TransactionalProducer.accepted`.
    """
    named = [each for each in refused if each.why is Refusal.NAMED]
    places = Counter((each.outgoing.topic, each.target) for each in named)
    # The library reports a broker that names no record as one that names the whole batch: so the named records count
    # only if at least as many of the same partition were accepted.
    return [each for each in named if places[place := (each.outgoing.topic, each.target)] <= accepted.get(place, 0)]


def _raise_if_of_the_producer(cause: KafkaException) -> None:
    """Raise TransactionFailed if a record could not be queued because of what became of its producer meanwhile."""
    error: KafkaError = cause.args[0]
    if error.code() in OF_THE_PRODUCER:
        text = f"produce: {error.str()} ({error.name()})"
        raise TransactionFailed(text, unknown=False, replace=True, fenced=error.code() in _FENCES) from cause


def _refused(partition: int, outgoing: Outgoing, error: KafkaError) -> Refused:
    return Refused(partition, outgoing, _REFUSALS.get(error.code(), Refusal.RECORD), error.str())


def _failed(call: str, error: KafkaError, *, replace: bool = False) -> TransactionFailed:
    """Return the meaning of a transactional call's error; the library defines the order of the checks."""
    fenced = error.code() in _FENCES
    text = f"{call}: {error.str()} ({error.name()})"
    if error.fatal():
        return TransactionFailed(text, unknown=True, replace=True, fenced=fenced)
    if error.txn_requires_abort():
        return TransactionFailed(text, unknown=False, replace=replace)
    return TransactionFailed(text, unknown=True, replace=True, fenced=fenced)
