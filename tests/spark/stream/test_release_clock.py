"""No output is sent before the broker's clock has passed its due, whatever the clocks of executor and driver show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.errors import KafkaFailed, TransactionFailed
from sidecar.kafka.writer import Written
from sidecar.settings import Settings
from sidecar.spark.stream import clock_check
from sidecar.spark.stream.ahead import ReleaseClock
from sidecar.spark.stream.clock_check import EVERY_S, ClockCheck
from sidecar.spark.stream.horizon import AHEAD_MS_MAX
from sidecar.spark.stream.outputs import PlanOutput
from tests.clocks import NOW_MS, HandClock

SETTINGS = Settings()


class Broker:
    """Stamps records by its own clock, which goes as fast as the one of the test, and answers later."""

    def __init__(self, clock: HandClock, *, answer_s: float = 0.0) -> None:
        self.clock = clock
        self.answer_s = answer_s
        self.silent = False

    @property
    def now_ms(self) -> int:
        return NOW_MS + round(self.clock.now_s * 1000)

    def write(self, *_: Any, report: Any, **__: Any) -> None:
        self.report, self.stamped_ms = report, self.now_ms

    def flush(self, _: float) -> None:
        self.clock.now_s += self.answer_s
        self.report(KafkaFailed("no answer", away=True) if self.silent else Written(0, 0, self.stamped_ms))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def broker(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(clock)
    monkeypatch.setattr(clock_check, "Writer", lambda _: made)
    return made


def output(partition: int = 0, release_ms: int = 0) -> PlanOutput:
    return PlanOutput(partition, 0, 1, 0, 1, release_ms=release_ms)


@pytest.mark.parametrize("set_ms", [-3_600_000, -800, 0, 800, 3_600_000])
def test_an_output_is_due_by_the_brokers_clock_and_those_behind_it_wait_for_it(
    clock: HandClock, broker: Broker, set_ms: int
) -> None:
    assert broker.now_ms == NOW_MS
    clock.stepped_ms = set_ms
    released = ReleaseClock(SETTINGS, ClockCheck(SETTINGS, clock)).released
    first, second, other = output(0, NOW_MS + 100), output(0), output(1)
    assert released([first, second, other]) == ([other], [first, second])
    clock.now_s = 0.099
    assert released([first]) == ([], [first])
    clock.now_s = 0.102
    assert released([first, second, other]) == ([first, second, other], [])


def test_the_fastest_answer_tells_most_and_clocks_may_go_at_different_speeds(clock: HandClock, broker: Broker) -> None:
    check = ClockCheck(SETTINGS, clock)
    for answer_s in (0.3, 0.005, 0.4):
        broker.answer_s = answer_s
        check.passed_ms()
        assert check.passed_ms() <= broker.now_ms
        clock.now_s += EVERY_S
    check.passed_ms()
    assert 0 <= broker.now_ms - check.passed_ms() <= 5 + 2_500 * EVERY_S / 1000


def test_what_has_no_instant_goes_at_once_without_a_look_at_the_clock() -> None:
    assert ReleaseClock(SETTINGS).released([output()]) == ([output()], [])


def test_a_broker_that_does_not_answer_is_waited_for_by_another_attempt(clock: HandClock, broker: Broker) -> None:
    broker.silent = True
    release = ReleaseClock(SETTINGS, ClockCheck(SETTINGS, clock))
    with pytest.raises(TransactionFailed, match="clock is not known"):
        release.released([output(0, NOW_MS)])
    broker.silent = False
    clock.now_s += EVERY_S
    assert release.released([output(0, NOW_MS)]) == ([output(0, NOW_MS)], [])


def test_what_a_driver_decided_whose_clock_was_wrong_is_said_and_not_sent(clock: HandClock, broker: Broker) -> None:
    """It was never stopped by MAX_CLOCK_SKEW, because the clock jumped just before the micro-batch."""
    assert not broker.silent
    release = ReleaseClock(SETTINGS, ClockCheck(SETTINGS, clock))
    most_ms = NOW_MS + SETTINGS.max_clock_skew_ms + AHEAD_MS_MAX
    assert release.released([output(0, most_ms)]) == ([], [output(0, most_ms)])
    with pytest.raises(TransactionFailed, match="the driver's clock was that far ahead"):
        release.released([output(0, most_ms + 1)])


def test_a_wait_is_as_long_as_the_first_due_is_away_and_no_longer_than_a_step(clock: HandClock, broker: Broker) -> None:
    assert not broker.silent
    release = ReleaseClock(SETTINGS, ClockCheck(SETTINGS, clock))
    waits: list[float] = []
    pause: Any = SimpleNamespace(wait=waits.append)
    release._pause = pause
    for in_ms in (10_000, 7, -5):
        release.wait([output(0, NOW_MS + in_ms), output(1)])
    assert waits == [0.02, 0.007, 0.001]
