"""Policies of single origins."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model import Drop, Reason, Rejection, Request, Schedule
from sidecar.policy import Policy, PolicyConfig

SENT_MS = 1_700_000_000_000
GENERAL = PolicyConfig(delays_ms=(10, 20), retriable=("Usual", "Odd"), fatal=("Fatal",), droppable=("Boring",))


def policy(**by_origin: dict[str, Any]) -> Policy:
    own = tuple(replace(GENERAL, name=origins, **changes) for origins, changes in by_origin.items())
    return Policy(replace(GENERAL, by_origin=own))


def decide(policy: Policy, origin: str, *, dialect: int = 1, **request: Any) -> object:
    asked = Request(dialect, origin, **{"exception": "Usual", **request})
    return policy.decide(asked, timestamp_ms=SENT_MS, arrived_ms=SENT_MS)


def test_an_origin_has_its_own_delays_and_limit() -> None:
    own = policy(payments={"delays_ms": (1, 2, 3)}, mail={"max_attempts": 1})
    assert decide(own, "payments", attempt=2) == Schedule(SENT_MS + 3, limit=3)
    assert decide(own, "mail") == Schedule(SENT_MS + 10, limit=1)
    assert decide(own, "orders", attempt=1) == Schedule(SENT_MS + 20, limit=2)


def test_an_origin_has_its_own_lists_in_place_of_the_general_ones() -> None:
    own = policy(payments={"fatal": ("Usual",), "retriable": (), "droppable": ("Odd",)})
    assert isinstance(decide(own, "payments", exception="Odd"), Drop)
    fatal = decide(own, "payments")
    assert isinstance(fatal, Rejection)
    assert fatal == (Reason.FATAL, "exception 'Usual' is on the list FATAL_EXCEPTION (policy of payments)")
    assert decide(own, "payments", exception="Fatal") == Schedule(SENT_MS + 10, limit=2)
    assert decide(own, "orders") == Schedule(SENT_MS + 10, limit=2)


def test_profile_ibm_has_its_own_delays_for_an_origin() -> None:
    own = policy(payments={"ibm_delays_ms": (7, 8, 9)})
    assert decide(own, "payments", dialect=2, base_ms=SENT_MS, attempt=1) == Schedule(SENT_MS + 8, limit=3)
    assert decide(own, "orders", dialect=2, base_ms=SENT_MS, attempt=1) == Schedule(SENT_MS + 40_000, limit=3)


def test_a_message_that_names_its_own_time_keeps_it() -> None:
    own = policy(payments={"delays_ms": (1,)})
    assert decide(own, "payments", due_ms=SENT_MS + 77) == Schedule(SENT_MS + 77, limit=1)


def test_why_attempts_are_used_up_names_the_policy() -> None:
    verdict = decide(policy(payments={"max_attempts": 1}), "payments", attempt=1)
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.ATTEMPTS_EXHAUSTED
    assert verdict.detail.endswith("(policy of payments)")


@pytest.mark.parametrize(
    ("origin", "limit"), [("mail-eu", 1), ("mail-eu-west", 2), ("mail-us", 3), ("mailing", 4), ("orders", 5), ("x", 6)]
)
def test_the_name_comes_before_the_longest_glob_before_shorter_ones_before_what_is_for_all(
    origin: str, limit: int
) -> None:
    own = policy(
        **{
            "mail*": {"max_attempts": 4},
            "mail-*": {"max_attempts": 3},
            "mail-eu*": {"max_attempts": 2},
            "mail-eu": {"max_attempts": 1},
            "o[a-z]*": {"max_attempts": 5},
            "*": {"max_attempts": 6},
        }
    )
    assert decide(own, origin) == Schedule(SENT_MS + 10, limit=limit)


@given(st.permutations(["a*", "*a", "aa", "*", "a?"]), st.sampled_from(["aa", "ab", "ba", "aaa", "b"]))
def test_the_order_in_which_policies_are_given_says_nothing(order: list[str], origin: str) -> None:
    limits = {"a*": 1, "*a": 2, "aa": 3, "*": 4, "a?": 5}
    first = policy(**{glob: {"max_attempts": limit} for glob, limit in limits.items()})
    second = policy(**{glob: {"max_attempts": limits[glob]} for glob in order})
    assert decide(first, origin) == decide(second, origin)


def test_an_origin_that_is_not_allowed_is_none_with_a_policy_either() -> None:
    own = Policy(replace(GENERAL, origin_topics=("a",), by_origin=(replace(GENERAL, name="b", origin_topics=("a",)),)))
    verdict = decide(own, "b")
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.ORIGIN_NOT_ALLOWED


def test_what_decides_can_be_sent_to_another_process() -> None:
    config = replace(GENERAL, by_origin=(replace(GENERAL, name="a", max_attempts=1),))
    assert pickle.loads(pickle.dumps(config)) == config
