"""The transactional producer on the simulated cluster: it refuses, times out and is fenced as the real adapter says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.clock import Clock
from sidecar.engine.ports import Outgoing
from sidecar.errors import TransactionFailed, invariant
from sidecar.kafka.producer import Refusal, Refused, Unwritten, Waits
from sidecar.model import Headers
from tests.simulation.fakes.cluster import Cluster, Link, Unreachable
from tests.simulation.fakes.cluster import Refusal as Refusing
from tests.simulation.fakes.group import GroupRefusal
from tests.simulation.fakes.logs import Row, Transaction, row_bytes
from tests.simulation.fakes.membership import unpack

CALL_TIMEOUT_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 20.0
LOOK_AGAIN_S: Final = 0.25
ANY = -1
_PLACED: Final = frozenset({Refusal.NAMED, Refusal.LARGE, Refusal.SILENT})
_WHY: Final[Mapping[str, Refusal]] = {
    "TOPIC_AUTHORIZATION_FAILED": Refusal.DENIED,
    "UNKNOWN_TOPIC_OR_PART": Refusal.GONE,
    "_MSG_TIMED_OUT": Refusal.SILENT,
    "MSG_SIZE_TOO_LARGE": Refusal.LARGE,
    "INVALID_RECORD": Refusal.NAMED,
}


@dataclass(slots=True)
class _Queued:
    row: Row
    partition: int
    """Of the input topic."""
    outgoing: Outgoing | None
    """None: a record of one of our own topics."""
    traced: bool
    expires_s: float


@dataclass(slots=True)
class _Outcome:
    """The delivery reports of one transaction so far."""

    refused: list[Refused] = field(default_factory=list)
    unwritten: list[Unwritten] = field(default_factory=list)
    unwritten_for: dict[int, str] = field(default_factory=dict)
    took: set[tuple[str, int]] = field(default_factory=set)
    ends: dict[int, int] = field(default_factory=dict)
    own_topic_said: str = ""
    failed: str = ""


class FakeProducer:
    """Implements `sidecar.runtime.ports.Producer`."""

    def __init__(
        self,
        cluster: Cluster,
        link: Link,
        clock: Clock,
        transactional_id: str,
        own_topics: Collection[str],
        batch_bytes: int,
        message_timeout_ms: int,
        *,
        compressed: bool,
    ) -> None:
        self.batch_bytes = batch_bytes
        self._cluster = cluster
        self._link = link
        self._clock = clock
        self._id = transactional_id
        self._own_topics = own_topics
        self._timeout_s = message_timeout_ms / 1000
        self._compressed = compressed
        self._epoch = -1
        self._queues: dict[tuple[str, int], list[_Queued]] = {}
        self._said = _Outcome()
        self._began = False
        self._began_ms = 0
        self._dead = ""
        """Why every call fails from now on."""
        self._poisoned = False
        """A broker refused a record: the next transaction of this producer would fail out of order."""
        self._claimed = self._given_up = False
        self.hangs = False
        """The next request for a coordinator is never answered."""

    # What the loop looks at

    @property
    def refused(self) -> Sequence[Refused]:
        return self._said.refused

    @property
    def unwritten(self) -> Sequence[Unwritten]:
        return self._said.unwritten

    @property
    def unwritten_for(self) -> Mapping[int, str]:
        return self._said.unwritten_for

    @property
    def delivered_to(self) -> frozenset[tuple[str, int]]:
        return frozenset(self._said.took)

    @property
    def accepted(self) -> Mapping[tuple[str, int], int]:
        return {}

    @property
    def next_changelog_offsets(self) -> Mapping[int, int]:
        return self._said.ends

    # Calls

    def init(self, timeout_s: float) -> None:
        deadline_s = self._cluster.timeline.now_s + timeout_s
        epoch: int | None = None
        while epoch is None:
            if self._cluster.timeline.now_s >= deadline_s:
                raise TransactionFailed("init_transactions: timed out", unknown=True, replace=True)
            if self._reaches(coordinator=True):
                self._trip()
                epoch = self._cluster.init(self._id)
            if epoch is None:
                self._cluster.timeline.pause(LOOK_AGAIN_S)
        self._epoch = epoch

    def begin(self) -> None:
        self._check_alive("begin_transaction")
        invariant(self._epoch >= 0, "a transaction begins before older producers are fenced")
        invariant(not self._began, "a transaction begins while the one before is open or its outcome is unknown")
        if self._poisoned:
            raise TransactionFailed("OUT_OF_ORDER_SEQUENCE_NUMBER", unknown=True, replace=True)
        self._claimed = False
        self._said = _Outcome()
        self._queues = {}
        self._began = True
        self._began_ms = self._clock.wall_ms()

    def write_changelog(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> Waits:
        for key, value in records:
            self._write_own(topic, partition, Row(key, value, []))
        yield from self._maybe_wait()

    def write_outcomes(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, Headers]]) -> Waits:
        for key, value, headers in records:
            self._write_own(topic, partition, Row(key, value, headers))
        yield from self._maybe_wait()

    def _write_own(self, topic: str, partition: int, row: Row) -> None:
        found = self._cluster.topics.get(topic)
        if found is None or partition >= len(found.logs):
            text = f"{topic}, partition {partition}, cannot be written: Local: Unknown partition"
            self._said.unwritten_for[partition] = text
            raise TransactionFailed(text, unknown=False, replace=True)
        self._queue(topic, partition, _Queued(row, partition, None, traced=True, expires_s=self._expiry_s()))

    def write_outgoing(self, partition: int, records: Iterable[Outgoing], *, traced: bool) -> Waits:
        for outgoing in records:
            topic = self._cluster.topics.get(outgoing.topic)
            target = outgoing.partition
            if topic is not None and target >= len(topic.logs):
                self._said.refused.append(Refused(partition, outgoing, Refusal.GONE, "Local: Unknown partition"))
                continue
            row = Row(outgoing.key, outgoing.value, outgoing.headers)
            if topic is not None and target == ANY:
                target = zlib.crc32(outgoing.key or outgoing.source) % len(topic.logs)
            self._queue(outgoing.topic, max(0, target), _Queued(row, partition, outgoing, traced, self._expiry_s()))
        yield from self._maybe_wait()

    def send_offsets(
        self, topic: str, offsets: Mapping[int, int], membership: bytes, metadata: Mapping[int, str] = {}
    ) -> None:
        self._check_alive("send_offsets_to_transaction")
        known = bool(offsets) and all(each >= 0 for each in offsets.values())
        invariant(known, "a transaction commits no offsets, or offsets that are none", offsets=offsets)
        if self._cluster.rng.random() < 0.5:
            self._send()  # the library sends in the background
        member, generation = unpack(membership)
        if self.hangs:
            self._cluster.timeline.pause(1e6)
        transaction = self._ask("send_offsets_to_transaction", CALL_TIMEOUT_S)
        try:
            self._cluster.send_offsets(transaction, dict(offsets), metadata, member, generation)
        except GroupRefusal as refusal:
            raise TransactionFailed(f"send_offsets_to_transaction: {refusal}", unknown=False, replace=False) from None
        self._trip()

    def commit(self) -> None:
        self._check_alive("commit_transaction")
        deadline_s = self._cluster.timeline.now_s + COMMIT_TIMEOUT_S
        self._send()
        self._check_alive("commit_transaction")
        said = self._said
        if said.own_topic_said:
            raise TransactionFailed(f"own topic: {said.own_topic_said}", unknown=False, replace=True)
        if said.refused:
            raise TransactionFailed(f"{len(said.refused)} records were refused", unknown=False, replace=True)
        if said.failed:
            raise TransactionFailed(f"commit_transaction: {said.failed}", unknown=False, replace=True)
        left_s = deadline_s - self._cluster.timeline.now_s
        self._ask("commit_transaction", left_s, self._end)
        self._began = False

    def _end(self) -> None:
        self._cluster.commit(self._id, self._epoch, self._began_ms)

    def abort(self) -> None:
        self._check_alive("abort_transaction")
        self._queues = {}
        self._ask("abort_transaction", CALL_TIMEOUT_S, lambda: self._cluster.abort(self._id, self._epoch))
        self._began = False

    def give_up(self) -> bool:
        self._given_up = not self._claimed
        return self._given_up

    def claim(self) -> bool:
        self._claimed = not self._given_up
        return self._claimed

    def close(self) -> None:
        self._queues = {}
        self._dead = "purged"

    # Requests

    def _check_alive(self, call: str) -> None:
        if self._dead:
            raise TransactionFailed(f"{call}: {self._dead}", unknown=True, replace=True, fenced=self._dead == "fenced")

    def _reaches(self, *, coordinator: bool = False) -> bool:
        try:
            self._cluster.reach(self._link, coordinator=coordinator)
        except Unreachable:
            return False
        return True

    def _trip(self) -> None:
        self._cluster.timeline.pause(self._link.round_trip_s)

    def _ask(self, call: str, timeout_s: float, request: Callable[[], None] = lambda: None) -> Transaction:
        """Make a request of the transaction coordinator, again until its answer is here. Raises TransactionFailed."""
        deadline_s = self._cluster.timeline.now_s + timeout_s
        while True:
            if self._reaches(coordinator=True):
                self._trip()
                try:
                    transaction = self._cluster.transaction_of(self._id, self._epoch)
                    request()
                except Refusing:
                    self._dead = "fenced"
                    raise TransactionFailed(f"{call}: fenced", unknown=True, replace=True, fenced=True) from None
                answered = not self._link.loses_answers
                self._trip()
                if answered and (transaction is not None or call != "send_offsets_to_transaction"):
                    return transaction or Transaction(self._id, self._cluster.timeline.now_s)
            if self._cluster.timeline.now_s >= deadline_s:
                raise TransactionFailed(f"{call}: timed out", unknown=True, replace=True)
            self._cluster.timeline.pause(LOOK_AGAIN_S)

    # Records

    def _maybe_wait(self) -> Waits:
        if self._cluster.rng.random() < 0.05:
            yield

    def _expiry_s(self) -> float:
        return self._cluster.timeline.now_s + self._timeout_s

    def _queue(self, topic: str, partition: int, queued: _Queued) -> None:
        self._queues.setdefault((topic, partition), []).append(queued)

    def _send(self) -> None:
        """Send all that is queued, those who can be sent first; what is not taken in time is given up."""
        waiting, self._queues = self._queues, {}
        while waiting:
            for place, queued in list(waiting.items()):
                left = self._send_to(place, queued)
                if left:
                    waiting[place] = left
                else:
                    del waiting[place]
                if self._said.failed:
                    return
            if self._said.refused or self._said.own_topic_said:
                return  # what other partitions said at once is known too; it waits no longer for the rest
            if waiting:
                self._cluster.timeline.pause(LOOK_AGAIN_S)

    def _send_to(self, place: tuple[str, int], queued: list[_Queued]) -> list[_Queued]:
        """Send to one partition; return what is still to be sent."""
        topic, partition = place
        while queued:
            batch = self._batch(queued)
            why = self._try(topic, partition, batch)
            if why == "again":
                if self._cluster.timeline.now_s < batch[0].expires_s:
                    return queued
                self._report(place, queued, "_MSG_TIMED_OUT")
                return []
            queued = queued[len(batch) :]
        return []

    def _batch(self, queued: list[_Queued]) -> list[_Queued]:
        size = taken = 0
        for each in queued:
            size += row_bytes(each.row)
            if taken and size > self.batch_bytes:
                break
            taken += 1
        return queued[:taken]

    def _try(self, name: str, partition: int, batch: list[_Queued]) -> str:
        if not self._reaches():
            return "again"
        topic = self._cluster.topics.get(name)
        if topic is None or partition >= len(topic.logs):
            self._cluster.timeline.pause(1.0)
            self._report((name, partition), batch, "UNKNOWN_TOPIC_OR_PART")
            return ""
        log = topic.logs[partition]
        if not log.has_leader or not log.takes_writes:
            return "again"
        rows = [each.row for each in batch]
        size = sum(map(row_bytes, rows))
        self._cluster.timeline.pause(self._link.round_trip_s + size / self._link.bytes_per_s)
        if self._cluster.timeline.now_s >= batch[0].expires_s:
            return "again"
        refusal = topic.refusal_of(rows, compressed=self._compressed)
        if refusal:
            self._cluster.refusals_s.append(self._cluster.timeline.now_s)
            self._report((name, partition), batch, refusal)
            return ""
        try:
            transaction = self._cluster.transaction_of(self._id, self._epoch)
            if transaction is None:
                return "again"
            first = self._cluster.produce(transaction, name, partition, rows, self._clock.wall_ms())
        except Refusing as why:
            self._said.failed = str(why)
            self._dead = "fenced" if str(why) == "PRODUCER_FENCED" else self._dead
            return ""
        self._took(name, partition, batch, first)
        return ""

    def _took(self, topic: str, partition: int, batch: list[_Queued], first: int) -> None:
        if topic == next(iter(self._own_topics)):
            self._said.ends[partition] = max(self._said.ends.get(partition, 0), first + len(batch))
        if any(each.outgoing is not None and each.traced for each in batch):
            self._said.took.add((topic, partition))

    def _report(self, place: tuple[str, int], batch: list[_Queued], code: str) -> None:
        why = _WHY[code]
        self._poisoned = True
        for each in batch:
            if each.outgoing is None:
                self._report_own(place, each, why, code)
            elif not each.traced:
                self._said.failed = code
            else:
                target = place[1] if why in _PLACED else ANY
                self._said.refused.append(Refused(each.partition, each.outgoing, why, f"Broker: {code}", target))

    def _report_own(self, place: tuple[str, int], each: _Queued, why: Refusal, code: str) -> None:
        topic, partition = place
        self._said.own_topic_said = code
        if why is Refusal.LARGE:
            self._said.unwritten.append(Unwritten(topic, partition, each.row.key or b"", each.row.value or b""))
        else:
            self._said.unwritten_for[partition] = f"{topic} cannot be written: {code}"
