"""Waiting for brokers at a start: how long, how often, and until when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from structlog.testing import capture_logs

from sidecar.errors import BrokerUnavailable, CommandFailed, SettingsInvalid, TopicsInvalid
from sidecar.kafka.startup_retry import PAUSE_MAX_S, PAUSE_S, REMIND_EVERY_S, await_brokers, await_topics
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


MISSING = "topic retry: does not exist; fix it with: retry-sidecar topics create"
TOO_SMALL = "topic log: max.message.bytes is 1; fix it with: kafka-configs.sh"


class Cluster:
    """Gives these answers one after the other; an exception is raised."""

    def __init__(self, clock: HandClock, answers: Sequence[Exception | str]) -> None:
        self.asked_s: list[float] = []
        self.shown: list[Sequence[str]] = []
        self._clock = clock
        self._answers = iter(answers)

    def ask(self) -> str:
        self.asked_s.append(self._clock.now_s)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def awaited(self) -> str | None:
        return await_topics(self.ask, SETTINGS, self._clock, never(self._clock), self.shown.append)


def test_missing_topics_are_awaited_with_growing_pauses_and_shown() -> None:
    clock = HandClock()
    cluster = Cluster(clock, [*[TopicsInvalid(f"{MISSING}\n{TOO_SMALL}")] * 6, "four topics"])
    assert cluster.awaited() == "four topics"
    pauses = [after - before for before, after in zip(cluster.asked_s, cluster.asked_s[1:], strict=False)]
    assert pauses == [PAUSE_S, 4, 8, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    assert cluster.shown == [[MISSING, TOO_SMALL]] * 6


def test_another_reason_is_logged_at_once_and_checked_soon_again() -> None:
    clock = HandClock()
    answers: list[Exception | str] = [*[TopicsInvalid(MISSING)] * 5, *[TopicsInvalid(TOO_SMALL)] * 2, "four topics"]
    cluster = Cluster(clock, answers)
    with capture_logs() as logged:
        assert cluster.awaited() == "four topics"
    assert [each["reasons"] for each in logged] == [[MISSING], [TOO_SMALL]]
    assert cluster.asked_s[6] - cluster.asked_s[5] == PAUSE_S


def test_the_same_reason_is_logged_again_at_intervals_only() -> None:
    clock = HandClock()
    cluster = Cluster(clock, [*[TopicsInvalid(MISSING)] * 100, "four topics"])
    with capture_logs() as logged:
        assert cluster.awaited() == "four topics"
    assert len(logged) == 1 + int(clock.now_s // (REMIND_EVERY_S + PAUSE_MAX_S))


def test_brokers_that_leave_while_topics_are_awaited_have_the_whole_timeout() -> None:
    clock = HandClock()
    away = BrokerUnavailable("no answer from Kafka")
    answers: list[Exception | str] = [
        *[TopicsInvalid(MISSING)] * 10,
        *[away] * 9,
        TopicsInvalid(MISSING),
        *[away] * 9,
        "four topics",
    ]
    cluster = Cluster(clock, answers)
    assert cluster.awaited() == "four topics"
    assert cluster.shown[10] == ["no broker answers: no answer from Kafka"]

    gone = Cluster(clock, [TopicsInvalid(MISSING), *[away] * 99])
    with pytest.raises(BrokerUnavailable, match="STARTUP_TIMEOUT"):
        gone.awaited()


@pytest.mark.parametrize("cause", [SettingsInvalid(["START_AT: is not set"]), CommandFailed("another STORE_NAME")])
def test_what_only_other_settings_mend_is_raised_at_once(cause: Exception) -> None:
    clock = HandClock()
    with pytest.raises(type(cause)):
        Cluster(clock, [cause]).awaited()


def test_a_stop_ends_the_waiting_for_topics() -> None:
    def refuse() -> str:
        raise TopicsInvalid(MISSING)

    shown: list[Sequence[str]] = []
    assert await_topics(refuse, SETTINGS, HandClock(), lambda _: len(shown) == 3, shown.append) is None
