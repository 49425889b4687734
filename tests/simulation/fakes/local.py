"""Fakes of what is not Kafka: the state folder, the status publisher, the admin client, the executor."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin._acl import AclOperation
from msgspec.structs import replace

from sidecar.clock import Clock
from sidecar.contract.status import START_PARTITION, start_key
from sidecar.engine.group.activity import Activity
from sidecar.engine.group.merge import Start, StatusPosition
from sidecar.engine.group.view import PartitionView
from sidecar.engine.ports import Mutations, Prepared, SortedRows, Store, StoreReader
from sidecar.engine.rows import decode_meta, encode_meta
from sidecar.errors import KafkaFailed, StoreCorrupt, StoreFailed, invariant
from sidecar.kafka.bounded import HANGS_S
from sidecar.kafka.writer import Report, Written
from sidecar.model import Headers
from tests.simulation.fakes.cluster import Cluster, Link, Refusal, Unreachable
from tests.simulation.fakes.logs import Row
from tests.simulation.fakes.timeline import Fiber, Timeline
from tests.simulation.memory_store import MemoryBatch, MemoryStore

OPEN_AGAIN_S: Final = 5.0
ANSWER_S: Final = 0.05


class Killed(Exception):
    """The process dies at a step of the commit order, or in the middle of a write."""


class Faults:
    """What may happen to the disk of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = self.is_corrupt = False
        self.tears: float | None = None
        """The process dies when it has written this share of changes in several batches, all of it on disk."""
        self.files_left: int | None = None
        """The process dies when it has ingested so many files more."""

    def torn_after(self, batches: int) -> int | None:
        """Return behind which of so many batches the process dies now, None when it does not."""
        tears, self.tears = self.tears, None
        return None if tears is None else 1 + int(tears * (batches - 1))

    def ingested(self) -> None:
        """Die if this was the last file."""
        if self.files_left is not None:
            self.files_left -= 1
            if self.files_left <= 0:
                self.files_left = None
                raise Killed


class Disk(Faults, MemoryStore):
    """A state folder that outlives processes, and may fill up or rot."""

    def state(self, clock: Clock) -> FakeState:
        """Return the state of a process that starts."""
        return FakeState(self, clock)

    is_open = False

    def _check(self) -> None:
        if not self.is_open:
            raise StoreFailed("the store is closed")
        if self.is_full:
            raise StoreFailed("no space left on device")

    def write(self, prepared: Prepared) -> None:
        self._check()
        assert isinstance(prepared, MemoryBatch)
        if len(batches := prepared.cut()) > 1 and (torn := self.torn_after(len(batches))) is not None:
            super().write(MemoryBatch(batches[:torn]))
            self.flush()
            raise Killed
        super().write(prepared)

    def ingest(self, rows: SortedRows) -> Generator[None]:
        self._check()
        yield from super().ingest(rows)
        self.ingested()

    def items(self, lower: bytes, upper: bytes, *, limit: int) -> Sequence[tuple[bytes, bytes]]:
        if self.is_corrupt:
            raise StoreCorrupt("a block does not match its checksum")
        return super().items(lower, upper, limit=limit)

    def wipe(self) -> None:
        self.rows.clear()
        self.flush()

    def make_foreign(self) -> None:
        """The folder is that of another cluster; no process uses it."""
        self.is_open = True
        self.apply([foreign(self)])
        self.flush()


def foreign(store: StoreReader) -> Mutations:
    """Return the changes that make all rows those of another cluster."""
    changes = Mutations()
    for row, value in store.items(b"m", b"n", limit=100):
        changes.rows[row] = encode_meta(replace(decode_meta(value), cluster_id="another"))
    return changes


class FakeState:
    """Implements `sidecar.runtime.ports.State`."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._store: Disk | None = disk
        disk.is_open = True
        self._open_at_s = 0.0
        self.quarantines = 0

    @property
    def store(self) -> Store | None:
        return self._store

    def blocker(self) -> str | None:
        return None if self._store is not None else "the state folder cannot be used"

    def failed(self, error: StoreFailed) -> None:
        self._store, self._disk.is_open = None, False
        self._open_at_s = self._clock.monotonic_s() + OPEN_AGAIN_S
        if isinstance(error, StoreCorrupt):
            self._disk.is_corrupt = self._disk.is_full = False
            self._disk.wipe()
            self.quarantines += 1
            self._open_at_s = 0.0

    def maintain(self, committing: bool) -> None:
        if self._store is None and self._clock.monotonic_s() >= self._open_at_s and not committing:
            self._open_at_s = self._clock.monotonic_s() + OPEN_AGAIN_S
            if not self._disk.is_full:
                self._store, self._disk.is_open = self._disk, True

    def close(self) -> None:
        if self._store is not None:
            self._disk.flush()
        self._store = None


class FakeWriter:
    """Implements `sidecar.runtime.ports.Writer`: what is written is taken at the next poll, or not at all."""

    def __init__(self, cluster: Cluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link
        self._queue: list[tuple[str, int, Row, Report]] = []

    def write(
        self, topic: str, key: bytes | None, value: bytes | None, *, partition: int, headers: Headers, report: Report
    ) -> None:
        self._queue.append((topic, partition, Row(key, value, headers), report))

    def poll(self, timeout_s: float) -> None:
        try:
            self._cluster.reach(self._link)
        except Unreachable:
            return
        now_ms = self._cluster.timeline.now_ms()
        queue, self._queue = self._queue, []
        for topic, partition, row, report in queue:
            try:
                report(Written(partition, self._cluster.send(topic, partition, row, now_ms), now_ms))
            except Refusal as why:
                report(KafkaFailed(str(why)))

    def flush(self, timeout_s: float) -> int:
        self.poll(0)
        return len(self._queue)


class FakeStarts:
    """Implements `sidecar.runtime.reporting.starts.GroupStarts`: knows the status topic as it was a while ago."""

    def __init__(self, cluster: Cluster, topic: str, instance_id: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._key = start_key(instance_id)
        self._late_ms = cluster.rng.choice([0, 200, 5_000])

    @property
    def last_start(self) -> Start | None:
        read_to_ms = self._cluster.timeline.now_ms() - self._late_ms
        found = [
            Start(StatusPosition(each.timestamp_ms, each.offset), each.row.value or b"")
            for each in self._cluster.log(self._topic, START_PARTITION).entries
            if each.row.key == self._key and each.timestamp_ms <= read_to_ms
        ]
        return max(found, default=None)


class Strangers:
    """A view of the group that knows nothing of other instances' partitions."""

    def views(self) -> Sequence[PartitionView]:
        return ()

    def unread(self) -> str | None:
        return None

    def activity(self, partition: int) -> Activity | None:
        return None


class _Answer:
    """The part of a future that the catalogue uses."""

    def __init__(self, question: _Lookup, outcome: Callable[[], object]) -> None:
        self._question = question
        self._outcome = outcome

    def done(self) -> bool:
        return self._question.done()

    def result(self) -> object:
        outcome = self._question.error or self._outcome()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class _Lookup:
    def __init__(self, cluster: Cluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link
        self._at_s = cluster.timeline.now_s + cluster.rng.random() * ANSWER_S
        self._until_s = cluster.timeline.now_s + 5.0
        self.error: Exception | None = None

    def done(self) -> bool:
        now_s = self._cluster.timeline.now_s
        if now_s < self._at_s:
            return False
        try:
            self._cluster.reach(self._link)
        except Unreachable:
            self.error = KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return now_s >= self._until_s
        return True


class FakeAdmin:
    """The part of the library's admin client that the catalogue uses."""

    def __init__(self, cluster: Cluster, link: Link) -> None:
        self._cluster = cluster
        self._link = link

    def describe_topics(self, topics: TopicCollection, **_: object) -> Mapping[str, Any]:
        names: list[str] = topics.topic_names
        question = _Lookup(self._cluster, self._link)
        return {name: _Answer(question, lambda name=name: self._described(name)) for name in names}  # type: ignore[misc]

    def describe_configs(self, resources: Sequence[Any], **_: object) -> Mapping[Any, Any]:
        question = _Lookup(self._cluster, self._link)
        return {each: _Answer(question, lambda each=each: self._configured(each.name)) for each in resources}  # type: ignore[misc]

    def _described(self, name: str) -> object:
        topic = self._cluster.topics.get(name)
        if topic is None:
            return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        if not topic.may_describe:
            return KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        operations = [AclOperation.DESCRIBE, *([AclOperation.WRITE] if topic.may_write else [])]
        partitions = [SimpleNamespace(leader=1 if log.has_leader else None) for log in topic.logs]
        return SimpleNamespace(authorized_operations=operations, partitions=partitions)

    def _configured(self, name: str) -> object:
        topic = self._cluster.topics.get(name)
        if topic is None or not topic.may_describe:
            return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return {"max.message.bytes": SimpleNamespace(value=str(topic.max_bytes))}


class FakeExecutor:
    """Implements `sidecar.runtime.ports.Executor` with a fiber in place of the thread."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._fiber: Fiber | None = None
        self._since_s = 0.0
        self._outcome: object = None
        self._failure: BaseException | None = None
        self._finished = False
        self.busy = False

    def submit(self, job: Callable[[], object]) -> None:
        invariant(not self.busy, "two jobs at once")
        self.busy, self._finished = True, False
        self._since_s = self._timeline.now_s
        self._fiber = self._timeline.start(lambda: self._run(job), self._timeline.rng.random() * 0.01)

    def _run(self, job: Callable[[], object]) -> None:
        try:
            self._outcome = job()
        except Exception as failure:  # noqa: BLE001 - handed to the loop, which raises it
            self._failure = failure
        self._finished = True

    @property
    def hangs(self) -> bool:
        return self.busy and self._timeline.now_s - self._since_s > HANGS_S

    def blocker(self) -> str | None:
        return None

    def wait(self, timeout_s: float) -> bool:
        if self.busy and timeout_s > 0:
            self._timeline.advance(timeout_s, lambda: self._finished)
        return self.busy and self._finished

    def take(self) -> object:
        invariant(self.busy and self._finished, "no outcome to take")
        self.busy = False
        outcome, failure = self._outcome, self._failure
        self._outcome = self._failure = None
        if failure is not None:
            raise failure
        return outcome

    def close(self) -> None: ...

    def freeze(self, seconds: float) -> None:
        """The process stands still."""
        if self._fiber is not None:
            self._fiber.wakes_s += seconds

    def kill(self) -> None:
        """The process dies."""
        if self._fiber is not None:
            self._timeline.kill(self._fiber)
