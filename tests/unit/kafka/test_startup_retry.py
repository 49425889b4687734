"""Waiting for brokers at a start: how long, how often, and until when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.errors import BrokerUnavailable, CommandFailed
from sidecar.kafka.startup_retry import PAUSE_S, await_brokers
from sidecar.settings import Settings
from tests.clocks import HandClock

SETTINGS = Settings(startup_timeout_ms=20_000)


class Broker:
    """Refuses so often, each time after so many seconds."""

    def __init__(self, clock: HandClock, refusals: int, took_s: float) -> None:
        self.asked_s: list[float] = []
        self._clock = clock
        self._refusals = refusals
        self._took_s = took_s

    def ask(self) -> str:
        self.asked_s.append(self._clock.now_s)
        self._clock.now_s += self._took_s
        if len(self.asked_s) <= self._refusals:
            raise BrokerUnavailable("no answer: Broker: Coordinator load in progress")
        return "four topics"


def never(clock: HandClock) -> Callable[[float], bool]:
    def stopping(seconds: float) -> bool:
        clock.now_s += seconds
        return False

    return stopping


@pytest.mark.parametrize(
    ("took_s", "asked_s"), [(0.0, [0.0, PAUSE_S, 2 * PAUSE_S]), (0.5, [0.0, PAUSE_S, 2 * PAUSE_S]), (5.0, [0, 5, 10])]
)
def test_it_is_asked_again_but_not_without_a_pause(took_s: float, asked_s: list[float]) -> None:
    clock = HandClock()
    broker = Broker(clock, 2, took_s)
    assert await_brokers(broker.ask, SETTINGS, clock, never(clock)) == "four topics"
    assert broker.asked_s == asked_s


def test_it_ends_at_the_timeout_and_says_which_and_what_the_broker_said() -> None:
    clock = HandClock()
    broker = Broker(clock, 100, 5.0)
    with pytest.raises(BrokerUnavailable, match=r"STARTUP_TIMEOUT, 20000 ms: no answer: .*load in progress"):
        await_brokers(broker.ask, SETTINGS, clock, never(clock))
    assert broker.asked_s == [0, 5, 10, 15]


def test_a_stop_ends_the_waiting() -> None:
    clock = HandClock()
    broker = Broker(clock, 100, 0.0)
    assert await_brokers(broker.ask, SETTINGS, clock, lambda _: len(broker.asked_s) == 3) is None


def test_an_error_that_a_retry_does_not_fix_is_raised_at_once() -> None:
    def ask() -> None:
        raise CommandFailed("the group has 1 members")

    clock = HandClock()
    with pytest.raises(CommandFailed, match="1 members"):
        await_brokers(ask, SETTINGS, clock, never(clock))
