"""The DLQ, read to where it ends now, and the transactions that send its records to the retry topic again.

The progress of a run is the committed offsets of a consumer group without members. They are in the transaction that
sends the records, and only the holder of the run's transactional id can commit: so each record is sent once, whenever
a process is killed and however many are started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sidecar.clock import Clock, SystemClock
from sidecar.contract.dead_letter import DeadLetter, read_dead_letter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.engine.ports import Outgoing
from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed, TransactionFailed
from sidecar.kafka import config
from sidecar.kafka.bounded import bounded
from sidecar.kafka.cluster import Admin, Deadline, Topic, describe_topics, end_offsets, first_offsets, offsets_at
from sidecar.kafka.log_reader import End, LogReader, Unread
from sidecar.kafka.producer import TransactionalProducer
from sidecar.model import Headers, Record
from sidecar.settings import Settings

ASK_S: Final = 15.0
TAKE_OVER_S: Final = 30.0
STALL_S: Final = 30.0
READ_S: Final = 0.2
SLICE_BYTES: Final = 4 * 1024 * 1024
SLICE_RECORDS_MAX: Final = 1_000


class DlqRecord(NamedTuple):
    """A record on the DLQ."""

    partition: int
    offset: int
    timestamp_ms: int
    """When it died."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """None when they cannot be read."""
    dead_letter: DeadLetter

    def to_json(self) -> dict[str, Any]:
        """Return it for programs, without its payload."""
        said = self.dead_letter
        return {
            "partition": self.partition,
            "offset": self.offset,
            "died_ms": self.timestamp_ms,
            "reason": said.reason,
            "detail": said.detail,
            "origin": said.origin,
            "exception": said.exception,
            "attempt": said.attempt,
            "group": said.group,
            "redrives": said.redrives,
            "truncated": said.truncated,
            "timestamp_ms": said.timestamp_ms,
            "came_from": None if said.came_from is None else said.came_from._asdict(),
        }


class OffsetRange(NamedTuple):
    """A part of a partition of the DLQ, and where the log begins and ends."""

    first: int
    start: int
    end: int
    """Exclusive."""
    last: int
    """Exclusive: behind all that is committed."""


class RunIdentity(NamedTuple):
    """One run of a redrive, over all its starts."""

    name: str
    group_id: str
    transactional_id: str


def run_identity(settings: Settings, name: str) -> RunIdentity:
    """Return the ids under which a run is known to the cluster."""
    return RunIdentity(name, f"{settings.group_id}-redrive-{name}", f"{settings.streams_app_id}-redrive-{name}")


def part_of(run: RunIdentity, partition: int) -> RunIdentity:
    """Return a run as it goes through one partition of the DLQ, for those that go through several at once.

    The progress is the whole run's. The transactional id is the partition's own: of two that go through it, the later
    one ends the earlier. No name of a run has a colon.
    """
    return run._replace(transactional_id=f"{run.transactional_id}:{partition}")


def require_topic(admin: Admin, name: str, right: str) -> Topic:
    """Return a topic that may be used. Raises CommandFailed when there is none, or when the right is missing."""
    topic = describe_topics(admin, (name,), Deadline(ASK_S))[name]
    if topic is None:
        raise CommandFailed(f"topic {name}: does not exist; look with: retry-sidecar topics check")
    if not isinstance(topic, Topic) or right not in topic.operations:
        rights = f"{right.capitalize()} and DescribeConfigs"
        raise CommandFailed(f"topic {name}: this user needs the rights {rights} on it; kafka-acls: docs/how-to/dlq.md")
    return topic


def offset_ranges(
    settings: Settings, admin: Admin, since_ms: int | None, until_ms: int | None
) -> dict[int, OffsetRange]:
    """Return what lies on the DLQ between two instants, by partition, to the end as it is now.

    Args:
        settings: Name the DLQ.
        admin: Asks.
        since_ms: From the first record that has died then or later; None: from the beginning.
        until_ms: Up to, without, the first one that has died then or later; None: to the end.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: It does not exist, or may not be read.
    """
    topic = require_topic(admin, settings.dlq_topic, "READ")
    name, wanted = topic.name, range(topic.partitions)
    try:
        firsts = first_offsets(admin, name, wanted, Deadline(ASK_S))
        lasts = end_offsets(admin, name, wanted, Deadline(ASK_S))
        starts = firsts if since_ms is None else offsets_at(admin, name, wanted, since_ms, Deadline(ASK_S))
        ends = lasts if until_ms is None else offsets_at(admin, name, wanted, until_ms, Deadline(ASK_S))
    except KafkaFailed as error:
        raise CommandFailed(f"topic {name}: {error}") from error
    found = {}
    for number, last in lasts.items():
        # None: nothing is as late as that.
        end = last if (bound := ends[number]) is None else min(last, bound)
        start = last if (bound := starts[number]) is None else bound
        found[number] = OffsetRange(firsts[number], min(start, end), end, last)
    return found


def where_run_stopped(settings: Settings, run: RunIdentity, partitions: Sequence[int]) -> dict[int, int | None]:
    """Return the next offset of a run by partition, None where it never was; no transaction is open on them.

    Raises:
        BrokerUnavailable: No definite answer in time.
        CommandFailed: This user may not ask.
    """
    # The admin client can crash the process when it asks this of a coordinator that is just starting.
    deadline = Deadline(ASK_S)
    with LogReader(config.dead_letter_reader(settings, run.group_id), settings.dlq_topic) as reader:
        while True:
            try:
                found = reader.committed(partitions, ASK_S)
            except KafkaFailed as error:
                if error.denied:
                    raise CommandFailed(
                        f"group {run.group_id}: this user needs the right Read on it; kafka-acls: docs/how-to/dlq.md"
                    ) from error
                if deadline.passed:
                    raise BrokerUnavailable(
                        f"no answer on the offsets of group {run.group_id}: {error}; try again"
                    ) from error
                deadline.pause()
            else:
                return {each: found[each].offset if each in found else None for each in partitions}


def membership_of(settings: Settings, run: RunIdentity) -> bytes:
    """Return what names the group of a run to a transaction; it has no members."""
    with LogReader(config.dead_letter_reader(settings, run.group_id), settings.dlq_topic) as reader:
        return reader.membership()


class KafkaDeadLetterReader:
    """Reads spans of the DLQ, each once; used by one thread.

    Args:
        settings: Name the DLQ.
        whole: From where to where, by partition.
        group_id: Whose progress a transaction can note, or any.
        dialects: In the order of preference, as the sidecar has them.
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
        """How many offsets are ahead."""
        return sum(end - self._next[number] for number, end in self._ends.items())

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The offset behind all that was read, by partition."""
        return self._next

    @property
    def membership(self) -> bytes:
        """What names the group to a transaction."""
        return self._log.membership()

    def read(self) -> list[DlqRecord]:
        """Return what comes next, empty when nothing came at once.

        Raises:
            CommandFailed: It may not be read, or nothing has come for STALL_S.
        """
        records = []
        size = 0
        for read in self._log.read(self._limit, READ_S):
            if isinstance(read, End):
                # What stands behind the last record are markers of transactions.
                if read.partition in self._reading:
                    self._finish(read.partition)
            elif isinstance(read, Unread):
                self._check(read.error)
            elif (record := self._record(read)) is not None:
                records.append(record)
                size += len(record.value or b"") + len(record.key or b"")
        now_s = self._clock.monotonic_s()
        if records:
            self._limit = max(1, min(SLICE_RECORDS_MAX, SLICE_BYTES * len(records) // max(1, size)))
        if records or self.done:
            self._heard_s = now_s
        elif now_s - self._heard_s >= STALL_S:
            raise BrokerUnavailable(
                f"topic {self._topic}: nothing for {STALL_S:.0f} s: {self._log.trouble or 'it gives nothing'}"
            )
        return records

    def close(self) -> None:
        """Close the consumer."""
        self._log.close()

    def _record(self, record: Record) -> DlqRecord | None:
        partition, offset = record.partition, record.offset
        if partition not in self._reading:
            return None
        if offset >= self._ends[partition]:
            self._finish(partition)
            return None
        self._next[partition] = offset + 1
        if offset + 1 >= self._ends[partition]:
            self._finish(partition)
        return DlqRecord(*record, read_dead_letter(record.headers, self._dialects))

    def _finish(self, partition: int) -> None:
        self._reading.discard(partition)
        self._next[partition] = self._ends[partition]
        self._log.stop(partition)

    def _check(self, error: KafkaFailed) -> None:
        # To read alone, no right on a group is needed.
        if error.fatal or (error.denied and error.code != "GROUP_AUTHORIZATION_FAILED"):
            raise CommandFailed(f"topic {self._topic}: {error}")


class RedriveProducer:
    """Sends records to the retry topic, together with how far a run has come; used by one thread.

    Args:
        settings: Name the topics and the brokers.
        run: Whose progress it is.
        retry_topic: Where to.
    """

    def __init__(self, settings: Settings, run: RunIdentity, retry_topic: Topic, clock: Clock | None = None) -> None:
        self._dlq_topic = settings.dlq_topic
        self._run = run
        batch_bytes = min(config.BATCH_BYTES, retry_topic.max_message_bytes)
        made: dict[str, Any] = {
            **config.transactional_producer(settings, run.transactional_id, batch_bytes),
            "logger": config.quiet_logger(),
        }
        self._producer = TransactionalProducer(made, clock or SystemClock())

    def take_over(self) -> None:
        """End any other process of the run, and settle what it left open. Raises CommandFailed."""
        try:
            self._producer.init(TAKE_OVER_S)
        except TransactionFailed as error:
            raise self._explained(error) from error

    def send(self, records: Sequence[Outgoing], offsets: Mapping[int, int], membership: bytes) -> None:
        """Send records and note the run's next offsets, all or nothing.

        Raises:
            CommandFailed: It is not known to be done; another process must take over before the run can go on.
        """
        producer = self._producer
        try:
            producer.begin()
            for _ in producer.write_outgoing(0, records, traced=True):
                pass  # it goes on to wait for room in the queue by itself
            if producer.refused:
                said = producer.refused[0].text
                raise TransactionFailed(f"a record was refused: {said}", unknown=False, replace=True)
            bounded(lambda: producer.send_offsets(self._dlq_topic, offsets, membership), "send_offsets_to_transaction")
            producer.commit()
        except TransactionFailed as error:
            raise self._explained(self._settled(error)) from error

    def close(self) -> None:
        """Let go of the producer: a transaction that is open is aborted by the broker, or by who takes over."""
        self._producer.close()

    def _settled(self, error: TransactionFailed) -> TransactionFailed:
        """Abort, so that readers of the retry topic need not wait until the broker does; return what is to be said."""
        if error.unknown:
            return error
        try:
            self._producer.abort()
        except TransactionFailed as worse:
            return worse if worse.fenced else error
        return error

    def _explained(self, error: TransactionFailed) -> CommandFailed:
        again = f"run {self._run.name} goes on where it stopped, and nothing is sent twice"
        if error.fenced:
            return CommandFailed(
                f"another process has taken over run {self._run.name} and goes on where this one stopped: this one "
                "ends; give --run NAME to have a run of its own"
            )
        if "AUTHORIZATION_FAILED" in str(error):
            return CommandFailed(
                f"{error}: this user needs the rights Write on transactional id {self._run.transactional_id} and Read "
                f"on group {self._run.group_id}; kafka-acls: docs/how-to/dlq.md"
            )
        if error.unknown:
            return CommandFailed(
                f"{error}: whether the last records were sent is not known; give the command again: {again}"
            )
        return CommandFailed(f"{error}: the last records were not sent; give the command again: {again}")
