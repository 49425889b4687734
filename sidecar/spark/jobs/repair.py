"""`spark audit --repair`: arms lost messages again, as timers in the changelog, from which either engine continues.

A message comes back as the timer that it was: with its offset, and so its timer id, its attempt and its due time. When
the state is lost as a whole, the changelog is emptied first, and the checkpoints that declare it valid are written
last: so a repair that was interrupted has changed nothing, and is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from sidecar.changelog.codec import Checkpoint, Engine
from sidecar.changelog.entry import MOVING
from sidecar.contract import Dialect, dialects_of, parse
from sidecar.engine.ingest import arrival_of
from sidecar.errors import CommandFailed
from sidecar.kafka.admin.cluster import Admin, Deadline, Topic, describe_topics, earliest_instants
from sidecar.kafka.startup_retry import TRY_S
from sidecar.model import Record, Request, Schedule
from sidecar.policy import Policy
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.handover.import_export import write_entries, write_records
from sidecar.spark.jobs.arrow import batch_of, schema_of
from sidecar.spark.jobs.dispositions import Disposition, RecordKind
from sidecar.spark.marks import MarkedCheckpoint
from sidecar.spark.state.timers import STORED, known_in_changelog, removed_in_changelog, watermarks
from sidecar.spark.stream.step import Rules
from sidecar.wheel.geometry import level_of, slot_end_ms, slot_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGE: Final = "partition int, offset long, due long, origin string, lasting binary"
_ARMED: Final = f"{STORED}, decided boolean"
COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair does, or would do."""

    armed: int
    """The messages that become timers again."""
    undecided: int
    """Those that are left, because their origin or the DLQ may have had them and deleted them."""
    rejected: int
    """Those that are left, because the present settings do not store them."""
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOrder:
    """The terms of a repair."""

    agreed: Callable[[Repair], bool]
    """Asked before anything is changed."""
    even_undecided: bool = False


class Standing(NamedTuple):
    """The positions of a sidecar that does not run."""

    topic_id: str
    partitions: int
    committed: Mapping[int, int]
    """The group's offsets; of a partition of the Spark engine the one that it sent last, which does not expire."""
    before: Mapping[int, MarkedCheckpoint]
    """The last checkpoint of each partition in the changelog."""
    status_ends: Mapping[int, int]
    """The ends of the status topic: whoever runs writes there every few seconds."""

    @property
    def state_lost(self) -> bool:
        """Return whether the changelog has no state: it belongs to the Spark engine, or is empty."""
        return any(each.engine is not Engine.EMBEDDED for each in self.before.values()) or not self.before

    def checkpoint(self, number: int) -> Checkpoint:
        """Return the checkpoint that a partition continues from: behind all that was sent and all that is armed."""
        offset = self.committed.get(number, 0)
        known = self.before.get(number, MarkedCheckpoint())
        here = known.of_topic(self.topic_id, 0)
        if known.meets(self.topic_id) and number in self.committed:
            highest = max(offset, known.highest_input_offset)
            here = replace(here, next_input_offset=max(0, offset), highest_input_offset=max(0, highest))
        return replace(
            here,
            engine=Engine.EMBEDDED,
            sequence=max(known.sequence, known.reached) + 1,
            mark=None,
            # No state folder may be taken for a part of what is written now.
            assignment=0,
            former=(),
            # The repair empties a changelog without state and fills it: whatever topic it is, it has everything then.
            changelog_topic_id="" if self.state_lost else here.changelog_topic_id,
        )

    def checkpoints(self) -> dict[int, Checkpoint]:
        """Return the checkpoints of all partitions."""
        return {number: self.checkpoint(number) for number in range(self.partitions)}


def forgotten_ms(admin: Admin, names: frozenset[str], now_ms: int) -> dict[str, int]:
    """Return by topic the instant up to which records may have been deleted: -1 when none were.

    Args:
        admin: Of the cluster.
        names: The topics; one that does not exist has lost everything up to now.
        now_ms: Now.
    """
    deadline = Deadline(TRY_S)
    found = dict.fromkeys(names, now_ms)
    for name, topic in describe_topics(admin, sorted(names), deadline).items():
        if isinstance(topic, Topic) and COMPACT not in topic.cleanup:
            instants = earliest_instants(admin, name, range(topic.partitions), deadline)
            found[name] = max((now_ms if each is None else each for each in instants.values()), default=-1)
    return found


class Messages:
    """Makes rows of the records of the retry topic that become timers, each with what stays of it for life."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def __call__(self, slices: Iterator[Sequence[Record]]) -> Iterator[pa.RecordBatch]:
        policy, dialects, schema = Policy(self._rules.policy), dialects_of(self._rules.profiles), schema_of(MESSAGE)
        for records in slices:
            rows = (message_of(record, policy, dialects) for record in records)
            yield from batch_of((row for row in rows if row is not None), schema)


def message_of(record: Record, policy: Policy, dialects: list[Dialect]) -> tuple[int, int, int, str, bytes] | None:
    """Return a record that becomes a timer as a row, None for any other."""
    request = parse(record, dialects)
    if type(request) is not Request:
        return None
    stamp = record.timestamp_ms
    verdict = policy.decide(request, stamp, stamp, record.partition, record.offset)
    if type(verdict) is not Schedule:
        return None
    arrival = arrival_of(record, request, verdict)
    return record.partition, record.offset, arrival.due_ms, arrival.origin, arrival.lasting


class LostMessages:
    """The lost messages of an audit, as timers.

    Args:
        settings: The settings.
        standing: The positions of the sidecar.
        forgotten: By topic the instant up to which records may have been deleted.
        now_ms: Now.
    """

    def __init__(self, settings: Settings, standing: Standing, forgotten: Mapping[str, int], now_ms: int) -> None:
        self._settings = settings
        self._standing = standing
        self._checkpoints = standing.checkpoints()
        self._arm = Arm(self._checkpoints, forgotten, settings.dlq_topic, now_ms)

    def find(self, dispositions: DataFrame, messages: DataFrame, changelog: DataFrame) -> DataFrame:
        """Return the timers, each with whether it is certain that it did not fire.

        Args:
            dispositions: Every message with what became of it.
            messages: All messages, as rows of `Messages`.
            changelog: The changelog.
        """
        from pyspark.sql import functions as f  # noqa: PLC0415 - PySpark is an extra

        position = ["partition", "offset"]
        lost = dispositions.filter(
            (f.col("fate") == Disposition.LOST.value) & (f.col("kind") == RecordKind.MESSAGE.value)
        )
        wanted = messages.join(lost.select(*position), position).join(self._taken(changelog), position, "left")
        return wanted.mapInArrow(self._arm.__call__, _ARMED)

    def arm(self, timers: DataFrame, changelog: DataFrame) -> None:
        """Write the timers to the changelog, and the checkpoints that make them valid."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - as above

        settings = self._settings
        sequences = {number: each.sequence for number, each in self._checkpoints.items()}
        if not self._standing.state_lost:
            # First: an engine that starts in between numbers its own blocks behind these.
            group.write_checkpoints(settings, self._checkpoints)
            write_entries(settings, timers, sequences)
            return
        kind = f.substring(f.col("key"), 1, 1)
        old = changelog.filter(kind.isin(bytearray(b"b"), bytearray(b"r")) & f.col("value").isNotNull())
        nothing = f.lit(None).cast("binary").alias("value")
        write_records(settings, old.select("partition", "key").distinct().select("partition", "key", nothing))
        write_entries(settings, timers, sequences)
        group.write_checkpoints(settings, self._checkpoints)

    def _taken(self, changelog: DataFrame) -> DataFrame:
        """Return by position the dues that its timer cannot have: the changelog has them as removed, or in a block."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - as above

        passed = {} if self._standing.state_lost else watermarks(self._checkpoints)
        known = removed_in_changelog(changelog).unionByName(known_in_changelog(changelog, passed))
        if self._standing.state_lost:
            known = known.limit(0)
        bases = [self._checkpoints[number].offset_base for number in sorted(self._checkpoints)]
        base = f.element_at(f.array(*[f.lit(each) for each in bases]), f.col("partition") + 1)
        known = known.withColumn("offset", f.col("offset") - base)
        return known.groupBy("partition", "offset").agg(f.collect_set("due").alias("taken"))


class Arm:
    """Makes the timers of lost messages.

    Args:
        checkpoints: The checkpoints from which the partitions continue.
        forgotten: By topic the instant up to which records may have been deleted.
        dlq_topic: The DLQ.
        now_ms: Now.
    """

    def __init__(
        self, checkpoints: Mapping[int, Checkpoint], forgotten: Mapping[str, int], dlq_topic: str, now_ms: int
    ) -> None:
        self._checkpoints = checkpoints
        self._forgotten = forgotten
        self._dlq_topic = dlq_topic
        self._now_ms = now_ms

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = schema_of(_ARMED)
        for batch in batches:
            columns = [batch.column(each.name).to_pylist() for each in schema_of(MESSAGE)]
            taken = batch.column("taken").to_pylist()
            rows: Iterator[tuple[Any, ...]] = zip(*columns, strict=True)
            timers = (self.timer(*row, taken=dues or ()) for row, dues in zip(rows, taken, strict=True))
            yield from batch_of(timers, schema)

    def timer(
        self, partition: int, input_offset: int, due_ms: int, origin: str, lasting: bytes, *, taken: Collection[int]
    ) -> tuple[int, int, int, int, int, bytes, bool]:
        """Return a message as a row of a timer, with whether it is certain that it did not fire.

        Args:
            partition: Its partition.
            input_offset: Its offset in the retry topic.
            due_ms: Its due.
            origin: Its origin.
            lasting: The part of the entry that stays.
            taken: The stored dues that it cannot have.
        """
        checkpoint = self._checkpoints[partition]
        offset = checkpoint.stored_offset(input_offset)
        stored_ms = max(due_ms, checkpoint.watermark_ms + 1)
        while stored_ms in taken:
            stored_ms += 1
        level = level_of(stored_ms, self._now_ms)
        entry = MOVING.pack(stored_ms, offset, due_ms, level, 0) + lasting
        end_ms = slot_end_ms(slot_of(stored_ms, level), level)
        of_origin = self._forgotten.get(origin, self._now_ms)
        decided = due_ms > max(of_origin, self._forgotten.get(self._dlq_topic, -1))
        return partition, stored_ms, offset, end_ms, level, entry, decided


def require_idle(now: Standing, then: Standing) -> None:
    """Raise CommandFailed when a sidecar has worked between two looks."""
    moved = [number for number, each in now.committed.items() if then.committed.get(number) != each]
    if moved or now.status_ends != then.status_ends:
        raise CommandFailed(
            "a sidecar works on this group while its messages are to be armed again, and would deliver them twice: "
            "stop `spark run` and all instances first, then run the command again"
        )
