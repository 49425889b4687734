"""The member of the group that reads the input topic, on the simulated cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from sidecar.errors import KafkaFailed
from sidecar.kafka.fences import Fences
from sidecar.kafka.input import Rebalanced
from sidecar.model import Record
from tests.simulation.fakes.cluster import Cluster, Link, Unreachable
from tests.simulation.fakes.group import SESSION_S
from tests.simulation.fakes.membership import pack

IDLE_S: Final = 0.1
"""A poll that may wait so long has nothing to do."""
STEP_RECORDS: Final = 16


class FakeConsumer:
    """Implements `sidecar.runtime.ports.Consumer`."""

    def __init__(
        self,
        cluster: Cluster,
        link: Link,
        topic: str,
        name: str,
        listener: Rebalanced,
        fences: Fences,
        static_id: str | None = None,
    ) -> None:
        self.refusal = ""
        self.idle_takes_s = IDLE_S
        """How long a poll lasts that waits for nothing: the longer, the fewer rounds a world needs."""
        self.waits_s = 0.0
        """How long the last poll would have waited: the world lets this time pass before the next round."""
        self._cluster = cluster
        self._link = link
        self._topic = topic
        self._topic_id = ""
        self._name = name
        self._joins = 0
        self._listener = listener
        self._fences = fences
        self._static_id = static_id
        self._session_over = False
        self._member = ""
        self._generation = -1
        self._positions: dict[int, int] = {}
        self._fetched: set[int] = set()
        self._heard_s = cluster.timeline.now_s

    # Membership

    def _look_at_group(self) -> None:
        group, now_s = self._cluster.group, self._cluster.timeline.now_s
        try:
            self._cluster.reach(self._link, coordinator=True)
        except Unreachable:
            self._listener.broker_error("no broker answers")
            if self._member and now_s - self._heard_s > SESSION_S:
                self._lose()
            return
        self._heard_s = now_s
        if not group.may_read:
            self.refusal = "Broker: Group authorization failed"
            self._listener.broker_error(self.refusal)
            return
        self.refusal = ""
        if group.is_fenced(self._member):
            self._fences.member_fenced(session_over=self._session_over)
            self._lose()
            self._session_over = False
        if self._member and not group.heartbeat(self._member):
            self._lose()
        if not self._member:
            self._joins += 1
            self._member = f"{self._name}/{self._joins}"
            group.join(self._member, self._static_id)
        assigned = group.sync(self._member, self._positions)
        if assigned is not None:
            self._generation = group.members[self._member].generation
            self._take(assigned)

    def _lose(self) -> None:
        self._session_over = True
        gone = sorted(self._positions)
        self._member, self._generation = "", -1
        self._part_with(gone)
        if gone:
            self._listener.lost(gone)

    def _take(self, assigned: set[int]) -> None:
        self._session_over = False
        revoked = sorted(self._positions.keys() - assigned)
        if revoked:
            self._listener.revoked(revoked)
            self._part_with(revoked)
            self._cluster.group.rebalance()
        new = sorted(assigned - self._positions.keys())
        if new:
            self._positions.update(dict.fromkeys(new, -1))
            self._listener.assigned(new)

    def _part_with(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._positions.pop(number, None)
            self._fetched.discard(number)

    def heartbeat(self) -> None:
        """Do what the library does in the background while the process lives."""
        try:
            self._cluster.reach(self._link, coordinator=True)
        except Unreachable:
            return
        if self._member and self._cluster.group.heartbeat(self._member):
            self._heard_s = self._cluster.timeline.now_s

    def membership(self) -> bytes | None:
        return pack(self._member, self._generation) if self._member and self._generation >= 0 else None

    def close(self) -> None:
        if self._positions:
            numbers = sorted(self._positions)
            self._listener.revoked(numbers)
            self._part_with(numbers)
        self.heartbeat()
        if self._member and not self._link.cut and self._static_id is None:
            self._cluster.group.leave(self._member)
        self._member = ""

    # Records

    def poll(self, limit: int, timeout_s: float) -> Iterator[Iterator[Record]]:
        self._look_at_group()
        records = list(self._fetch(limit))
        self.waits_s = 0.0 if records else self._wait_s(timeout_s)
        for at in range(0, len(records), STEP_RECORDS):
            yield iter(records[at : at + STEP_RECORDS])

    def _wait_s(self, timeout_s: float) -> float:
        if timeout_s >= IDLE_S:
            return self.idle_takes_s
        return max(timeout_s, min(0.02, self._cluster.timeline.next_wake_s() + 0.001))

    def _fetch(self, limit: int) -> Iterator[Record]:
        try:
            self._cluster.reach(self._link)
        except Unreachable:
            return
        topic = self._cluster.topics.get(self._topic)
        if topic is None:
            self._listener.broker_error("Broker: Unknown topic or partition")
            return
        for number in sorted(self._fetched):
            if number >= len(topic.logs) or limit <= 0:
                continue
            log, position = topic.logs[number], self._positions[number]
            if not log.has_leader:
                self._listener.broker_error("Broker: Leader not available")
            elif not log.start <= position <= log.end:
                self._fetched.discard(number)
                self._listener.offset_lost(number)
            else:
                entries, self._positions[number] = log.read(position, limit)
                limit -= len(entries)
                for each in entries:
                    row = each.row
                    headers = row.headers if row.headers != [("\udcff", None)] else None
                    yield Record(number, each.offset, each.timestamp_ms, row.key, row.value, headers)

    def pause(self, partitions: Collection[int]) -> None:
        self._fetched -= set(partitions)

    def resume(self, partitions: Collection[int]) -> None:
        assert set(partitions) <= self._positions.keys(), ("resumed though not assigned", partitions)
        assert all(self._positions[each] >= 0 for each in partitions), ("resumed before a seek", partitions)
        self._fetched |= set(partitions)

    def seek(self, partition: int, offset: int) -> None:
        if partition not in self._positions:
            raise KafkaFailed("Local: Erroneous state")
        self._positions[partition] = offset

    def end_offsets(self) -> Mapping[int, int]:
        topic = self._cluster.topics.get(self._topic)
        logs = [] if topic is None else topic.logs
        return {number: logs[number].end for number in self._positions if number < len(logs)}
