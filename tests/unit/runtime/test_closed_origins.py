"""Origins that cannot be fired to: closed on what the broker says, probed ever less often, opened again."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from sidecar.changelog.codec import Checkpoint, Closed, Closure
from sidecar.engine.partition import Partition, State
from sidecar.engine.ports import Origin, Outgoing
from sidecar.kafka.admin.catalogue import Catalogue
from sidecar.kafka.producer import Refusal, Refused
from sidecar.runtime.origins import (
    ANSWER_S,
    PROBE_FIRST_S,
    PROBE_MAX_S,
    SEEN_MAX,
    TRIAL_S,
    UNUSED_S,
    ClosedOrigins,
)
from sidecar.wheel.counts import Counts
from tests.clocks import NOW_MS

DAY_S = 86_400.0
ORDERS = Origin(1, 1_000_000)


@pytest.fixture
def catalogue() -> Catalogue:
    """A catalogue with knowledge set by the test: nothing answers at this address, and it asks nothing."""
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
def test_an_origin_that_refuses_for_its_own_reason_is_closed(
    closed: ClosedOrigins, why: Refusal, closure: Closure
) -> None:
    assert closed.refused([refusal("orders", why)], NOW_MS, 0.0) == []
    assert closed.closed == {"orders": Closed(closure, NOW_MS)}


def test_a_refusal_of_the_record_closes_nothing_and_is_handed_back(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    record = refusal("orders", Refusal.RECORD)
    assert closed.refused([record, refusal("other", Refusal.GONE)], NOW_MS, 0.0) == [record]
    assert set(closed.closed) == {"other"}
    assert "orders" not in catalogue.origins, "its limits may have changed: they are asked for anew"


def test_many_refusals_of_one_transaction_are_one_closure(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.DENIED, offset) for offset in range(100)], NOW_MS, 0.0)
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
    closed.refused([refusal("orders", Refusal.GONE)], NOW_MS, 0.0)
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
    closed.refused([refusal("orders", Refusal.GONE)], NOW_MS, 0.0)
    assert closed.advance(["orders"], NOW_MS, PROBE_FIRST_S) == []
    catalogue.origins["orders"] = Origin(1, 1_000_000)
    assert closed.advance(["orders"], NOW_MS, PROBE_FIRST_S + ANSWER_S / 2) == []
    assert closed.advance(["orders"], NOW_MS, PROBE_FIRST_S + ANSWER_S) == ["orders"]
    assert not closed.closed


def test_a_topic_that_stays_away_is_asked_for_ever_less_often(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.GONE)], NOW_MS, 0.0)
    catalogue._wanted.clear()
    asked_at = []
    for now_s in range(400):
        assert closed.advance(["orders"], NOW_MS, float(now_s)) == []
        if catalogue._wanted:
            asked_at.append(now_s)
            catalogue._wanted.clear()
    assert asked_at == [10, 31, 72, 153, 314]


def test_a_topic_without_a_leader_is_not_opened(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.refused([refusal("orders", Refusal.SILENT)], NOW_MS, 0.0)
    catalogue.leaderless.add("orders")
    assert closed.advance([], NOW_MS, PROBE_FIRST_S) == []
    catalogue.leaderless.clear()
    assert closed.advance([], NOW_MS, 3 * PROBE_FIRST_S) == ["orders"]


def test_an_origin_that_refuses_every_probe_is_probed_ever_less_often_and_stays_closed_since_the_first_time(
    closed: ClosedOrigins,
) -> None:
    now_s, wait_s = 0.0, PROBE_FIRST_S
    for _ in range(8):
        closed.refused([refusal("orders", Refusal.DENIED)], NOW_MS + round(now_s * 1000), now_s)
        assert closed.closed["orders"].since_ms == NOW_MS
        assert closed.advance([], NOW_MS, now_s + wait_s - 0.1) == []
        now_s += wait_s
        assert closed.advance([], NOW_MS, now_s) == ["orders"]
        wait_s = min(2 * wait_s, PROBE_MAX_S)
    assert wait_s == PROBE_MAX_S


def test_after_a_delivery_the_next_closure_starts_over(closed: ClosedOrigins) -> None:
    closed.refused([refusal("orders", Refusal.DENIED)], NOW_MS, 0.0)
    closed.advance([], NOW_MS, PROBE_FIRST_S)
    closed.fired(["orders"], NOW_MS)
    closed.refused([refusal("orders", Refusal.DENIED)], NOW_MS + 60_000, 60.0)
    assert closed.closed["orders"].since_ms == NOW_MS + 60_000
    assert closed.advance([], NOW_MS, 60.0 + PROBE_FIRST_S) == ["orders"]


def test_a_plan_keeps_the_closures_that_it_began_with(closed: ClosedOrigins) -> None:
    before = closed.closed
    closed.close("orders", Closure.VANISHED, NOW_MS, 0.0)
    assert before == {}
    assert closed.closed is not before


# The end of a closure


def after(now_s: float) -> int:
    return NOW_MS + round(now_s * 1000)


def refuse(closed: ClosedOrigins, why: Refusal, now_s: float) -> None:
    closed.refused([refusal("orders", why)], after(now_s), now_s)


def advance(closed: ClosedOrigins, now_s: float) -> list[str]:
    return closed.advance(["orders"], after(now_s), now_s)


def vanishes_and_is_there_again(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    """Gone at 0 s, opened by the probe; nothing is due for it."""
    refuse(closed, Refusal.GONE, 0)
    catalogue.origins["orders"] = ORDERS
    assert advance(closed, PROBE_FIRST_S) == ["orders"]


def test_a_closure_that_a_probe_ended_does_not_count_for_one_days_later(
    closed: ClosedOrigins, catalogue: Catalogue
) -> None:
    vanishes_and_is_there_again(closed, catalogue)
    refuse(closed, Refusal.GONE, 3 * DAY_S)
    assert closed.closed == {"orders": Closed(Closure.VANISHED, after(3 * DAY_S))}


def test_a_closure_that_a_probe_ended_does_not_come_back_from_the_checkpoint_of_an_idle_partition(
    closed: ClosedOrigins, catalogue: Catalogue
) -> None:
    vanishes_and_is_there_again(closed, catalogue)
    closed.restored({"orders": Closed(Closure.VANISHED, NOW_MS)}, DAY_S)
    refuse(closed, Refusal.GONE, 3 * DAY_S)
    assert closed.closed["orders"].since_ms == after(3 * DAY_S)


def test_a_closure_that_a_fire_ended_does_not_come_back_from_the_checkpoint_of_an_idle_partition(
    closed: ClosedOrigins,
) -> None:
    refuse(closed, Refusal.SILENT, 0)
    advance(closed, PROBE_FIRST_S)
    closed.fired(["orders"], after(60))
    closed.restored({"orders": Closed(Closure.UNREACHABLE, NOW_MS)}, DAY_S)
    refuse(closed, Refusal.SILENT, 3 * DAY_S)
    assert closed.closed["orders"].since_ms == after(3 * DAY_S)


def test_the_right_that_the_broker_shows_again_ends_a_closure(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    refuse(closed, Refusal.DENIED, 0)
    catalogue.allowed.add("orders")
    advance(closed, PROBE_FIRST_S)
    refuse(closed, Refusal.DENIED, 3 * DAY_S)
    assert closed.closed["orders"].since_ms == after(3 * DAY_S)


def test_a_right_that_was_shown_before_the_refusal_ends_nothing(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    catalogue.allowed.add("orders")
    refuse(closed, Refusal.DENIED, 0)
    assert advance(closed, PROBE_FIRST_S) == ["orders"]
    refuse(closed, Refusal.DENIED, PROBE_FIRST_S)
    assert closed.closed["orders"].since_ms == NOW_MS


def test_an_origin_without_an_answer_is_on_trial_until_it_has_stood_open_for_longer_than_any_deferral(
    closed: ClosedOrigins,
) -> None:
    refuse(closed, Refusal.SILENT, 0)
    advance(closed, PROBE_FIRST_S)
    advance(closed, PROBE_FIRST_S + TRIAL_S)
    refuse(closed, Refusal.SILENT, PROBE_FIRST_S + TRIAL_S)
    assert closed.closed["orders"].since_ms == NOW_MS, "a leader that metadata names need not answer"
    opened_s = PROBE_FIRST_S + TRIAL_S + 2 * PROBE_FIRST_S
    assert advance(closed, opened_s) == ["orders"]
    advance(closed, opened_s + TRIAL_S + 1)
    refuse(closed, Refusal.SILENT, 3 * DAY_S)
    assert closed.closed["orders"].since_ms == after(3 * DAY_S)


def test_an_origin_that_has_never_been_open_is_closed_since_the_first_time_whatever_keeps_it_closed(
    closed: ClosedOrigins, catalogue: Catalogue
) -> None:
    refuse(closed, Refusal.GONE, 0)
    catalogue.origins["orders"] = ORDERS
    catalogue.denied.add("orders")
    assert advance(closed, PROBE_FIRST_S) == []
    refuse(closed, Refusal.DENIED, PROBE_FIRST_S)
    assert closed.closed["orders"] == Closed(Closure.UNAUTHORISED, NOW_MS)


# Over a restart


def test_a_restart_does_not_put_origin_timeout_off(closed: ClosedOrigins, catalogue: Catalogue) -> None:
    closed.restored({"orders": Closed(Closure.VANISHED, NOW_MS - 5_000), "*": Closed(Closure.PAUSED, 1)}, 0)
    assert not closed.closed, "whether it is so still is not known"
    del catalogue.origins["orders"]
    catalogue.unknown["orders"] = 0.0
    advance(closed, 1)
    assert closed.closed == {"orders": Closed(Closure.VANISHED, NOW_MS - 5_000)}


def test_of_several_checkpoints_the_one_that_saw_it_closed_first_counts(closed: ClosedOrigins) -> None:
    for since_ms in (NOW_MS - 5_000, NOW_MS - 9_000, NOW_MS - 7_000):
        closed.restored({"orders": Closed(Closure.UNREACHABLE, since_ms)}, 0)
    refuse(closed, Refusal.SILENT, 1)
    assert closed.closed["orders"].since_ms == NOW_MS - 9_000


def test_a_closure_of_a_checkpoint_is_over_when_the_topic_is_there_at_the_start(closed: ClosedOrigins) -> None:
    closed.restored({"orders": Closed(Closure.VANISHED, NOW_MS - 5_000)}, 0)
    advance(closed, 1)
    refuse(closed, Refusal.GONE, 2)
    assert closed.closed["orders"].since_ms == after(2)


def test_the_first_wait_after_a_restart_is_the_first_wait(closed: ClosedOrigins) -> None:
    closed.restored({"orders": Closed(Closure.UNREACHABLE, NOW_MS)}, 0)
    refuse(closed, Refusal.SILENT, 1)
    assert advance(closed, 1 + PROBE_FIRST_S - 0.1) == []
    assert advance(closed, 1 + PROBE_FIRST_S) == ["orders"]


# Checkpoints


def idle_partition(closure: Closed) -> Partition:
    checkpoint = Checkpoint(closed={"orders": closure})
    return Partition(0, State.RUNNING, checkpoint=checkpoint, counts=Counts(origins={"orders": 1}))


def test_a_partition_whose_checkpoint_names_a_closure_that_is_over_wants_another_checkpoint(
    closed: ClosedOrigins, catalogue: Catalogue
) -> None:
    idle = idle_partition(Closed(Closure.VANISHED, NOW_MS))
    closed.restored(idle.checkpoint.closed, 0)
    del catalogue.origins["orders"]
    catalogue.unknown["orders"] = 0.0
    closed.maintain([idle], after(1), 1)
    assert idle.wakes_at_ms() is None, "it holds still"
    catalogue.unknown.clear()
    catalogue.origins["orders"] = ORDERS
    closed.maintain([idle], after(1 + PROBE_FIRST_S), 1 + PROBE_FIRST_S)
    assert idle.wakes_at_ms() == 0


def test_a_closure_on_trial_stays_in_the_checkpoint_of_an_idle_partition(closed: ClosedOrigins) -> None:
    idle = idle_partition(Closed(Closure.UNREACHABLE, NOW_MS))
    closed.restored(idle.checkpoint.closed, 0)
    closed.maintain([idle], after(1), 1)
    assert idle.wakes_at_ms() is None
    closed.fired(["orders"], after(2))
    closed.maintain([idle], after(3), 3)
    assert idle.wakes_at_ms() == 0


def test_a_pause_is_no_closure_that_ends_by_itself(closed: ClosedOrigins) -> None:
    idle = idle_partition(Closed(Closure.PAUSED, NOW_MS))
    closed.maintain([idle], after(1), 1)
    assert idle.wakes_at_ms() is None


# Bounds


def test_a_closure_that_no_timer_waits_for_is_forgotten_after_a_while(
    closed: ClosedOrigins, catalogue: Catalogue
) -> None:
    refuse(closed, Refusal.GONE, 0)
    closed.advance([], after(UNUSED_S), UNUSED_S)
    assert "orders" in closed.closed
    closed.advance([], after(UNUSED_S + 1), UNUSED_S + 1)
    assert not closed.closed
    catalogue._wanted.clear()
    closed.advance([], after(2 * UNUSED_S), 2 * UNUSED_S)
    assert not catalogue._wanted


def test_of_so_many_origins_it_is_kept_when_they_were_last_open(closed: ClosedOrigins) -> None:
    closed.fired((f"origin-{n}" for n in range(SEEN_MAX + 5)), NOW_MS)
    assert len(closed._open_ms) == SEEN_MAX
    assert f"origin-{SEEN_MAX + 4}" in closed._open_ms
