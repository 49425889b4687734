"""The jobs of the commit thread, one at a time: create a producer, grow topics, or commit a transaction."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import structlog

from sidecar.engine.ports import Store
from sidecar.engine.transaction import Plan
from sidecar.errors import CommandFailed, TopicsInvalid, TransactionFailed, invariant
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.kafka.bounded import HANGS_S
from sidecar.kafka.config import MESSAGE_TIMEOUT_MAX_MS, MESSAGE_TIMEOUT_MS
from sidecar.runtime.assignment import Assignment
from sidecar.runtime.components import Components
from sidecar.runtime.ports import Producer
from sidecar.runtime.transaction.commit import Result, Settled, Work, Writing, commit, settle
from sidecar.runtime.transaction.failures import Failures
from sidecar.runtime.transaction.limits import Limits

log = structlog.get_logger(__name__)

GROW_AGAIN_S: Final = 10.0


class _Renewed(NamedTuple):
    producer: Producer


class Jobs:
    """Owns the commit thread and the transactional producer."""

    def __init__(self, components: Components, assignment: Assignment, failures: Failures, limits: Limits) -> None:
        self._components = components
        self._clock = components.clock
        self._assignment = assignment
        self._failures = failures
        self._limits = limits
        self._committer = components.make_executor()
        self._producer: Producer | None = None
        self._patient = self._wants_patience = False
        """The producer, and the next one, has the longest time for a record."""
        self._grow_at_s = float("-inf")

    @property
    def busy(self) -> bool:
        """Whether a job runs, or has ended and waits for `finish`."""
        return self._committer.busy

    @property
    def has_producer(self) -> bool:
        """Whether a producer is ready for transactions."""
        return self._producer is not None

    def blocker(self) -> str | None:
        """Return a reason for people while a job takes long, None otherwise."""
        return self._committer.blocker()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for a job; return whether `finish` can be called."""
        return self._committer.wait(timeout_s)

    def prepare(self) -> bool:
        """Start a job that must precede the next transaction; return whether there was one."""
        if self._producer is None:
            self._committer.submit(self._renew)
            return True
        now_s = self._clock.monotonic_s()
        if self._assignment.to_grow and now_s >= self._grow_at_s:
            self._grow_at_s = now_s + GROW_AGAIN_S
            self._committer.submit(self._components.grow_topics)
            return True
        return False

    def _renew(self) -> _Renewed:
        self._patient = self._wants_patience
        timeout_ms = MESSAGE_TIMEOUT_MAX_MS if self._patient else MESSAGE_TIMEOUT_MS
        batch_bytes = self._limits.new_batch_bytes(singly=self._failures.oversize.singly)
        producer = self._components.make_producer(batch_bytes, timeout_ms)
        producer.init(self._failures.init_timeout_s)
        return _Renewed(producer)

    def unfit(self, plan: Plan) -> bool:
        """Return whether a plan needs another producer, with more time for a record; the next one has it."""
        self._wants_patience = self._failures.pace.needs_time(plan)
        return self._wants_patience and not self._patient

    def commit(self, work: Work, store: Store) -> None:
        """Begin a transaction and hand it to the commit thread."""
        writing = Writing(work, self._ready_producer(), store, self._clock, self._components.observe)
        writing.advance()
        self._committer.submit(partial(commit, writing, self._clock, self._components.observe))

    def settle(self, partition: int, committed: Committed, membership: bytes) -> None:
        """End the transaction that the brokers left open in a partition of the changelog."""
        log.warning("transaction_left_open", partition=partition)
        settings, producer = self._components.settings, self._ready_producer()
        self._committer.submit(partial(settle, settings, producer, partition, committed, membership))

    def _ready_producer(self) -> Producer:
        invariant(self._producer is not None, "a transaction has no producer")
        return self._producer  # type: ignore[return-value]  # above

    def finish(self) -> Result | None:
        """Process the job that has ended; return the result if it was a transaction."""
        try:
            outcome = self._committer.take()
        except TransactionFailed as error:
            self._failures.renewal_failed(error)
            return None
        except (CommandFailed, TopicsInvalid) as error:
            self._assignment.not_grown(str(error))
            return None
        if isinstance(outcome, _Renewed):
            self._producer = outcome.producer
            self._failures.renewed()
        elif isinstance(outcome, Settled):
            if outcome.error is not None:
                log.warning("transaction_not_settled", partition=outcome.partition, reason=str(outcome.error))
                self.drop_producer()
            self._assignment.recover([outcome.partition])
        elif isinstance(outcome, TopicFacts):
            self._components.snapshots.set_cluster(outcome.cluster_id, outcome.partitions)
            self._assignment.grown(outcome)
        if not isinstance(outcome, Result):
            return None
        if self._patient:  # the next transaction may be for a topic that gives no answer
            self._wants_patience = False
            self.drop_producer()
        return outcome

    def abandon(self) -> bool:
        """Give up a job that hangs; return whether it was a transaction: all partitions must recover then.

        The client library can wait forever for a coordinator; a new producer ends the transaction. One whose
        `init_transactions` returns after all fences its successor once, which costs a transaction.
        """
        producer = self._producer
        if not self._committer.hangs or (producer is not None and not producer.give_up()):
            return False
        log.error("commit_hangs", reason=self._committer.blocker())
        self._committer.close()
        self._committer = self._components.make_executor()
        self._producer = None
        if producer is None:
            text = f"init_transactions: no answer within {HANGS_S:g} s"
            self._failures.renewal_failed(TransactionFailed(text, unknown=False, replace=True))
        return producer is not None

    def drop_producer(self) -> None:
        """Close the producer, so that another one is created before the next transaction."""
        if self._producer is not None:
            self._producer.close()
        self._producer = None

    def close(self) -> None:
        """End the thread after the current job."""
        self._committer.close()
