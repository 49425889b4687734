"""Measures how long an open transaction has kept the input from being read.

A read_committed consumer gets nothing beyond the first record of the oldest open transaction (the last stable offset,
LSO). A producer that died within one keeps it open for `transaction.timeout.ms`; one that the broker has lost track of
keeps it open forever. Nothing else shows this: the consumer gets no error, only silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from sidecar.clock import Clock


class _Partition(msgspec.Struct):
    ls_offset: int = -1
    hi_offset: int = -1


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition] = {}


class _Statistics(msgspec.Struct):
    topics: dict[str, _Topic] = {}


_DECODER = msgspec.json.Decoder(_Statistics)


class LsoMonitor:
    """Tracks the last stable offsets in the client library's statistics.

    Args:
        topic: The input topic.
        clock: The clock of this machine.
        publish: Called with the stuck seconds by partition after each report; 0 where the LSO moves.
    """

    def __init__(self, topic: str, clock: Clock, publish: Callable[[Mapping[int, float]], None]) -> None:
        self._topic = topic
        self._clock = clock
        self._publish = publish
        self._stuck: dict[int, tuple[int, float]] = {}

    def on_statistics(self, statistics: str, fetched: Collection[int]) -> None:
        """Process one report.

        Args:
            statistics: JSON, as librdkafka gives it to its `stats_cb`.
            fetched: Partitions being fetched; the figures of others do not move.
        """
        now_s = self._clock.monotonic_s()
        topic = _DECODER.decode(statistics).topics.get(self._topic, _Topic())
        stuck: dict[int, tuple[int, float]] = {}
        for number in fetched:
            offsets = topic.partitions.get(str(number), _Partition())
            if 0 <= offsets.ls_offset < offsets.hi_offset:
                before, since_s = self._stuck.get(number, (-1, now_s))
                stuck[number] = (offsets.ls_offset, since_s if before == offsets.ls_offset else now_s)
        self._stuck = stuck
        self._publish({number: now_s - stuck[number][1] if number in stuck else 0.0 for number in fetched})
