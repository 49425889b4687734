"""The commit order, written once.

    1 begin                      a crash from here on: nothing happened, the broker aborts what was open
    2 write changelog, outcomes of control records, deliveries, dead letters
    3 send the input offsets     names EVERY partition that step 2 wrote for; this fences a former owner
    4 commit                     a crash after it: the changelog has what happened, restore replays it
    5 apply to the store         a crash within it loses it as a whole, restore replays it
    6 return the result          counts are published from it

The tests kill the process at each step (tests/integration/exactly_once/test_kill_at_every_step.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from queue import SimpleQueue
from typing import Final

from sidecar.changelog.codec import BlockKey, block_key
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.clock import Clock
from sidecar.contract import status
from sidecar.engine.apply import apply_committed, prepare_committed
from sidecar.engine.items import outcome_records
from sidecar.engine.partition import Partition, State
from sidecar.engine.ports import Outgoing, Prepared, Store
from sidecar.engine.rows import Identity
from sidecar.engine.transaction import PartitionPlan, Plan
from sidecar.errors import SidecarError, StoreFailed, TransactionFailed, invariant
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.bounded import HANGS_S
from sidecar.kafka.config import BATCH_BYTES
from sidecar.kafka.input import decode_membership
from sidecar.kafka.producer import Refused, Unwritten, Waits
from sidecar.model import Headers
from sidecar.runtime.ports import Producer
from sidecar.settings import Settings

SLOW_S: Final = 5.0
NO_BLOCK: Final = block_key(BlockKey(0, 0, 0))


class Step(StrEnum):
    """The points between the steps."""

    BEGUN = "begun"
    WRITTEN = "written"
    OFFSETS_SENT = "offsets-sent"
    COMMITTED = "committed"
    APPLIED = "applied"


Observe = Callable[[Step], None]


def unobserved(_step: Step) -> None:
    """Do nothing at a step."""


@dataclass(frozen=True, slots=True)
class Work:
    """One planned transaction."""

    plan: Plan
    partitions: Mapping[int, Partition]
    membership: bytes
    identity: Identity
    input_topic: str
    changelog_topic: str
    status_topic: str
    api_token: str | None = None
    """Signs the outcomes of control records."""
    traced: bool = True
    """Request a delivery report for every delivery."""
    keeps_deliveries: bool = False
    """Keep deliveries after they are written, even without delivery reports."""
    closed_dlqs: frozenset[str] = frozenset()
    """The DLQs that the plan did without: closed ones, and those for which a partition has yet to be fetched."""
    unanswerable: Collection[tuple[int, bytes]] = ()
    """Outcomes that the status topic refuses, by partition and key: they are left out."""

    @property
    def items(self) -> int:
        """The number of ingested messages or of deliveries, whichever is greater."""
        return max(self.plan.deliveries, sum(partition_plan.ingested for partition_plan in self.plan.partition_plans))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a transaction."""

    work: Work
    seconds: float
    error: SidecarError | None = None
    """TransactionFailed: not committed, or unknown. StoreFailed: committed, but not applied to the store."""
    refused: Sequence[Refused] = ()
    accepted: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition, how many records the broker accepted when it rejected others of their batch."""
    fired_ms: int = 0
    """Wall time at which the deliveries were handed to the client library."""
    unwritten: Sequence[Unwritten] = ()
    """Records of the changelog and the status topic that were too large."""
    delivered_to: frozenset[tuple[str, int]] = frozenset()
    """Topic partitions that accepted a record whose delivery was traced."""
    changelog_written: bool = False
    """The changelog accepted a record of each partition."""
    batch_bytes: int = BATCH_BYTES
    """Largest size of a batch; a larger record was a batch by itself."""
    unwritten_for: Mapping[int, str] = field(default_factory=dict)
    """See `ports.Producer.unwritten_for`."""


class Writing:
    """Steps 1 and 2 of one transaction: begun by the loop, which must not wait, and ended by the commit thread.

    Nearly always there is nothing to wait for. Then everything is written while no other thread needs the interpreter,
    in half the time that two threads take. For the same reason step 5 is prepared here, while the records are in
    flight.
    """

    def __init__(self, work: Work, producer: Producer, store: Store, clock: Clock, observe: Observe) -> None:
        offsets = {
            partition_plan.number: partition_plan.checkpoint.next_input_offset
            for partition_plan in work.plan.partition_plans
        }
        _check(work, offsets)
        self.work = work
        self.producer = producer
        self.store = store
        self.offsets = offsets
        """Next input offset of each partition in the transaction."""
        self.marks = {each.number: _mark(work.partitions[each.number], each) for each in work.plan.partition_plans}
        """What is committed with each offset."""
        self.started_s = clock.monotonic_s()
        self.fired_ms = 0
        """Wall time at which the deliveries were handed to the client library."""
        self.prepared: Mapping[int, Prepared] = {}
        """Prepared store changes by partition."""
        self._clock = clock
        self._observe = observe
        self._rest = _write(work, producer, observe)
        self._failure: TransactionFailed | None = None

    def advance(self) -> None:
        """Write until it would wait."""
        try:
            next(self._rest, None)
        except TransactionFailed as error:
            self._failure = error
        self.fired_ms = self._clock.wall_ms()
        self.prepared = {
            partition_plan.number: prepare_committed(
                self.store, self.work.partitions[partition_plan.number], partition_plan, self.work.identity
            )
            for partition_plan in self.work.plan.partition_plans
        }

    def finish(self) -> None:
        """Write the rest. Raises TransactionFailed."""
        if self._failure is not None:
            raise self._failure
        for _ in self._rest:
            self.fired_ms = self._clock.wall_ms()
        self._observe(Step.WRITTEN)


def _mark(partition: Partition, partition_plan: PartitionPlan) -> str:
    after = partition_plan.checkpoint
    began_at = partition.checkpoint.next_input_offset
    topic_ids = after.input_topic_id, after.changelog_topic_id
    return str(OffsetMark(after.sequence, began_at, *topic_ids, partition_plan.set_back_ms))


def _check(work: Work, offsets: Mapping[int, int]) -> None:
    """Raise InvariantViolated if a transaction must not be begun."""
    invariant(bool(offsets) and all(each >= 0 for each in offsets.values()), "offsets to commit", offsets=offsets)
    plans = work.plan.partition_plans
    numbers = [each.number for each in plans]
    invariant(len(numbers) == len(offsets), "a transaction has two plans of a partition", partitions=numbers)
    generation, member_id = decode_membership(work.membership)
    invariant(
        generation >= 0 and bool(member_id),
        "a transaction of no member of the group: nothing would fence it",
        generation=generation,
        member_id=member_id,
    )
    own = {work.changelog_topic, work.status_topic}
    for partition_plan in plans:
        state = work.partitions[partition_plan.number].state
        invariant(
            state is State.RUNNING,
            "a transaction has a plan of a partition that does not run",
            partition=partition_plan.number,
            state=state.value,
        )
        fired_back = own.intersection(partition_plan.fired)
        invariant(
            not fired_back,
            "a delivery goes to a topic of the sidecar itself",
            partition=partition_plan.number,
            topics=sorted(fired_back),
        )


def _write(work: Work, producer: Producer, observe: Observe) -> Waits:
    producer.begin()  # 1
    observe(Step.BEGUN)
    for partition_plan in work.plan.partition_plans:  # 2
        yield from producer.write_changelog(work.changelog_topic, partition_plan.number, partition_plan.records)
        yield from producer.write_outcomes(work.status_topic, partition_plan.number, _outcomes(work, partition_plan))
        yield from producer.write_outgoing(
            partition_plan.number, [outgoing for _, outgoing in partition_plan.dead_letters], traced=True
        )
        deliveries = (
            partition_plan.deliveries if work.traced or work.keeps_deliveries else _released(partition_plan.deliveries)
        )
        yield from producer.write_outgoing(partition_plan.number, deliveries, traced=work.traced)


def _released(records: list[Outgoing]) -> Iterator[Outgoing]:
    """Yield records after removing them from the list: each is freed while it is still in the processor's cache."""
    records.reverse()
    while records:
        yield records.pop()


def commit(writing: Writing, clock: Clock, observe: Observe) -> Result:
    """Take a transaction that has begun through the remaining steps; the result has every failure."""
    work, producer, started_s = writing.work, writing.producer, writing.started_s
    try:
        writing.finish()
        if producer.refused:
            raise TransactionFailed(f"refused: {producer.refused[0].text}", unknown=False, replace=False)
        producer.send_offsets(work.input_topic, writing.offsets, work.membership, writing.marks)  # 3
        observe(Step.OFFSETS_SENT)
        producer.commit()  # 4
        observe(Step.COMMITTED)
        if not producer.claim():
            raise TransactionFailed("it was given up meanwhile", unknown=True, replace=True)
    except TransactionFailed as error:
        failure = _aborted(producer, error)
        seconds = clock.monotonic_s() - started_s
        return Result(
            work,
            seconds,
            failure,
            tuple(producer.refused),
            dict(producer.accepted),
            unwritten=tuple(producer.unwritten),
            delivered_to=producer.delivered_to,
            changelog_written=writing.offsets.keys() <= producer.next_changelog_offsets.keys(),
            batch_bytes=producer.batch_bytes,
            unwritten_for=dict(producer.unwritten_for),
        )
    try:
        _apply(writing, producer.next_changelog_offsets)  # 5
    except StoreFailed as error:
        return Result(work, clock.monotonic_s() - started_s, error, fired_ms=writing.fired_ms)
    observe(Step.APPLIED)
    return Result(work, clock.monotonic_s() - started_s, fired_ms=writing.fired_ms)


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of `settle`."""

    partition: int
    error: TransactionFailed | None = None


def settle(settings: Settings, producer: Producer, partition: int, committed: Committed, membership: bytes) -> Settled:
    """Commit a transaction that only ends the one before it in a partition of the changelog.

    Brokers that lost a marker end both parts together when the producer ends its next transaction there: with a
    transaction that fails, the committed one would be rolled back. The record deletes a block that never was.
    """
    try:
        producer.begin()
        for _ in producer.write_changelog(settings.changelog_topic, partition, [(NO_BLOCK, None)]):
            pass
        offsets, marks = {partition: committed.offset}, {partition: committed.metadata}
        producer.send_offsets(settings.input_topic, offsets, membership, marks)
        producer.commit()
    except TransactionFailed as error:
        return Settled(partition, _aborted(producer, error))
    return Settled(partition)


def _outcomes(work: Work, partition_plan: PartitionPlan) -> list[tuple[bytes, bytes, Headers]]:
    outcomes: list[tuple[bytes, bytes, Headers]] = []
    for key, value in outcome_records(partition_plan.control_outcomes, partition_plan.number, work.plan.now_ms):
        if (partition_plan.number, key) in work.unanswerable:
            continue
        headers = status.signed(work.api_token, work.status_topic, partition_plan.number, key, value, work.plan.now_ms)
        outcomes.append((key, value, headers))
    return outcomes


def _aborted(producer: Producer, error: TransactionFailed) -> TransactionFailed:
    if error.unknown:
        return error
    try:
        producer.abort()
    except TransactionFailed as worse:
        return TransactionFailed(f"{error}; then {worse}", unknown=error.unknown, replace=True, fenced=worse.fenced)
    return error


def _apply(writing: Writing, next_changelog_offsets: Mapping[int, int]) -> None:
    work = writing.work
    for partition_plan in work.plan.partition_plans:
        number = partition_plan.number
        invariant(number in next_changelog_offsets, "no changelog offset was reported", partition=number)
        partition, offset = work.partitions[number], next_changelog_offsets[number]
        apply_committed(writing.store, partition, partition_plan, work.identity, offset, writing.prepared[number])


class Committer:
    """Runs one job at a time in a separate thread, so that the loop continues to poll."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = 0.0
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._finished = threading.Event()
        self._outcome: object = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="commit", daemon=True)
        self._thread.start()
        self.busy = False

    def submit(self, job: Callable[[], object]) -> None:
        """Start a job; the outcome of the previous one must have been taken."""
        invariant(not self.busy, "two jobs at once")
        self.busy = True
        self._since_s = self._clock.monotonic_s()
        self._finished.clear()
        self._jobs.put(job)

    @property
    def hangs(self) -> bool:
        """Whether the current job has been running for too long."""
        return self._busy_s > HANGS_S

    def blocker(self) -> str | None:
        """Return a reason for people while a job takes long, None otherwise."""
        return f"a transaction has been under way for {self._busy_s:.0f} s" if self._busy_s > SLOW_S else None

    @property
    def _busy_s(self) -> float:
        return self._clock.monotonic_s() - self._since_s if self.busy else 0.0

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for an outcome; return whether there is one."""
        return self.busy and self._finished.wait(timeout_s)

    def take(self) -> object:
        """Return the outcome of the job, or raise its exception."""
        invariant(self.busy and self._finished.is_set(), "no outcome to take")
        self.busy = False
        outcome, failure = self._outcome, self._failure
        self._outcome = self._failure = None
        if failure is not None:
            raise failure
        return outcome

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._outcome = job()
            except BaseException as failure:  # noqa: BLE001 - handed to the loop, which raises it
                self._failure = failure
            del job  # else it would keep the whole plan until the next job
            self._finished.set()

    def close(self) -> None:
        """End the thread after the current job."""
        self._jobs.put(None)
