"""Origins that can not be fired to: closed on what the broker says, probed ever less often, opened again."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from sidecar.changelog.codec import Closed, Closure
from sidecar.engine.ports import Origin, Outgoing
from sidecar.kafka.catalogue import Catalogue
from sidecar.kafka.producer import Refusal, Refused
from sidecar.runtime.origins import ANSWER_S, PROBE_FIRST_S, PROBE_MAX_S, ClosedOrigins
from tests.clocks import NOW_MS


@pytest.fixture
def catalogue() -> Catalogue:
    """What is known is set by hand: nothing answers at this address, and nothing is asked."""
    return Catalogue(AdminClient({"bootstrap.servers": "127.0.0.1:9", "log_level": 0}))


@pytest.fixture
def closed(catalogue: Catalogue) -> ClosedOrigins:
    catalogue.origins["orders"] = Origin(1, 1_000_000)
    return ClosedOrigins(catalogue)


def refusal(topic: str, why: Refusal, offset: int = 1) -> Refused:
    return Refused(0, Outgoing(topic, -1, None, None, [], 0, b"%016d" % offset), why, "no")


@pytest.mark.parametrize(
    ("why", "closure"),
    [
        (Refusal.DENIED, Closure.UNAUTHORISED),
        (Refusal.GONE, Closure.VANISHED),
        (Refusal.SILENT, Closure.UNREACHABLE),
    ],
)
def test_an_origin_that_refuses_for_a_reason_of_its_own_is_closed(
    closed: ClosedOrigins, why: Refusal, closure: Closure
) -> None:
    assert closed.refused([refusal("orders", why)], False, NOW_MS, 0.0) == []
    assert closed.closed == {"orders": Closed(closure, NOW_MS)}


def test_a_refusal_of_the_record_closes_nothing_and_is_handed_back(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    record = refusal("orders", Refusal.RECORD)
    assert closed.refused([record, refusal("other", Refusal.GONE)], False, NOW_MS, 0.0) == [record]
    assert set(closed.closed) == {"other"}
    assert "orders" not in catalogue.origins, "its limits may have changed: they are asked for anew"


def test_when_nothing_at_all_was_written_silence_says_nothing_about_one_topic(closed: ClosedOrigins) -> None:
    assert closed.refused([refusal("orders", Refusal.SILENT)], True, NOW_MS, 0.0) == []
    assert not closed.closed


def test_many_refusals_of_one_transaction_are_one_closure(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.DENIED, offset) for offset in range(100)], False, NOW_MS, 0.0)
    assert closed.advance([], NOW_MS, PROBE_FIRST_S) == ["orders"]


def test_a_topic_that_may_not_be_written_stays_closed_until_the_right_is_given(
    closed: ClosedOrigins, catalogue: Catalogue
) -> None:
    catalogue.denied.add("orders")
    closed.advance([], NOW_MS, 0.0)
    assert closed.closed["orders"].why is Closure.UNAUTHORISED
    assert closed.advance([], NOW_MS, PROBE_FIRST_S) == []
    catalogue.denied.clear()
    assert closed.advance([], NOW_MS, 3 * PROBE_FIRST_S) == ["orders"]


def test_what_is_known_of_a_vanished_topic_is_forgotten(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.GONE)], False, NOW_MS, 0.0)
    assert "orders" not in catalogue.origins


def test_an_origin_is_closed_before_its_timers_are_due_when_the_broker_says_so(
    closed: ClosedOrigins, catalogue: Catalogue
) -> None:
    catalogue.denied.add("denied")
    catalogue.unknown["gone"] = 0.0
    closed.advance(["orders", "denied", "gone", "unseen"], NOW_MS, 0.0)
    assert {name: each.why for name, each in closed.closed.items()} == {
        "denied": Closure.UNAUTHORISED,
        "gone": Closure.VANISHED,
    }


def test_a_topic_that_is_there_again_opens_at_its_next_probe(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.GONE)], False, NOW_MS, 0.0)
    assert closed.advance(["orders"], NOW_MS, PROBE_FIRST_S) == []
    catalogue.origins["orders"] = Origin(1, 1_000_000)
    assert closed.advance(["orders"], NOW_MS, PROBE_FIRST_S + ANSWER_S / 2) == []
    assert closed.advance(["orders"], NOW_MS, PROBE_FIRST_S + ANSWER_S) == ["orders"]
    assert not closed.closed


def test_a_topic_that_stays_away_is_asked_for_ever_less_often(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.GONE)], False, NOW_MS, 0.0)
    catalogue._wanted.clear()
    asked_at = []
    for now_s in range(400):
        assert closed.advance(["orders"], NOW_MS, float(now_s)) == []
        if catalogue._wanted:
            asked_at.append(now_s)
            catalogue._wanted.clear()
    assert asked_at == [10, 31, 72, 153, 314]


def test_a_topic_without_a_leader_is_not_opened(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.SILENT)], False, NOW_MS, 0.0)
    catalogue.leaderless.add("orders")
    assert closed.advance([], NOW_MS, PROBE_FIRST_S) == []
    catalogue.leaderless.clear()
    assert closed.advance([], NOW_MS, 3 * PROBE_FIRST_S) == ["orders"]


def test_an_origin_that_refuses_every_probe_is_probed_ever_less_often_and_stays_closed_since_the_first_time(
    closed: ClosedOrigins,
) -> None:
    now_s, wait_s = 0.0, PROBE_FIRST_S
    for _ in range(8):
        closed.refused([refusal("orders", Refusal.DENIED)], False, NOW_MS + round(now_s * 1000), now_s)
        assert closed.closed["orders"].since_ms == NOW_MS
        assert closed.advance([], NOW_MS, now_s + wait_s - 0.1) == []
        now_s += wait_s
        assert closed.advance([], NOW_MS, now_s) == ["orders"]
        wait_s = min(2 * wait_s, PROBE_MAX_S)
    assert wait_s == PROBE_MAX_S


def test_after_a_fire_the_next_closure_begins_anew(closed: ClosedOrigins) -> None:
    closed.refused([refusal("orders", Refusal.DENIED)], False, NOW_MS, 0.0)
    closed.advance([], NOW_MS, PROBE_FIRST_S)
    closed.fired(["orders"])
    closed.refused([refusal("orders", Refusal.DENIED)], False, NOW_MS + 60_000, 60.0)
    assert closed.closed["orders"].since_ms == NOW_MS + 60_000
    assert closed.advance([], NOW_MS, 60.0 + PROBE_FIRST_S) == ["orders"]


def test_a_plan_keeps_the_closures_that_it_began_with(closed: ClosedOrigins) -> None:
    before = closed.closed
    closed.close("orders", Closure.VANISHED, NOW_MS, 0.0)
    assert before == {}
    assert closed.closed is not before
