"""No output is sent before its due, whatever the clock of the executor shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.settings import Settings
from sidecar.spark.stream.ahead import ReleaseClock
from sidecar.spark.stream.sender import PlanOutput
from tests.clocks import NOW_MS, HandClock


def output(partition: int = 0, release_ms: int = 0, release_s: float = 0.0) -> PlanOutput:
    return PlanOutput(partition, 0, 1, 0, 1, release_ms=release_ms, release_s=release_s)


def clock_of(clock: HandClock, blocker: str | None = None) -> ReleaseClock:
    check: Any = SimpleNamespace(blocker=lambda: blocker)
    return ReleaseClock(Settings(), clock, check)


def test_an_output_is_due_by_the_wall_clock_and_those_behind_it_wait_for_it() -> None:
    clock = HandClock()
    released = clock_of(clock).released
    first, second, other = output(0, NOW_MS + 100, 9.0), output(0), output(1)
    assert released([first, second, other]) == ([other], [first, second])
    clock.now_s = 0.1
    assert released([first, second, other]) == ([first, second, other], [])


@pytest.mark.parametrize("set_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_off_is_not_asked_and_the_time_since_the_micro_batch_counts(set_ms: int) -> None:
    clock = HandClock()
    clock.stepped_ms = set_ms
    released = clock_of(clock, "this machine's clock is off").released
    soon = output(0, NOW_MS + 100, release_s=0.1)
    assert released([soon]) == ([], [soon])
    clock.now_s = 0.099
    assert released([soon]) == ([], [soon])
    clock.now_s = 0.1
    assert released([soon]) == ([soon], [])


def test_what_has_no_instant_goes_at_once_without_a_look_at_the_clock() -> None:
    clock: Any = SimpleNamespace(monotonic_s=lambda: 0.0)
    assert ReleaseClock(Settings(), clock).released([output()]) == ([output()], [])
