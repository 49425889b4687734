"""Reads the DLQ up to its present end, and sends its records to the retry topic again in transactions.

The progress of a run is the committed offsets of a consumer group without members. They are in the transaction that
sends the records, and only the holder of a partition's transactional id can commit its progress: so each record is sent
once, even when processes are killed or several are started, by the commands, over HTTP or on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sidecar.clock import Clock, SystemClock
from sidecar.contract.dead_letter import DeadLetter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.engine.ports import Outgoing
from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed, TransactionFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, Topic, describe_topics, end_offsets, first_offsets, offsets_at
from sidecar.kafka.bounded import bounded
from sidecar.kafka.log_reader import LogReader, Unread
from sidecar.kafka.producer import TransactionalProducer
from sidecar.model import Headers, Record
from sidecar.settings import Settings

ASK_S: Final = 15.0
TAKE_OVER_S: Final = 30.0
STALL_S: Final = 30.0
READ_S: Final = 0.2
MORE_S: Final = 0.02
"""The time to wait for more records: a transaction costs as much for one record as for thousands."""
SLICE_BYTES: Final = 8 * 1024 * 1024
SLICE_RECORDS_MAX: Final = 10_000


class DlqRecord(NamedTuple):
    """A record on the DLQ."""

    partition: int
    offset: int
    timestamp_ms: int
    """The time at which it died."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """The headers; None when they cannot be read."""
    dead_letter: DeadLetter

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON, without its payload."""
        dead_letter = self.dead_letter
        return {
            "partition": self.partition,
            "offset": self.offset,
            "died_ms": self.timestamp_ms,
            "reason": dead_letter.reason,
            "detail": dead_letter.detail,
            "origin": dead_letter.origin,
            "exception": dead_letter.exception,
            "attempt": dead_letter.attempt,
            "group": dead_letter.group,
            "redrives": dead_letter.redrives,
            "truncated": dead_letter.truncated,
            "timestamp_ms": dead_letter.timestamp_ms,
            "came_from": None if dead_letter.came_from is None else dead_letter.came_from._asdict(),
        }


class OffsetRange(NamedTuple):
    """A range of offsets in a partition of the DLQ, and the bounds of its log."""

    first: int
    """The first offset of the log."""
    start: int
    end: int
    """The end of the range, exclusive."""
    last: int
    """The end of the log, exclusive: after all committed records."""


class RunIdentity(NamedTuple):
    """The ids of one run of a redrive, the same over all its starts, on both engines."""

    name: str
    group_id: str
    """The group whose committed offsets are the progress."""
    prefix: str
    """What its transactional ids begin with."""

    def transactional_id(self, partition: int) -> str:
        """Return the id of a partition of the DLQ: of two processes on it the later one ends the earlier.

        No name of a run has a colon.
        """
        return f"{self.prefix}:{partition}"


def run_identity(settings: Settings, name: str) -> RunIdentity:
    """Return the ids of a run on the cluster."""
    return RunIdentity(name, f"{settings.group_id}-redrive-{name}", f"{settings.streams_app_id}-redrive-{name}")


def require_topic(admin: Admin, name: str, operation: str, deadline: Deadline | None = None) -> Topic:
    """Return a topic. Raises CommandFailed when it does not exist or the permission for the operation is missing."""
    topic = describe_topics(admin, (name,), deadline or Deadline(ASK_S))[name]
    if topic is None:
        raise CommandFailed(f"topic {name}: does not exist; look with: retry-sidecar topics check")
    if not isinstance(topic, Topic) or operation not in topic.operations:
        needed = f"{operation.capitalize()} and DescribeConfigs"
        raise CommandFailed(
            f"topic {name}: this user needs the permissions {needed} on it; kafka-acls: docs/how-to/dlq.md"
        )
    return topic


def offset_ranges(
    settings: Settings,
    admin: Admin,
    since_ms: int | None,
    until_ms: int | None,
    deadline: Deadline | None = None,
) -> dict[int, OffsetRange]:
    """Return the offsets of the DLQ between two instants by partition, up to its present end.

    Args:
        settings: The settings, which name the DLQ.
        admin: The admin client.
        since_ms: The start: the first record that died then or later; None: the beginning.
        until_ms: The end, exclusive: the first record that died then or later; None: the end of the partition.
        deadline: For all questions together; None: ASK_S for each.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The DLQ does not exist, or may not be read.
    """

    def within() -> Deadline:
        return deadline or Deadline(ASK_S)

    topic = require_topic(admin, settings.dlq_topic, "READ", within())
    name, wanted = topic.name, range(topic.partitions)
    try:
        firsts = first_offsets(admin, name, wanted, within())
        lasts = end_offsets(admin, name, wanted, within())
        starts = firsts if since_ms is None else offsets_at(admin, name, wanted, since_ms, within())
        ends = lasts if until_ms is None else offsets_at(admin, name, wanted, until_ms, within())
    except KafkaFailed as error:
        raise CommandFailed(f"topic {name}: {error}") from error
    found = {}
    for number, last in lasts.items():
        # None: no record is as late as that.
        end = last if (bound := ends[number]) is None else min(last, bound)
        start = last if (bound := starts[number]) is None else bound
        found[number] = OffsetRange(firsts[number], min(start, end), end, last)
    return found


def where_run_stopped(settings: Settings, run: RunIdentity, partitions: Sequence[int]) -> dict[int, int | None]:
    """Return the next offset of a run by partition, None where it never was; no transaction is open on them.

    Raises:
        BrokerUnavailable: No definite answer in time.
        CommandFailed: This user may not read the group's offsets.
    """
    # The admin client can crash the process when it asks a coordinator that is just starting.
    deadline = Deadline(ASK_S)
    with LogReader(config.dead_letter_reader(settings, run.group_id), settings.dlq_topic) as reader:
        while True:
            try:
                found = reader.committed(partitions, ASK_S)
            except KafkaFailed as error:
                if error.denied:
                    raise CommandFailed(
                        f"group {run.group_id}: this user needs the permission Read on it; "
                        "kafka-acls: docs/how-to/dlq.md"
                    ) from error
                if deadline.passed:
                    raise BrokerUnavailable(
                        f"no answer on the offsets of group {run.group_id}: {error}; try again"
                    ) from error
                deadline.pause()
            else:
                return {each: found[each].offset if each in found else None for each in partitions}


def next_of_run(settings: Settings, run: RunIdentity, partition: int) -> int:
    """Return the run's next offset of a partition that it has begun. Raises CommandFailed, as `where_run_stopped`."""
    at = where_run_stopped(settings, run, [partition])[partition]
    if at is None:
        raise CommandFailed(f"the progress of run {run.name} was deleted while it went on (group {run.group_id})")
    return at


def membership_of(settings: Settings, run: RunIdentity) -> bytes:
    """Return the metadata of a run's group, for a transaction; the group has no members."""
    with LogReader(config.dead_letter_reader(settings, run.group_id), settings.dlq_topic) as reader:
        return reader.membership()


class KafkaDeadLetterReader:
    """Reads ranges of the DLQ once; used by one thread.

    Args:
        settings: The settings, which name the DLQ.
        whole: The ranges by partition.
        group_id: The group whose progress a transaction can commit, or any group.
        dialects: The dialects in the order of preference, as the sidecar has them.
    """

    def __init__(
        self,
        settings: Settings,
        whole: Mapping[int, OffsetRange],
        group_id: str,
        dialects: Sequence[Dialect],
        clock: Clock | None = None,
    ) -> None:
        self._topic = settings.dlq_topic
        self._dialects = dialects
        self._clock = clock or SystemClock()
        self._ends = {number: offsets.end for number, offsets in whole.items()}
        self._next = {number: offsets.start for number, offsets in whole.items()}
        self._reading = {number for number, offsets in whole.items() if offsets.start < offsets.end}
        self._limit = 100
        self._log = LogReader(config.dead_letter_reader(settings, group_id), self._topic)
        self._log.start({each: self._next[each] for each in self._reading})
        self._heard_s = self._clock.monotonic_s()

    @property
    def done(self) -> bool:
        """Whether all has been read."""
        return not self._reading

    @property
    def remaining(self) -> int:
        """The number of offsets that are not read yet."""
        return sum(end - self._next[number] for number, end in self._ends.items())

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The offset after the last record read, by partition."""
        return self._next

    @property
    def membership(self) -> bytes:
        """The metadata of the group, for a transaction."""
        return self._log.membership()

    def read(self) -> list[DlqRecord]:
        """Return the next records, empty when none came at once.

        Raises:
            CommandFailed: The DLQ may not be read, or nothing came for STALL_S.
        """
        records = self._available(self._limit, READ_S)
        while records and len(records) < self._limit and not self.done:
            if not (more := self._available(self._limit - len(records), MORE_S)):
                break
            records += more
        size = sum([len(each[4] or b"") + len(each[3] or b"") for each in records])
        now_s = self._clock.monotonic_s()
        if records:
            self._limit = max(1, min(SLICE_RECORDS_MAX, SLICE_BYTES * len(records) // max(1, size)))
        if records or self.done:
            self._heard_s = now_s
        elif now_s - self._heard_s >= STALL_S:
            raise BrokerUnavailable(
                f"topic {self._topic}: nothing for {STALL_S:.0f} s: {self._log.error or 'no record and no error'}"
            )
        return records

    def close(self) -> None:
        """Close the consumer."""
        self._log.close()

    def _available(self, limit: int, timeout_s: float) -> list[DlqRecord]:
        found, others = self._log.read_many(limit, timeout_s)
        records = self._within(found)
        for other in others:
            if isinstance(other, Unread):
                self._check(other.error)
            elif other.partition in self._reading:
                # Only transaction markers follow the last record.
                self._finish(other.partition)
        return records

    def _within(self, found: Sequence[Record]) -> list[DlqRecord]:
        """Return the records that belong to the ranges, as dead letters, and note how far they go."""
        ends, following, reading, dialects = self._ends, self._next, self._reading, self._dialects
        records = []
        for record in found:
            partition, offset, _, _, _, headers = record
            if partition not in reading:
                continue
            if offset < ends[partition]:
                following[partition] = offset + 1
                records.append(tuple.__new__(DlqRecord, (*record, DeadLetter(headers, dialects))))
            if offset + 1 >= ends[partition]:
                self._finish(partition)
        return records

    def _finish(self, partition: int) -> None:
        self._reading.discard(partition)
        self._next[partition] = self._ends[partition]
        self._log.stop(partition)

    def _check(self, error: KafkaFailed) -> None:
        # Reading alone needs no permission on a group.
        if error.fatal or (error.denied and error.code != "GROUP_AUTHORIZATION_FAILED"):
            raise CommandFailed(f"topic {self._topic}: {error}")


class RedriveProducer:
    """Sends records to the retry topic together with the progress of a run; used by one thread at a time.

    Args:
        settings: The settings, which name the topics and the brokers.
        run: The run.
        partition: The partition of the DLQ that the records come from.
        retry_topic: The retry topic as the cluster describes it.
    """

    def __init__(
        self,
        settings: Settings,
        run: RunIdentity,
        partition: int,
        retry_topic: Topic,
        clock: Clock | None = None,
    ) -> None:
        self._dlq_topic = settings.dlq_topic
        self._run = run
        self._partition = partition
        batch_bytes = min(config.BATCH_BYTES, retry_topic.max_message_bytes)
        made: dict[str, Any] = {
            **config.transactional_producer(settings, run.transactional_id(partition), batch_bytes),
            "logger": config.quiet_logger(),
        }
        self._producer = TransactionalProducer(made, clock or SystemClock())

    def take_over(self) -> None:
        """End any other process on the partition, and settle its open transaction. Raises CommandFailed."""
        try:
            self._producer.init(TAKE_OVER_S)
        except TransactionFailed as error:
            raise self._explained(error) from error

    def send(self, records: Sequence[Outgoing], offsets: Mapping[int, int], membership: bytes) -> None:
        """Send records and commit the run's next offsets, all or nothing. Raises CommandFailed, as `commit`."""
        self.write(records)
        self.commit(offsets, membership)

    def write(self, records: Sequence[Outgoing]) -> None:
        """Begin a transaction and hand the records to the client library. Raises CommandFailed, as `commit`."""
        with self._explaining():
            self._producer.begin()
            for _ in self._producer.write_outgoing(0, records, traced=False):
                pass  # the generator itself waits for room in the queue
            self._require_written()

    def commit(self, offsets: Mapping[int, int], membership: bytes) -> None:
        """Commit what was written with the run's next offsets, all or nothing; another thread may call it.

        Raises:
            CommandFailed: It failed, or its result is unknown; the next process has to take over the run.
        """
        producer = self._producer
        with self._explaining():
            bounded(lambda: producer.send_offsets(self._dlq_topic, offsets, membership), "send_offsets_to_transaction")
            producer.commit()

    def close(self) -> None:
        """Close the producer: the broker, or the next process of the run, aborts an open transaction."""
        self._producer.close()

    def _require_written(self) -> None:
        if refused := self._producer.refused:
            text = f"a record was refused: {refused[0].text}"
            raise TransactionFailed(text, unknown=False, replace=True)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except TransactionFailed as error:
            raise self._explained(self._settled(error)) from error

    def _settled(self, error: TransactionFailed) -> TransactionFailed:
        """Abort, so that readers of the retry topic do not wait for the broker to do it; return the error to report."""
        if error.unknown:
            return error
        try:
            self._producer.abort()
        except TransactionFailed as worse:
            return worse if worse.fenced else error
        return error

    def _explained(self, error: TransactionFailed) -> CommandFailed:
        again = f"run {self._run.name} continues where it stopped, and sends nothing twice"
        if error.fenced:
            return CommandFailed(
                f"another process has taken over run {self._run.name} and continues where this one stopped: this one "
                "ends; give --run NAME to start a separate run"
            )
        if "AUTHORIZATION_FAILED" in str(error):
            return CommandFailed(
                f"{error}: this user needs the permissions Write on the transactional id "
                f"{self._run.transactional_id(self._partition)} and Read on the group {self._run.group_id}; "
                "kafka-acls: docs/how-to/dlq.md"
            )
        if error.unknown:
            return CommandFailed(
                f"{error}: it is unknown whether the last records were sent; run the command again: {again}"
            )
        return CommandFailed(f"{error}: the last records were not sent; run the command again: {again}")
