"""Restores all partitions of a changelog into a separate store, while sidecars may be running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sidecar.clock import Clock, SystemClock
from sidecar.engine.partition import Partition
from sidecar.engine.ports import Store
from sidecar.engine.restore import Restore, to_spill
from sidecar.engine.rows import Identity
from sidecar.errors import CommandFailed, KafkaFailed, PartitionStopped, TopicsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import (
    Admin,
    Deadline,
    Topic,
    describe_cluster,
    describe_topics,
    end_offsets,
    first_offsets,
    unavailable,
)
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.admin.topics import create_command
from sidecar.kafka.changelog import ChangelogReader
from sidecar.settings import Settings

ASK_S: Final = 15.0
STALL_S: Final = 30.0
READ_S: Final = 0.2
BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Timers of all partitions that wait to be written as sorted files."""


def rebuild(
    settings: Settings, store: Store, progress: Callable[[int, int], object], clock: Clock | None = None
) -> dict[int, str]:
    """Bring the store up to what is committed in the changelog now.

    Args:
        settings: Name the changelog and the brokers.
        store: An empty one.
        progress: Called with the changelog records read and their total.
        clock: Measures the time without progress.

    Returns:
        The error text by partition, for those that cannot be restored; all others are in the store.

    Raises:
        BrokerUnavailable: No record arrives for half a minute.
        TopicsInvalid: There is no changelog.
        CommandFailed: The changelog may not be read, or was truncated meanwhile.
    """
    admin = Admin(settings)
    bounds, identity = _look(settings, admin)
    total = sum(end - start for start, end in bounds.values())
    problems: dict[int, str] = {}
    reader = ChangelogReader(config.changelog_reader(settings), settings.changelog_topic)
    restores: dict[int, Restore] = {}
    reading: set[int] = set()
    try:
        for number, (start, end) in bounds.items():
            restores[number] = Restore(Partition(number), store, identity)
            restores[number].begin(start, end)
            if start < end:
                reader.start(number, start)
                reading.add(number)
        done, stalled = 0, Deadline(STALL_S, clock or SystemClock())
        while reading:
            _read(settings, reader, restores, reading, problems)
            for number in list(reading):
                if number in problems or reader.position(number) >= bounds[number].end:
                    reader.stop(number)
                    reading.discard(number)
            now = total - sum(_left(reader, number, bounds[number]) for number in reading)
            progress(now, total)
            if now > done:
                done, stalled = now, Deadline(STALL_S, clock or SystemClock())
            elif reading and stalled.passed:
                raise unavailable(admin, f"topic {settings.changelog_topic} gives nothing for {STALL_S:.0f} s")
    finally:
        reader.close()
    for number, restore in restores.items():
        if number not in problems:
            _finish(restore, bounds[number].end, problems)
    store.merge()
    return problems


def _look(settings: Settings, admin: Admin) -> tuple[Mapping[int, Bounds], Identity]:
    deadline, name = Deadline(ASK_S), settings.changelog_topic
    cluster = describe_cluster(admin, deadline)
    topic = describe_topics(admin, (name,), deadline)[name]
    if topic is None:
        raise TopicsInvalid(f"topic {name}: does not exist; create it with: {create_command(settings)}")
    if not isinstance(topic, Topic) or "READ" not in topic.operations:
        raise CommandFailed(
            f"topic {name} may not be read: this user needs the permissions Read and DescribeConfigs on it"
        )
    wanted = range(topic.partitions)
    try:
        starts = first_offsets(admin, name, wanted, deadline)
        # Committed records only: an open transaction of a running sidecar comes after them.
        ends = end_offsets(admin, name, wanted, deadline)
    except KafkaFailed as error:
        raise CommandFailed(f"topic {name}: {error}") from error
    bounds = {number: Bounds(starts[number], ends[number]) for number in starts}
    return bounds, Identity(cluster.cluster_id, topic.topic_id, name)


def _read(
    settings: Settings,
    reader: ChangelogReader,
    restores: Mapping[int, Restore],
    reading: set[int],
    problems: dict[int, str],
) -> None:
    for number, records in reader.read(READ_S).items():
        if number not in reading:
            continue
        try:
            restores[number].apply(records, settings.changelog_topic)
            while full := to_spill(restores.values(), BUFFER_BYTES_MAX):
                full.spill()
        except PartitionStopped as error:
            problems[number] = str(error)
    if lost := reader.take_lost():
        raise CommandFailed(f"topic {settings.changelog_topic}, partitions {lost}: cut while they were read: try again")


def _left(reader: ChangelogReader, number: int, bounds: Bounds) -> int:
    # The position is negative before the first record.
    return bounds.end - max(bounds.start, reader.position(number))


def _finish(restore: Restore, end: int, problems: dict[int, str]) -> None:
    try:
        while not restore.settle():
            pass
        restore.finish(end)
    except PartitionStopped as error:
        problems[restore.partition.number] = str(error)
