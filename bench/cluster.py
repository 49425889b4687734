"""The broker of a run: topics, committed offsets, and messages at the origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from bench.sidecar_process import TREE, SidecarProcess
from bench.traffic import PARTITIONS
from bench.waiting import until
from sidecar.clock import SystemClock

_REQUEST_S = 20.0
_SILENCE_S = 15.0
_CLOCK = SystemClock()


class Arrival(NamedTuple):
    """One message at its origin."""

    append_ms: int
    """The time of the append, by the broker's clock."""
    was_due_ms: int
    timer_id: bytes


class Cluster:
    """The requests of the measurements to the broker, and the sidecars of one version."""

    def __init__(self, bootstrap_servers: str, tree: Path = TREE) -> None:
        """Args:
        bootstrap_servers: Of the broker.
        tree: The sources of the sidecars.
        """
        self.bootstrap_servers = bootstrap_servers
        self._tree = tree
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._asker: tuple[str, Consumer] | None = None
        """Asks for the committed offsets of a group, the last one that was asked about."""

    def sidecar(self, app_id: str, topic: str, folder: Path, *command: str, **settings: str) -> SidecarProcess:
        """Return a sidecar on this broker, not started yet."""
        return SidecarProcess(self.bootstrap_servers, app_id, topic, folder, *command, tree=self._tree, **settings)

    def create(self, *names: str) -> None:
        """Create topics that stamp records with the time of the append."""
        config = {"message.timestamp.type": "LogAppendTime"}
        wanted = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=config) for name in names]
        for future in self._admin.create_topics(wanted).values():
            future.result(_REQUEST_S)

    def delete_except(self, *kept: str) -> None:
        """Delete all topics whose names begin otherwise, so that the next figure finds a quiet broker."""
        names = [name for name in self._admin.list_topics(timeout=_REQUEST_S).topics if not name.startswith("__")]
        doomed = [name for name in names if not name.startswith(kept)]
        if doomed:
            for future in self._admin.delete_topics(doomed).values():
                future.result(_REQUEST_S)

    def ends(self, topic: str) -> dict[int, int]:
        """Return one more than the last offset of each partition, whatever the isolation."""
        ask: Any = self._admin.list_offsets
        spec: Any = OffsetSpec
        wanted = {TopicPartition(topic, number): spec.latest() for number in range(PARTITIONS)}
        answers = ask(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_REQUEST_S)
        return {each.partition: future.result(_REQUEST_S).offset for each, future in answers.items()}

    def committed(self, group: str, topic: str) -> int:
        """Return the sum of the group's committed offsets, which start at 0.

        The admin client would end this process while a coordinator is loading (librdkafka 2.16.0).
        """
        if self._asker is None or self._asker[0] != group:
            if self._asker is not None:
                self._asker[1].close()
            # It joins nothing. At this isolation it does not wait for open transactions.
            config = {"group.id": group, "isolation.level": "read_uncommitted", "log_level": 0}
            self._asker = group, Consumer({"bootstrap.servers": self.bootstrap_servers, **config})
        wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return sum(max(0, each.offset) for each in self._asker[1].committed(wanted, _REQUEST_S))

    def watch_ingest(self, sidecar: SidecarProcess, target: int, deadline_s: float) -> list[tuple[float, int]]:
        """Return (epoch ms, sum of the committed offsets of its input) until the sum is at the target.

        Raises:
            LateError: it was not within `deadline_s` seconds.
            RuntimeError: the sidecar ended.
        """
        progress: list[tuple[float, int]] = []

        def finished() -> bool:
            sidecar.check()
            total = self.committed(sidecar.group, sidecar.topic)
            progress.append((_CLOCK.wall_ms(), total))
            return total >= target

        until(finished, deadline_s, f"{sidecar.app_id} ingests {target} of {sidecar.topic}")
        return progress

    def arrivals(self, topic: str, count: int) -> list[Arrival]:
        """Read exactly `count` committed messages of an origin topic.

        Raises:
            AssertionError: fewer or more came, or one came twice.
        """
        found = [_arrival(message) for message in self._read(topic, count)]
        assert len(found) == count, f"{len(found)} messages in {topic}, {count} were sent"
        assert len({each.timer_id for each in found}) == count, f"messages in {topic} came twice"
        return found

    def append_times_ms(self, topic: str, count: int) -> list[int]:
        """Read exactly `count` committed messages of a topic; return when each was appended, by the broker's clock.

        Raises:
            AssertionError: fewer or more came.
        """
        found = [message.timestamp()[1] for message in self._read(topic, count)]
        assert len(found) == count, f"{len(found)} messages in {topic}, {count} were sent"
        return found

    def _read(self, topic: str, count: int) -> Iterator[Any]:
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": "bench-reader", "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
            read, end_s = 0, _CLOCK.monotonic_s() + _SILENCE_S
            while read < count and _CLOCK.monotonic_s() < end_s:
                if batch := consumer.consume(1000, 0.5):
                    read, end_s = read + len(batch), _CLOCK.monotonic_s() + _SILENCE_S
                yield from batch
            yield from consumer.consume(1000, 1.0)
        finally:
            consumer.close()


def _arrival(message: Any) -> Arrival:
    kind, append_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    headers = dict(message.headers())
    return Arrival(append_ms, int(headers["retry-was-due-ms"]), headers["retry-timer-id"])


def appended(times_ms: Iterable[int]) -> list[tuple[float, int]]:
    """Return (epoch ms, messages appended up to then) for each time of append."""
    stamps = sorted(times_ms)
    return [
        (float(stamp), number + 1)
        for number, stamp in enumerate(stamps)
        if number + 1 == len(stamps) or stamps[number + 1] != stamp
    ]
