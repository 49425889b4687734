"""The time that an open transaction has held back reading, from the client library's statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sidecar.kafka.lso_monitor import LsoMonitor
from tests.clocks import HandClock


class Watch:
    """The statistics of two partitions, told once a second by the test's clock."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.seconds: Mapping[int, float] = {}
        self._offsets = LsoMonitor("retry", self.clock, self._keep)

    def _keep(self, seconds: Mapping[int, float]) -> None:
        self.seconds = seconds

    def hear(self, offsets: Mapping[int, tuple[int, int]], fetched: frozenset[int] = frozenset({0, 1})) -> None:
        """Tell stable and last offset by partition."""
        self.clock.now_s += 1.0
        partitions = {
            str(number): {"partition": number, "ls_offset": lso_monitor, "hi_offset": last, "rxbytes": 9}
            for number, (lso_monitor, last) in offsets.items()
        }
        report = {"name": "rdkafka", "topics": {"retry": {"topic": "retry", "partitions": partitions}, "x": {}}}
        self._offsets.on_statistics(json.dumps(report), fetched)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_what_is_not_held_back_is_zero(watch: Watch) -> None:
    watch.hear({0: (7, 7), 1: (-1001, -1001)})
    watch.hear({0: (9, 9)})
    assert watch.seconds == {0: 0.0, 1: 0.0}


def test_the_time_counts_while_the_stable_offset_stands_still(watch: Watch) -> None:
    for last in (8, 12, 20):
        watch.hear({0: (7, last), 1: (3, 3)})
    assert watch.seconds == {0: pytest.approx(2.0), 1: 0.0}
    watch.hear({0: (20, 20)})
    assert watch.seconds[0] == 0.0


def test_transactions_that_come_and_go_are_no_standstill(watch: Watch) -> None:
    for lso_monitor in range(7, 12):
        watch.hear({0: (lso_monitor, lso_monitor + 3)})
        assert watch.seconds[0] == 0.0


def test_a_partition_that_is_not_read_has_no_figure_and_starts_over(watch: Watch) -> None:
    watch.hear({0: (7, 8)})
    watch.hear({0: (7, 8)}, frozenset({1}))
    assert watch.seconds == {1: 0.0}
    watch.hear({0: (7, 8)})
    assert watch.seconds[0] == 0.0


def test_a_report_without_the_topic_is_taken(watch: Watch) -> None:
    watch._offsets.on_statistics("{}", frozenset({0}))
    assert watch.seconds == {0: 0.0}
