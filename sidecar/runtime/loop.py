"""The loop: one thread that polls, examines, plans, and hands each plan to the commit thread.

    poll ► examine ► hold                      while the transaction before is being committed
    ► its result ► reset what must be ► plan ► commit thread

Partitions live in `engine/partition.py`'s states. Nothing here waits longer than a poll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException

from sidecar.engine.group.view import PartitionView
from sidecar.engine.items import Dead
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.ports import Store
from sidecar.engine.read_ahead import Ahead
from sidecar.engine.transaction import Plan
from sidecar.errors import CommandFailed, RecordCorrupt, StoreCorrupt, StoreFailed, TopicsInvalid, TransactionFailed
from sidecar.kafka.config import MESSAGE_TIMEOUT_MAX_MS, MESSAGE_TIMEOUT_MS
from sidecar.kafka.input import InputConsumer
from sidecar.kafka.producer import TransactionalProducer
from sidecar.kafka.topics import TopicFacts
from sidecar.runtime.memory import Memory
from sidecar.runtime.partitions.held import Held
from sidecar.runtime.parts import Parts
from sidecar.runtime.reporting.snapshot import views_of
from sidecar.runtime.reporting.tally import tally, tally_ended
from sidecar.runtime.transaction.commit import Committer, Result, Work, Writing, commit
from sidecar.runtime.transaction.failures import Failures
from sidecar.runtime.transaction.limits import Limits
from sidecar.runtime.transaction.pace import fewer

log = structlog.get_logger(__name__)

POLL_RECORDS: Final = 500
POLL_IDLE_S: Final = 0.1
POLL_BUSY_S: Final = 0.003
EXAMINE_MAX: Final = 5_000
SHOW_EVERY_S: Final = 0.2
CARE_EVERY_S: Final = 0.25
REVOKE_WAIT_S: Final = 5.0
GROW_AGAIN_S: Final = 10.0
TROUBLE_EVERY_S: Final = 10.0


class Loop:
    """Owns all mutable state of the engine. Every method runs on the loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._settings = parts.settings
        self._facts = parts.facts
        self._consumer: InputConsumer | None = None
        self._committer = Committer(parts.clock)
        self._producer: TransactionalProducer | None = None
        self._failures = Failures(parts.clock, parts.fences)
        self._held = Held(parts.intake)
        self._partitions: dict[int, Partition] = {}
        self._to_reset: set[int] = set()
        self._to_grow: set[int] = set()
        self._fetching: set[int] = set()
        self._grow_at_s = float("-inf")
        self._ahead = Ahead()
        self._spent: list[object] = []
        self._memory = Memory(parts.clock)
        self._turn = 0
        self._limits = Limits(parts.settings, parts.catalogue, parts.facts)
        self._planned_s = self._shown_s = self._cared_s = float("-inf")
        self._backlog = False
        self._waits_for_dlq = set[int]()
        self._lag: Mapping[int, int] = {}
        self._trouble_s = self._trouble_said_s = float("-inf")
        self._trouble = ""
        self._end_at_s = float("inf")

    def connect(self, consumer: InputConsumer) -> None:
        """Take the consumer, whose callbacks are this loop's own."""
        self._consumer = consumer

    @property
    def consumer(self) -> InputConsumer:
        assert self._consumer is not None
        return self._consumer

    # Rebalanced

    def assigned(self, partitions: Sequence[int]) -> None:
        log.info("partitions_assigned", partitions=list(partitions))
        for number in partitions:
            self._partitions[number] = Partition(number)
            (self._to_reset if number < self._facts.usable_partitions else self._to_grow).add(number)

    def revoked(self, partitions: Sequence[int]) -> None:
        log.info("partitions_revoked", partitions=list(partitions))
        self._committer.wait(min(REVOKE_WAIT_S, self._left_s()))
        for view in self._views(partitions):
            self._parts.status.part_with(view)
        self._let_go(partitions)

    def lost(self, partitions: Sequence[int]) -> None:
        log.warning("partitions_lost", partitions=list(partitions))
        self._let_go(partitions)

    def _let_go(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            if (partition := self._partitions.pop(number, None)) is not None:
                partition.transition_to(State.CLOSED)
            self._end_tenure(number)
            self._to_grow.discard(number)
            self._failures.forget({number})
            self._parts.status.forget(number)

    def _end_tenure(self, number: int) -> None:
        """Drop all that is held for a partition: none of it may enter a plan any more."""
        self._held.drop(number)
        self._ahead.drop(number)
        self._parts.reset.drop(number)
        self._to_reset.discard(number)
        self._fetching.discard(number)

    def offset_lost(self, partition: int) -> None:
        log.error("input_offset_lost", partition=partition)
        if partition in self._partitions:
            self._to_reset.add(partition)

    def trouble(self, text: str) -> None:
        now_s = self._clock.monotonic_s()
        if text != self._trouble and now_s - self._trouble_said_s >= TROUBLE_EVERY_S:
            log.warning("broker_trouble", reason=text)
            self._trouble_said_s = now_s
        self._trouble = text
        self._trouble_s = now_s

    # One round

    def run_once(self) -> None:
        """Poll, and do the one next thing."""
        self._parts.snapshots.beat()
        records = self.consumer.poll(POLL_RECORDS, self._poll_timeout_s())
        unresolved = self._held.take_in(records, self._clock.wall_ms())
        unresolved |= self._held.examine(self._clock.wall_ms(), EXAMINE_MAX)
        self._parts.catalogue.want(unresolved)
        if self._committer.busy:
            self._spent.clear()  # tens of thousands of objects: they die while nobody needs the interpreter
        if self._committer.wait(0):
            self._finish_job()
        elif self._producer is not None and self._committer.hangs and self._producer.give_up():
            self._leave_behind()
        self._care()
        if not self._committer.busy:
            self._next_job()
        elif self._ahead.busy:
            self._guard_store(self._render_ahead)
        if self._producer is not None:
            self._guard_store(self._advance_reset)
        self._adjust_fetching()
        self._show()

    def _leave_behind(self) -> None:
        """The library may wait for ever for a coordinator; a new producer ends the transaction, then all is reset."""
        log.error("commit_hangs", reason=self._committer.obstacle())
        self._committer.close()
        self._committer = Committer(self._clock)
        self._producer = None
        self._reset_all()

    def _render_ahead(self) -> None:
        if self._parts.state.store is None:
            return
        try:
            self._ahead.advance(self._parts.state.store)
        except RecordCorrupt:
            self._ahead.forget()  # plan() meets the same row and says what is wrong

    def _advance_reset(self) -> None:
        if self._parts.reset.busy and self._parts.state.store is not None:
            self._parts.reset.advance(self._parts.state.store, others_run=bool(self._running()))

    def _poll_timeout_s(self) -> float:
        if self._committer.busy and self._ahead.busy:
            return 0
        if self._committer.busy or self._held.waits:
            return POLL_BUSY_S
        if self._parts.reset.busy or self._to_reset:
            return 0.001
        wait_s = POLL_IDLE_S
        since_s = self._clock.monotonic_s() - self._planned_s
        if self._held.ready:
            wait_s = min(wait_s, self._settings.commit_interval_ms / 1000 - since_s)
        now_ms = self._clock.wall_ms()
        for partition in self._running():
            if (wakes_ms := partition.wakes_at_ms()) is not None:
                due_s = (wakes_ms - now_ms) / 1000
                wait_s = min(wait_s, max(due_s, self._settings.punctuation_interval_ms / 1000 - since_s))
        return max(POLL_BUSY_S, wait_s)

    def _running(self) -> list[Partition]:
        return [each for each in self._partitions.values() if each.state is State.RUNNING]

    def running(self, partition: Partition, next_offset: int) -> None:
        """A reset is over: take in and fire from here on."""
        try:
            self.consumer.seek(partition.number, next_offset)
        except KafkaException as cause:
            log.warning("seek_failed", partition=partition.number, reason=str(cause))
            self._to_reset.add(partition.number)
            self._failures.back_off(f"partition {partition.number} cannot be read: {cause.args[0].str()}")
        else:
            self._held.begin(partition.number, next_offset)
            self._parts.closed.restored(partition.checkpoint.closed, self._clock.monotonic_s())

    # Jobs of the commit thread

    def _next_job(self) -> None:
        if self._failures.waiting():
            return
        if self._producer is None:
            self._committer.submit(self._renew)
            return
        if self._to_grow and self._clock.monotonic_s() >= self._grow_at_s:
            self._grow_at_s = self._clock.monotonic_s() + GROW_AGAIN_S
            self._committer.submit(self._parts.grow_topics)
            return
        if self._to_reset:
            numbers, self._to_reset = self._to_reset, set()
            self._reset(numbers)
            return
        if self._should_plan() and not self._obstacles():
            self._guard_store(self._plan)

    def _renew(self) -> TransactionalProducer:
        timeout_ms = MESSAGE_TIMEOUT_MAX_MS if self._failures.pace.alone else MESSAGE_TIMEOUT_MS
        producer = self._parts.make_producer(
            self._limits.new_batch_bytes(singly=self._failures.oversize.singly), timeout_ms
        )
        producer.init(self._failures.init_timeout_s)
        return producer

    def _reset(self, numbers: set[int]) -> None:
        self.consumer.pause(self._fetching & numbers)
        for number in numbers:
            self._end_tenure(number)
        owned = [self._partitions[number] for number in numbers if number in self._partitions]
        self._parts.reset.start(each for each in owned if each.state is not State.STOPPED)

    def _reset_all(self) -> None:
        self._ahead.forget()
        self._to_reset.update(set(self._partitions) - self._to_grow)
        for number in self._to_reset:
            self._held.drop(number)

    def _finish_job(self) -> None:
        try:
            outcome = self._committer.take()
        except TransactionFailed as error:
            self._failures.renewal_failed(error)
            return
        except (CommandFailed, TopicsInvalid) as error:
            self._not_grown(str(error))
            return
        if isinstance(outcome, TransactionalProducer):
            self._producer = outcome
            self._failures.renewed()
        elif isinstance(outcome, TopicFacts):
            self._grown(outcome)
        elif isinstance(outcome, Result):
            self._finish_commit(outcome)

    def _grown(self, facts: TopicFacts) -> None:
        self._facts = facts
        self._parts.snapshots.know_cluster(facts.cluster_id, facts.partitions)
        usable = {number for number in self._to_grow if number < facts.usable_partitions}
        self._to_grow -= usable
        self._to_reset |= usable
        self._not_grown("; ".join(facts.notes) or "changelog and status have no such partition")

    def _not_grown(self, reason: str) -> None:
        for number in self._to_grow:
            if self._partitions[number].reason != reason:
                log.warning("topics_not_grown", partition=number, reason=reason)
            self._partitions[number].reason = reason

    def _finish_commit(self, result: Result) -> None:
        error = result.error
        if isinstance(error, TransactionFailed):
            self._spent.clear()
            tally_ended(self._parts.metrics, self._parts.spans, result, self._failures.outcome(error))
            if self._failures.failed(error, result, self._parts.closed, self._settings.dlq_topic, self._limits.of):
                self._drop_producer()
            stuck = self._failures.oversize.stuck
            self._parts.reset.hold_back(result.unwritten_for, len(result.work.partitions), stuck)
            self._reset_all()
            return
        self._failures.committed(result, more=self._held.ready > 0 or not result.work.plan.complete)
        self._spent.append(result)
        self._parts.reset.went_through(result.work.partitions)
        tally(self._parts.metrics, self._parts.spans, result)
        for part in result.work.plan.parts:
            self._parts.closed.fired(part.fired, result.fired_ms)
        if isinstance(error, StoreFailed):
            self._store_failed(error)

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
        self._producer = None

    # Plans

    def _should_plan(self) -> bool:
        since_ms = (self._clock.monotonic_s() - self._planned_s) * 1000
        ready = self._held.ready
        if ready and (since_ms >= self._settings.commit_interval_ms or ready >= self._settings.commit_max_messages):
            return True
        if not self._backlog and since_ms < self._settings.punctuation_interval_ms:
            return False
        now_ms = self._clock.wall_ms()
        return any((wakes_ms := each.wakes_at_ms()) is not None and wakes_ms <= now_ms for each in self._running())

    def _plan(self) -> None:
        running = self._running()
        membership = self.consumer.membership()
        store = self._parts.state.store
        if not running or membership is None or store is None or self._producer is None:
            return
        self._turn += 1
        start = self._turn % len(running)
        turns = running[start:] + running[:start]
        terms = self._limits.terms(self._failures, self._parts.closed, self._ahead.partitions)
        limit = min(self._settings.commit_max_messages, self._failures.items_max)
        waits_for_dlq = set() if terms.dlq_open else self._waits_for_dlq
        open_for_intake = [each.number for each in turns if each.number not in waits_for_dlq]
        now_ms = self._clock.wall_ms()
        self._planned_s = self._clock.monotonic_s()
        few = len(turns) > self._failures.items_max
        if few:
            waiting = {each for each in open_for_intake if self._held.ready_of(each)}
            share = fewer(
                turns, waiting, self._failures.items_max, now_ms, fires_first=bool(self._turn // len(turns) % 2)
            )
            turns, open_for_intake = share.partitions, share.take_in
            terms = terms if share.fires else replace(terms, fires_max=0)
        batches = self._held.batches(open_for_intake, limit, self._failures.pace.bytes_max)
        try:
            made = plan(turns, batches, store, now_ms, terms)
        except RecordCorrupt as cause:
            raise StoreCorrupt(f"a row of the state folder cannot be read: {cause}") from cause
        self._held.give_back(made.left)
        next_dead = {number for number, items in made.left.items() if type(items[0]) is Dead}
        self._waits_for_dlq = set() if terms.dlq_open else waits_for_dlq | next_dead
        self._parts.catalogue.want(made.unresolved)
        self._backlog = few or (not made.complete and not made.unresolved)
        if made.parts:
            self._submit(made, membership, terms.dlq_open)
        else:
            self._ahead.forget()

    def _submit(self, made: Plan, membership: bytes, tries_dlq: bool) -> None:
        producer, store = self._producer, self._parts.state.store
        assert producer is not None
        assert store is not None
        if self._limits.unfit(made, singly=self._failures.oversize.singly):
            self._drop_producer()
            self._reset_all()
            return
        work = Work(
            made,
            {part.number: self._partitions[part.number] for part in made.parts},
            membership,
            self._parts.reset.identity,
            self._settings.input_topic,
            self._settings.changelog_topic,
            self._settings.status_topic,
            self._settings.api_token,
            unanswerable=self._failures.oversize.unanswerable,
            tries_dlq=tries_dlq,
            traced=self._failures.tracing(made.fires),
            keeps_fires=self._parts.spans is not None,
        )
        self._ahead.begin(made.read_aheads(work.partitions))
        writing = Writing(work, producer, store, self._clock, self._parts.observe)
        writing.advance()
        self._committer.submit(partial(commit, writing, self._clock, self._parts.observe))

    # Care

    def _obstacles(self) -> list[str]:
        """Why no transaction may be begun now."""
        return [each for each in (self._parts.guard.obstacle(), self._parts.state.obstacle()) if each]

    def _guard_store(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StoreFailed as error:
            self._store_failed(error)

    def _store_failed(self, error: StoreFailed) -> None:
        log.error("store_failed", reason=str(error))
        self._committer.wait(REVOKE_WAIT_S)  # it may be writing to the store that is about to be closed
        for number in list(self._partitions):
            self._end_tenure(number)
        self._parts.state.failed(error)
        self._reset_all()

    def _care(self) -> None:
        now_s = self._clock.monotonic_s()
        self._parts.catalogue.advance(now_s)
        if now_s - self._cared_s < CARE_EVERY_S:
            return
        self._cared_s = now_s
        self._limits.care()
        self._to_reset |= self._parts.restarts.take(self._partitions) - self._to_grow
        self._parts.closed.care(self._running(), self._clock.wall_ms(), now_s)
        self._lag = self._held.lags(self.consumer.end_offsets())
        self._guard_store(lambda: self._parts.state.care(self._committer.busy))
        self._memory.care(self._committer.busy or self._parts.reset.busy or self._held.ready > 0)
        if (store := self._parts.state.store) is not None:
            self._guard_store(partial(self._care_for, store))
        if (skew_ms := self._parts.guard.skew_ms) is not None:
            self._parts.metrics.clock_skew_seconds.set(skew_ms / 1000)

    def _care_for(self, store: Store) -> None:
        self._parts.metrics.store_bytes.set(store.size_bytes())
        self._parts.leftovers.care(store, self._partitions)

    def _adjust_fetching(self) -> None:
        """Pause and resume by what is true now, so that no pause outlives its reason."""
        wanted = self._held.room() & {each.number for each in self._running()} if self._parts.takes_in else set()
        if wanted == self._fetching:
            return
        if paused := self._fetching - wanted:
            self.consumer.pause(paused & set(self._partitions))
        if resumed := wanted - self._fetching:
            self.consumer.resume(resumed)
        self._fetching = wanted

    def _show(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._shown_s < SHOW_EVERY_S:
            return
        self._shown_s = now_s
        self._parts.inheritance.join(self._running())
        views = self._views(self._partitions)
        self._parts.snapshots.show(views, self._not_ready(), self._details())
        self._parts.metrics.publish(views)
        self._parts.status.advance(views)

    def _views(self, numbers: Iterable[int]) -> list[PartitionView]:
        parts, now_ms = self._parts, self._clock.wall_ms()
        owned = [self._partitions[number] for number in sorted(numbers) if number in self._partitions]
        return views_of(owned, parts.instance_id, parts.url, parts.reset.progress, self._lag, now_ms)

    def _not_ready(self) -> list[str]:
        reasons = self._obstacles()
        reasons.extend(filter(None, (self._failures.obstacle(), self._committer.obstacle())))
        if self._trouble_s > max(self._parts.status.delivered_s, self._failures.committed_s):
            reasons.append(f"no broker answers: {self._trouble}")
        if self._producer is None:
            reasons.append("the transactional producer is not ready yet")
        if self.consumer.membership() is None:
            why = self.consumer.refusal
            reasons.append("it has not joined the consumer group yet" + (f": {why}" if why else ""))
        for each in self._partitions.values():
            if each.state is not State.RUNNING:
                reasons.append(f"partition {each.number} is {each.state}" + (f": {each.reason}" if each.reason else ""))
        return reasons

    def _details(self) -> dict[str, Any]:
        return {
            "instance_id": self._parts.instance_id,
            "partitions": sorted(self._partitions),
            "quarantines": self._parts.state.quarantines,
            "skipped_input_records": self._parts.reset.skipped_input,
        }

    # End

    def stop(self, deadline_s: float) -> None:
        """Finish or give up the transaction under way, leave the group, close the store, all within the deadline."""
        self._end_at_s = self._clock.monotonic_s() + deadline_s
        if not self._committer.wait(deadline_s) and self._committer.busy:
            log.warning("commit_given_up", reason="SHUTDOWN_TIMEOUT is over; the broker aborts the transaction")
        elif self._committer.busy:
            self._finish_job()
        self.consumer.close()
        self._parts.status.close(min(1.0, self._left_s()))
        if not self._committer.busy:
            self._parts.state.close()
        self._committer.close()

    def _left_s(self) -> float:
        return max(0.0, self._end_at_s - self._clock.monotonic_s())
