"""Plans of a partition whose changelog lacks a transaction that delivered: what it delivered does not come twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.delivered import NOTHING, Delivered, Delivery, sift
from sidecar.engine.items import Arrival, Ordered
from sidecar.engine.restore import Restore
from sidecar.engine.rows import lane_of
from sidecar.model import StoredOffset, TimerId
from tests.simulation.stage import IDENTITY, NOW, TERMS, Stage, fired, outcomes

HOUR = 3_600_000


def delivery(arrival: Arrival) -> Delivery:
    return Delivery(StoredOffset(arrival.offset), arrival.due_ms, arrival.origin)


def found(stage: Stage, *arrivals: Arrival, until: int = 0) -> None:
    """Let the partition continue as after a recovery whose search found these."""
    at = stage.partition.checkpoint
    pending, unseen = sift(map(delivery, arrivals), 0, at, stage.store)
    again = frozenset((each.offset, each.origin) for each in unseen)
    stage.partition.delivered = Delivered(frozenset(pending), again=again, until=until)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_what_is_due_and_stands_in_its_origin_is_removed_without_a_delivery(stage: Stage) -> None:
    one, two = stage.send(NOW + 5), stage.send(NOW + 6, "B")
    stage.commit(NOW, one, two)
    found(stage, one)
    part = stage.commit(NOW + 10)
    assert fired(part) == [two.offset]
    assert part.delivered_before == {"A": 1}
    assert stage.timers() == []
    assert stage.partition.delivered == NOTHING
    assert stage.plan(NOW + 20).partition_plans == []


def test_what_a_control_record_had_fired_early_is_removed_at_once(stage: Stage) -> None:
    one, two = stage.send(NOW + HOUR), stage.send(NOW + HOUR)
    stage.commit(NOW, one, two)
    found(stage, one)
    assert stage.partition.wakes_at_ms() == 0, "there is something to do now"
    part = stage.commit(NOW + 1)
    assert (fired(part), part.delivered_before) == ([], {"A": 1})
    assert [timer.offset for timer in stage.timers()] == [two.offset]


def test_what_was_moved_and_has_a_retry_id_leaves_nothing_behind(stage: Stage) -> None:
    one = stage.send(NOW + HOUR, retry_id=b"x")
    stage.commit(NOW, one)
    stage.commit(NOW + 1, stage.control(ControlKind.RESCHEDULE, TimerId(0, one.offset, one.due_ms), NOW + 2 * HOUR))
    found(stage, one)
    assert stage.commit(NOW + 2).delivered_before == {"A": 1}
    assert not [row for row in stage.store.rows if row[:1] in {b"t", b"o", b"n"}]


def test_a_message_that_is_read_again_is_neither_stored_nor_delivered(stage: Stage) -> None:
    overdue, later, other = stage.send(NOW - 5), stage.send(NOW + HOUR), stage.send(NOW - 5)
    found(stage, overdue, later, until=3)
    part = stage.commit(NOW, overdue, later, other)
    assert fired(part) == [other.offset]
    assert (part.stored, part.delivered_before) == (3, {"A": 2})
    assert stage.timers() == []
    assert stage.partition.delivered == NOTHING


def test_its_due_can_be_another_one_when_it_is_read_again(stage: Stage) -> None:
    overdue = stage.send(NOW - 5)
    found(stage, overdue, until=1)
    assert stage.commit(NOW, overdue._replace(due_ms=NOW + 7)).delivered_before == {"A": 1}


def test_an_ordered_message_that_is_read_again_has_no_place_in_its_lane(stage: Stage) -> None:
    one, two = stage.send(NOW - 5), stage.send(NOW - 4)
    found(stage, one, until=2)
    part = stage.commit(NOW, *(Ordered(each.offset, each, lane_of("A", b"key")) for each in (one, two)))
    assert (fired(part), part.delivered_before) == ([two.offset], {"A": 1})
    assert not [row for row in stage.store.rows if row[:1] == b"k"]


def test_one_that_waited_behind_what_stands_there_goes(stage: Stage) -> None:
    one, two = stage.send(NOW + 500), stage.send(NOW + 5)
    stage.commit(NOW, *(Ordered(each.offset, each, lane_of("A", b"key")) for each in (one, two)))
    assert stage.commit(NOW + 10).put_behind == {"A": 1}
    found(stage, one)
    assert stage.commit(NOW + 20).delivered_before == {"A": 1}
    assert fired(stage.commit(NOW + 30)) == [two.offset], "before the due of the one that it waited behind"


def test_a_record_in_the_origin_of_another_message_does_not_count(stage: Stage) -> None:
    one, unseen = stage.send(NOW + 5), stage.send(NOW - 5)
    stage.commit(NOW, one)
    found(stage, one._replace(origin="B"), unseen._replace(origin="B"), until=2)
    part = stage.commit(NOW + 10, unseen)
    assert sorted(fired(part)) == [one.offset, unseen.offset]


def test_what_was_seen_and_is_not_pending_does_not_count(stage: Stage) -> None:
    one = stage.send(NOW + 5)
    stage.commit(NOW, one)
    assert fired(stage.commit(NOW + 10)) == [one.offset]
    found(stage, one)
    assert stage.partition.delivered == NOTHING
    again = stage.commit(NOW + 20, one)
    assert fired(again) == [one.offset], "an operator who sets the group's offset back wants it again"
    assert stage.partition.set_back_ms == NOW + 20


def test_what_an_operator_has_not_set_back_is_not_noted(stage: Stage) -> None:
    stage.commit(NOW, stage.send(NOW + 5))
    assert stage.commit(NOW + 10).set_back_ms == 0


def test_more_than_a_plan_takes_are_removed_before_anything_else_fires(stage: Stage) -> None:
    sent = [stage.send(NOW + 5 + each) for each in range(4)]
    stage.commit(NOW, *sent)
    found(stage, *sent[1:])
    two = replace(TERMS, deliveries_max=2)
    parts = [stage.commit(NOW + 20, terms=two) for _ in range(2)]
    assert [part.delivered_before for part in parts] == [{"A": 2}, {"A": 1}]
    assert [fired(part) for part in parts] == [[], [sent[0].offset]]
    assert parts[0].complete is False


def test_nothing_is_removed_when_nothing_may_fire(stage: Stage) -> None:
    one = stage.send(NOW + 5)
    stage.commit(NOW, one)
    found(stage, one)
    assert stage.plan(NOW + 10, terms=replace(TERMS, deliveries_max=0)).partition_plans == []
    assert stage.commit(NOW + 10).delivered_before == {"A": 1}


# Control records


def test_a_fire_that_is_read_again_is_answered_as_before_and_delivers_nothing(stage: Stage) -> None:
    one, named = stage.send(NOW + HOUR), stage.send(NOW + HOUR, retry_id=b"x")
    stage.commit(NOW, one, named)
    fires = stage.control(ControlKind.FIRE, TimerId(0, 0, one.due_ms)), stage.control(ControlKind.FIRE, b"x")
    found(stage, one, named, until=4)
    part = stage.commit(NOW + 1, *fires)
    assert outcomes(part) == [(Outcome.FIRED, 1), (Outcome.FIRED, 1)]
    assert (fired(part), part.delivered_before) == ([], {"A": 2})
    assert stage.timers() == []


def test_a_fire_that_is_read_after_the_removal_is_answered_as_before_too(stage: Stage) -> None:
    one = stage.send(NOW + HOUR)
    stage.commit(NOW, one)
    fire = stage.control(ControlKind.FIRE, TimerId(0, 0, one.due_ms))
    found(stage, one, until=2)
    assert stage.commit(NOW + 1).delivered_before == {"A": 1}
    part = stage.commit(NOW + 2, fire)
    assert (outcomes(part), fired(part)) == ([(Outcome.FIRED, 1)], [])
    assert stage.partition.delivered == NOTHING
    again = stage.control(ControlKind.FIRE, TimerId(0, 0, one.due_ms))
    assert outcomes(stage.commit(NOW + 3, again)) == [(Outcome.NOT_PENDING, 0)]


def test_a_message_that_is_read_again_with_its_fire_stays_away(stage: Stage) -> None:
    one = stage.send(NOW + HOUR)
    fire = stage.control(ControlKind.FIRE, TimerId(0, 0, one.due_ms))
    found(stage, one, until=2)
    part = stage.commit(NOW, one, fire)
    assert (outcomes(part), fired(part), stage.timers()) == ([(Outcome.FIRED, 1)], [], [])


@pytest.mark.parametrize("kind", [ControlKind.CANCEL, ControlKind.RESCHEDULE])
def test_what_is_in_its_origin_cannot_be_cancelled_or_moved(stage: Stage, kind: ControlKind) -> None:
    one, other = stage.send(NOW + HOUR, retry_id=b"x"), stage.send(NOW + HOUR, retry_id=b"x")
    stage.commit(NOW, one, other)
    found(stage, one)
    due_ms = NOW + 2 * HOUR if kind is ControlKind.RESCHEDULE else 0
    by_id = stage.control(kind, TimerId(0, 0, one.due_ms), due_ms)
    part = stage.commit(NOW + 1, by_id, stage.control(kind, b"x", due_ms))
    assert [count for _, count in outcomes(part)] == [0, 1], "the other one of this id is pending"
    assert outcomes(part)[0] == (Outcome.NOT_PENDING, 0)
    assert part.delivered_before == {"A": 1}


def test_a_reschedule_to_the_past_that_is_read_again_delivers_nothing(stage: Stage) -> None:
    one = stage.send(NOW + HOUR)
    stage.commit(NOW, one)
    found(stage, one)
    part = stage.commit(NOW + 1, stage.control(ControlKind.RESCHEDULE, TimerId(0, 0, one.due_ms), NOW - 1))
    assert (outcomes(part), fired(part)) == ([(Outcome.RESCHEDULED, 1)], [])
    assert part.delivered_before == {"A": 1}


def test_what_is_replaced_meanwhile_counts_as_replaced(stage: Stage) -> None:
    one = stage.send(NOW + HOUR, retry_id=b"x")
    stage.commit(NOW, one)
    found(stage, one)
    part = stage.commit(NOW + 1, stage.send(NOW + HOUR, retry_id=b"x", replace=True))
    assert (part.cancelled, part.delivered_before) == (1, {})
    assert stage.partition.delivered == NOTHING


def test_a_restore_forgets_what_was_found(stage: Stage) -> None:
    one = stage.send(NOW + 5)
    stage.commit(NOW, one)
    found(stage, one)
    Restore(stage.partition, stage.store, IDENTITY).begin(0, stage.log.end)
    assert stage.partition.delivered == NOTHING
