"""The partitions that this instance owns, from their assignment to their release."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from sidecar.engine.partition import Partition, State
from sidecar.engine.read_ahead import Ahead
from sidecar.errors import invariant
from sidecar.kafka.admin.topics import TopicFacts
from sidecar.runtime.fetching import Fetching
from sidecar.runtime.partitions.buffer import Buffer
from sidecar.runtime.ports import Recoveries

log = structlog.get_logger(__name__)


class Assignment:
    """The owned partitions, including those that wait for recovery or for larger topics."""

    def __init__(
        self, facts: TopicFacts, fetching: Fetching, buffer: Buffer, ahead: Ahead, recovery: Recoveries
    ) -> None:
        self.partitions: dict[int, Partition] = {}
        self.to_recover: set[int] = set()
        self.to_grow: set[int] = set()
        """Partitions that the changelog or the status topic does not have yet."""
        self._usable_partitions = facts.usable_partitions
        self._fetching = fetching
        self._buffer = buffer
        self._ahead = ahead
        self._recovery = recovery

    def running(self) -> list[Partition]:
        """Return the partitions that ingest and fire."""
        return [each for each in self.partitions.values() if each.state is State.RUNNING]

    @property
    def all_run(self) -> bool:
        """Whether there are partitions, and all of them ingest and fire."""
        return bool(self.partitions) and len(self.running()) == len(self.partitions)

    def owned(self, numbers: Iterable[int]) -> list[Partition]:
        """Return the owned partitions among `numbers`."""
        return [self.partitions[number] for number in numbers if number in self.partitions]

    def assign(self, numbers: Iterable[int]) -> None:
        """Take ownership of partitions."""
        for number in numbers:
            invariant(number not in self.partitions, "a partition is assigned that is owned already", partition=number)
            self.partitions[number] = Partition(number)
            (self.to_recover if number < self._usable_partitions else self.to_grow).add(number)

    def release(self, number: int) -> None:
        """Give up ownership of a partition."""
        if (partition := self.partitions.pop(number, None)) is not None:
            partition.transition_to(State.CLOSED)
        self.end(number)
        self.to_grow.discard(number)

    def end(self, number: int) -> None:
        """Drop everything buffered for a partition, so that none of it enters a plan."""
        self._buffer.drop(number)
        self._ahead.drop(number)
        self._recovery.drop(number)
        self.to_recover.discard(number)
        self._fetching.drop(number)

    def recover(self, numbers: Collection[int]) -> None:
        """Request recovery of these partitions, except those that wait for larger topics."""
        self.to_recover |= set(numbers) - self.to_grow

    def recover_all(self) -> None:
        """Request recovery of all partitions and drop everything buffered for them."""
        self._ahead.clear()
        self.recover(self.partitions)
        for number in self.to_recover:
            self._buffer.drop(number)

    def start_recoveries(self) -> None:
        """Start the requested recoveries."""
        numbers, self.to_recover = self.to_recover, set()
        self._fetching.pause(numbers)
        for number in numbers:
            self.end(number)
        self._recovery.start(each for each in self.owned(numbers) if each.state is not State.STOPPED)

    @property
    def usable_partitions(self) -> int:
        """Number of input partitions that have a changelog and a status partition."""
        return self._usable_partitions

    def grown(self, facts: TopicFacts) -> None:
        """Take the topics as they are after an attempt to grow them."""
        self._usable_partitions = facts.usable_partitions
        usable = {number for number in self.to_grow if number < facts.usable_partitions}
        self.to_grow -= usable
        self.to_recover |= usable
        self.not_grown("; ".join(facts.notes) or "changelog and status have no such partition")

    def not_grown(self, reason: str) -> None:
        """Set the reason on the partitions that still wait for larger topics."""
        for number in self.to_grow:
            if self.partitions[number].reason != reason:
                log.warning("topics_not_grown", partition=number, reason=reason)
            self.partitions[number].reason = reason
