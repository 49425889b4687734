"""Plans and the watermark: which timers fire, which are stored, and how far the watermark moves."""

from __future__ import annotations

from dataclasses import replace

from sidecar.changelog.entry import KEY
from sidecar.engine.overlay import Overlay
from sidecar.engine.plan import plan
from sidecar.model import OFFSET_MAX, StoredOffset
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, ORIGINS, TERMS, Stage, fired

BOUNDED = replace(TERMS, deliveries_max=2)


def test_a_timer_is_stored_iff_its_due_is_after_now() -> None:
    stage = Stage()
    partition_plan = stage.commit(NOW, stage.send(NOW - 1), stage.send(NOW), stage.send(NOW + 1))
    assert fired(partition_plan) == [0, 1]
    assert stage.dues() == [NOW + 1]


def test_nothing_is_said_to_have_fired_before_the_first_fire() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 100), stage.send(NOW + 9_000))
    stage.commit(NOW + 50, stage.send(NOW + 9_000))
    assert stage.partition.checkpoint.fired_to_ms is None
    stage.commit(NOW + 100)
    assert stage.partition.checkpoint.fired_to_ms == NOW + 100
    assert stage.restored(MemoryStore()).checkpoint.fired_to_ms == NOW + 100
    stage.commit(NOW + 150, stage.send(NOW + 9_000))
    assert stage.partition.checkpoint.fired_to_ms == NOW + 150


def test_what_fires_at_once_leaves_nothing_in_the_changelog_but_the_checkpoint() -> None:
    stage = Stage()
    partition_plan = stage.commit(NOW, stage.send(NOW))
    assert [key for key, _ in partition_plan.records] == [b"c"]


def test_a_timer_fires_at_its_due_and_not_a_millisecond_before() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 100))
    assert stage.plan(NOW + 99).partition_plans == []
    assert fired(stage.commit(NOW + 100)) == [0]


def test_a_fire_carries_key_value_and_headers_and_says_when_it_was_due() -> None:
    stage = Stage(number=3)
    stage.commit(NOW, stage.send(NOW + 100, value=None, origin_partition=2))
    (fire,) = stage.commit(NOW + 500).deliveries
    assert (fire.topic, fire.partition, fire.key, fire.value) == ("A", 2, b"key", None)
    assert fire.headers == [
        ("trace", None),
        ("retry-attempt", b"2"),
        ("retry-remaining", b"2"),
        ("retry-origin-topic", b"A"),
        ("retry-timer-id", b"3-0-%d" % (NOW + 100)),
        ("retry-was-due-ms", b"%d" % (NOW + 100)),
    ]


def test_what_is_due_at_the_same_time_fires_in_the_order_of_the_input() -> None:
    stage = Stage()
    late, *same = stage.send(NOW + 9), *(stage.send(NOW + 5) for _ in range(3))
    stage.commit(NOW, late, *same)
    assert fired(stage.commit(NOW + 10)) == [1, 2, 3, 0]


def test_after_a_complete_scan_the_watermark_is_now_with_the_greatest_offset() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 99))
    partition_plan = stage.commit(NOW + 10)
    assert (partition_plan.checkpoint.watermark_ms, partition_plan.checkpoint.watermark_offset) == (
        NOW + 10,
        OFFSET_MAX,
    )
    assert partition_plan.complete


def test_after_a_bounded_scan_the_watermark_is_the_last_key_that_was_disposed_of() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(5)))
    partition_plan = stage.commit(NOW + 10, terms=BOUNDED)
    assert fired(partition_plan) == [0, 1]
    assert (partition_plan.checkpoint.watermark_ms, partition_plan.checkpoint.watermark_offset) == (NOW + 5, 1)
    assert not partition_plan.complete


def test_a_bounded_scan_goes_on_between_timers_of_the_same_due() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(5)))
    partition_plans = [stage.commit(NOW + 10, terms=BOUNDED) for _ in range(3)]
    assert [fired(partition_plan) for partition_plan in partition_plans] == [[0, 1], [2, 3], [4]]
    assert [partition_plan.complete for partition_plan in partition_plans] == [False, False, True]


def test_a_scan_is_bounded_by_bytes_as_well() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5, value=bytes(1000)) for _ in range(3)))
    partition_plan = stage.commit(NOW + 10, terms=replace(TERMS, delivery_bytes_max=1500))
    assert fired(partition_plan) == [0, 1]
    assert not partition_plan.complete


def test_many_fired_rows_go_by_one_range_deletion_and_what_is_not_due_stays() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(100)), stage.send(NOW + 11))
    partition_plan = stage.commit(NOW + 10)
    assert len(partition_plan.mutations.ranges) == 1
    assert stage.dues() == [NOW + 11]


def test_the_watermark_does_not_move_back_when_the_clock_does() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW))
    partition_plan = stage.commit(NOW - 5000, stage.send(NOW + 60_000))
    assert partition_plan.checkpoint.watermark_ms == NOW


def test_a_timer_that_the_watermark_covers_is_stored_just_above_it() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW))
    partition_plan = stage.commit(NOW - 5000, stage.send(NOW - 1000))
    assert partition_plan.deliveries == []
    assert [(timer.due_ms, timer.requested_ms) for timer in stage.timers()] == [(NOW + 1, NOW - 1000)]
    assert Overlay(stage.partition, stage.store, NOW).find(StoredOffset(1), NOW - 1000) is not None
    assert dict(stage.commit(NOW + 1).deliveries[0].headers)["retry-was-due-ms"] == b"%d" % (NOW - 1000)


def test_nothing_to_do_is_no_transaction() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5000))
    assert stage.plan(NOW + 1).partition_plans == []


def test_a_plan_that_is_forgotten_has_changed_nothing() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, retry_id=b"x"))
    rows, checkpoint, counts = dict(stage.store.rows), stage.partition.checkpoint, stage.partition.counts
    before = repr(counts)
    stage.plan(NOW + 10, stage.send(NOW + 99, retry_id=b"x", replace=True))
    assert dict(stage.store.rows) == rows
    assert stage.partition.checkpoint is checkpoint
    assert repr(stage.partition.counts) == before


def test_each_transaction_of_the_partition_raises_the_sequence_by_one() -> None:
    stage = Stage()
    partition_plans = [stage.commit(NOW, stage.send(NOW + 50)) for _ in range(3)]
    assert [partition_plan.checkpoint.sequence for partition_plan in partition_plans] == [1, 2, 3]


def test_tombstones_alone_are_a_transaction_without_new_input() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 10))
    stage.commit(NOW + 10)
    assert stage.partition.wakes_at_ms() == NOW + 1000
    partition_plan = stage.commit(NOW + 1000)
    assert partition_plan.deliveries == []
    assert [(key[:1], value is None) for key, value in partition_plan.records] == [(b"b", True), (b"c", False)]
    assert stage.partition.wakes_at_ms() is None


def test_a_block_keeps_its_record_until_the_watermark_is_at_the_end_of_its_slot() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 10))
    assert [value for key, value in stage.commit(NOW + 999).records if key[:1] == b"b"] == []
    assert [value for key, value in stage.commit(NOW + 1000).records if key[:1] == b"b"] == [None]


def test_a_near_slot_is_found_though_a_far_one_was_stored_first() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 10**9))
    stage.commit(NOW, stage.send(NOW + 10))
    assert stage.partition.next_slot_end_ms == NOW + 1000


def test_at_most_five_hundred_blocks_are_tombstoned_at_a_time_and_the_rest_follows() -> None:
    stage = Stage()
    for _ in range(10):
        stage.commit(NOW, *(stage.send(NOW + 1000 * slot + 1) for slot in range(60)))
    later = NOW + 10**6
    partition_plans = [stage.commit(later), stage.commit(later)]
    assert [sum(key[:1] == b"b" for key, _ in partition_plan.records) for partition_plan in partition_plans] == [
        500,
        100,
    ]
    assert stage.partition.wakes_at_ms() is None


def test_partitions_share_the_limit_of_fires_and_each_gets_its_turn() -> None:
    stages = [Stage(number) for number in range(2)]
    shared = stages[0].store
    for stage in stages:
        stage.store = shared
        stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(4)))
    made = plan([stage.partition for stage in stages], {}, shared, NOW + 10, replace(TERMS, deliveries_max=4))
    assert [fired(partition_plan) for partition_plan in made.partition_plans] == [[0, 1], [0, 1]]
    assert made.deliveries == 4
    assert not made.complete


def test_an_origin_that_nothing_is_known_of_bounds_the_scan() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5, "A"), stage.send(NOW + 6, "B"), stage.send(NOW + 7, "A"))
    unsure = replace(TERMS, origins={"A": ORIGINS["A"]})
    made = stage.plan(NOW + 10, terms=unsure)
    assert made.unresolved == {"B"}
    assert not made.complete
    partition_plan = stage.commit(NOW + 10, terms=unsure)
    assert fired(partition_plan) == [0]
    assert stage.partition.watermark == KEY.pack(NOW + 5, 0)
    assert fired(stage.commit(NOW + 10)) == [1, 2]
