"""Plans for the items of a batch: messages, dead letters, replacements, replays, control records."""

from __future__ import annotations

import dataclasses
from typing import Final
from unittest.mock import Mock

import pytest

from sidecar.changelog.codec import REMOVED, RemovedKey, decode_key
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.items import Arrival, Dead, Dropped, Item
from sidecar.engine.replacement import READS_MAX, REPLACED_MAX
from sidecar.engine.transaction import PartitionPlan
from sidecar.model import Headers, Reason, TimerId
from tests.simulation.audit import rows_of
from tests.simulation.stage import NOW, TERMS, Stage, fired, outcomes


def removed(partition_plan: PartitionPlan) -> dict[RemovedKey, bytes | None]:
    found: dict[RemovedKey, bytes | None] = {}
    for key, value in partition_plan.records:
        if isinstance(decoded := decode_key(key), RemovedKey):
            found[decoded] = value
    return found


def test_dead_and_dropped_records_pass_through_and_move_the_offset() -> None:
    stage = Stage()
    dead = Dead(0, Reason.FATAL, b"k", None, [("h", b"")])
    partition_plan = stage.commit(NOW, dead, Dropped(1, "droppable"))
    ((reason, dead_letter),) = partition_plan.dead_letters
    assert reason is Reason.FATAL
    assert (dead_letter.topic, dead_letter.key, dead_letter.value, dead_letter.headers) == (
        "dlq",
        b"k",
        None,
        [("h", b"")],
    )
    assert partition_plan.dropped == [Dropped(1, "droppable")]
    assert partition_plan.checkpoint.next_input_offset == 2


# Replace by retry id


def test_replace_takes_all_of_the_id_away_and_stores_the_new_one() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + due, retry_id=b"x") for due in (50, 60)), stage.send(NOW + 70, retry_id=b"y"))
    partition_plan = stage.commit(NOW, stage.send(NOW + 90, retry_id=b"x", replace=True))
    assert partition_plan.cancelled == 2
    assert removed(partition_plan) == {(0, NOW + 50): REMOVED, (1, NOW + 60): REMOVED}
    assert stage.dues() == [NOW + 70, NOW + 90]


def test_replace_sees_what_the_same_batch_stored() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 50, retry_id=b"x"), stage.send(NOW + 60, retry_id=b"x", replace=True))
    assert stage.dues() == [NOW + 60]


def test_an_id_that_begins_like_another_one_is_another_one() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 50, retry_id=b"x"), stage.send(NOW + 60, retry_id=b"xx"))
    stage.commit(NOW, stage.send(NOW + 70, retry_id=b"x", replace=True))
    assert stage.dues() == [NOW + 60, NOW + 70]


def test_replacing_more_than_a_thousand_is_a_bad_header_and_leaves_them_all() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 50, retry_id=b"x") for _ in range(REPLACED_MAX + 1)))
    partition_plan = stage.commit(NOW, stage.send(NOW + 90, retry_id=b"x", replace=True))
    ((reason, dead_letter),) = partition_plan.dead_letters
    assert reason is Reason.BAD_HEADER
    assert b"retry-id: too many timers" in (dict(dead_letter.headers)["retry-dlq-detail"] or b"")
    assert len(stage.timers()) == REPLACED_MAX + 1


def test_a_message_replaces_only_what_waits_for_its_own_origin() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + due, origin, retry_id=b"x") for due, origin in ((50, "A"), (60, "B"))))
    partition_plan = stage.commit(NOW, stage.send(NOW + 90, "B", retry_id=b"x", replace=True))
    assert partition_plan.cancelled == 1
    assert stage.dues() == [NOW + 50, NOW + 90]


def test_a_message_of_a_group_replaces_only_what_waits_for_this_group() -> None:
    stage = Stage()
    groups: dict[int, Headers] = {50: [], 60: [("retry-group", b"billing")], 70: [("retry-group", b"mail")]}
    stage.commit(NOW, *(stage.send(NOW + due, retry_id=b"x", headers=came) for due, came in groups.items()))
    stage.commit(NOW, stage.send(NOW + 90, retry_id=b"x", replace=True, headers=groups[70]))
    assert stage.dues() == [NOW + 50, NOW + 60, NOW + 90]
    stage.commit(NOW, stage.send(NOW + 95, retry_id=b"x", replace=True))
    assert stage.dues() == [NOW + 95]


def test_timers_of_others_under_an_id_do_not_keep_a_message_from_replacing() -> None:
    stage = Stage()
    others = [stage.send(NOW + 50, "B", retry_id=b"x") for _ in range(REPLACED_MAX * 2)]
    stage.commit(NOW, *others, stage.send(NOW + 60, retry_id=b"x"))
    assert stage.commit(NOW, stage.send(NOW + 90, retry_id=b"x", replace=True)).cancelled == 1
    assert max(stage.dues()) == NOW + 90
    assert len(stage.dues()) == len(others) + 1


@pytest.mark.parametrize(("count", "size"), [(READS_MAX + 2 * REPLACED_MAX, 1), (20, 1024 * 1024)])
def test_what_others_have_under_an_id_is_read_up_to_a_bound(count: int, size: int) -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 50, "B", retry_id=b"x", value=bytes(size)) for _ in range(count)))
    ((reason, _),) = stage.commit(NOW, stage.send(NOW + 90, retry_id=b"x", replace=True)).dead_letters
    assert reason is Reason.BAD_HEADER


def test_a_thousand_can_be_replaced_though_the_same_batch_took_others_of_the_id_away() -> None:
    stage = Stage()
    timers = [stage.send(NOW + 50, retry_id=b"x") for _ in range(REPLACED_MAX + 5)]
    stage.commit(NOW, *timers)
    cancels = [stage.control(ControlKind.CANCEL, TimerId(0, timer.offset, NOW + 50)) for timer in timers[:5]]
    stage.commit(NOW, *cancels, stage.send(NOW + 90, retry_id=b"x", replace=True))
    assert stage.dues() == [NOW + 90]


def test_replacing_obeys_the_limit_of_a_plan_and_the_rest_is_in_the_next_ones() -> None:
    stage = Stage()
    few = dataclasses.replace(TERMS, deliveries_max=10)
    names = [b"x", b"y", b"z"]
    stage.commit(NOW, *(stage.send(NOW + 50, retry_id=name) for name in names for _ in range(8)))
    batch: list[Item] = [stage.send(NOW + 90, retry_id=name, replace=True) for name in names]
    (made,) = stage.plan(NOW, *batch, terms=few).partition_plans
    assert (made.ingested, made.cancelled) == (2, 16)
    assert stage.commit(NOW, *batch, terms=few).checkpoint.next_input_offset == batch[2].offset
    assert stage.commit(NOW, batch[2], terms=few).cancelled == 8
    assert stage.dues() == [NOW + 90] * 3


def test_replacing_large_messages_obeys_the_bytes_of_a_plan() -> None:
    stage = Stage()
    small = dataclasses.replace(TERMS, delivery_bytes_max=1_000)
    stage.commit(NOW, *(stage.send(NOW + 50, retry_id=name, value=bytes(2_000)) for name in (b"x", b"y")))
    batch = [stage.send(NOW + 90, retry_id=name, replace=True) for name in (b"x", b"y")]
    (made,) = stage.plan(NOW, *batch, terms=small).partition_plans
    assert (made.ingested, made.cancelled) == (1, 1)


# Headers: as objects they take many times the bytes that they came in

MANY: Final[Headers] = [("h", None)] * 400
SMALL: Final = dataclasses.replace(TERMS, deliveries_max=10)


def test_overdue_messages_with_very_many_headers_fire_a_few_in_a_plan() -> None:
    stage = Stage()
    batch: list[Item] = [stage.send(NOW - 1, headers=MANY) for _ in range(3)]
    deliveries = []
    while batch:
        plan = stage.plan(NOW, *batch, terms=SMALL)
        deliveries.append(fired(stage.commit(NOW, *batch, terms=SMALL)))
        batch = list(plan.left.get(0, ()))
    assert deliveries == [[0], [1], [2]]


def test_due_messages_with_very_many_headers_fire_a_few_in_a_plan_and_none_is_passed_over() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5, headers=MANY) for _ in range(3)), stage.send(NOW + 5))
    deliveries = []
    while stage.timers():
        partition_plan = stage.commit(NOW + 10, terms=SMALL)
        deliveries.append((fired(partition_plan), partition_plan.complete))
    assert deliveries == [([0], False), ([1], False), ([2], False), ([3], True)]


def test_dead_letters_with_very_many_headers_are_a_few_in_a_plan_and_hold_up_nothing_that_is_due() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5))
    batch: list[Item] = [Dead(offset, Reason.FATAL, None, None, MANY) for offset in (1, 2)]
    (partition_plan,) = stage.plan(NOW + 10, *batch, terms=SMALL).partition_plans
    assert (partition_plan.ingested, len(partition_plan.dead_letters), fired(partition_plan)) == (1, 1, [0])


def test_a_command_fires_messages_with_very_many_headers_a_few_in_a_plan() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 50, retry_id=b"x", headers=MANY) for _ in range(3)))
    command = stage.control(ControlKind.FIRE, b"x")
    partition_plans = [stage.commit(NOW, command, terms=SMALL) for _ in range(3)]
    assert [fired(partition_plan) for partition_plan in partition_plans] == [[0], [1], [2]]
    assert [outcomes(partition_plan) for partition_plan in partition_plans] == [[], [], [(Outcome.FIRED, 3)]]


# Replays, after an operator set the group's offsets back


def replay(stage: Stage, now_ms: int, *items: Arrival) -> PartitionPlan:
    return stage.commit(now_ms, *items)


def test_a_record_below_the_highest_offset_whose_timer_is_pending_is_counted_once() -> None:
    stage = Stage()
    arrival = stage.send(NOW + 50)
    stage.commit(NOW, arrival)
    assert replay(stage, NOW, arrival).stored == 0
    assert stage.dues() == [NOW + 50]


def test_it_is_found_by_its_id_though_it_was_moved() -> None:
    stage = Stage()
    arrival = stage.send(NOW + 50)
    stage.commit(NOW, arrival, stage.control(ControlKind.RESCHEDULE, TimerId(0, 0, NOW + 50), NOW + 9000))
    replay(stage, NOW, arrival)
    assert stage.dues() == [NOW + 9000]


def test_what_had_fired_fires_again() -> None:
    stage = Stage()
    arrival = stage.send(NOW + 50)
    stage.commit(NOW, arrival)
    assert fired(stage.commit(NOW + 60)) == [0]
    assert fired(replay(stage, NOW + 70, arrival)) == [0]


def test_what_had_been_cancelled_is_stored_under_a_new_key() -> None:
    stage = Stage()
    arrival = stage.send(NOW + 50)
    stage.commit(NOW, arrival, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 50)))
    replay(stage, NOW, arrival)
    assert [(timer.due_ms, timer.requested_ms) for timer in stage.timers()] == [(NOW + 51, NOW + 50)]


def test_a_control_record_that_is_read_again_acts_but_does_not_answer_again() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 50), stage.send(NOW + 60, retry_id=b"x"))
    pause = stage.control(ControlKind.PAUSE, "A")
    assert outcomes(stage.commit(NOW, pause)) == [(Outcome.PAUSED, 2)]
    cancel = stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 50), offset=0)
    assert stage.commit(NOW, cancel, pause).control_outcomes == []
    assert stage.dues() == [NOW + 60]


def test_the_highest_offset_stays_when_the_group_is_set_back() -> None:
    stage = Stage()
    first = stage.send(NOW + 50)
    stage.commit(NOW, first, stage.send(NOW + 60))
    partition_plan = replay(stage, NOW, first)
    assert (partition_plan.checkpoint.next_input_offset, partition_plan.checkpoint.highest_input_offset) == (1, 2)


# Control records


@pytest.mark.parametrize("target", [TimerId(0, 0, NOW + 50), b"x"], ids=["timer id", "retry id"])
class TestTargets:
    """One timer, named either way."""

    def stage(self) -> Stage:
        stage = Stage()
        stage.commit(NOW, stage.send(NOW + 50, retry_id=b"x"))
        return stage

    def test_cancel_takes_the_timer_away(self, target: TimerId | bytes) -> None:
        stage = self.stage()
        partition_plan = stage.commit(NOW, stage.control(ControlKind.CANCEL, target))
        assert outcomes(partition_plan) == [(Outcome.CANCELLED, 1)]
        assert removed(partition_plan) == {(0, NOW + 50): REMOVED}
        assert stage.timers() == []

    def test_reschedule_moves_it(self, target: TimerId | bytes) -> None:
        stage = self.stage()
        partition_plan = stage.commit(NOW, stage.control(ControlKind.RESCHEDULE, target, NOW + 900))
        assert outcomes(partition_plan) == [(Outcome.RESCHEDULED, 1)]
        (timer,) = stage.timers()
        assert (timer.due_ms, timer.requested_ms, timer.first_ms) == (NOW + 900, NOW + 900, NOW + 50)

    def test_reschedule_to_the_past_fires_it(self, target: TimerId | bytes) -> None:
        stage = self.stage()
        partition_plan = stage.commit(NOW, stage.control(ControlKind.RESCHEDULE, target, NOW - 1))
        assert fired(partition_plan) == [0]
        assert dict(partition_plan.deliveries[0].headers)["retry-was-due-ms"] == b"%d" % (NOW - 1)
        assert stage.timers() == []

    def test_fire_fires_it_now(self, target: TimerId | bytes) -> None:
        stage = self.stage()
        partition_plan = stage.commit(NOW, stage.control(ControlKind.FIRE, target))
        assert (outcomes(partition_plan), fired(partition_plan)) == ([(Outcome.FIRED, 1)], [0])
        assert stage.timers() == []

    def test_fire_for_a_paused_origin_says_so_and_changes_nothing(self, target: TimerId | bytes) -> None:
        stage = self.stage()
        partition_plan = stage.commit(
            NOW, stage.control(ControlKind.PAUSE, "A"), stage.control(ControlKind.FIRE, target)
        )
        assert outcomes(partition_plan) == [(Outcome.PAUSED, 1), (Outcome.ORIGIN_PAUSED, 0)]
        assert stage.dues() == [NOW + 50]

    @pytest.mark.parametrize("kind", [ControlKind.CANCEL, ControlKind.RESCHEDULE, ControlKind.FIRE])
    def test_what_has_fired_is_not_pending(self, target: TimerId | bytes, kind: ControlKind) -> None:
        stage = self.stage()
        stage.commit(NOW + 50)
        assert outcomes(stage.commit(NOW + 60, stage.control(kind, target, NOW + 99))) == [(Outcome.NOT_PENDING, 0)]


def test_a_control_record_acts_on_all_of_a_retry_id() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + due, retry_id=b"x") for due in (50, 60)))
    partition_plan = stage.commit(NOW, stage.control(ControlKind.RESCHEDULE, b"x", NOW + 99))
    assert outcomes(partition_plan) == [(Outcome.RESCHEDULED, 2)]
    assert stage.dues() == [NOW + 99, NOW + 99]


def test_a_control_record_sees_the_message_before_it_in_the_same_batch() -> None:
    stage = Stage()
    partition_plan = stage.commit(NOW, stage.send(NOW + 50), stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 50)))
    assert outcomes(partition_plan) == [(Outcome.CANCELLED, 1)]
    assert [key[:1] for key, _ in partition_plan.records if key[:1] == b"b"] == []


def test_what_a_control_record_cancels_in_the_step_of_its_due_does_not_fire() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 50), stage.send(NOW + 50))
    partition_plan = stage.commit(NOW + 50, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 50)))
    assert fired(partition_plan) == [1]


def test_a_timer_that_goes_back_to_an_old_due_gets_its_own_key() -> None:
    stage = Stage()
    timer = TimerId(0, 0, NOW + 50)
    stage.commit(NOW, stage.send(NOW + 50))
    stage.commit(NOW, stage.control(ControlKind.RESCHEDULE, timer, NOW + 90))
    partition_plan = stage.commit(NOW, stage.control(ControlKind.RESCHEDULE, timer, NOW + 50))
    assert removed(partition_plan) == {(0, NOW + 90): REMOVED}
    assert [(held.due_ms, held.requested_ms) for held in stage.timers()] == [(NOW + 51, NOW + 50)]


def test_no_record_grows_with_how_often_one_timer_is_moved() -> None:
    stage = Stage()
    timer = TimerId(0, 0, NOW + 50)
    stage.commit(NOW, stage.send(NOW + 50))
    sizes = []
    for moves in range(1, 200):
        partition_plan = stage.commit(NOW, stage.control(ControlKind.RESCHEDULE, timer, NOW + 50 + 7 * moves))
        sizes.append([len(key) + len(value or b"") for key, value in partition_plan.records if key[:1] == b"r"])
    assert sizes == [sizes[0]] * len(sizes)
    assert len(sizes[0]) == 1
    assert stage.dues() == [NOW + 50 + 7 * 199]


def test_a_timer_that_is_moved_to_one_due_again_and_again_finds_a_free_key_in_a_few_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    timer = TimerId(0, 0, NOW + 50)
    stage.commit(NOW, stage.send(NOW + 50))
    moves = [stage.control(ControlKind.RESCHEDULE, timer, NOW + 5_000) for _ in range(1_000)]
    stage.commit(NOW, *moves[:500])
    stage.commit(NOW, *moves[500:])
    get = Mock(wraps=stage.store.get)
    monkeypatch.setattr(stage.store, "get", get)
    stage.plan(NOW, stage.control(ControlKind.RESCHEDULE, timer, NOW + 5_000))
    assert get.call_count < 100
    assert [(held.due_ms, held.requested_ms) for held in stage.timers()] == [(NOW + 5_999, NOW + 5_000)]


def test_an_id_with_the_due_that_the_timer_was_moved_to_names_nothing() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 50), stage.control(ControlKind.RESCHEDULE, TimerId(0, 0, NOW + 50), NOW + 90))
    partition_plan = stage.commit(NOW, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 90)))
    assert outcomes(partition_plan) == [(Outcome.NOT_PENDING, 0)]


def test_removed_dues_are_pruned_and_their_record_goes_when_the_watermark_has_passed_them() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 50), stage.send(NOW + 5))
    stage.commit(NOW, stage.control(ControlKind.CANCEL, TimerId(0, 0, NOW + 50)))
    assert removed(stage.commit(NOW + 10)) == {}
    assert removed(stage.commit(NOW + 60, stage.send(NOW + 99))) == {(0, NOW + 50): None}
    assert rows_of(stage.store, stage.partition.rows.removed) == {}


def test_more_removed_records_than_one_transaction_may_delete_wake_it_again() -> None:
    stage = Stage()
    timers = [stage.send(NOW + 50) for _ in range(600)]
    stage.commit(NOW, *timers)
    stage.commit(NOW, *(stage.control(ControlKind.CANCEL, TimerId(0, timer.offset, NOW + 50)) for timer in timers))
    assert len(removed(stage.commit(NOW + 1000))) == 500
    assert len(removed(stage.commit(NOW + 1000))) == 100
    assert stage.partition.wakes_at_ms() is None
