"""Takes over the messages that wait in the changelog of IBM's kafka-retry, each once.

A transaction sends messages to the retry topic, in the headers of profile ibm, and tombstones them in IBM's changelog.
So the changelog is the ledger: what still has a value there has not been taken over, after a kill too, and a program
of IBM's that is started again by mistake does not find what was taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sidecar.changelog.ibm import RetryInfo, retry_info
from sidecar.clock import SystemClock
from sidecar.contract import dialects_of, parse
from sidecar.contract.dialects import ibm
from sidecar.engine.ports import Outgoing
from sidecar.errors import BrokerUnavailable, CommandFailed, KafkaFailed, SettingsInvalid, TransactionFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline
from sidecar.kafka.admin.first_start import begin_like
from sidecar.kafka.log_reader import End, LogReader, Unread
from sidecar.kafka.probes import describe_group
from sidecar.kafka.producer import TransactionalProducer
from sidecar.model import ANY_PARTITION, NO_TIMESTAMP, Headers, Record, Rejection, Request
from sidecar.policy import Policy
from sidecar.settings import Settings
from sidecar.settings.policy import policy_config

BATCH_MAX: Final = 500
"""The most messages in a transaction."""
READ_RECORDS: Final = 1_000
WAIT_S: Final = 30.0
"""The longest wait for an answer of the brokers."""
_UNNAMED: Final = "unknown"


class Source(NamedTuple):
    """The program of IBM's whose messages are taken over, by its own settings."""

    app_id: str
    """STREAMS_APP_ID; also the name of its consumer group."""
    store_name: str
    topic: str
    """INPUT_TOPIC."""

    @property
    def changelog_topic(self) -> str:
        return f"{self.app_id}-{self.store_name}-changelog"


@dataclass(slots=True)
class Found:
    """What a migration finds, and does."""

    by_origin: Counter[str] = field(default_factory=Counter)
    """The messages that wait, by origin topic."""
    refused: Counter[str] = field(default_factory=Counter)
    """Those of them that the sidecar will not store, by the reason of the verdict on them."""
    unreadable: list[str] = field(default_factory=list)
    """The places of values that are not IBM's; they stay where they are."""
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    began: str = ""
    """Where the group begins to read the retry topic; empty if it has read before."""

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "dry_run": dry_run,
            "messages": self.by_origin.total(),
            "by_origin": dict(self.by_origin),
            "not_stored": dict(self.refused),
            "unreadable": self.unreadable,
            "first_due_ms": self.first_due_ms,
            "last_due_ms": self.last_due_ms,
            "began": self.began,
        }


class IbmMigration:
    """Reads IBM's changelog and moves what waits there.

    Args:
        settings: The settings of the sidecar that takes over.
        source: IBM's program.
        exception: The class that the messages are said to have failed with, which IBM's store does not keep; empty: the
            first name on RETRIABLE_EXCEPTION.

    Raises:
        SettingsInvalid: The settings do not let the messages be taken over.
    """

    def __init__(self, settings: Settings, source: Source, exception: str = "") -> None:
        if "ibm" not in settings.profiles:
            raise SettingsInvalid([f"PROFILES: {','.join(settings.profiles)!r} must name ibm for this command"])
        if source.changelog_topic == settings.changelog_topic:
            line = (
                f"STORE_NAME: {settings.store_name!r} gives the sidecar the changelog of IBM's program, "
                f"{source.changelog_topic}: it must be another one, such as wheel"
            )
            raise SettingsInvalid([line])
        self._settings = settings
        self._source = source
        self._exception = (exception or _retriable(settings)).encode()
        self._policy = Policy(policy_config(settings))
        self._dialects = dialects_of(settings.dialects)
        self._clock = SystemClock()

    def look(self) -> Found:
        """Return what would be taken over; changes nothing. Raises BrokerUnavailable, CommandFailed."""
        found = Found()
        with closing(self._reader()) as reader:
            for record, info in self._waiting(reader, found):
                self._examine(record, info, found)
        return found

    def carry_out(self, moved: Callable[[int], None]) -> Found:
        """Take everything over, and begin to read the retry topic where IBM's program stopped.

        Args:
            moved: Called after each transaction with the number of messages in it.

        Raises:
            BrokerUnavailable: No answer in time.
            CommandFailed: IBM's program is running, or the cluster refuses.
        """
        admin, settings, source = Admin(self._settings), self._settings, self._source
        require_stopped(admin, settings, source)
        transactional_id = f"{settings.transactional_id_prefix}migrate-ibm"
        properties = config.transactional_producer(settings, transactional_id)
        producer = TransactionalProducer({**properties, "logger": config.quiet_logger()}, self._clock)
        found = Found()
        try:
            # Ends what a killed run left open, so that the changelog says what was taken over.
            producer.init(WAIT_S)
            if source.topic == settings.input_topic:
                found.began = begin_like(admin, settings, source.app_id, WAIT_S)
            with closing(self._reader()) as reader:
                batch: list[tuple[Record, Headers, bytes]] = []
                for record, info in self._waiting(reader, found):
                    batch.append((record, self._examine(record, info, found), bytes(info.payload)))
                    if len(batch) == BATCH_MAX:
                        self._move(producer, batch)
                        moved(len(batch))
                        batch = []
                if batch:
                    self._move(producer, batch)
                    moved(len(batch))
        except TransactionFailed as cause:
            raise CommandFailed(f"the messages cannot be moved: {cause}; the same command continues") from cause
        finally:
            producer.close()
        return found

    def _move(self, producer: TransactionalProducer, batch: list[tuple[Record, Headers, bytes]]) -> None:
        topic = self._settings.input_topic
        outgoing = [
            Outgoing(topic, ANY_PARTITION, record.key, payload, headers, 0, b"") for record, headers, payload in batch
        ]
        producer.begin()
        for _ in producer.write_outgoing(0, outgoing, traced=True):
            pass
        for record, _, _ in batch:
            done = [(record.key or b"", None)]
            for _ in producer.write_changelog(self._source.changelog_topic, record.partition, done):
                pass
        producer.commit()

    def _examine(self, record: Record, info: RetryInfo, found: Found) -> Headers:
        """Count a message, and return the headers with which it goes to the retry topic."""
        headers: Headers = [
            (ibm.ORIGIN_TOPIC, info.origin_topic.encode()),
            (ibm.EXCEPTION_TYPE, self._exception),
            (ibm.TIMESTAMP_MS, b"%d" % info.time_stamp),
            # IBM counts the retry that is to come, the header those made.
            (ibm.ATTEMPTS, b"%d" % (info.retry_attempt - 1)),
        ]
        found.by_origin[info.origin_topic] += 1
        request = parse(record._replace(headers=headers), self._dialects)
        verdict = (
            self._policy.decide(request, NO_TIMESTAMP, self._clock.wall_ms()) if type(request) is Request else request
        )
        if isinstance(verdict, Rejection):
            found.refused[verdict.reason] += 1
        delays = self._settings.ibm_delays_ms
        due_ms = info.time_stamp + delays[min(info.retry_attempt, len(delays)) - 1]
        found.first_due_ms = due_ms if found.first_due_ms is None else min(found.first_due_ms, due_ms)
        found.last_due_ms = due_ms if found.last_due_ms is None else max(found.last_due_ms, due_ms)
        return headers

    def _waiting(self, reader: LogReader, found: Found) -> Iterator[tuple[Record, RetryInfo]]:
        """Yield what waits: the last value of each key, if it is not a tombstone."""
        last: dict[tuple[int, bytes | None], int] = {}
        for record in self._records(reader):
            if record.value is None:
                last.pop((record.partition, record.key), None)
            else:
                last[record.partition, record.key] = record.offset
        if not last:
            return
        for record in self._records(reader):
            if record.value is None or last.get((record.partition, record.key)) != record.offset:
                continue
            if (info := retry_info(record.value)) is None:
                found.unreadable.append(f"partition {record.partition}, offset {record.offset}")
            else:
                yield record, info

    def _records(self, reader: LogReader) -> Iterator[Record]:
        """Yield the records of the changelog, from the first to the last. Raises BrokerUnavailable, CommandFailed."""
        topic = self._source.changelog_topic
        try:
            unread = set(range(reader.partition_count(WAIT_S)))
            reader.start({number: reader.bounds(number, WAIT_S).start for number in unread})
        except KafkaFailed as error:
            raise CommandFailed(f"the changelog {topic} cannot be read: {error}") from error
        deadline = Deadline(WAIT_S)
        while unread:
            for read in reader.read(READ_RECORDS, 0.5):
                deadline = Deadline(WAIT_S)
                if isinstance(read, Record):
                    yield read
                elif isinstance(read, End):
                    unread.discard(read.partition)
                elif isinstance(read, Unread) and not read.error.away:
                    raise CommandFailed(f"the changelog {topic} cannot be read: {read.error}")
            if unread and deadline.passed:
                raise BrokerUnavailable(f"the changelog {topic} cannot be read: {reader.error or 'no answer in time'}")

    def _reader(self) -> LogReader:
        properties: dict[str, Any] = {
            **config.changelog_reader(self._settings),
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        return LogReader(properties, self._source.changelog_topic)


def require_stopped(admin: Admin, settings: Settings, source: Source) -> None:
    """Make sure that IBM's program does not run. Raises BrokerUnavailable, CommandFailed."""
    try:
        group = describe_group(admin, replace(settings, given_group_id=source.app_id), Deadline(WAIT_S))
    except KafkaFailed as error:
        raise CommandFailed(f"the group {source.app_id} cannot be described: {error}") from error
    if group is not None and group.members:
        raise CommandFailed(
            f"IBM's program still runs: its group {source.app_id} has {group.members} members "
            f"({', '.join(group.hosts)}). Stop it first, and wait until the group is empty"
        )


def _retriable(settings: Settings) -> str:
    """Return a class that is retried. Raises CommandFailed: there is none to name."""
    names = settings.retriable_exception
    if not names:
        return _UNNAMED
    plain = next((name for name in names if not set(name) & set("*?[")), None)
    if plain is None:
        raise CommandFailed(
            f"RETRIABLE_EXCEPTION: {','.join(names)!r} names no single class, and IBM's store does not keep the class "
            "that a message failed with: name one with --exception"
        )
    return plain
