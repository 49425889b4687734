"""The questions and reads of a restore on the simulated cluster: answers come late and may be outdated."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from sidecar.engine.restore import ChangelogRead
from sidecar.kafka.admin.offsets import SINGLE_S, TOGETHER_S, Bounds, Committed
from tests.simulation.fakes.cluster import Cluster, Link, Refusal, Unreachable

REQUEST_TIMEOUT_S: Final = 5.0
LATE_S: Final = 0.05
READ_MAX: Final = 40


class Question(ABC):
    """Looks at the cluster once, at some moment between question and answer."""

    needs_coordinator = True
    timeout_s = REQUEST_TIMEOUT_S

    def __init__(self, cluster: Cluster, link: Link, rng: random.Random | None = None) -> None:
        rng = rng or cluster.rng
        self._cluster = cluster
        self._link = link
        self._asked_s = cluster.timeline.now_s
        self._seen_s = self._asked_s + rng.random() * LATE_S
        self._ready_s = self._seen_s + rng.random() * LATE_S
        self._seen = False

    def done(self) -> bool:
        now_s = self._cluster.timeline.now_s
        if not self._seen and now_s >= self._seen_s:
            try:
                self._cluster.reach(self._link, coordinator=self.needs_coordinator)
            except Unreachable:
                self._seen = now_s - self._asked_s > self.timeout_s
                if self._seen:
                    self.give_up()
            else:
                self._seen = self.look()
                if not self._seen and now_s - self._asked_s > self.timeout_s:
                    self._seen = True
                    self.give_up()
        return self._seen and now_s >= self._ready_s

    @abstractmethod
    def look(self) -> bool:
        """Look at the cluster; return whether that was enough."""

    @abstractmethod
    def give_up(self) -> None:
        """End the wait: no answer came in time."""


class FakeCommitted(Question):
    """Implements `sidecar.runtime.ports.CommittedQuestion`."""

    def __init__(self, cluster: Cluster, link: Link, partitions: Sequence[int]) -> None:
        super().__init__(cluster, link)
        self.errors: dict[int, str] = {}
        self._partitions = tuple(partitions)
        self._offsets: dict[int, Committed | None] = {}

    def look(self) -> bool:
        group = self._cluster.group
        if not group.may_read:
            self.errors = dict.fromkeys(self._partitions, "committed offsets: Broker: Group authorization failed")
            return True
        stable = [each for each in self._partitions if group.is_stable(each)]
        if len(stable) < len(self._partitions):
            late_s = self._cluster.timeline.now_s - self._asked_s
            if not stable or late_s < TOGETHER_S + SINGLE_S:
                return False
            self.errors = {each: "" for each in self._partitions if each not in stable}
        self._offsets = {
            each: Committed(group.offsets[each], group.metadata.get(each, "")) if each in group.offsets else None
            for each in stable
        }
        return True

    def give_up(self) -> None:
        self.errors = dict.fromkeys(self._partitions, "")

    def result(self) -> Mapping[int, Committed | None]:
        return self._offsets


class FakeTopics(Question):
    """Implements `sidecar.runtime.ports.TopicsQuestion`."""

    def __init__(self, cluster: Cluster, link: Link, names: Sequence[str]) -> None:
        super().__init__(cluster, link)
        self._names = tuple(names)
        self._ids: dict[str, str] = {}
        self._led: dict[str, set[int]] = {}
        self._said = ""
        self._untold = False

    def look(self) -> bool:
        for name in self._names:
            topic = self._cluster.topics.get(name)
            if topic is None:
                self._said = f"id of topic {name}: Broker: Unknown topic or partition"
                continue
            self._ids[name] = topic.id
            self._led[name] = {number for number, log in enumerate(topic.logs) if log.has_leader}
        return True

    def give_up(self) -> None:
        self._untold = True

    def id_of(self, topic: str) -> str:
        return self._ids.get(topic, "")

    def errors(self, numbers: Sequence[int]) -> Mapping[int, str]:
        if self._untold or self._said:
            return dict.fromkeys(numbers, self._said)
        return {
            number: f"partition {number} of topic {name} has no leader"
            for name, led in self._led.items()
            for number in numbers
            if number not in led
        }


class FakeBounds(Question):
    """Implements `sidecar.runtime.ports.BoundsQuestion`."""

    def __init__(
        self,
        cluster: Cluster,
        link: Link,
        partitions: Mapping[str, Sequence[int]],
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(cluster, link, rng)
        self.errors: dict[int, str] = {}
        self._places = [(topic, each) for topic, numbers in partitions.items() for each in numbers]
        self._bounds: dict[tuple[str, int], Bounds] = {}

    def look(self) -> bool:
        for topic, number in self._places:
            try:
                log = self._cluster.log(topic, number)
            except Refusal as why:
                self.errors[number] = f"bounds of topic {topic}, partition {number}: {why}"
                continue
            if log.has_leader:
                self._bounds[topic, number] = Bounds(log.start, log.end)
            else:
                self.errors[number] = f"bounds of topic {topic}, partition {number}: Leader not available"
        return True

    def give_up(self) -> None:
        self.errors = {number: "" for _, number in self._places}

    def result(self) -> Mapping[tuple[str, int], Bounds]:
        return self._bounds


class FakeBrokers:
    """Implements `sidecar.runtime.ports.Brokers`."""

    def __init__(self, cluster: Cluster, link: Link, rng: random.Random | None = None) -> None:
        """Args:
        cluster: The brokers.
        link: To them.
        rng: Says how late bounds are told; None: the cluster's.
        """
        self._cluster = cluster
        self._link = link
        self._rng = rng

    def committed(self, _topic: str, partitions: Sequence[int]) -> FakeCommitted:
        return FakeCommitted(self._cluster, self._link, partitions)

    def topics(self, names: Sequence[str]) -> FakeTopics:
        return FakeTopics(self._cluster, self._link, names)

    def bounds(self, partitions: Mapping[str, Sequence[int]]) -> FakeBounds:
        return FakeBounds(self._cluster, self._link, partitions, self._rng)


class FakeChangelogReader:
    """Implements `sidecar.runtime.ports.ChangelogReader`."""

    def __init__(self, cluster: Cluster, link: Link, topic: str) -> None:
        self._cluster = cluster
        self._link = link
        self._topic = topic
        self._positions: dict[int, int] = {}
        self._read: set[int] = set()
        """Those of which the position is known to the library: it is not before the first record."""
        self._lost: list[int] = []
        self._errors: dict[int, str] = {}

    def start(self, partition: int, offset: int, topic_id: str = "") -> None:
        self.stop(partition)
        self._positions[partition] = offset

    def stop(self, partition: int) -> None:
        self._positions.pop(partition, None)
        self._read.discard(partition)
        self._errors.pop(partition, None)

    def read(self, timeout_s: float) -> Mapping[int, Sequence[ChangelogRead]]:
        slices: dict[int, list[ChangelogRead]] = {}
        try:
            self._cluster.reach(self._link)
            for number in list(self._positions):
                self._read_one(number, slices)
        except Unreachable:
            pass
        self._cluster.timeline.advance(timeout_s * (1 if slices else 4))
        return slices

    def _read_one(self, number: int, slices: dict[int, list[ChangelogRead]]) -> None:
        try:
            log = self._cluster.log(self._topic, number)
        except Refusal as why:
            self._errors[number] = str(why)
            return
        position = self._positions[number]
        if not log.has_leader:
            return
        if not log.start <= position <= log.end:
            self._lost.append(number)
            return
        self._errors.pop(number, None)
        entries, reached = log.read(position, self._cluster.rng.randint(1, READ_MAX))
        if entries:
            slices[number] = [ChangelogRead(each.offset, each.row.key, each.row.value) for each in entries]
        if entries or reached > position:
            self._positions[number] = reached
            self._read.add(number)

    def take_lost(self) -> Sequence[int]:
        lost, self._lost = self._lost, []
        return [each for each in lost if each in self._positions]

    def error_of(self, partition: int) -> str:
        return self._errors.get(partition, "")

    def position(self, partition: int) -> int:
        return self._positions[partition] if partition in self._read else -1001
