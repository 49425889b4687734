"""The ports of the loop.

The adapters implement these protocols structurally, and so does the simulated world of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Origin, Outgoing, Store
from sidecar.engine.restore import ChangelogRead
from sidecar.engine.rows import Identity
from sidecar.errors import StoreFailed
from sidecar.kafka.admin.offsets import Bounds, Committed
from sidecar.kafka.input import Rebalanced
from sidecar.kafka.origin_search import Found, Wanted
from sidecar.kafka.producer import Refused, Unwritten, Waits
from sidecar.kafka.writer import Report
from sidecar.model import Headers, Record


class Consumer(Protocol):
    """A member of the consumer group that reads the input topic: `kafka.input.InputConsumer`."""

    @property
    def refusal(self) -> str:
        """Why it cannot join; empty when there is no known reason."""
        ...

    def poll(self, limit: int, timeout_s: float) -> Iterator[Iterable[Record]]:
        """Yield up to about `limit` records in batches as they arrive; wait at most `timeout_s` for the first.

        Rebalances happen inside.
        """
        ...

    def pause(self, partitions: Collection[int]) -> None:
        """Stop fetching these."""
        ...

    def resume(self, partitions: Collection[int]) -> None:
        """Resume fetching these."""
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Read on from `offset`. Raises KafkaFailed when the partition is not assigned."""
        ...

    def end_offsets(self) -> Mapping[int, int]:
        """Return the last known end of each assigned partition."""
        ...

    def membership(self) -> bytes | None:
        """Return the group metadata that fences this member's transactions; None while there is no membership."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Producer(Protocol):
    """A transactional producer: `kafka.producer.TransactionalProducer`. Every method may raise TransactionFailed."""

    @property
    def batch_bytes(self) -> int:
        """Largest size of a batch."""
        ...

    @property
    def refused(self) -> Sequence[Refused]:
        """Deliveries and dead letters that could not be written."""
        ...

    @property
    def unwritten(self) -> Sequence[Unwritten]:
        """Records of the changelog and the status topic that were too large."""
        ...

    @property
    def unwritten_for(self) -> Mapping[int, str]:
        """Partitions for which the changelog or the status topic could not be written, with the error."""
        ...

    @property
    def delivered_to(self) -> frozenset[tuple[str, int]]:
        """Topic partitions that accepted a record whose delivery was traced."""
        ...

    @property
    def accepted(self) -> Mapping[tuple[str, int], int]:
        """By topic and partition, how many records the broker accepted when it rejected others of their batch."""
        ...

    @property
    def next_changelog_offsets(self) -> Mapping[int, int]:
        """By partition, the changelog offset behind what was written."""
        ...

    def init(self, timeout_s: float) -> None:
        """Fence older producers with this transactional id and end their transactions."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def write_changelog(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> Waits:
        """Write changelog records; yields before it would wait."""
        ...

    def write_outcomes(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, Headers]]) -> Waits:
        """Write outcomes of control records; yields before it would wait."""
        ...

    def write_outgoing(self, partition: int, records: Iterable[Outgoing], *, traced: bool) -> Waits:
        """Write records that leave: deliveries, dead letters, redrives; yields before it would wait."""
        ...

    def send_offsets(
        self, topic: str, offsets: Mapping[int, int], membership: bytes, metadata: Mapping[int, str] = {}
    ) -> None:
        """Add input offsets to the transaction, each with its metadata."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def abort(self) -> None:
        """Abort."""
        ...

    def give_up(self) -> bool:
        """Abandon the thread that waits in a call; return False when the transaction was claimed before."""
        ...

    def claim(self) -> bool:
        """Claim the committed transaction; return False when it was given up before."""
        ...

    def close(self) -> None:
        """Release the producer without waiting."""
        ...


class Writer(Protocol):
    """A producer of single records, outside of any transaction: `kafka.writer.Writer`."""

    def write(
        self, topic: str, key: bytes | None, value: bytes | None, *, partition: int, headers: Headers, report: Report
    ) -> None:
        """Put a record into the queue. Raises BufferError or KafkaFailed when it is not taken."""
        ...

    def poll(self, timeout_s: float) -> None:
        """Call the reports that have come, waiting at most so long for the first one."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Wait at most so long until all is written; return how many records are not."""
        ...


class Question(Protocol):
    """A question to the brokers, on its way from the moment it exists."""

    def done(self) -> bool:
        """Return whether it is answered, be it by a refusal. Never waits."""
        ...


class CommittedQuestion(Question, Protocol):
    """For the committed input offsets of the group: `kafka.admin.offsets.CommittedOffsets`."""

    @property
    def errors(self) -> Mapping[int, str]:
        """Why a partition is not in the result; empty text while nothing but waiting is needed."""
        ...

    def result(self) -> Mapping[int, Committed | None]:
        """Return the offset of each partition that has a stable one, None where nothing was committed yet."""
        ...


class BoundsQuestion(Question, Protocol):
    """For where logs start and end, uncommitted records included: `kafka.admin.offsets.LogBounds`."""

    @property
    def errors(self) -> Mapping[int, str]:
        """As of `CommittedQuestion`."""
        ...

    def result(self) -> Mapping[tuple[str, int], Bounds]:
        """Return bounds by topic and partition, of those that are answered."""
        ...


class TopicsQuestion(Question, Protocol):
    """For what topics are now: `kafka.admin.offsets.TopicsNow`."""

    def id_of(self, topic: str) -> str:
        """Return the id of a topic; empty when no broker says."""
        ...

    def errors(self, numbers: Sequence[int]) -> Mapping[int, str]:
        """Return the partitions that cannot be used, and why; empty text while nothing but waiting is needed."""
        ...


class SearchQuestion(Question, Protocol):
    """For deliveries in origins: `kafka.origin_search.OriginSearch`."""

    def result(self) -> Found:
        """Return what was found."""
        ...


AskOrigins = Callable[[Sequence[Wanted]], SearchQuestion]
"""Searches the origins for some partitions at once."""


class Brokers(Protocol):
    """What a restore asks the brokers: `kafka.admin.offsets.Brokers`. Nothing waits."""

    def committed(self, topic: str, partitions: Sequence[int]) -> CommittedQuestion:
        """Ask what the group has committed."""
        ...

    def topics(self, names: Sequence[str]) -> TopicsQuestion:
        """Ask for ids and leaders."""
        ...

    def bounds(self, partitions: Mapping[str, Sequence[int]]) -> BoundsQuestion:
        """Ask for the bounds of partitions, by topic."""
        ...


class ChangelogReader(Protocol):
    """Reads committed records of changelog partitions: `kafka.changelog.ChangelogReader`."""

    def start(self, partition: int, offset: int, topic_id: str = "") -> None:
        """Read a partition from `offset` on, of the topic with this id; empty: not known."""
        ...

    def stop(self, partition: int) -> None:
        """Read it no more."""
        ...

    def read(self, timeout_s: float) -> Mapping[int, Sequence[ChangelogRead]]:
        """Return the next slice by partition, waiting so long for it. Raises KafkaFailed when it cannot go on."""
        ...

    def take_lost(self) -> Sequence[int]:
        """Return, once, the partitions whose position is no longer in the log."""
        ...

    def error_of(self, partition: int) -> str:
        """Return why nothing of it can be read now; empty when nothing is known to be wrong."""
        ...

    def position(self, partition: int) -> int:
        """Return the next offset to be read; negative before the first one."""
        ...


class Executor(Protocol):
    """Runs one job at a time beside the loop: `transaction.commit.Committer`."""

    busy: bool
    """A job is under way, or ended and not taken yet."""

    @property
    def hangs(self) -> bool:
        """Whether the job has been running for longer than any is meant to."""
        ...

    def submit(self, job: Callable[[], object]) -> None:
        """Start a job; the one before must have been taken."""
        ...

    def blocker(self) -> str | None:
        """Return what to tell people while a job takes long, None when it does not."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Return whether there is an outcome to take, waiting for it at most so long."""
        ...

    def take(self) -> object:
        """Return the outcome of the job; raises what it raised."""
        ...

    def close(self) -> None:
        """End after the job at hand."""
        ...


class Catalogue(Protocol):
    """Facts about topics from definite answers of the broker: `kafka.admin.catalogue.Catalogue`."""

    expected: Collection[str]
    """Topics that are known to exist."""

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Topics that exist."""
        ...

    @property
    def unknown(self) -> Mapping[str, float]:
        """Topics that do not exist, and when the broker reported it (monotonic seconds)."""
        ...

    @property
    def denied(self) -> Collection[str]:
        """Topics that this client may not write to."""
        ...

    @property
    def allowed(self) -> Collection[str]:
        """Topics that this client may write to."""
        ...

    @property
    def leaderless(self) -> Collection[str]:
        """Topics with a partition that has no leader."""
        ...

    def want(self, names: Iterable[str]) -> None:
        """Look these up at the next `advance`."""
        ...

    def invalidate(self, name: str) -> None:
        """Forget what is known about a topic and look it up again."""
        ...

    def invalidate_permission(self, name: str) -> None:
        """Look up the permission to write to a topic again."""
        ...

    def advance(self, now_s: float) -> None:
        """Process answers and send requests. Never waits."""
        ...


class TopicWatch(Protocol):
    """Notices that input topic or changelog was deleted and made again: `kafka.admin.topic_watch.TopicWatch`."""

    def replaced(self, partitions: Iterable[Partition]) -> set[int]:
        """Return the numbers of the partitions that belong to a former topic of one of the names. Never waits."""
        ...


class MarkerWatch(Protocol):
    """Notices a committed transaction without an end in the changelog: `kafka.admin.marker_watch.MarkerWatch`."""

    def committed(self, partitions: Iterable[Partition]) -> None:
        """Note the partitions of a transaction that was reported as committed."""
        ...

    def missing(self, running: Iterable[Partition]) -> set[int]:
        """Return the partitions whose last commit the brokers have not ended in time. Never waits."""
        ...


class Status(Protocol):
    """Publishes the state of owned partitions: `reporting.status.StatusPublisher`."""

    @property
    def delivered_s(self) -> float:
        """When the broker last accepted a record (monotonic seconds)."""
        ...

    def advance(self, views: Sequence[PartitionView]) -> None:
        """Publish the views that are due. Never waits."""
        ...

    def clear(self, partition: int) -> None:
        """Forget when this partition was published, so that it is published at once when owned again."""
        ...

    def publish_release(self, view: PartitionView) -> None:
        """Publish the last view of a partition that is released."""
        ...

    def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for records in flight."""
        ...


class State(Protocol):
    """The lifecycle of the local store: `runtime.state.LocalState`."""

    @property
    def store(self) -> Store | None:
        """The store, None while it cannot be used."""
        ...

    @property
    def quarantines(self) -> int:
        """How often the database was quarantined."""
        ...

    def blocker(self) -> str | None:
        """Return why no transaction may begin, None when one may."""
        ...

    def failed(self, error: StoreFailed) -> None:
        """Close the store, to be opened again later."""
        ...

    def maintain(self, committing: bool) -> None:
        """Open the store, check the disk, flush. Raises StoreFailed when the open store cannot be trusted."""
        ...

    def close(self) -> None:
        """Flush and release the folder."""
        ...


class Recoveries(Protocol):
    """Brings partitions from ASSIGNED to RUNNING: `partitions.recovery.Recovery`."""

    @property
    def identity(self) -> Identity:
        """Which cluster and changelog the store mirrors."""
        ...

    @property
    def skipped_input(self) -> int:
        """Input records that were deleted from the log before they were read."""
        ...

    @property
    def busy(self) -> bool:
        """Whether any partition is recovering."""
        ...

    def on_committed(self, partitions: Mapping[int, Partition]) -> None:
        """Note the partitions of a committed transaction."""
        ...

    def start(self, partitions: Iterable[Partition]) -> None:
        """Start the recovery of partitions, in whatever state they are."""
        ...

    def drop(self, number: int) -> None:
        """Stop the recovery of a partition."""
        ...

    def back_off(
        self, unwritten: Mapping[int, str], written_for: int, others_run: bool, stuck: Mapping[int, str] = {}
    ) -> None:
        """Leave partitions out of the next transactions whose changelog or status partition refused writes."""
        ...

    def left_open(self) -> tuple[int, Committed] | None:
        """Return a partition whose last transaction has no marker in the changelog, and its committed offset."""
        ...

    def progress(self, number: int) -> tuple[float, int]:
        """Return the completed fraction of a restore, and the number of changelog records still to read."""
        ...

    def advance(self, store: Store, others_run: bool) -> None:
        """Do one slice of work."""
        ...


OpenConsumer = Callable[[Rebalanced], Consumer]
"""Creates the consumer; the argument receives rebalances."""

MakeProducer = Callable[[int, int], Producer]
"""Creates a producer; the arguments are the batch size in bytes and the message timeout in ms."""

MakeExecutor = Callable[[], Executor]
"""Another one takes the place of an executor whose job hangs."""
