"""Decides when a transaction is planned, and what goes into it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sidecar.engine.partition import Partition
from sidecar.engine.plan import plan
from sidecar.engine.ports import Store
from sidecar.engine.read_ahead import Ahead
from sidecar.engine.transaction import Plan, Terms
from sidecar.errors import RecordCorrupt, StoreCorrupt
from sidecar.runtime.assignment import Assignment
from sidecar.runtime.components import Components
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.transaction.commit import Work
from sidecar.runtime.transaction.failures import Failures
from sidecar.runtime.transaction.limits import Limits
from sidecar.runtime.transaction.pace import fewer

FULL: Final = 100
"""After so many deliveries the next plan follows at once: they are worth a transaction of their own."""
ANSWER_S: Final = 0.003
"""Interval of looks for the answer about an origin that a plan waits for."""


class Planning:
    """Plans the next transaction from buffered items and due timers."""

    def __init__(
        self,
        components: Components,
        assignment: Assignment,
        buffer: Buffer,
        ahead: Ahead,
        failures: Failures,
        limits: Limits,
    ) -> None:
        self._components = components
        self._settings = components.settings
        self._clock = components.clock
        self._assignment = assignment
        self._buffer = buffer
        self._ahead = ahead
        self._failures = failures
        self._limits = limits
        # Plans for one message take turns of their own: between two of them there is often a larger one that fails.
        self._turn = {False: 0, True: 0}
        self._planned_s = self._ingested_s = float("-inf")
        """When the last plan was made, and the last one that could ingest."""
        self._pause_ms = 0.0
        """Time from the last plan until the next one for due timers."""
        self._unresolved: frozenset[str] = frozenset()
        """Origins that messages of the last plan wait for."""
        self._waits_for: dict[int, str] = {}
        """By partition, the DLQ that it waited for when messages of it were planned last."""

    # When

    def is_due(self) -> bool:
        """Return whether it is time for a plan."""
        if self._ingest_in_s() <= 0:
            return True
        since_ms = (self._clock.monotonic_s() - self._planned_s) * 1000
        if since_ms < self._pause_ms and not self._is_resolved():
            return False
        now_ms = self._clock.wall_ms()
        running = self._assignment.running()
        return any((wakes_ms := each.wakes_at_ms()) is not None and wakes_ms <= now_ms for each in running)

    def _ingest_in_s(self) -> float:
        """Return the seconds until the next plan takes messages in, infinite while there are none."""
        ready = self._buffer.ready
        if not ready:
            return float("inf")
        if ready >= self._settings.commit_max_messages:
            return 0.0
        return self._settings.commit_interval_ms / 1000 + self._ingested_s - self._clock.monotonic_s()

    def _is_resolved(self) -> bool:
        """Return whether the origins that the last plan missed have been looked up."""
        known, unknown = self._components.catalogue.origins, self._components.catalogue.unknown
        return bool(self._unresolved) and all(name in known or name in unknown for name in self._unresolved)

    def due_in_s(self, at_most_s: float) -> float:
        """Return the seconds until the next plan is due, at most `at_most_s`; negative when one is overdue."""
        wait_s = min(ANSWER_S if self._unresolved else at_most_s, self._ingest_in_s())
        since_s = self._clock.monotonic_s() - self._planned_s
        now_ms = self._clock.wall_ms()
        for partition in self._assignment.running():
            if (wakes_ms := partition.wakes_at_ms()) is not None:
                due_s = (wakes_ms - now_ms) / 1000
                wait_s = min(wait_s, max(due_s, self._pause_ms / 1000 - since_s))
        return wait_s

    # What

    def next(self, running: list[Partition], store: Store, membership: bytes) -> Work | None:
        """Return the next transaction of these partitions, None when there is nothing to do.

        Raises:
            StoreFailed: The store cannot be read.
        """
        alone = self._failures.items_max == 1
        turns = self._turns(running, alone)
        ingest = self._components.ingest
        terms = self._limits.terms(self._failures, self._components.closed, self._ahead.partitions, ingest.choose_dlq)
        terms = replace(terms, rate_of=ingest.policy.rate_of, partitions=self._assignment.usable_partitions)
        limit = min(self._settings.commit_max_messages, self._failures.items_max)
        open_for_ingest = [each.number for each in turns]
        now_ms = self._clock.wall_ms()
        few = alone or len(turns) > self._failures.items_max
        if not few and self._buffer.ready and self._ingest_in_s() > 0:
            open_for_ingest = []  # a block of the changelog has what came in COMMIT_INTERVAL_MS
        else:
            self._ingested_s = self._clock.monotonic_s()
        self._planned_s = self._clock.monotonic_s()
        if few:
            waiting = {each for each in open_for_ingest if self._buffer.ready_of(each)}
            fire_first = self._failures.suspects_one or bool(self._turn[alone] // len(turns) % 2)
            share = fewer(turns, waiting, self._failures.items_max, now_ms, fire_first=fire_first)
            turns, open_for_ingest = share.partitions, share.ingest
            terms = terms if share.fire_due else replace(terms, deliveries_max=0)
        batches = self._buffer.batches(open_for_ingest, limit, self._failures.pace.bytes_max)
        try:
            made = plan(turns, batches, store, now_ms, terms)
        except RecordCorrupt as cause:
            raise StoreCorrupt(f"a row of the state folder cannot be read: {cause}") from cause
        self._put_back(made)
        owned = self._assignment.partitions
        waited_for = {each: dlq for each, dlq in self._waits_for.items() if each in owned and each not in batches}
        self._waits_for = {**waited_for, **made.waits_for}
        self._components.catalogue.want(made.unresolved)
        self._unresolved = frozenset(made.unresolved)
        backlog = few or (not made.complete and not made.unresolved)
        missing = 0 if backlog else max(0, FULL - made.deliveries)
        self._pause_ms = self._settings.punctuation_interval_ms * missing / FULL
        if made.partition_plans:
            return self._work(made, terms, membership)
        self._ahead.clear()
        return None

    def _put_back(self, made: Plan) -> None:
        """Put back what a plan left over, without partitions that wait for a DLQ: they are fetched again later."""
        self._buffer.put_back({each: items for each, items in made.left.items() if each not in made.waits_for})
        for number, dlq in made.waits_for.items():
            self._buffer.block(number, dlq, made.left[number][0].offset)

    def _turns(self, running: list[Partition], alone: bool) -> list[Partition]:
        """Rotate the partitions, so that each plan begins with another one, and so does each plan for one message."""
        self._turn[alone] += 1
        start = self._turn[alone] % len(running)
        return running[start:] + running[:start]

    def _work(self, made: Plan, terms: Terms, membership: bytes) -> Work:
        settings = self._settings
        return Work(
            made,
            {
                partition_plan.number: self._assignment.partitions[partition_plan.number]
                for partition_plan in made.partition_plans
            },
            membership,
            self._components.recovery.identity,
            settings.input_topic,
            settings.changelog_topic,
            settings.status_topic,
            settings.api_token,
            unanswerable=self._failures.oversize.unanswerable,
            closed_dlqs=terms.closed_dlqs.union(self._waits_for.values()),
            traced=self._failures.tracing(made.deliveries),
            keeps_deliveries=self._components.spans is not None,
        )
