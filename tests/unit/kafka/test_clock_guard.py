"""Whether the wall clock may be trusted: measured against the broker's, and against monotonic time in between."""

from __future__ import annotations

import pytest

from sidecar.kafka.clock_guard import ClockGuard
from tests.clocks import HandClock

ALLOWED_MS = 60_000


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def guard(clock: HandClock) -> ClockGuard:
    return ClockGuard(clock, ALLOWED_MS)


def measure(guard: ClockGuard, clock: HandClock, broker_behind_ms: int = 0) -> None:
    now_ms = clock.wall_ms()
    guard.measured(sent_ms=now_ms, acknowledged_ms=now_ms, broker_ms=now_ms - broker_behind_ms)


def test_nothing_fires_before_the_first_measurement(guard: ClockGuard, clock: HandClock) -> None:
    assert "not been measured" in (guard.blocker() or "")
    measure(guard, clock)
    assert guard.blocker() is None


@pytest.mark.parametrize("off_ms", [ALLOWED_MS + 1, -ALLOWED_MS - 1])
def test_a_clock_off_by_more_than_allowed_holds_and_says_by_how_much(
    guard: ClockGuard, clock: HandClock, off_ms: int
) -> None:
    measure(guard, clock, off_ms)
    assert f"{off_ms / 1000:+.1f} s" in (guard.blocker() or "")
    assert f"MAX_CLOCK_SKEW allows {ALLOWED_MS} ms" in (guard.blocker() or "")
    assert guard.skew_ms == off_ms


@pytest.mark.parametrize("off_ms", [ALLOWED_MS, -ALLOWED_MS])
def test_a_clock_off_by_what_is_allowed_is_good(guard: ClockGuard, clock: HandClock, off_ms: int) -> None:
    measure(guard, clock, off_ms)
    assert guard.blocker() is None


@pytest.mark.parametrize("step_ms", [ALLOWED_MS + 1, -ALLOWED_MS - 1])
def test_a_step_since_the_measurement_holds_at_once(guard: ClockGuard, clock: HandClock, step_ms: int) -> None:
    measure(guard, clock)
    clock.stepped_ms = step_ms
    assert guard.blocker() is not None


def test_a_step_that_is_taken_back_lets_go(guard: ClockGuard, clock: HandClock) -> None:
    measure(guard, clock)
    clock.stepped_ms = 3_600_000
    assert guard.blocker() is not None
    clock.stepped_ms = 0
    assert guard.blocker() is None


def test_a_step_adds_to_the_skew_that_was_measured(guard: ClockGuard, clock: HandClock) -> None:
    measure(guard, clock, 40_000)
    clock.stepped_ms = 30_000
    assert guard.blocker() is not None
    clock.stepped_ms = -90_000
    assert guard.blocker() is None


def test_a_new_measurement_after_the_broker_moved_too_is_good_again(guard: ClockGuard, clock: HandClock) -> None:
    measure(guard, clock)
    clock.stepped_ms = 3_600_000
    measure(guard, clock)
    assert guard.blocker() is None


def test_time_that_passes_without_a_measurement_is_no_step(guard: ClockGuard, clock: HandClock) -> None:
    measure(guard, clock)
    clock.now_s += 7 * 86_400
    assert guard.blocker() is None


def test_the_broker_stamped_in_the_middle_between_sending_and_acknowledgement(
    guard: ClockGuard, clock: HandClock
) -> None:
    now_ms = clock.wall_ms()
    guard.measured(sent_ms=now_ms - 400, acknowledged_ms=now_ms, broker_ms=now_ms - 200)
    assert guard.skew_ms == 0
