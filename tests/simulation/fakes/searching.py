"""Searches of origins on the simulated cluster: the real search over fake readers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Self

from sidecar.errors import KafkaFailed
from sidecar.kafka.admin.offsets import Bounds
from sidecar.kafka.log_reader import End, Unread
from sidecar.kafka.origin_search import SEARCH_S, Found, Search, Wanted
from sidecar.model import Record
from tests.clocks import HandClock
from tests.simulation.fakes.asking import Question
from tests.simulation.fakes.cluster import Cluster, Link, Refusal, Unreachable
from tests.simulation.fakes.logs import Log


class FakeLogReader:
    """Implements `sidecar.kafka.log_reader.LogReader`, as far as a search uses it, at one moment."""

    error = ""

    def __init__(self, cluster: Cluster, link: Link, clock: HandClock, topic: str) -> None:
        self._cluster = cluster
        self._link = link
        self._clock = clock
        self._topic = topic
        self._positions: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _log(self, partition: int) -> Log:
        try:
            self._cluster.reach(self._link)
            log = self._cluster.log(self._topic, partition)
        except Unreachable:
            raise KafkaFailed("Local: Timed out", away=True) from None
        except Refusal as why:
            raise KafkaFailed(str(why)) from None
        if not log.has_leader:
            raise KafkaFailed("Broker: Leader not available", away=True)
        return log

    def partition_count(self, timeout_s: float) -> int:
        assert timeout_s > 0
        self._log(0)
        return len(self._cluster.topics[self._topic].logs)

    def bounds(self, partition: int, timeout_s: float) -> Bounds:
        assert timeout_s > 0
        log = self._log(partition)
        return Bounds(log.start, log.stable_end)

    def offsets_at(self, partitions: Iterable[int], at_ms: int, timeout_s: float) -> dict[int, int]:
        assert timeout_s > 0
        return {each: self._offset_at(self._log(each), at_ms) for each in partitions}

    def _offset_at(self, log: Log, at_ms: int) -> int:
        """Return the offset of the first record that is not older, committed or not; -1 if none is stable."""
        stable = (each.offset for each in log.entries if each.offset < log.stable_end and each.timestamp_ms >= at_ms)
        return next(stable, -1)

    def start(self, offsets: Mapping[int, int]) -> None:
        self._positions = dict(offsets)

    def read(self, limit: int, timeout_s: float) -> Iterator[Record | End | Unread]:
        if not self._cluster.topics[self._topic].may_read:
            yield Unread(0, KafkaFailed("Broker: Topic authorization failed", denied=True))
            return
        for number, position in self._positions.items():
            entries, reached = self._log(number).read(position, limit)
            for each in entries:
                yield Record(number, each.offset, each.timestamp_ms, each.row.key, each.row.value, each.row.headers)
            self._positions[number] = reached
            if not entries:
                yield End(number, reached)
        self._clock.now_s += timeout_s

    def high_watermark(self, partition: int) -> int | None:
        return self._log(partition).end


class FakeSearch(Question):
    """Implements `sidecar.runtime.ports.SearchQuestion`."""

    needs_coordinator = False
    timeout_s = SEARCH_S

    def __init__(
        self,
        cluster: Cluster,
        link: Link,
        rng: random.Random,
        input_topic: str,
        is_origin: Callable[[str], bool],
        wanted: Sequence[Wanted],
    ) -> None:
        super().__init__(cluster, link, rng)
        self._input_topic = input_topic
        self._is_origin = is_origin
        self._wanted = wanted
        self._found = Found()

    def look(self) -> bool:
        clock = HandClock()

        def open_reader(topic: str) -> FakeLogReader:
            return FakeLogReader(self._cluster, self._link, clock, topic)

        search = Search(open_reader, self._input_topic, self._is_origin, self._wanted, clock)  # type: ignore[arg-type]  # as much of it as is used
        self._found = search.run()
        return not self._found.unread or bool(self._found.denied)

    def give_up(self) -> None: ...

    def result(self) -> Found:
        return self._found
