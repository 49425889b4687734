"""The driver's clock against the broker's."""

from __future__ import annotations

import dataclasses
import re

import pytest

from sidecar.clock import SystemClock
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.admin.topics import ensure_topics
from sidecar.spark.stream.clock_check import EVERY_S, ClockCheck
from tests.integration.sidecars import Stage
from tests.spark.stream.test_sink import settings_of

pytestmark = pytest.mark.broker


class SetClock(SystemClock):
    """A clock that can be wrong, and that the test moves on."""

    off_ms = 0
    passed_s = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.off_ms

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.passed_s


def test_a_clock_that_is_off_holds_firing_until_it_is_right_again(stage: Stage) -> None:
    settings = dataclasses.replace(settings_of(stage), max_clock_skew_ms=60_000)
    ensure_topics(Admin(settings), settings)
    clock = SetClock()
    watch = ClockCheck(settings, clock)
    assert watch.blocker() is None
    clock.off_ms = 120_000
    # At once, before the next measurement, and by it.
    for passed_s in (0.0, EVERY_S):
        clock.passed_s += passed_s
        blocker = watch.blocker()
        assert blocker is not None
        off_s = re.search(r"\+(\d+)\.", blocker)
        assert off_s is not None
        assert 100 < int(off_s[1]) < 140, "measured with half of the time that a record takes"
        assert "MAX_CLOCK_SKEW" in blocker
    clock.off_ms = 0
    clock.passed_s += EVERY_S
    assert watch.blocker() is None
