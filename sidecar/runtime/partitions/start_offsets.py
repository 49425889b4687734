"""Asks the brokers for the offsets that a restore starts from, for each partition separately.

    1 committed input offsets, until they are stable: a former owner's open transaction has ended
    2 the ids of input and changelog, and which partitions have a leader; only those go on
    3 the bounds of input and changelog, uncommitted records included; read BEFORE step 1 is done they could miss the
      former owner's last transaction

A partition without an answer does not delay the others: it shows the reason and is queried again with a growing delay.
Nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from sidecar.clock import Clock
from sidecar.engine.partition import Partition
from sidecar.kafka.admin.offsets import Bounds, Committed
from sidecar.runtime.ports import BoundsQuestion, Brokers, CommittedQuestion, TopicsQuestion

log = structlog.get_logger(__name__)

ASK_AGAIN_S: Final = 0.25
ASK_AGAIN_MAX_S: Final = 5.0
"""Longest time between two queries for a partition without an answer."""
PARTITION_BACK_OFF_S: Final = 5.0
"""How long a partition is left out at first when its changelog or status partition refuses writes: as long as the
others may have waited for it."""
PARTITION_BACK_OFF_MAX_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Topics:
    """The co-partitioned topics and the consumer group."""

    input_topic: str
    changelog_topic: str
    group_id: str


class PartitionOffsets(NamedTuple):
    """The offsets of one partition as the brokers reported them."""

    partition: Partition
    committed: Committed | None
    """Committed input offset; None: nothing was committed yet."""
    input_topic_id: str
    changelog_topic_id: str
    input_bounds: Bounds
    changelog_bounds: Bounds


@dataclass(slots=True)
class _Query:
    """A running query for some partitions; one that restarts meanwhile is removed from it."""

    partitions: dict[int, Partition]
    committed: CommittedQuestion
    offsets: Mapping[int, Committed | None] = field(default_factory=dict)
    now: TopicsQuestion | None = None
    bounds: BoundsQuestion | None = None


@dataclass(slots=True)
class _Later:
    """When a partition is queried again."""

    at_s: float
    wait_s: float
    why: str = ""


class StartOffsets:
    """Queries start offsets; owned by the recovery."""

    def __init__(self, brokers: Brokers, clock: Clock, topics: Topics) -> None:
        self._brokers = brokers
        self._clock = clock
        self._topics = topics
        self._waiting: dict[int, Partition] = {}
        self._later: dict[int, _Later] = {}
        self._backing_off: dict[int, _Later] = {}
        self._committed_s = float("-inf")
        """Time of the last commit while a partition was left out."""
        self._late: set[int] = set()
        """Partitions that had no answer in time when they were last queried."""
        self._queries: dict[bool, _Query] = {}
        """One for partitions with an error or without an answer, which may take long, and one for the others."""

    @property
    def busy(self) -> bool:
        """Whether any partition waits for its offsets."""
        return bool(self._waiting or self._queries)

    def want(self, partition: Partition) -> None:
        """Query a partition as soon as its back-off allows."""
        self._waiting[partition.number] = partition
        if (held := self._backing_off.get(partition.number)) is not None and held.at_s > self._clock.monotonic_s():
            partition.reason = held.why

    def drop(self, number: int) -> None:
        """Forget a partition, but keep its back-off."""
        self._waiting.pop(number, None)
        self._later.pop(number, None)
        for query in self._queries.values():
            query.partitions.pop(number, None)

    def back_off(self, number: int, why: str, *, proven: bool) -> None:
        """Leave a partition out for a while, while the others run.

        Args:
            number: The partition.
            why: The error text.
            proven: The partition is at fault, so that it is left out longer each time. Without proof it is only if
                another one was written since the time before: during an outage none is.
        """
        now_s, wait_s = self._clock.monotonic_s(), PARTITION_BACK_OFF_S
        if (before := self._backing_off.get(number)) is not None:
            proven = proven or self._committed_s > before.at_s - before.wait_s
            wait_s = min(before.wait_s * 2, PARTITION_BACK_OFF_MAX_S) if proven else before.wait_s
        log.warning("partition_held_back", partition=number, reason=why, seconds=wait_s)
        self._backing_off[number] = _Later(now_s + wait_s, wait_s, why)

    def on_committed(self, numbers: Iterable[int]) -> None:
        """End the back-off of partitions whose records were written."""
        if self._backing_off:
            self._committed_s = self._clock.monotonic_s()
            for number in numbers:
                self._backing_off.pop(number, None)

    def advance(self) -> list[PartitionOffsets]:
        """Send queries and return the answers that have arrived."""
        self._ask()
        answered = []
        for key, query in list(self._queries.items()):
            if self._is_answered(query):
                del self._queries[key]
                answered += self._offsets_of(query)
        return answered

    def _ask(self) -> None:
        now_s = self._clock.monotonic_s()
        due: dict[bool, dict[int, Partition]] = {False: {}, True: {}}
        for number, partition in self._waiting.items():
            waits = (self._later.get(number), self._backing_off.get(number))
            if all(each is None or now_s >= each.at_s for each in waits):
                due[bool(partition.reason) or number in self._late][number] = partition
        for key, partitions in due.items():
            if partitions and key not in self._queries:
                committed = self._brokers.committed(self._topics.input_topic, sorted(partitions))
                self._queries[key] = _Query(partitions, committed)
                for number in partitions:
                    del self._waiting[number]

    def _is_answered(self, query: _Query) -> bool:
        """Take the next step if the current one has an answer; return whether the query is complete."""
        if query.bounds is not None:
            return query.bounds.done()
        if query.now is None:
            if not query.committed.done():
                return False
            query.offsets = query.committed.result()
            self._retry_later(query, query.committed.errors, query.offsets)
            if query.partitions:
                topics = (self._topics.input_topic, self._topics.changelog_topic)
                query.now = self._brokers.topics(topics)
            return not query.partitions
        if not query.now.done():
            return False
        numbers = sorted(query.partitions)
        errors = query.now.errors(numbers)
        self._retry_later(query, errors, set(numbers) - errors.keys())
        if query.partitions:
            # Only now: the offsets are stable, so everything committed lies below the end that is read here.
            topics = (self._topics.changelog_topic, self._topics.input_topic)
            query.bounds = self._brokers.bounds(dict.fromkeys(topics, sorted(query.partitions)))
        return not query.partitions

    def _offsets_of(self, query: _Query) -> list[PartitionOffsets]:
        if query.bounds is None or query.now is None:
            return []
        bounds = query.bounds.result()
        keys = (self._topics.input_topic, self._topics.changelog_topic)
        whole = {number for number in query.partitions if all((topic, number) in bounds for topic in keys)}
        self._retry_later(query, query.bounds.errors, whole)
        answered = []
        for number, partition in query.partitions.items():
            self._later.pop(number, None)
            self._late.discard(number)
            entry, changelog = (bounds[topic, number] for topic in keys)
            input_id, changelog_id = (query.now.id_of(topic) for topic in keys)
            committed = query.offsets[number]
            answered.append(PartitionOffsets(partition, committed, input_id, changelog_id, entry, changelog))
        return answered

    def _retry_later(self, query: _Query, errors: Mapping[int, str], answered: Iterable[int]) -> None:
        """Take partitions without an answer out of a query, to query them again later."""
        now_s = self._clock.monotonic_s()
        kept = frozenset(answered)
        late = [each for each in query.partitions if each not in kept]
        if kept:  # brokers that answer for none of them may be away
            self._late.update(late)
        for number in late:
            partition = query.partitions.pop(number)
            error = errors.get(number, "")
            if error and error != partition.reason:
                log.warning("offsets_not_told", partition=number, reason=error)
            before = self._later.get(number)
            wait_s = ASK_AGAIN_S if before is None or not error else min(before.wait_s * 2, ASK_AGAIN_MAX_S)
            partition.reason = error
            self._later[number] = _Later(now_s + wait_s, wait_s)
            self._waiting[number] = partition
