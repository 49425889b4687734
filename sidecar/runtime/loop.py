"""The loop: one thread that polls, examines, plans, and hands each plan to the commit thread.

    poll ► examine ► buffer                 while the previous transaction is being committed
    ► its result ► recover ► plan ► commit thread

`engine/partition.py` has the states of a partition. Nothing here waits longer than a poll. The components:

    assignment.py   the owned partitions, and what each of them waits for
    fetching.py     poll, pause and resume
    jobs.py         the commit thread and its producer
    planning.py     when to plan a transaction, and what goes into it
    readiness.py    why the instance is not ready
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from sidecar.engine.partition import Partition
from sidecar.engine.ports import Store
from sidecar.engine.read_ahead import Ahead
from sidecar.errors import DuplicateInstance, KafkaFailed, RecordCorrupt, StoreFailed, TransactionFailed
from sidecar.policy import Policy
from sidecar.runtime.assignment import Assignment
from sidecar.runtime.components import Components
from sidecar.runtime.fetching import Fetching
from sidecar.runtime.jobs import Jobs
from sidecar.runtime.memory import Memory
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.planning import Planning
from sidecar.runtime.readiness import Readiness
from sidecar.runtime.reporter import Reporter
from sidecar.runtime.reporting.tally import tally, tally_ended
from sidecar.runtime.transaction.commit import Result
from sidecar.runtime.transaction.failures import Failures
from sidecar.runtime.transaction.limits import Limits

log = structlog.get_logger(__name__)

POLL_IDLE_S: Final = 0.1
POLL_BUSY_S: Final = 0.003
MAINTAIN_EVERY_S: Final = 0.25
REVOKE_WAIT_S: Final = 5.0


class Loop:
    """Calls its components in turn. Every method runs on the loop's thread."""

    def __init__(self, components: Components) -> None:
        clock = components.clock
        self._components = components
        self._clock = clock
        self._consumer = components.open_consumer(self)
        self._failures = Failures(clock, components.fences)
        self._limits = Limits(components.settings, components.catalogue, components.facts)
        self._buffer = Buffer(components.ingest)
        self._ahead = Ahead()
        self._fetching = Fetching(self._consumer, self._buffer, clock, ingests=components.ingests)
        self._assignment = Assignment(components.facts, self._fetching, self._buffer, self._ahead, components.recovery)
        self._jobs = Jobs(components, self._assignment, self._failures, self._limits)
        self._planning = Planning(components, self._assignment, self._buffer, self._ahead, self._failures, self._limits)
        self._readiness = Readiness(
            *(clock, components.guard, components.state, components.status, self._consumer),
            *(self._assignment, self._failures, self._jobs),
            login_blocker=components.login_blocker,
        )
        self._reporter = Reporter(components, self._assignment, self._fetching, self._readiness)
        self._memory = Memory(clock)
        self._retired: list[Result] = []
        self._maintained_s = float("-inf")
        self._end_at_s = float("inf")
        self.under_way = False
        """Whether the first messages that were due have been fired, or nothing was due."""

    def use(self, policy: Policy) -> None:
        """Decide by this policy from the next record on; what is pending keeps its due time."""
        self._components.ingest.use(policy)

    # One round

    def run_once(self) -> None:
        """Poll, then do the next step."""
        self._components.snapshots.heartbeat()
        wait_s = self._poll()
        self._failures.next_round()
        if self._jobs.busy:
            self._retired.clear()  # tens of thousands of objects, freed while the interpreter is idle
        if self._jobs.wait(wait_s):
            self._finish_job()
        elif self._jobs.abandon():
            self._assignment.recover_all()
        self._maintain()
        if not self._jobs.busy:
            self._next_job()
        elif self._ahead.busy:
            self._guard_store(self._render_ahead)
        if self._jobs.has_producer:
            self._guard_store(self._advance_recovery)
        if self._buffer.blocked:
            lost = self._fetching.go_on(self._assignment.running(), self._limits.closed_dlqs(self._failures))
            self._assignment.recover(lost)
        self._fetching.adjust(self._assignment.running(), self._assignment.partitions)
        self._reporter.advance()
        self.under_way = self.under_way or (self._assignment.all_run and not self._planning.is_due())

    def _poll(self) -> float:
        """Take records; return how long to wait for the transaction that is under way.

        Partitions are paused only when there is no other way: the client library drops what it has fetched of them, and
        begins to fetch again up to a second after they are resumed. A record is taken in each round nevertheless,
        because a rebalance is only heard of with it.
        """
        timeout_s = self._poll_timeout_s()
        ample = self._jobs.busy and self._buffer.ample
        unresolved = self._fetching.poll(0, 1) if ample else self._fetching.poll(timeout_s)
        self._components.catalogue.want(unresolved)
        return timeout_s if ample else 0

    def _poll_timeout_s(self) -> float:
        if self._jobs.busy and self._ahead.busy:
            return 0
        if self._jobs.busy or self._buffer.waits:
            return POLL_BUSY_S
        if self._components.recovery.busy or self._assignment.to_recover:
            return 0.001
        return max(POLL_BUSY_S, self._planning.due_in_s(POLL_IDLE_S))

    def _next_job(self) -> None:
        if self._failures.waiting() or self._jobs.prepare():
            return
        if self._assignment.to_recover:
            self._assignment.start_recoveries()
        elif (left := self._components.recovery.left_open()) is not None:
            if (membership := self._consumer.membership()) is not None:
                self._jobs.settle(*left, membership)
        elif self._planning.is_due() and not self._readiness.blockers():
            self._guard_store(self._plan)

    def _plan(self) -> None:
        running, membership = self._assignment.running(), self._consumer.membership()
        store = self._components.state.store
        if not running or membership is None or store is None:
            return
        work = self._planning.next(running, store, membership)
        if work is None:
            return
        if self._limits.unfit(work.plan, singly=self._failures.oversize.singly) or self._jobs.unfit(work.plan):
            self._jobs.drop_producer()
            self._assignment.recover_all()
            return
        self._ahead.begin(work.plan.read_aheads(work.partitions))
        self._jobs.commit(work, store)

    def _finish_job(self) -> None:
        if (result := self._jobs.finish()) is None:
            return
        if isinstance(result.error, TransactionFailed):
            self._not_committed(result, result.error)
            return
        self._committed(result)
        if isinstance(result.error, StoreFailed):
            self._store_failed(result.error)

    def _committed(self, result: Result) -> None:
        components = self._components
        self.under_way = True
        self._failures.committed(result, more=self._buffer.ready > 0 or not result.work.plan.complete)
        self._retired.append(result)
        components.recovery.on_committed(result.work.partitions)
        components.marker_watch.committed(result.work.partitions.values())
        tally(components.metrics, components.spans, result)
        for partition_plan in result.work.plan.partition_plans:
            components.closed.fired(partition_plan.fired, result.fired_ms)
            if components.notifier is not None and partition_plan.dead_letters:
                components.notifier.add(partition_plan.dead_letters)

    def _not_committed(self, result: Result, error: TransactionFailed) -> None:
        components = self._components
        self._retired.clear()
        tally_ended(components.metrics, components.spans, result, self._failures.outcome(error))
        if self._failures.failed(error, result, components.closed, components.settings.dlq_topics, self._limits.of):
            self._jobs.drop_producer()
        stuck, unwritten = self._failures.oversize.stuck, result.unwritten_for
        others_run = any(each.number not in unwritten for each in self._assignment.running())
        components.recovery.back_off(unwritten, len(result.work.partitions), others_run, stuck)
        self._assignment.recover_all()

    def _render_ahead(self) -> None:
        if (store := self._components.state.store) is None:
            return
        try:
            self._ahead.advance(store)
        except RecordCorrupt:
            self._ahead.clear()  # plan() meets the same row and says what is wrong

    def _advance_recovery(self) -> None:
        store = self._components.state.store
        if self._components.recovery.busy and store is not None:
            self._components.recovery.advance(store, others_run=bool(self._assignment.running()))

    def running(self, partition: Partition, next_offset: int) -> None:
        """Start to ingest and fire: the partition has recovered."""
        now_ms = self._clock.wall_ms() - round(self._components.guard.skew_ms or 0)
        partition.restored_ms = max(now_ms, partition.restored_ms + 1)  # also after a clock was set back
        try:
            self._consumer.seek(partition.number, next_offset)
        except KafkaFailed as error:
            log.warning("seek_failed", partition=partition.number, reason=str(error))
            self._assignment.to_recover.add(partition.number)
            self._failures.back_off(f"partition {partition.number} cannot be read: {error}")
        else:
            self._buffer.begin(partition.number, next_offset)
            self._components.closed.restored(partition.checkpoint.closed, self._clock.monotonic_s())

    # Rebalances: called inside the poll

    def assigned(self, partitions: Sequence[int]) -> None:
        log.info("partitions_assigned", partitions=list(partitions))
        self._assignment.assign(partitions)
        self._reporter.hasten()

    def revoked(self, partitions: Sequence[int]) -> None:
        log.info("partitions_revoked", partitions=list(partitions))
        self._jobs.wait(min(REVOKE_WAIT_S, self._left_s()))
        for view in self._reporter.views(partitions):
            self._components.status.publish_release(view)
        self._release(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        log.warning("partitions_lost", partitions=list(partitions))
        self._release(partitions)

    def _release(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            self._assignment.release(number)
            self._failures.clear({number})
            self._components.status.clear(number)

    def offset_lost(self, partition: int) -> None:
        log.error("input_offset_lost", partition=partition)
        if partition in self._assignment.partitions:
            self._assignment.to_recover.add(partition)

    def broker_error(self, text: str) -> None:
        self._readiness.broker_error(text)

    # Maintenance

    def _maintain(self) -> None:
        components, now_s = self._components, self._clock.monotonic_s()
        components.catalogue.advance(now_s)
        if now_s - self._maintained_s < MAINTAIN_EVERY_S:
            return
        self._maintained_s = now_s
        self._limits.maintain()
        self._assignment.recover(components.restarts.take(self._assignment.partitions))
        self._assignment.recover(components.topic_watch.replaced(self._assignment.running()))
        self._assignment.recover(components.marker_watch.missing(self._assignment.running()))
        components.closed.maintain(self._assignment.running(), self._clock.wall_ms(), now_s)
        self._fetching.measure_lag()
        components.look_at_dlq()
        self._guard_store(lambda: components.state.maintain(self._jobs.busy))
        self._memory.maintain(self._jobs.busy or components.recovery.busy or self._buffer.ready > 0)
        if (store := components.state.store) is not None:
            self._guard_store(partial(self._maintain_store, store))
        if (skew_ms := components.guard.skew_ms) is not None:
            components.metrics.clock_skew_seconds.set(skew_ms / 1000)

    def _maintain_store(self, store: Store) -> None:
        if not self._components.recovery.busy:
            store.merge()
        self._components.metrics.store_bytes.set(store.size_bytes())
        self._components.leftovers.maintain(store, self._assignment.partitions)

    def _guard_store(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StoreFailed as error:
            self._store_failed(error)

    def _store_failed(self, error: StoreFailed) -> None:
        log.error("store_failed", reason=str(error))
        self._jobs.wait(REVOKE_WAIT_S)  # it may still write to the store that is about to be closed
        for number in list(self._assignment.partitions):
            self._assignment.end(number)
        self._components.state.failed(error)
        self._assignment.recover_all()

    # End

    def stop(self, deadline_s: float) -> None:
        """Finish or give up the current transaction, leave the group and close the store within the deadline."""
        self._end_at_s = self._clock.monotonic_s() + deadline_s
        if not self._jobs.wait(deadline_s) and self._jobs.busy:
            log.warning("commit_given_up", reason="SHUTDOWN_TIMEOUT is over; the broker aborts the transaction")
        elif self._jobs.busy:
            with suppress(DuplicateInstance):  # it ends anyway, and leaves the group
                self._finish_job()
        self._consumer.close()
        self._components.status.close(min(1.0, self._left_s()))
        if not self._jobs.busy:
            self._components.state.close()
        self._jobs.close()

    def _left_s(self) -> float:
        return max(0.0, self._end_at_s - self._clock.monotonic_s())
