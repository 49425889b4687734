"""The consumer of the input topic: group membership and records.

Every rebalance callback runs inside `poll`, on the caller's thread. New partitions are assigned paused, at an offset
that is never fetched: their start offset is known only after their restore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Final, Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sidecar.engine import hot
from sidecar.errors import InvariantViolated, invariant
from sidecar.kafka.errors import failed, translated
from sidecar.kafka.fences import Fences
from sidecar.kafka.lso_monitor import LsoMonitor
from sidecar.kafka.tokens import made
from sidecar.model import NO_TIMESTAMP, Headers, Record

log = structlog.get_logger(__name__)

STATISTICS_EVERY_MS: Final = 5_000
STEP_RECORDS_MIN: Final = 16
STEP_HEADERS_MAX: Final = 64
"""Records with more headers are consumed STEP_RECORDS_MIN at a time, since the client library unpacks their headers
into eight times their size and more. Otherwise the step doubles each time, as each call waits for the interpreter."""
_METADATA_PREFIX: Final = b"CGMDv2:"
_checked_headers: Final = methodcaller("headers")
"""Called from C code, which checks each result against a pending exception."""
# A fatal error comes as a message with a generic code; only the text has the cause.
_FENCED_TEXT: Final = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()
_LOST_OFFSET: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class Rebalanced(Protocol):
    """Receives rebalances and errors, inside `poll`."""

    def assigned(self, partitions: Sequence[int]) -> None:
        """Partitions were assigned; they are paused."""
        ...

    def revoked(self, partitions: Sequence[int]) -> None:
        """Partitions are being revoked; a running commit may still finish."""
        ...

    def lost(self, partitions: Sequence[int]) -> None:
        """Partitions belong to another member already."""
        ...

    def offset_lost(self, partition: int) -> None:
        """The position of a partition is not in the log any more."""
        ...

    def broker_error(self, text: str) -> None:
        """The client library reported a transient error."""
        ...


class InputConsumer:
    """Owns the consumer; used by one thread.

    A fenced static member cannot be used again: another consumer replaces it and joins the group.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        listener: Rebalanced,
        fences: Fences,
        lso_monitor: LsoMonitor | None = None,
    ) -> None:
        self._topic = topic
        self._listener = listener
        self._fences = fences
        self._fetched: frozenset[int] = frozenset()
        self._owned: set[int] = set()
        self._step = STEP_RECORDS_MIN
        self._fenced = False
        self.refusal = ""
        """The broker's error text while a missing permission prevents joining."""
        self._session_over = self._was_over = False
        """Whether partitions were lost since the consumer joined; the same, at the start of the last poll."""
        self._told = False
        """Whether the group has told its partitions, which may be none, to this member."""
        statistics: dict[str, Any] = {}
        if lso_monitor is not None:
            on_statistics = lso_monitor.on_statistics
            statistics = {
                "statistics.interval.ms": STATISTICS_EVERY_MS,
                "stats_cb": lambda report: on_statistics(report, self._fetched),
            }
        self._config = {**statistics, **config}
        self._consumer = self._join()

    def _join(self) -> Consumer:
        with translated():
            consumer = made(Consumer, self._config)
        consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        return consumer

    def _join_again(self) -> None:
        log.warning("member_fenced", instance_id=self._config.get("group.instance.id"), session_over=self._was_over)
        self._fences.member_fenced(session_over=self._was_over)
        self._consumer.close()
        if self._owned:
            self._release(self._owned, self._listener.lost)
        self._fenced = self._session_over = self._told = False
        self._consumer = self._join()

    # Rebalance

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._session_over = False
        self._told = True
        self.refusal = ""
        if not partitions:
            return
        consumer.incremental_assign([TopicPartition(self._topic, each.partition, 0) for each in partitions])
        consumer.pause(partitions)
        numbers = sorted(each.partition for each in partitions)
        self._owned.update(numbers)
        self._listener.assigned(numbers)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            # The partitions of a fenced member belong to the member that fenced it.
            notify = self._listener.lost if self._fenced else self._listener.revoked
            self._release({each.partition for each in partitions}, notify)
            consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._session_over = True
        self._told = False
        if partitions:
            self._release({each.partition for each in partitions}, self._listener.lost)
            consumer.incremental_unassign(partitions)

    def _release(self, numbers: Collection[int], notify: Callable[[Sequence[int]], None]) -> None:
        gone = frozenset(numbers)
        self._fetched -= gone
        self._owned -= gone
        notify(sorted(gone))

    # Records

    def poll(self, limit: int, timeout_s: float) -> Iterator[Iterable[Record]]:
        """Yield up to about `limit` records in batches as they arrive; wait at most `timeout_s` for the first.

        Raises:
            DuplicateInstance: Another process keeps joining with the same instance id.
        """
        if self._fenced:
            self._join_again()
        self._was_over = self._session_over
        taken = 0
        while taken < limit:
            step = min(self._step, limit - taken)
            try:
                messages = self._consumer.consume(step, 0 if taken else timeout_s)
            except KafkaException as cause:
                self._report(cause.args[0])
                return
            count = len(messages)
            taken += count
            records = _READ(messages, self._report)
            yield records
            if records.most_headers > STEP_HEADERS_MAX:
                self._step = STEP_RECORDS_MIN
            elif count == step == self._step:
                self._step = min(2 * self._step, limit)
            if count < step:
                return

    def _report(self, error: KafkaError, partition: int | None = None) -> None:
        code = error.code()
        if code == KafkaError.FENCED_INSTANCE_ID or (code == KafkaError._FATAL and _FENCED_TEXT in error.str()):
            self._fenced = True
        elif code in _LOST_OFFSET and partition is not None:
            self._listener.offset_lost(partition)
        elif error.fatal() or code == KafkaError._FATAL:
            raise failed(error)
        else:
            if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
                self.refusal = error.str()
            self._listener.broker_error(error.str())

    # Position

    def pause(self, partitions: Collection[int]) -> None:
        """Stop fetching these."""
        self._fetched -= frozenset(partitions)
        self._consumer.pause([TopicPartition(self._topic, each) for each in partitions])

    def resume(self, partitions: Collection[int]) -> None:
        """Resume fetching these."""
        foreign = frozenset(partitions) - self._owned
        invariant(not foreign, "a partition is fetched that is not assigned", partitions=sorted(foreign))
        self._fetched |= frozenset(partitions)
        self._consumer.resume([TopicPartition(self._topic, each) for each in partitions])

    def seek(self, partition: int, offset: int) -> None:
        """Read on from `offset`; what was fetched before is dropped. Raises KafkaFailed when not assigned.

        The partition stays paused.
        """
        invariant(
            offset >= 0, "the input is to be read from an offset that is none", partition=partition, offset=offset
        )
        place = [TopicPartition(self._topic, partition, offset)]
        try:
            self._consumer.seek(place[0])
        except KafkaException:
            # The library has stopped reading the partition, as it does when the topic was recreated.
            with translated():
                self._consumer.incremental_unassign(place)
                self._consumer.incremental_assign(place)
                self._consumer.pause(place)

    def end_offsets(self) -> dict[int, int]:
        """Return the last known end of each assigned partition, without asking the broker."""
        ends = {}
        for each in self._consumer.assignment():
            _, high = self._consumer.get_watermark_offsets(each, cached=True)
            if high >= 0:
                ends[each.partition] = high
        return ends

    def membership(self) -> bytes | None:
        """Return the group metadata that fences this member's transactions; None while there is no membership.

        With a negative generation or without a member id the broker would check nothing. A member that does not know
        its partitions yet is not ready, so it counts as none.
        """
        if not self._told:
            return None
        metadata: object = self._consumer.consumer_group_metadata()
        generation, member_id = decode_membership(metadata)
        return metadata if generation >= 0 and member_id and isinstance(metadata, bytes) else None

    def close(self) -> None:
        """Leave the group, unless the membership is static."""
        self._consumer.close()


def decode_membership(metadata: object) -> tuple[int, bytes]:
    """Return generation and member id. Raises InvariantViolated for an unknown format."""
    if not isinstance(metadata, bytes) or not metadata.startswith(_METADATA_PREFIX):
        raise InvariantViolated(f"the client library gives group metadata of an unknown form: {metadata!r:.40}")
    start = len(_METADATA_PREFIX)
    generation = int.from_bytes(metadata[start : start + 4], "little", signed=True)
    parts = metadata[start + 4 :].split(b"\0")
    invariant(len(parts) >= 2, "group metadata has no member id", metadata=metadata)
    return generation, parts[1]


class Records:
    """Iterates over messages as records, after removing them from the list: each is freed while still in the cache.

    The specification of what is compiled for it.

    Args:
        messages: As consumed.
        report: Receives the error and the partition of messages that are errors.
    """

    def __init__(self, messages: list[Message], report: Callable[[KafkaError, int | None], None]) -> None:
        self.most_headers = 0
        """Most headers of a record so far."""
        self._messages = messages
        self._report = report

    def __iter__(self) -> Iterator[Record]:
        make = tuple.__new__  # a named tuple's own constructor takes twice as long
        messages, most = self._messages, 0
        messages.reverse()
        while messages:
            message = messages.pop()
            if (error := message.error()) is not None:
                self._report(error, message.partition())
                continue
            headers = headers_of(message)
            if headers and len(headers) > most:
                self.most_headers = most = len(headers)
            kind, timestamp_ms = message.timestamp()
            fields = (
                message.partition(),
                message.offset(),
                timestamp_ms if kind else NO_TIMESTAMP,
                message.key(),
                message.value(),
                headers,
            )
            yield make(Record, fields)


_READ: Final = hot.consume.Records if hot.COMPILED else Records


def records_of(messages: list[Message], report: Callable[[KafkaError, int | None], None]) -> Iterator[Record]:
    """Yield messages as records, by the compiled `Records` where there is one. It empties the list."""
    return iter(_READ(messages, report))


def headers_of(message: Message) -> Headers | None:
    """Return the headers, None when the library cannot give them.

    For a header key that is not UTF-8 the library returns both a result and a pending exception. The interpreter's fast
    calls do not notice it: the exception would surface in a later call, for another record.
    """
    try:
        headers: Any = _checked_headers(message)
    except (UnicodeDecodeError, SystemError):
        return None
    return headers or []


def record_of(message: Message) -> Record:
    """Return a message without an error as a record."""
    kind, timestamp_ms = message.timestamp()
    stamped_ms = timestamp_ms if kind else NO_TIMESTAMP
    key: Any = message.key()
    value: Any = message.value()
    return Record(message.partition() or 0, message.offset() or 0, stamped_ms, key, value, headers_of(message))
