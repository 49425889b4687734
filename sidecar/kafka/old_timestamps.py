"""Finds records on the retry topic that retention may delete early, since their producer gave them an old timestamp.

Brokers delete a segment when its latest timestamp is older than retention.ms, whenever its records were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Final, NamedTuple, Protocol

from confluent_kafka import Consumer, TopicPartition

from sidecar.clock import Clock
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, Topic, end_offsets, first_offsets
from sidecar.kafka.admin.offsets import committed_of
from sidecar.kafka.errors import translated
from sidecar.kafka.range_reader import Range, RangeReader
from sidecar.model import NO_TIMESTAMP, Record
from sidecar.settings import Settings

LAST: Final = 100
"""So many offsets at the end of each partition are looked at."""


class Reader(Protocol):
    """What is needed of a RangeReader."""

    def read(self, wanted: Range, *, skips_deleted: bool = False) -> Iterable[Iterable[Record]]:
        """Yield the records of a range in slices."""


class OldTimestamp(NamedTuple):
    """A record whose timestamp is old."""

    partition: int
    offset: int
    behind_ms: int
    """How far it is behind that of a record before it; of an unread record, behind the clock if that is more."""


class Seen(NamedTuple):
    """What was found."""

    oldest: OldTimestamp | None
    """The record that is the furthest behind, if it is by more than half of the retention."""
    partitions: int
    """How many were read in time."""


def retention_ms(topic: Topic) -> int | None:
    """Return the retention that timestamps of producers decide; None where they decide nothing."""
    kept_ms = int(topic.config["retention.ms"])
    if "delete" not in topic.cleanup or kept_ms < 0 or topic.config["message.timestamp.type"] == "LogAppendTime":
        return None
    return kept_ms


def look_for_old(
    admin: Admin, settings: Settings, topic: Topic, kept_ms: int, clock: Clock, deadline: Deadline
) -> Seen:
    """Look at the last records of each partition of the retry topic.

    Args:
        admin: The admin client.
        settings: The settings.
        topic: The retry topic.
        kept_ms: Its retention.
        clock: The wall clock.
        deadline: Partitions that are not read by then are left out.

    Raises:
        BrokerUnavailable: No answer in time.
        KafkaFailed: The cluster refuses.
    """
    numbers = range(topic.partitions)
    firsts, ends = (ask(admin, topic.name, numbers, deadline) for ask in (first_offsets, end_offsets))
    with closing(Consumer(config.committed_reader(settings), logger=config.quiet_logger())) as consumer, translated():
        found = committed_of(consumer, [TopicPartition(topic.name, each) for each in numbers])
    unread = {each.partition: each.offset for each in found if each.error is None and each.offset >= 0}
    ranges = [Range(topic.name, each, max(firsts[each], ends[each] - LAST), ends[each]) for each in numbers]
    with closing(RangeReader(config.range_reader(settings), stall_s=deadline.left_s)) as reader:
        return oldest(reader, ranges, unread, kept_ms, clock.wall_ms(), lambda: deadline.passed)


def oldest(
    reader: Reader,
    ranges: Iterable[Range],
    unread: Mapping[int, int],
    kept_ms: int,
    now_ms: int,
    is_late: Callable[[], bool],
) -> Seen:
    """Read ranges, and return the record whose timestamp is the furthest behind.

    Args:
        reader: Reads them.
        ranges: One of each partition.
        unread: The committed offset by partition: the records from there on are unread. Without one, all are.
        kept_ms: The retention.
        now_ms: The present time.
        is_late: Says whether no more partitions are to be read.
    """
    worst: OldTimestamp | None = None
    partitions = 0
    for wanted in ranges:
        if is_late():
            break
        partitions += 1
        latest_ms = 0
        for records in reader.read(wanted, skips_deleted=True):
            for record in records:
                if record.timestamp_ms == NO_TIMESTAMP:
                    continue
                # The records before a read one say when it was written, and nothing else does.
                against_ms = now_ms if record.offset >= unread.get(record.partition, 0) else latest_ms
                behind_ms = against_ms - record.timestamp_ms
                if behind_ms > max(kept_ms // 2, worst.behind_ms if worst is not None else 0):
                    worst = OldTimestamp(record.partition, record.offset, behind_ms)
                # One in the future would make all that follow it look old.
                latest_ms = max(latest_ms, min(now_ms, record.timestamp_ms))
    return Seen(worst, partitions)
