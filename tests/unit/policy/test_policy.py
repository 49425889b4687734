"""Verdicts, in the contract's order."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.errors import SettingsInvalid
from sidecar.model import ATTEMPTS_MAX, DUE_MS_MAX, NO_TIMESTAMP, Drop, Reason, Rejection, Request, Schedule
from sidecar.policy import Policy, PolicyConfig, Verdict

SENT_MS = 1_700_000_000_000
ARRIVED_MS = SENT_MS + 40
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def decide(
    settings: dict[str, Any] | None = None, *, timestamp_ms: int = SENT_MS, dialect: int = 1, **request: Any
) -> Verdict:
    policy = Policy(PolicyConfig(**(settings or {})))
    asked = Request(dialect, request.pop("origin", "orders"), **request)
    return policy.decide(asked, timestamp_ms=timestamp_ms, arrived_ms=ARRIVED_MS)


def decide_ibm(settings: dict[str, Any] | None = None, **request: Any) -> Verdict:
    return decide(settings, **{"dialect": 2, "base_ms": SENT_MS, "exception": "E", **request})


def reason_of(verdict: Verdict) -> Reason:
    assert isinstance(verdict, Rejection), verdict
    assert verdict.detail
    return verdict.reason


@pytest.mark.parametrize(("attempt", "minutes"), [(0, 5), (1, 5), (2, 30), (3, 30), (4, 30), (5, 60)])
def test_each_attempt_has_its_own_delay(attempt: int, minutes: int) -> None:
    assert decide(attempt=attempt) == Schedule(SENT_MS + minutes * MINUTE_MS, limit=6)


def test_after_the_last_delay_attempts_are_used_up() -> None:
    assert reason_of(decide(attempt=6)) is Reason.ATTEMPTS_EXHAUSTED


def test_the_last_delay_repeats_when_more_attempts_are_allowed_than_delays_given() -> None:
    settings = {"delays_ms": (10, 20), "max_attempts": 5}
    assert decide(settings, attempt=4) == Schedule(SENT_MS + 20, limit=5)


@pytest.mark.parametrize("timestamp_ms", [NO_TIMESTAMP, ARRIVED_MS + 1, 2**63 - 1])
def test_the_policys_delay_counts_from_arrival_without_a_timestamp_that_can_be_true(timestamp_ms: int) -> None:
    assert decide(timestamp_ms=timestamp_ms) == Schedule(ARRIVED_MS + 5 * MINUTE_MS, limit=6)


def test_a_timestamp_equal_to_arrival_is_not_in_the_future() -> None:
    assert decide(timestamp_ms=ARRIVED_MS) == Schedule(ARRIVED_MS + 5 * MINUTE_MS, limit=6)
    assert decide(timestamp_ms=0) == Schedule(5 * MINUTE_MS, limit=6)


def test_a_messages_own_delay_counts_from_its_timestamp() -> None:
    assert decide(delay_ms=7) == Schedule(SENT_MS + 7, limit=6)
    assert decide(delay_ms=7, timestamp_ms=ARRIVED_MS + 100) == Schedule(ARRIVED_MS + 107, limit=6)
    assert decide(delay_ms=7, timestamp_ms=0) == Schedule(7, limit=6)
    assert decide(delay_ms=7, timestamp_ms=NO_TIMESTAMP) == Schedule(ARRIVED_MS + 7, limit=6)


@pytest.mark.parametrize("due_ms", [0, SENT_MS, ARRIVED_MS + 365 * DAY_MS])
def test_a_messages_own_due_time_is_taken_as_it_is(due_ms: int) -> None:
    assert decide(due_ms=due_ms) == Schedule(due_ms, limit=6)


@pytest.mark.parametrize(
    "asked", [{"due_ms": ARRIVED_MS + 365 * DAY_MS + 1}, {"due_ms": DUE_MS_MAX}, {"delay_ms": 2**63 - 1}]
)
def test_a_due_time_too_far_away_is_out_of_range(asked: dict[str, Any]) -> None:
    assert reason_of(decide(**asked)) is Reason.DELAY_OUT_OF_RANGE


def test_a_due_time_that_cannot_be_stored_is_out_of_range_under_any_max_delay() -> None:
    settings = {"max_delay_ms": 2**64}
    assert decide(settings, due_ms=DUE_MS_MAX) == Schedule(DUE_MS_MAX, limit=6)
    assert reason_of(decide(settings, delay_ms=DUE_MS_MAX)) is Reason.DELAY_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("max_attempts", "own", "limit"),
    [(None, None, 6), (None, 4, 4), (None, 9, 6), (3, None, 3), (3, 9, 3), (9, 8, 8)],
)
def test_the_limit_is_the_least_of_all(max_attempts: int | None, own: int | None, limit: int) -> None:
    verdict = decide({"max_attempts": max_attempts}, max_attempts=own)
    assert isinstance(verdict, Schedule)
    assert verdict.limit == limit
    assert isinstance(decide({"max_attempts": max_attempts}, max_attempts=own, attempt=limit - 1), Schedule)
    exhausted = decide({"max_attempts": max_attempts}, max_attempts=own, attempt=limit)
    assert reason_of(exhausted) is Reason.ATTEMPTS_EXHAUSTED


def test_no_more_than_a_thousand_attempts_whatever_the_number_of_delays() -> None:
    verdict = decide({"delays_ms": (1,) * 2000}, max_attempts=2**63)
    assert isinstance(verdict, Schedule)
    assert verdict.limit == ATTEMPTS_MAX


def test_nothing_remaining_goes_to_the_dlq() -> None:
    verdict = decide(attempt=2, max_attempts=2)
    assert reason_of(verdict) is Reason.ATTEMPTS_EXHAUSTED
    assert isinstance(verdict, Rejection)
    assert verdict.detail == "2 retries have been made and 2 are allowed, by the message's own headers"


@pytest.mark.parametrize("attempt", [1000, 2**63 - 1])
def test_any_number_of_attempts_has_a_verdict(attempt: int) -> None:
    assert reason_of(decide(attempt=attempt)) is Reason.ATTEMPTS_EXHAUSTED


LISTS = {"droppable": ("com.acme.Stale*",), "retriable": ("com.acme.*", "Timeout"), "fatal": ("com.acme.Fatal?",)}


@pytest.mark.parametrize(
    ("exception", "verdict"),
    [
        ("com.acme.StaleOrder", Drop),
        ("com.acme.Fatal1", Reason.FATAL),
        ("com.acme.Slow", Schedule),
        ("Timeout", Schedule),
        ("timeout", Reason.UNKNOWN_EXCEPTION),
        ("TimeoutX", Reason.UNKNOWN_EXCEPTION),
        ("x.com.acme.Slow", Reason.UNKNOWN_EXCEPTION),
        ("x" * 100_000, Reason.UNKNOWN_EXCEPTION),
        (None, Reason.UNKNOWN_EXCEPTION),
    ],
)
def test_the_lists_decide_by_name_and_glob(exception: str | None, verdict: type | Reason) -> None:
    given = decide(LISTS, exception=exception)
    if isinstance(verdict, Reason):
        assert reason_of(given) is verdict
        assert isinstance(given, Rejection)
        assert len(given.detail) < 1000
    else:
        assert isinstance(given, verdict)


def test_without_a_list_of_retriable_ones_all_that_match_nothing_are_retriable() -> None:
    assert isinstance(decide(exception="com.acme.Any"), Schedule)
    assert isinstance(decide(), Schedule)
    assert isinstance(decide({"fatal": ("Fatal",), "droppable": ("Stale",)}, exception="Any"), Schedule)


def test_a_message_that_names_no_exception_is_on_a_list_only_through_a_star() -> None:
    assert isinstance(decide({"retriable": ("*",)}), Schedule)
    assert reason_of(decide({"retriable": ("?*",)})) is Reason.UNKNOWN_EXCEPTION


def test_what_is_wrong_with_a_message_comes_before_what_the_lists_say() -> None:
    lists = {"droppable": ("E",), "fatal": ("E",), "retriable": ("F",)}
    assert reason_of(decide(lists, exception="E", origin="dlq", due_ms=DUE_MS_MAX)) is Reason.ORIGIN_NOT_ALLOWED
    assert reason_of(decide(lists, exception="E", due_ms=DUE_MS_MAX)) is Reason.DELAY_OUT_OF_RANGE
    assert isinstance(decide(lists, exception="E", attempt=99), Drop)
    assert reason_of(decide({**lists, "droppable": ()}, exception="E", attempt=99)) is Reason.ATTEMPTS_EXHAUSTED
    assert reason_of(decide({**lists, "droppable": ()}, exception="E")) is Reason.FATAL
    assert reason_of(decide(lists, exception="G", attempt=99)) is Reason.ATTEMPTS_EXHAUSTED
    assert reason_of(decide(lists, exception="G")) is Reason.UNKNOWN_EXCEPTION


@pytest.mark.parametrize(("attempt", "delay_ms"), [(0, 20_000), (1, 40_000), (2, 60_000)])
def test_ibm_delays_count_from_the_timestamp_header(attempt: int, delay_ms: int) -> None:
    base_ms = SENT_MS - 5_000
    assert decide_ibm(base_ms=base_ms, attempt=attempt) == Schedule(base_ms + delay_ms, limit=3)


def test_ibm_allows_as_many_attempts_as_it_has_delays() -> None:
    assert reason_of(decide_ibm(attempt=3)) is Reason.ATTEMPTS_EXHAUSTED
    assert decide_ibm({"ibm_delays_ms": (1, 2, 3, 4)}, attempt=3) == Schedule(SENT_MS + 4, limit=4)
    assert decide_ibm({"max_attempts": 1}, attempt=2) == Schedule(SENT_MS + 60_000, limit=3)


def test_ibm_drops_before_anything_else() -> None:
    lists = {"droppable": ("E",), "retriable": ("E",), "fatal": ("E",), "origin_topics": ("orders",)}
    assert isinstance(decide_ibm(lists, origin="elsewhere", attempt=9, base_ms=DUE_MS_MAX), Drop)
    assert isinstance(decide_ibm(lists, origin="dlq", exception="F"), Drop)
    assert reason_of(decide_ibm(lists, origin="elsewhere", exception="F")) is Reason.ORIGIN_NOT_ALLOWED
    assert reason_of(decide_ibm(origin="retry")) is Reason.ORIGIN_NOT_ALLOWED


def test_ibm_stores_what_is_retriable_before_it_asks_what_is_fatal() -> None:
    lists = {"retriable": ("E",), "fatal": ("E", "F")}
    assert isinstance(decide_ibm(lists, attempt=2), Schedule)
    assert reason_of(decide_ibm(lists, attempt=3)) is Reason.FATAL
    assert reason_of(decide_ibm(lists, exception="F")) is Reason.FATAL
    assert reason_of(decide_ibm({"fatal": ("E",)})) is Reason.FATAL


def test_ibm_dead_letters_what_is_on_no_list() -> None:
    assert reason_of(decide_ibm({"retriable": ("R",)})) is Reason.UNKNOWN_EXCEPTION
    assert reason_of(decide_ibm({"retriable": ("R",)}, attempt=3)) is Reason.ATTEMPTS_EXHAUSTED
    assert isinstance(decide_ibm({"fatal": ("F",)}), Schedule)
    assert isinstance(decide_ibm({"retriable": ("R",)}, exception="R"), Schedule)


def test_an_ibm_timestamp_too_far_away_is_out_of_range() -> None:
    assert reason_of(decide_ibm(base_ms=DUE_MS_MAX)) is Reason.DELAY_OUT_OF_RANGE
    assert decide_ibm(base_ms=0) == Schedule(20_000, limit=3)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"delays_ms": ()}, ["DELAYS"]),
        ({"delays_ms": (-1,)}, ["DELAYS"]),
        ({"ibm_delays_ms": (-1,)}, ["FIRST/SECOND/THIRD_DELAY_MS"]),
        ({"max_attempts": 0}, ["MAX_ATTEMPTS"]),
        ({"max_attempts": 1001}, ["MAX_ATTEMPTS"]),
        ({"delays_ms": (70_000,), "max_delay_ms": 60_000}, ["DELAYS"]),
        ({"dlq_topic": "retry", "max_attempts": 0}, ["MAX_ATTEMPTS", "DLQ_TOPIC"]),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(settings: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        PolicyConfig(**settings)
    assert [problem.split("=")[0].split(" ")[0] for problem in caught.value.problems] == names
