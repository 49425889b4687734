"""The client library's producer on the simulated cluster: it refuses, times out and is fenced as librdkafka does.

An answer about the producer may come with a record (`rd_kafka_handle_Produce_error`): an old epoch is a fence, which is
final; whatever else is final for a record means that the transaction must be aborted. Both purge what is queued.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.clock import Clock
from sidecar.model import Headers
from tests.simulation.fakes.cluster import Cluster, Link, Refusal, Unreachable
from tests.simulation.fakes.group import GroupRefusal
from tests.simulation.fakes.logs import Row, Transaction, row_bytes
from tests.simulation.fakes.membership import unpack

LOOK_AGAIN_S: Final = 0.25
METADATA_TIMEOUT_S: Final = 1.0
ANY: Final = -1
FULL_QUEUE: Final = 0.02
"""How often a record finds the queue full."""
BACKGROUND: Final = 0.02
"""How often the library hears of a fence while records are handed to it."""
DOUBTED: Final = 0.3
"""How often a batch is the one whose transaction a broker does not know of, once there is one."""
EPOCH: Final = "INVALID_PRODUCER_EPOCH"
DOUBTS: Final = ("INVALID_TXN_STATE", "TRANSACTION_ABORTABLE", "INVALID_PRODUCER_ID_MAPPING", "CONCURRENT_TRANSACTIONS")
"""What a broker may answer to a record whose transaction it does not know of."""

Report = Callable[[KafkaError | None, "Delivered"], None]


class _State(Enum):
    """Of the transactions, as the library tells them apart."""

    NEW = "new"
    READY = "ready"
    OPEN = "open"
    ABORTABLE = "abortable"
    FATAL = "fatal"


@dataclass(slots=True)
class Delivered:
    """The message of a delivery report."""

    row: Row
    name: str
    number: int
    at: int = -1001

    def topic(self) -> str:
        return self.name

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.row.key

    def value(self) -> bytes | None:
        return self.row.value


@dataclass(slots=True)
class _Queued:
    message: Delivered
    report: Report | None
    expires_s: float


def error_of(name: str, text: str = "", **flags: bool) -> KafkaError:
    """Return an error of the library by its name.

    Args:
        name: Of a code, with a leading underscore if it is the library's own.
        text: What it says; "": its name.
        flags: `fatal`, `retriable` or `txn_requires_abort`.
    """
    return KafkaError(getattr(KafkaError, name), text or name, **flags)


class FakeLibrary:
    """Takes the place of `confluent_kafka.Producer`."""

    def __init__(self, cluster: Cluster, link: Link, clock: Clock, config: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._link = link
        self._clock = clock
        self._id: str = config["transactional.id"]
        self._batch_bytes = int(config["batch.size"])
        self._timeout_s = config["message.timeout.ms"] / 1000
        self._compressed = config["compression.type"] != "none"
        self._epoch = -1
        self._state = _State.NEW
        self._why = ""
        """The error that every call has while the transaction must be aborted, or for ever."""
        self._queues: dict[tuple[str, int], list[_Queued]] = {}
        self._reports: list[tuple[_Queued, KafkaError | None]] = []
        """Those that are yet to be handed out: that happens in calls that wait."""
        self._undelivered = 0
        """Records of this transaction that were not written in time."""
        self._began_ms = 0
        self._refused = self._out_of_order = False
        """A broker refused a record: the sequence of the next transaction has a hole."""
        self.hangs = False
        """The next request for a coordinator is never answered."""
        self.doubt = ""
        """What a broker answers to one of the next batches."""

    # Calls

    def init_transactions(self, timeout_s: float) -> None:
        deadline_s = self._cluster.timeline.now_s + timeout_s
        epoch: int | None = None
        while epoch is None:
            if self._cluster.timeline.now_s >= deadline_s:
                raise KafkaException(error_of("_TIMED_OUT", "init_transactions: timed out", retriable=True))
            if self._reaches(coordinator=True):
                self._trip()
                epoch = self._cluster.init(self._id)
            if epoch is None:
                self._cluster.timeline.pause(LOOK_AGAIN_S)
        self._epoch = epoch
        self._state = _State.READY

    def begin_transaction(self) -> None:
        self._require(_State.READY)
        self._state = _State.OPEN
        self._why = ""
        self._undelivered = 0
        self._began_ms = self._clock.wall_ms()
        self._out_of_order = self._refused

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = ANY,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        _timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        rng, found = self._cluster.rng, self._cluster.topics.get(topic)
        if rng.random() < BACKGROUND:
            self._hear_of_a_fence()
        if self._state is not _State.OPEN:
            raise KafkaException(error_of("_FATAL" if self._state is _State.FATAL else "_STATE", self._why))
        if rng.random() < FULL_QUEUE:
            raise BufferError
        if found is None and rng.random() < 0.5:
            raise KafkaException(error_of("_UNKNOWN_TOPIC"))
        if found is not None and partition >= len(found.logs):
            raise KafkaException(error_of("_UNKNOWN_PARTITION"))
        row = Row(key, value, headers or [])
        if partition == ANY:
            partition = 0 if found is None else _partition_of(row) % len(found.logs)
        expires_s = self._cluster.timeline.now_s + self._timeout_s
        queued = _Queued(Delivered(row, topic, partition), callback or on_delivery, expires_s)
        self._queues.setdefault((topic, partition), []).append(queued)

    def poll(self, timeout_s: float) -> int:
        self._cluster.timeline.pause(timeout_s)
        return self._serve()

    def list_topics(self, _topic: str, timeout_s: float) -> None:
        if not self._reaches():
            self._cluster.timeline.pause(timeout_s)
            raise KafkaException(error_of("_TRANSPORT"))

    def flush(self, timeout_s: float) -> int:
        self._drain(timeout_s)
        if self._state is _State.FATAL and self._cluster.rng.random() < 0.5:
            raise KafkaException(self._error())
        return len(self)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._reports)

    def purge(self) -> None:
        self._purge()

    def send_offsets_to_transaction(self, offsets: Sequence[TopicPartition], group: bytes, timeout_s: float) -> None:
        self._require(_State.OPEN)
        if self._cluster.rng.random() < 0.5:
            self._drain(0.0)  # the library sends in the background
            self._require(_State.OPEN)
        member, generation = unpack(group)
        if self.hangs:
            self._cluster.timeline.pause(1e6)
        transaction = self._ask(timeout_s, must_be_open=True)
        if transaction is None:
            raise KafkaException(self._must_abort("_TIMED_OUT"))
        wanted = {each.partition: each.offset for each in offsets}
        metadata = {each.partition: each.metadata for each in offsets if each.metadata}
        try:
            self._cluster.send_offsets(transaction, wanted, metadata, member, generation)
        except GroupRefusal as refusal:
            name = str(refusal)
            raise KafkaException(self._fence() if name == EPOCH else self._must_abort(name)) from None
        self._trip()

    def commit_transaction(self, timeout_s: float) -> None:
        deadline_s = self._cluster.timeline.now_s + timeout_s
        self._require(_State.OPEN)
        if self._drain(timeout_s):
            raise KafkaException(error_of("_TIMED_OUT", "commit_transaction: timed out", retriable=True))
        self._require(_State.OPEN)
        if self._undelivered:
            raise KafkaException(self._must_abort("_INCONSISTENT"))
        left_s = max(0.0, deadline_s - self._cluster.timeline.now_s)
        self._end("commit_transaction", left_s, self._commit)

    def _commit(self) -> None:
        self._cluster.commit(self._id, self._epoch, self._began_ms)

    def abort_transaction(self, timeout_s: float) -> None:
        self._require(_State.OPEN, _State.ABORTABLE)
        self._purge()
        self._serve()
        self._end("abort_transaction", timeout_s, lambda: self._cluster.abort(self._id, self._epoch))

    def _end(self, call: str, timeout_s: float, request: Callable[[], None]) -> None:
        if self._ask(timeout_s, request) is None:
            raise KafkaException(error_of("_TIMED_OUT", f"{call}: timed out", retriable=True))
        self._state = _State.READY

    # States

    def _require(self, *states: _State) -> None:
        if self._state not in states:
            raise KafkaException(self._error())

    def _error(self) -> KafkaError:
        if self._state is _State.FATAL:
            return error_of(self._why, fatal=True)
        if self._state is _State.ABORTABLE:
            return error_of(self._why, txn_requires_abort=True)
        return error_of("_STATE", f"not valid in state {self._state.value}")

    def _fence(self, name: str = "_FENCED") -> KafkaError:
        """Be of no more use."""
        self._state, self._why = _State.FATAL, name
        self._purge()
        return self._error()

    def _must_abort(self, name: str) -> KafkaError:
        """Note that this transaction cannot be committed, with the first reason for it."""
        if self._state is _State.OPEN:
            self._state, self._why = _State.ABORTABLE, name
            self._purge()
        return self._error()

    def _purge(self) -> None:
        purged, self._queues = self._queues, {}
        for queued in purged.values():
            self._report(queued, "_PURGE_QUEUE")

    # Requests

    def _reaches(self, *, coordinator: bool = False) -> bool:
        try:
            self._cluster.reach(self._link, coordinator=coordinator)
        except Unreachable:
            return False
        return True

    def _trip(self) -> None:
        self._cluster.timeline.pause(self._link.round_trip_s)

    def _ask(
        self, timeout_s: float, request: Callable[[], None] = lambda: None, *, must_be_open: bool = False
    ) -> Transaction | None:
        """Make a request of the transaction coordinator, again until its answer is here; None: none came in time.

        Raises KafkaException when the producer is fenced.
        """
        deadline_s = self._cluster.timeline.now_s + timeout_s
        while True:
            if self._reaches(coordinator=True):
                self._trip()
                try:
                    transaction = self._cluster.transaction_of(self._id, self._epoch)
                    request()
                except Refusal:
                    raise KafkaException(self._fence()) from None
                answered = not self._link.loses_answers
                self._trip()
                if answered and (transaction is not None or not must_be_open):
                    return transaction or Transaction(self._id, self._cluster.timeline.now_s)
            if self._cluster.timeline.now_s >= deadline_s:
                return None
            self._cluster.timeline.pause(LOOK_AGAIN_S)

    def _hear_of_a_fence(self) -> None:
        """Learn in the background what became of this producer, maybe with records that are queued."""
        if self._state is not _State.OPEN or not self._reaches():
            return
        try:
            self._cluster.transaction_of(self._id, self._epoch)
        except Refusal:
            places = list(self._queues)
            self._fenced(self._queues.pop(self._cluster.rng.choice(places)) if places else [])

    # Records

    def _serve(self) -> int:
        served, self._reports = self._reports, []
        for queued, error in served:
            if queued.report is not None:
                queued.report(error, queued.message)
        return len(served)

    def _report(self, queued: Iterable[_Queued], name: str) -> None:
        error = error_of(name, f"Broker: {name}")
        self._reports += [(each, error) for each in queued]

    def _drain(self, timeout_s: float) -> int:
        """Send what is queued, those who can be sent first, and hand out the reports; return what is still queued."""
        deadline_s = self._cluster.timeline.now_s + timeout_s
        while self._send_once() and self._cluster.timeline.now_s < deadline_s:
            self._serve()
            self._cluster.timeline.pause(min(LOOK_AGAIN_S, deadline_s - self._cluster.timeline.now_s))
        self._serve()
        return len(self)

    def _send_once(self) -> bool:
        """Send to each partition; return whether something is left. A refusal ends it when all others have answered."""
        waiting, self._queues = self._queues, {}
        refused: list[str] = []
        for (topic, partition), queued in waiting.items():
            left = queued
            if self._state is _State.OPEN:
                left = self._send_to(topic, partition, queued, refused)
            if left:
                self._queues[topic, partition] = left
        if refused:
            self._must_abort(refused[0])
        elif self._state is not _State.OPEN:
            self._purge()
        return bool(self._queues)

    def _send_to(self, topic: str, partition: int, queued: list[_Queued], refused: list[str]) -> list[_Queued]:
        """Send to one partition; return what is still to be sent."""
        while queued and self._state is _State.OPEN:
            batch = self._batch(queued)
            if not self._try(topic, partition, batch, refused):
                if self._cluster.timeline.now_s < batch[0].expires_s:
                    break
                self._undelivered += len(queued)
                self._report(queued, "_MSG_TIMED_OUT")
                return []
            queued = queued[len(batch) :]
        return queued

    def _batch(self, queued: list[_Queued]) -> list[_Queued]:
        size = taken = 0
        for each in queued:
            size += row_bytes(each.message.row)
            if taken and size > self._batch_bytes:
                break
            taken += 1
        return queued[:taken]

    def _try(self, name: str, partition: int, batch: list[_Queued], refused: list[str]) -> bool:
        """Send a batch; return whether it was answered, False: it is sent again."""
        if not self._reaches():
            return False
        timeline, topic = self._cluster.timeline, self._cluster.topics.get(name)
        if topic is None or partition >= len(topic.logs):
            timeline.pause(METADATA_TIMEOUT_S)
            return self._refuse(batch, "UNKNOWN_TOPIC_OR_PART", refused)
        log = topic.logs[partition]
        if not log.has_leader or not log.takes_writes:
            return False
        rows = [each.message.row for each in batch]
        timeline.pause(self._link.round_trip_s + sum(map(row_bytes, rows)) / self._link.bytes_per_s)
        if timeline.now_s >= batch[0].expires_s:
            return False
        if refusal := topic.refusal_of(rows, compressed=self._compressed):
            self._cluster.refusals_s.append(timeline.now_s)
            return self._refuse(batch, refusal, refused)
        if self.doubt and self._cluster.rng.random() < DOUBTED:
            doubt, self.doubt = self.doubt, ""
            return self._refuse(batch, doubt, refused)
        if self._out_of_order:
            self._report(batch, "OUT_OF_ORDER_SEQUENCE_NUMBER")
            self._fence("OUT_OF_ORDER_SEQUENCE_NUMBER")
            return True
        try:
            transaction = self._cluster.transaction_of(self._id, self._epoch)
            if transaction is None:
                return False
            first = self._cluster.produce(transaction, name, partition, rows, self._clock.wall_ms())
        except Refusal:
            self._fenced(batch)
            return True
        for at, each in enumerate(batch, first):
            each.message.at = at
            self._reports.append((each, None))
        return True

    def _refuse(self, batch: list[_Queued], name: str, refused: list[str]) -> bool:
        self._refused = True
        self._report(batch, name)
        refused.append(name)
        return True

    def _fenced(self, batch: list[_Queued]) -> None:
        """Learn from the coordinator, or from the answer to a batch, that another producer has taken over."""
        said = self._cluster.rng.choice(["", EPOCH, EPOCH, "INVALID_TXN_STATE", "PRODUCER_FENCED"])
        self._report(batch, said or "_PURGE_QUEUE")
        if said in {"", EPOCH}:
            self._fence()
        else:
            self._must_abort(said)


def _partition_of(row: Row) -> int:
    return zlib.crc32(row.key or row.value or b"")
