"""Policies that a message or an exception chooses; jitter; the age of a message."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.changelog.entry import HEAD, payload
from sidecar.contract import dialects_of
from sidecar.contract.dialects.native import Native
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Arrival, Dead
from sidecar.engine.ports import Origin
from sidecar.model import Headers, Reason, Record, Rejection, Request, Schedule
from sidecar.policy import Policy, PolicyConfig, Verdict
from sidecar.policy.backoff import Backoff, drawn

NOW_MS = 1_700_000_000_000
GENERAL = PolicyConfig(delays_ms=(1_000,))
SLOW = replace(GENERAL, name="slow", delays_ms=(60_000, 120_000))
CARD = replace(GENERAL, name="card", delays_ms=(5,), fatal=("Odd",))


def decide(config: PolicyConfig, *, offset: int = 0, **request: Any) -> Verdict:
    asked = Request(request.pop("dialect", 1), request.pop("origin", "orders"), **request)
    return Policy(config).decide(asked, NOW_MS, NOW_MS, 3, offset)


NAMED = replace(
    GENERAL,
    by_name=(SLOW, CARD),
    by_exception=(("com.acme.*", "card"), ("com.acme.Slow*", "slow"), ("com.acme.SlowCard", "card")),
    by_origin=(replace(GENERAL, name="mail", delays_ms=(7_000,), by_exception=(("E", "slow"),)),),
)


@pytest.mark.parametrize(
    ("request_", "delay_ms"),
    [
        ({}, 1_000),
        ({"policy": "slow"}, 60_000),
        ({"origin": "mail"}, 7_000),
        ({"origin": "mail", "policy": "card"}, 5),
        ({"exception": "com.acme.E"}, 5),
        ({"exception": "com.acme.SlowE"}, 60_000),
        ({"exception": "com.acme.SlowCard"}, 5),
        ({"origin": "mail", "exception": "com.acme.E"}, 7_000),
        ({"origin": "mail", "exception": "E"}, 60_000),
        ({"policy": "slow", "exception": "com.acme.E"}, 60_000),
        ({"exception": "com.acme." + "x" * 600}, 5),
    ],
)
def test_a_message_meets_the_policy_it_names_else_that_of_its_origin_and_then_an_exception_rule(
    request_: dict[str, Any], delay_ms: int
) -> None:
    verdict = decide(NAMED, **request_)
    assert isinstance(verdict, Schedule)
    assert verdict.due_ms == NOW_MS + delay_ms


def test_the_policy_that_is_chosen_has_its_own_lists() -> None:
    verdict = decide(NAMED, policy="card", exception="Odd")
    assert verdict == (Reason.FATAL, "exception 'Odd' is on the list FATAL_EXCEPTION (policy of card)")


def test_a_name_that_is_no_policy_is_a_bad_header_that_says_which_are() -> None:
    verdict = decide(NAMED, policy="fast")
    assert verdict == (Reason.BAD_HEADER, "retry-policy='fast' is no policy: allowed are card, slow")
    assert decide(GENERAL, policy="x") == (
        Reason.BAD_HEADER,
        "retry-policy='x' is no policy: allowed are none, POLICIES is empty",
    )


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**40), st.floats(0, 1), st.integers(0, 10**9))
def test_jitter_adds_at_most_its_share_and_the_same_at_every_read(
    partition: int, offset: int, jitter: float, delay_ms: int
) -> None:
    config = replace(GENERAL, delays_ms=(delay_ms,), jitter=jitter)
    first, second = (Policy(config).decide(Request(1, "orders"), NOW_MS, NOW_MS, partition, offset) for _ in range(2))
    assert first == second
    assert isinstance(first, Schedule)
    assert NOW_MS + delay_ms <= first.due_ms <= NOW_MS + delay_ms * (1 + jitter)


def test_neighbours_are_drawn_apart_and_evenly() -> None:
    draws = sorted(drawn(7, offset) for offset in range(10_000))
    assert max(abs(draw - at / len(draws)) for at, draw in enumerate(draws)) < 0.02
    assert len({round(drawn(partition, 5), 6) for partition in range(1_000)}) == 1_000
    near = sum(abs(drawn(7, offset) - drawn(7, offset + 1)) < 0.1 for offset in range(10_000))
    assert near < 3_000


def test_jitter_leaves_a_time_alone_that_the_message_names() -> None:
    config = replace(GENERAL, jitter=1.0)
    assert decide(config, due_ms=NOW_MS + 5) == Schedule(NOW_MS + 5, 1)
    assert decide(config, delay_ms=7) == Schedule(NOW_MS + 7, 1)
    moved = decide(config, dialect=2, base_ms=NOW_MS)
    assert isinstance(moved, Schedule)
    assert moved.due_ms == NOW_MS + 20_000 + int(20_000 * drawn(3, 0))


def test_a_retry_that_would_come_too_late_after_the_first_failure_is_not_made() -> None:
    config = replace(GENERAL, max_age_ms=10_000)
    assert decide(config) == Schedule(NOW_MS + 1_000, 1, since_ms=NOW_MS)
    assert decide(config, first_ms=NOW_MS - 9_000) == Schedule(NOW_MS + 1_000, 1)
    verdict = decide(config, first_ms=NOW_MS - 9_001)
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.TOO_OLD
    assert verdict.detail == (
        f"the retry would be 10001 ms after the first failure at {NOW_MS - 9_001}: allowed are 10000 ms, by MAX_AGE"
    )
    listed = replace(config, retriable=("E",))
    assert decide(listed, dialect=2, base_ms=NOW_MS - 15_000, exception="E").since_ms == NOW_MS  # type: ignore[union-attr]
    late = decide(listed, dialect=2, base_ms=NOW_MS, exception="E")
    assert isinstance(late, Rejection)
    assert late.reason is Reason.TOO_OLD


@given(st.integers(1, 10**6), st.floats(1, 100), st.integers(1, 10**9), st.integers(1, 1_000))
def test_a_backoff_rises_to_its_maximum_and_has_all_its_attempts(
    first_ms: int, factor: float, max_ms: int, attempts: int
) -> None:
    delays = Backoff(first_ms, factor, max_ms, attempts).delays_ms
    assert len(delays) == attempts
    assert delays[0] == min(first_ms, max_ms)
    assert list(delays) == sorted(delays)
    assert max(delays) <= max_ms
    assert all(
        after in (max_ms, *range(int(before * factor) - 101, int(before * factor) + 102))
        for before, after in pairwise(delays)
    )


def examine(config: PolicyConfig, headers: Headers) -> Arrival | Dead:
    ingest = Ingest(
        Policy(config), dialects_of(("native", "ibm")), {"orders": Origin(1, 10**6)}, (), input_topic="r", app_id="a"
    )
    item = ingest.examine(Record(0, 5, NOW_MS, b"k", b"v", headers), NOW_MS)
    assert isinstance(item, Arrival | Dead)
    return item


def stored_headers(arrival: Arrival | Dead) -> Headers:
    assert isinstance(arrival, Arrival)
    return payload(bytes(26) + arrival.lasting, HEAD.size + len("orders"))[2]


NATIVE: Headers = [("retry-origin-topic", b"orders"), ("other", b"x")]
IBM: Headers = [
    ("x-ibm-retry-origin-topic", b"orders"),
    ("x-ibm-retry-timestamp-ms", b"%d" % NOW_MS),
    ("x-ibm-retry-exception-type", b"E"),
]


@pytest.mark.parametrize("headers", [NATIVE, IBM])
def test_the_first_failure_is_noted_once_and_travels_with_the_message(headers: Headers) -> None:
    aged = replace(GENERAL, max_age_ms=10**6)
    noted = [*headers, ("retry-first-ms", b"%d" % NOW_MS)]
    assert stored_headers(examine(aged, headers)) == noted
    assert stored_headers(examine(aged, noted)) == noted
    assert stored_headers(examine(GENERAL, headers)) == headers
    old = examine(aged, [*headers, ("retry-first-ms", b"1")])
    assert isinstance(old, Dead)
    assert old.reason is Reason.TOO_OLD


@pytest.mark.parametrize("headers", [NATIVE, IBM])
@pytest.mark.parametrize("bad", [("retry-first-ms", b"-1"), ("retry-policy", b""), ("retry-policy", None)])
def test_a_header_of_the_policy_that_cannot_be_read_is_bad_in_every_dialect(
    headers: Headers, bad: tuple[str, bytes | None]
) -> None:
    dead = examine(GENERAL, [*headers, bad])
    assert isinstance(dead, Dead)
    assert dead.reason is Reason.BAD_HEADER


def test_a_redrive_begins_with_a_new_first_failure_unless_it_keeps_the_attempts() -> None:
    headers: Headers = [*NATIVE, ("retry-policy", b"slow"), ("retry-first-ms", b"1")]
    again = Native().redriven(headers, NOW_MS, keep_attempts=False, to_origin="")
    kept = Native().redriven(headers, NOW_MS, keep_attempts=True, to_origin="")
    assert ("retry-first-ms", b"1") not in again
    assert ("retry-first-ms", b"1") in kept
    assert ("retry-policy", b"slow") in again
