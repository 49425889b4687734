"""Recovery of partitions: the one way to start, and the one answer to every failure.

Rebalance, abort, fence, unknown outcome and store failure all end here:

    1 what is buffered for the partition is dropped (by the caller)
    2 a producer that cannot be trusted is replaced (by the caller, before the steps below)
    3 the brokers are queried (start_offsets.py): stable committed input offsets, and only then
    4 the target: the end of the changelog, uncommitted records included
    5 the changelog is read up to the target, from the last checkpoint applied to the store: if it was never committed,
      the broker has rolled back what it reported as such, and the whole log is read
    6 the input is read from the committed offset; if the sidecar committed it, from that of the checkpoint in the log,
      since the broker may have rolled back one of the two alone
    7 if the log lacks a transaction that was committed, its deliveries are searched for in the origins (search.py)

Nothing here blocks: `advance` does a slice and returns.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import structlog

from sidecar.changelog.codec import Checkpoint
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.clock import Clock
from sidecar.engine.delivered import NOTHING, Delivered
from sidecar.engine.partition import Partition, State
from sidecar.engine.ports import Store
from sidecar.engine.restore import Restore, to_spill
from sidecar.engine.rows import Identity
from sidecar.engine.wholeness import ChangelogLost, Log, missing
from sidecar.errors import PartitionStopped, invariant
from sidecar.kafka.admin.offsets import Bounds, Committed
from sidecar.runtime.partitions.search import Searches
from sidecar.runtime.partitions.start_offsets import PartitionOffsets, StartOffsets, Topics
from sidecar.runtime.ports import Brokers, ChangelogReader

log = structlog.get_logger(__name__)

SLICE_S: Final = 0.02
"""Longest slice of restoring while other partitions run."""
SLICE_ALONE_S: Final = 0.2
BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Timers of all restores that wait to be written as sorted files."""
READ_TIMEOUT_S: Final = 0.005
LEFT_OPEN_S: Final = 5.0
"""The last transaction of the log that is not stable after so long is taken for one that the brokers forgot to end."""
STALLED_S: Final = 15.0
"""A restore that has read nothing for this long, without an error, starts again."""


@dataclass(slots=True)
class _Restoring:
    restore: Restore
    committed: Committed | None
    input_bounds: Bounds
    input_topic_id: str
    log: Log
    start: int
    target: int
    began_s: float
    moved_s: float
    """When a record was last read (monotonic)."""
    read: bool = False
    next_offset: int = 0
    """Of the input, once the log has been read."""

    @property
    def mark(self) -> OffsetMark | None:
        """What the group's committed offset was committed with."""
        return None if self.committed is None else OffsetMark.parse(self.committed.metadata)

    def restored(self, position: int) -> float:
        """Return the completed fraction, 0 to 1."""
        span = self.target - self.start
        return 1.0 if span <= 0 else min(1.0, max(0.0, (position - self.start) / span))


class Recovery:
    """Brings partitions from ASSIGNED to RUNNING."""

    def __init__(
        self,
        brokers: Brokers,
        reader: ChangelogReader,
        clock: Clock,
        topics: Topics,
        identity: Identity,
        searches: Searches,
        *,
        running: Callable[[Partition, int], None],
        restored: Callable[[float], None],
        input_lost: Callable[[int, int], None],
        rolled_back: Callable[[int], None],
    ) -> None:
        """Args:
        running: Called with the partition and its next input offset when it may ingest and fire.
        restored: Called with the seconds that a restore took.
        input_lost: Called with the partition and the number of input records that were deleted unread.
        rolled_back: Called with the partition when its changelog lacks a transaction whose offsets are committed.
        """
        self.topics = topics
        self.identity = identity
        """Of the changelog as it was when a recovery last asked: it may be deleted and made anew while this runs."""
        self.skipped_input = 0
        """Input records that were deleted from the log before they were read."""
        self._start_offsets = StartOffsets(brokers, clock, topics)
        self._reader = reader
        self._clock = clock
        self._running = running
        self._restored = restored
        self._input_lost = input_lost
        self._rolled_back = rolled_back
        self._lost_to: dict[int, int] = {}
        """Input offset up to which lost records are counted: recovery may repeat before anything is committed."""
        self._restoring: dict[int, _Restoring] = {}
        self._searches = searches
        self._searching: dict[int, _Restoring] = {}
        """Those that only wait for a search of their origins."""
        self._wiped: dict[int, Checkpoint] = {}
        """The last checkpoint of a store that the log did not confirm."""

    def on_committed(self, partitions: Mapping[int, Partition]) -> None:
        """Note the partitions of a committed transaction."""
        self._start_offsets.on_committed(partitions)
        self._searches.on_committed(partitions)

    def start(self, partitions: Iterable[Partition]) -> None:
        """Start the recovery of partitions, in whatever state they are."""
        for partition in partitions:
            self.drop(partition.number)
            partition.transition_to(State.ASSIGNED)
            self._start_offsets.want(partition)

    def drop(self, number: int) -> None:
        """Stop the recovery of a partition."""
        self._start_offsets.drop(number)
        self._searches.drop(number)
        self._searching.pop(number, None)
        if (restoring := self._restoring.pop(number, None)) is not None:
            restoring.restore.close()
            self._reader.stop(number)

    def back_off(
        self, unwritten: Mapping[int, str], written_for: int, others_run: bool, stuck: Mapping[int, str] = {}
    ) -> None:
        """Leave partitions out of the next transactions whose changelog or status partition refused writes.

        Args:
            unwritten: Error text by partition.
            written_for: Number of partitions in the transaction. If all were refused, no single one need be at fault.
            others_run: Other partitions run. If none does, only those with a record that is too large are left out.
            stuck: Partitions with a record that is too large, which are at fault in any case.
        """
        for number, why in {**(unwritten if others_run else {}), **stuck}.items():
            self._start_offsets.back_off(number, why, proven=number in stuck or len(unwritten) < written_for)

    @property
    def busy(self) -> bool:
        """Whether any partition is recovering."""
        return self._start_offsets.busy or bool(self._restoring or self._searching)

    def progress(self, number: int) -> tuple[float, int]:
        """Return the completed fraction of a restore, and the number of changelog records still to read."""
        restoring = self._restoring.get(number)
        if restoring is None:
            return float(number in self._searching), 0
        position = max(restoring.restore.partition.changelog_offset, restoring.start)
        return restoring.restored(position), max(0, restoring.target - position)

    def left_open(self) -> tuple[int, Committed] | None:
        """Return a partition whose last transaction has no marker in the changelog, and its committed offset."""
        for number, restoring in self._restoring.items():
            if self._is_left_open(number, restoring) and restoring.committed is not None:
                return number, restoring.committed
        return None

    def _is_left_open(self, number: int, restoring: _Restoring) -> bool:
        """Return whether the log ends with the store's checkpoint, unstable, and its offset is committed."""
        mark, checkpoint = restoring.mark, restoring.restore.partition.checkpoint
        return (
            not restoring.read
            and restoring.restore.unconfirmed
            and restoring.start == restoring.target - 1
            and self._clock.monotonic_s() - restoring.moved_s > LEFT_OPEN_S
            and not self._reader.error_of(number)
            and mark is not None
            and (mark.sequence, mark.input_topic_id) == (checkpoint.sequence, checkpoint.input_topic_id)
        )

    def advance(self, store: Store, others_run: bool) -> None:
        """Do one slice of work."""
        for offsets in self._start_offsets.advance():
            self._begin(store, offsets)
        if self._restoring:
            self._restore_slices(SLICE_S if others_run else SLICE_ALONE_S)
        if self._searching:
            for number, delivered in self._searches.advance(store):
                self._run(self._searching.pop(number), delivered)

    def _begin(self, store: Store, offsets: PartitionOffsets) -> None:
        partition, changelog = offsets.partition, offsets.changelog_bounds
        number = partition.number
        _check(offsets)
        invariant(number not in self._restoring, "a partition is restored twice at once", partition=number)
        self.identity = self.identity._replace(changelog_topic_id=offsets.changelog_topic_id)
        restore = Restore(partition, store, self.identity)
        start = restore.begin(changelog.start, changelog.end)
        invariant(
            changelog.start <= start <= changelog.end,
            "a restore begins outside of the changelog",
            partition=number,
            start=start,
            log_start=changelog.start,
            log_end=changelog.end,
        )
        partition.transition_to(State.RESTORING)
        now_s = self._clock.monotonic_s()
        self._restoring[number] = _Restoring(
            restore,
            offsets.committed,
            offsets.input_bounds,
            offsets.input_topic_id,
            Log(self.identity, *changelog),
            start,
            changelog.end,
            began_s=now_s,
            moved_s=now_s,
            read=start >= changelog.end,
        )
        if start < changelog.end:
            self._reader.start(number, start, self.identity.changelog_topic_id)
        elif restore.unconfirmed:
            self._start_over(number)

    def _restore_slices(self, slice_s: float) -> None:
        deadline_s = self._clock.monotonic_s() + slice_s
        while self._restoring and self._clock.monotonic_s() < deadline_s:
            if full := to_spill((each.restore for each in self._restoring.values()), BUFFER_BYTES_MAX):
                full.spill()
                continue
            if any(not each.read for each in self._restoring.values()):
                self._read()
            for number, restoring in list(self._restoring.items()):
                if restoring.read and restoring.restore.settle():
                    self._guarded(number, partial(self._finish, restoring))

    def _read(self) -> None:
        for number, records in self._reader.read(READ_TIMEOUT_S).items():
            restore = self._restoring[number].restore
            self._restoring[number].moved_s = self._clock.monotonic_s()
            self._guarded(number, partial(restore.apply, records, self.topics.changelog_topic))
            if restore.refuted:
                self._start_over(number)
        for number in self._reader.take_lost():
            # The log's start has moved past the position since the bounds were read.
            self.start([self._restoring[number].restore.partition])
        for number, restoring in list(self._restoring.items()):
            self._report_error(restoring.restore.partition)
            if not restoring.read and self._reader.position(number) >= restoring.target:
                if restoring.restore.unconfirmed:
                    self._start_over(number)
                    continue
                restoring.read = True
                self._reader.stop(number)
            elif not restoring.read and self._is_stalled(number, restoring):
                self.start([restoring.restore.partition])

    def _is_stalled(self, number: int, restoring: _Restoring) -> bool:
        """Return whether nothing has been read for too long without an error."""
        since_s = self._clock.monotonic_s() - restoring.moved_s
        return since_s > STALLED_S and not self._reader.error_of(number)

    def _start_over(self, number: int) -> None:
        self._guarded(number, partial(self._wipe, number, self._restoring[number]))

    def _wipe(self, number: int, restoring: _Restoring) -> None:
        self._wiped[number] = restoring.restore.start_over()
        log.warning("store_not_confirmed", partition=number, changelog_offset=restoring.start)
        restoring.start = restoring.log.start
        restoring.read = False
        self._reader.start(number, restoring.start, self.identity.changelog_topic_id)

    def _report_error(self, partition: Partition) -> None:
        error = self._reader.error_of(partition.number)
        if error and error != partition.reason:
            log.warning("changelog_not_read", partition=partition.number, reason=error)
        partition.reason = error

    def _guarded(self, number: int, act: Callable[[], None]) -> None:
        """Run a step; stop the partition if its changelog cannot be read."""
        try:
            act()
        except PartitionStopped as cause:
            partition = self._restoring[number].restore.partition
            self.drop(number)
            partition.transition_to(State.STOPPED, str(cause))
            log.error("partition_stopped", partition=number, reason=str(cause))

    def _finish(self, restoring: _Restoring) -> None:
        restore = restoring.restore
        partition = restore.partition
        if lost := missing(partition.checkpoint, restoring.log, restoring.mark):
            raise ChangelogLost(lost)
        restore.finish(restoring.target, secrets.randbits(63) | 1)
        restoring.next_offset = self._place_in_input(partition, restoring)
        partition.set_back_ms = 0 if restoring.mark is None else restoring.mark.set_back_ms
        del self._restoring[partition.number]
        lacks_to = self._lacks_to(partition, restoring)
        if lacks_to is None and not self._searches.knows(partition.number):
            self._run(restoring, NOTHING)
            return
        self._searching[partition.number] = restoring
        self._searches.want(partition, restoring.next_offset, lacks_to)

    def _lacks_to(self, partition: Partition, restoring: _Restoring) -> int | None:
        """Return the input offset behind the last transaction that the log lacks; None when it lacks none.

        What it lacks is known from the group's committed offset or from the store that was wiped.
        """
        checkpoint, mark, wiped = partition.checkpoint, restoring.mark, self._wiped.get(partition.number)
        lost: list[int] = []
        if mark is not None and restoring.committed is not None and mark.sequence > checkpoint.sequence:
            lost.append(restoring.committed.offset if mark.input_topic_id == restoring.input_topic_id else 0)
        if wiped is not None and wiped.sequence > checkpoint.sequence:
            lost.append(wiped.next_input_offset if wiped.meets(restoring.input_topic_id) else 0)
        return min(max(lost), restoring.input_bounds.end) if lost else None

    def _run(self, restoring: _Restoring, delivered: Delivered) -> None:
        restore = restoring.restore
        partition = restore.partition
        partition.delivered = delivered
        partition.transition_to(State.RUNNING)
        took_s = self._clock.monotonic_s() - restoring.began_s
        self._restored(took_s)
        log.info(
            "partition_restored",
            partition=partition.number,
            pending=partition.counts.pending,
            timers_read=restore.timers,
            seconds=round(took_s, 3),
        )
        self._running(partition, restoring.next_offset)

    def _place_in_input(self, partition: Partition, restoring: _Restoring) -> int:
        """Return the next offset in the current topic, and put it into the checkpoint for later owners."""
        before = partition.checkpoint
        here = before.of_topic(restoring.input_topic_id, restoring.input_bounds.start)
        if before.meets(restoring.input_topic_id):
            next_offset = self._next_input_offset(partition, restoring)
        else:
            # The group's committed offset may belong to the former topic.
            next_offset = here.next_input_offset
            log.warning(
                "input_topic_made_anew",
                partition=partition.number,
                next_offset=next_offset,
                offset_base=here.offset_base,
                pending=partition.counts.pending,
            )
        partition.checkpoint = msgspec.structs.replace(
            here, next_input_offset=next_offset, changelog_topic_id=restoring.log.identity.changelog_topic_id
        )
        return next_offset

    def _next_input_offset(self, partition: Partition, restoring: _Restoring) -> int:
        """Return the next input offset: the checkpoint's, or the one that an operator set, but within the log."""
        bounds = restoring.input_bounds
        wanted = self._wanted_offset(partition, restoring)
        if wanted < bounds.start and (wanted or partition.checkpoint.sequence):
            counted = self._lost_to.get(partition.number, 0)
            # The log of a recreated topic may start below the offset counted in the former one.
            lost = bounds.start - max(wanted, counted if counted <= bounds.start else 0)
            self._lost_to[partition.number] = bounds.start
            self.skipped_input += lost
            self._input_lost(partition.number, lost)
            log.error("input_records_gone", partition=partition.number, wanted=wanted, log_start=bounds.start)
        if wanted > bounds.end:
            log.error("input_log_is_shorter", partition=partition.number, wanted=wanted, log_end=bounds.end)
        return min(max(wanted, bounds.start), bounds.end)

    def _wanted_offset(self, partition: Partition, restoring: _Restoring) -> int:
        checkpoint, committed = partition.checkpoint, restoring.committed
        of_checkpoint = checkpoint.next_input_offset
        if committed is None:
            if of_checkpoint:
                log.warning("committed_offset_gone", partition=partition.number, checkpoint_offset=of_checkpoint)
            return of_checkpoint
        if (mark := restoring.mark) is None:
            return committed.offset
        next_offset = mark.next_offset(checkpoint, restoring.input_topic_id)
        # Equal ones say nothing: a changelog that is written again has a transaction more than the group knows.
        if mark.sequence < checkpoint.sequence and committed.offset != of_checkpoint:
            log.warning(
                "committed_offset_rolled_back",
                partition=partition.number,
                committed_offset=committed.offset,
                checkpoint_offset=of_checkpoint,
            )
        elif mark.sequence > checkpoint.sequence:
            self._rolled_back(partition.number)
            log.error(
                "changelog_rolled_back",
                partition=partition.number,
                sequence=checkpoint.sequence,
                committed_sequence=mark.sequence,
                committed_offset=committed.offset,
                next_offset=next_offset,
            )
        return next_offset


def _check(offsets: PartitionOffsets) -> None:
    """Raise InvariantViolated if what the brokers reported cannot be: -1001, for one, is the library's "unknown"."""
    number = offsets.partition.number
    committed = None if offsets.committed is None else offsets.committed.offset
    invariant(committed is None or committed >= 0, "a committed offset is none", partition=number, committed=committed)
    for topic, bounds in (("input", offsets.input_bounds), ("changelog", offsets.changelog_bounds)):
        invariant(
            0 <= bounds.start <= bounds.end,
            "a log ends before it starts",
            topic=topic,
            partition=number,
            start=bounds.start,
            end=bounds.end,
        )
