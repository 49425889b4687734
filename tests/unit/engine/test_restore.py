"""A restored partition is what its changelog says, from an empty folder or from an older one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from sidecar.changelog import codec
from sidecar.changelog.codec import FORMER_ASSIGNMENTS_MAX, Checkpoint
from sidecar.changelog.entry import HEAD
from sidecar.contract.control import ControlKind
from sidecar.engine import restore as restoring
from sidecar.engine.apply import apply_committed, prepare_committed
from sidecar.engine.partition import Partition, State
from sidecar.engine.ports import Mutations
from sidecar.engine.restore import ChangelogRead, Restore, to_spill
from sidecar.engine.rows import Identity, decode_meta, encode_meta
from sidecar.engine.wholeness import ChangelogLost
from sidecar.errors import InvariantViolated, StoreCorrupt
from sidecar.model import TimerId
from tests.simulation.audit import check_fold, check_rows
from tests.simulation.memory_store import MemoryBatch, MemoryStore
from tests.simulation.stage import IDENTITY, NOW, Stage, fired

ONE = {"A": (1, 0)}, [bytes(HEAD.size)]


def lived() -> Stage:
    """Return a partition on which everything has happened once: stored, fired, moved, cancelled, deferred."""
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + due, retry_id=b"x") for due in (5, 50, 500, 5000)))
    stage.commit(NOW + 10, stage.control(ControlKind.RESCHEDULE, TimerId(0, 1, NOW + 50), NOW + 70_000))
    stage.commit(NOW + 20, stage.control(ControlKind.CANCEL, TimerId(0, 3, NOW + 5000)))
    stage.commit(NOW + 30, stage.control(ControlKind.PAUSE, "A"))
    stage.commit(NOW + 600)
    return stage


def restore_into(store: MemoryStore, identity: Identity = IDENTITY) -> tuple[Partition, Restore]:
    partition = Partition(0)
    return partition, Restore(partition, store, identity)


@pytest.mark.parametrize("slice_size", [1, 2, 1000])
def test_an_empty_folder_is_filled_with_what_the_changelog_says(slice_size: int) -> None:
    stage = lived()
    store = MemoryStore()
    partition = stage.restored(store, slice_size=slice_size)
    check_rows(partition, store)
    check_fold(partition, store, stage.folded())
    assert dict(store.rows) == dict(stage.store.rows) | {partition.rows.meta: store.rows[partition.rows.meta]}
    assert partition.counts == stage.partition.counts
    assert partition.checkpoint == stage.partition.checkpoint


def test_an_older_folder_goes_on_from_where_it_stands() -> None:
    stage = lived()
    older = MemoryStore()
    stage.restored(older)
    stage.commit(NOW + 10_000, stage.send(NOW + 20_000))
    partition, restore = restore_into(older)
    start = restore.begin(0, stage.log.end)
    assert start == decode_meta(older.rows[partition.rows.meta]).changelog_offset > 0
    restored = stage.restored(older)
    check_fold(restored, older, stage.folded())
    assert restored.counts == stage.partition.counts


def test_a_folder_that_is_up_to_date_reads_its_last_checkpoint_only_and_has_its_counters() -> None:
    stage = lived()
    partition, restore = restore_into(stage.store)
    left = stage.log.from_offset(restore.begin(0, stage.log.end))
    assert [record.key for record in left] == [codec.CHECKPOINT_KEY]
    assert restore.unconfirmed
    restore.apply(left, "changelog")
    assert not restore.unconfirmed
    assert restore.settle()
    restore.finish(stage.log.end)
    assert partition.counts == stage.partition.counts
    assert partition.next_due_ms == stage.partition.next_due_ms
    assert partition.changelog_offset == stage.log.end


def rolled_back(stage: Stage, now_ms: int) -> None:
    """Do what a broker does that says "committed", ends, and aborts after its restart."""
    (partition_plan,) = stage.plan(now_ms).partition_plans
    apply_committed(stage.store, stage.partition, partition_plan, IDENTITY, stage.log.end + len(partition_plan.records))
    stage.log.abort(len(partition_plan.records))


def test_a_commit_that_the_broker_rolled_back_is_undone_and_fires_again() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + due_ms) for due_ms in (5, 7, 70_000)))
    rolled_back(stage, NOW + 10)
    assert stage.dues() == [NOW + 70_000], "the store took two for fired"
    _, restore = restore_into(stage.store)
    assert stage.log.from_offset(restore.begin(0, stage.log.end)) == []
    assert restore.unconfirmed
    partition = stage.restored(stage.store)
    check_rows(partition, stage.store)
    check_fold(partition, stage.store, stage.folded())
    stage.partition = partition
    assert fired(stage.commit(NOW + 20)) == [0, 1]


def test_a_commit_that_was_rolled_back_is_undone_though_another_owner_went_on_with_its_sequence() -> None:
    stage, other = lived(), lived()
    rolled_back(stage, NOW + 600_000)
    other.log.end = stage.log.end
    other.commit(NOW + 20_000, other.send(NOW + 30_000))
    other.commit(NOW + 20_001, other.send(NOW + 30_000))
    stage.log = other.log
    partition = stage.restored(stage.store)
    assert partition.checkpoint == other.partition.checkpoint
    check_fold(partition, stage.store, other.folded())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_a_part_of_a_committed_plan_is_wiped_and_the_log_is_read_again(share: float) -> None:
    stage = lived()
    stage.commit(NOW + 700, *(stage.send(NOW + due_ms) for due_ms in (800, 5_000, 90_000)))
    sent = [stage.send(NOW + due_ms) for due_ms in (7_000, 8_000, 90_000)]
    (partition_plan,) = stage.plan(NOW + 6_000, *sent).partition_plans
    stage.log.commit(partition_plan.records)
    torn = prepare_committed(stage.store, stage.partition, partition_plan, IDENTITY)
    assert isinstance(torn, MemoryBatch)
    row, unfinished = torn.unfinished or (b"", b"")
    rows = partition_plan.mutations.rows
    part = Mutations()
    part.ranges = partition_plan.mutations.ranges
    part.rows = {row: unfinished, **dict(list(rows.items())[: int(len(rows) * share)])}
    stage.store.apply([part])
    partition = stage.restored(stage.store)
    assert partition.changelog_offset == stage.log.end
    assert partition.checkpoint.sequence == partition_plan.checkpoint.sequence
    check_rows(partition, stage.store)
    check_fold(partition, stage.store, stage.folded())


def owned(assignment: int, *dues: int) -> Stage:
    """Return a partition that an assignment has stored some timers on, and fired one."""
    stage = Stage()
    stage.partition.checkpoint = stage.partition.checkpoint.assigned(assignment)
    stage.commit(NOW, *(stage.send(NOW + due_ms) for due_ms in (5, *dues)))
    stage.commit(NOW + 10)
    return stage


def taken_over(stage: Stage, assignment: int) -> Stage:
    """Return the same partition with its next owner, which stores one timer and fires what is due."""
    after = Stage()
    after.log, after.next_offset = stage.log, stage.next_offset
    after.partition = stage.restored(after.store, assignment=assignment)
    after.partition.transition_to(State.RUNNING)
    after.commit(NOW + 600_000, after.send(NOW + 900_000))
    return after


def restored_from_tail(stage: Stage, left: list[ChangelogRead]) -> Partition:
    """Restore from the folder of `stage` with one slice of a log; it must not start over."""
    partition, restore = restore_into(stage.store)
    start = restore.begin(0, stage.log.end)
    assert start > 0
    restore.apply([record for record in left if record.offset >= start], "changelog")
    assert not restore.refuted
    assert not restore.unconfirmed
    while not restore.settle():
        pass
    restore.finish(stage.log.end)
    return partition


def test_a_folder_is_gone_on_from_though_compaction_removed_its_last_checkpoint() -> None:
    stage = owned(1, 70_000, 800_000)
    other = taken_over(taken_over(stage, 2), 3)
    left = other.log.compacted(random.Random(1), everything=True)
    assert [each.key for each in left].count(codec.CHECKPOINT_KEY) == 1
    stage.log = other.log
    partition = restored_from_tail(stage, left)
    assert partition.checkpoint == other.partition.checkpoint
    assert partition.counts == other.partition.counts
    check_rows(partition, stage.store)
    check_fold(partition, stage.store, other.folded())


@pytest.mark.parametrize("rolled", [False, True], ids=["committed", "rolled back"])
def test_a_later_checkpoint_shows_what_became_of_the_last_one(rolled: bool) -> None:
    stage, other = owned(1, 70_000), owned(1, 70_000)
    if rolled:
        rolled_back(stage, NOW + 80_000)
        other.log.end = stage.log.end
    other = taken_over(other, 2)
    _, restore = restore_into(stage.store)
    tail = other.log.from_offset(restore.begin(0, other.log.end))
    before = dict(stage.store.rows)
    restore.apply([each for each in tail if each.offset > stage.partition.changelog_offset], "changelog")
    assert restore.refuted == rolled
    assert (dict(stage.store.rows) == before) == rolled, "nothing is applied to rows that are refuted"


def test_an_assignment_that_is_forgotten_proves_nothing() -> None:
    stage = owned(1)
    other = stage
    for number in range(2, FORMER_ASSIGNMENTS_MAX + 2):
        other = taken_over(other, number)
    assert other.partition.checkpoint.follows(stage.partition.checkpoint)
    other = taken_over(other, 99)
    assert not other.partition.checkpoint.follows(stage.partition.checkpoint)
    assert len(other.partition.checkpoint.former) == FORMER_ASSIGNMENTS_MAX


def test_an_assignment_that_came_less_far_proves_nothing() -> None:
    first = Checkpoint().assigned(1)
    later = replace(first, sequence=5).assigned(2)
    assert later.follows(replace(first, sequence=5, wall_ms=1))
    assert not later.follows(replace(first, sequence=6))
    assert not replace(later, sequence=8).follows(replace(first, sequence=3, assignment=7))
    assert not replace(later, sequence=8).follows(Checkpoint(sequence=3))


def test_a_restore_that_was_cut_off_before_the_proof_goes_on_behind_what_it_applied() -> None:
    stage = owned(1, 70_000, 800_000)
    other = taken_over(stage, 2)
    left = [each for each in other.log.records if each.offset >= stage.partition.changelog_offset]
    assert left[0].key != codec.CHECKPOINT_KEY
    _, restore = restore_into(stage.store)
    restore.begin(0, other.log.end)
    restore.apply(left[:1], "changelog")
    assert restore.unconfirmed
    stage.log = other.log
    partition = restored_from_tail(stage, left)
    check_rows(partition, stage.store)
    check_fold(partition, stage.store, other.folded())


def test_a_restore_that_was_cut_off_before_the_proof_starts_over_when_the_log_has_none() -> None:
    stage = owned(1, 70_000)
    other = taken_over(stage, 2)
    left = [each for each in other.log.records if each.offset >= stage.partition.changelog_offset]
    _, restore = restore_into(stage.store)
    restore.begin(0, other.log.end)
    restore.apply(left[:1], "changelog")
    _, again = restore_into(stage.store)
    assert again.begin(0, left[0].offset + 1) == 0
    assert again.unconfirmed
    again.start_over()
    assert not again.unconfirmed
    assert dict(stage.store.rows) == {}


def test_nothing_of_a_log_is_applied_to_rows_that_it_does_not_confirm() -> None:
    stage = lived()
    before = dict(stage.store.rows)
    _, restore = restore_into(stage.store)
    restore.begin(0, stage.log.end + 1)
    restore.apply([ChangelogRead(stage.log.end, codec.CHECKPOINT_KEY, codec.encode_checkpoint(Checkpoint()))], "t")
    assert restore.unconfirmed
    assert dict(stage.store.rows) == before
    with pytest.raises(InvariantViolated, match="does not confirm"):
        restore.finish(stage.log.end)


@pytest.mark.parametrize(
    "identity",
    [Identity("other", IDENTITY.changelog_topic_id), IDENTITY._replace(changelog_topic="other")],
    ids=["another cluster", "another changelog"],
)
def test_a_folder_of_something_else_is_set_aside(identity: Identity) -> None:
    stage = lived()
    value = stage.store.rows[stage.partition.rows.meta]
    stage.store.rows[stage.partition.rows.meta] = encode_meta(replace(decode_meta(value), changelog_topic="own"))
    before = dict(stage.store.rows)
    _, restore = restore_into(stage.store, identity)
    with pytest.raises(StoreCorrupt, match="the state folder is of the changelog own on cluster"):
        restore.begin(0, 100)
    assert dict(stage.store.rows) == before


OTHER_TOPIC = IDENTITY._replace(changelog_topic_id="other")


def judged(stage: Stage, identity: Identity, log_start: int, log_end: int, last: Checkpoint | None) -> Partition:
    """Read a log that does not continue the rows, to its end; its last checkpoint decides."""
    before = dict(stage.store.rows)
    partition, restore = restore_into(stage.store, identity)
    assert restore.begin(log_start, log_end) == log_start
    assert restore.unconfirmed
    read = [ChangelogRead(log_end - 2, b"b" + bytes(18), b"a block that is not even decoded")]
    if last is not None:
        read.append(ChangelogRead(log_end - 1, codec.CHECKPOINT_KEY, codec.encode_checkpoint(last)))
    restore.apply(read, "changelog")
    assert dict(stage.store.rows) == before, "nothing is applied before it is decided"
    try:
        restore.start_over()
    except ChangelogLost:
        assert dict(stage.store.rows) == before
        raise
    return partition


def known(stage: Stage, **fields: Any) -> Checkpoint:
    """Return a checkpoint that another assignment wrote after the one that the rows are of."""
    follower = stage.partition.checkpoint.assigned(99)
    return replace(follower, sequence=follower.sequence + 1, changelog_topic_id="other", **fields)


def assigned() -> Stage:
    """Return a stage whose checkpoints have an assignment, as those of a running partition do."""
    stage = lived()
    stage.partition.checkpoint = replace(stage.partition.checkpoint, assignment=7)
    stage.commit(NOW, stage.send(NOW + 70))
    return stage


@pytest.mark.parametrize("kept", ["no checkpoint", "another history", "written by one who did not know"])
def test_rows_are_kept_when_another_topic_does_not_have_what_they_have(kept: str) -> None:
    stage = assigned()
    last = {
        "no checkpoint": None,
        "another history": Checkpoint(sequence=1_000, assignment=5, changelog_topic_id="other"),
        "written by one who did not know": replace(known(stage), changelog_topic_id=IDENTITY.changelog_topic_id),
    }[kept]
    with pytest.raises(ChangelogLost, match=r"Nothing was deleted.*rebuild-changelog.*give-up"):
        judged(stage, OTHER_TOPIC, 0, 100, last)


def test_rows_are_wiped_when_another_topic_continues_their_history() -> None:
    stage = assigned()
    partition = judged(stage, OTHER_TOPIC, 0, 100, known(stage))
    assert dict(stage.store.rows) == {}
    assert partition.checkpoint == Checkpoint()
    assert partition.counts.pending == 0


def test_rows_are_kept_when_the_log_ends_before_them() -> None:
    stage = assigned()
    last = replace(stage.partition.checkpoint, sequence=1)
    with pytest.raises(ChangelogLost, match="and the log ends at 2"):
        judged(stage, IDENTITY, 0, 2, replace(last, assignment=5))


def test_rows_that_the_start_of_the_log_has_passed_are_wiped_when_it_has_a_checkpoint() -> None:
    stage = assigned()
    judged(stage, IDENTITY, 50, 100, Checkpoint(sequence=1_000, assignment=5))
    assert dict(stage.store.rows) == {}
    stage = assigned()
    with pytest.raises(ChangelogLost, match="the topic has no checkpoint"):
        judged(stage, IDENTITY, 50, 100, None)


def test_wiping_leaves_the_rows_of_other_partitions() -> None:
    stage = lived()
    neighbour = Stage(number=1)
    neighbour.store = stage.store
    neighbour.commit(NOW, neighbour.send(NOW + 5))
    judged(stage, IDENTITY, 50, 100, Checkpoint(sequence=1_000))
    assert neighbour.dues() == [NOW + 5]


def test_rows_at_or_below_the_watermark_are_counted_off_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "SETTLE_ROWS_MAX", 2)
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5) for _ in range(5)), stage.send(NOW + 90))
    stage.commit(NOW + 10)
    store = MemoryStore()
    partition, restore = restore_into(store)
    restore.begin(0, stage.log.end)
    restore.apply(stage.log.records, "changelog")
    while not restore.spill():
        pass
    assert [restore.settle() for _ in range(3)] == [False, False, True]
    restore.finish(stage.log.end)
    check_rows(partition, store)
    assert partition.counts.pending == 1


def test_a_batch_that_is_full_by_bytes_is_not_taken_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "SETTLE_BYTES_MAX", 2000)
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5, value=bytes(1500)) for _ in range(6)))
    stage.commit(NOW + 10)
    partition = stage.restored(MemoryStore())
    assert partition.counts.pending == 0


def test_the_restore_that_holds_most_spills_first_and_to_its_end() -> None:
    restores = []
    for value_bytes in (100, 3000, 200):
        stage = Stage()
        stage.commit(NOW, stage.send(NOW + 5, value=bytes(value_bytes)))
        _, restore = restore_into(MemoryStore())
        restore.begin(0, stage.log.end)
        restore.apply(stage.log.records, "changelog")
        restores.append(restore)
    small, largest, _ = restores
    held = sum(each.buffered_bytes for each in restores)

    assert to_spill(restores, held + 1) is None
    assert to_spill(restores, held) is largest
    assert not small.spill()
    assert to_spill(restores, held) is small
    while not small.spill():
        assert to_spill(restores, held) is small
    assert to_spill(restores, held) is None
    assert to_spill([], 0) is None


def test_a_restore_that_was_cut_off_settles_all_rows_though_its_watermark_is_the_new_one() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 90))
    stage.commit(NOW + 10)
    store = MemoryStore()
    _, restore = restore_into(store)
    restore.begin(0, stage.log.end)
    restore.apply(stage.log.records, "changelog")
    partition = stage.restored(store)  # a new process
    assert partition.counts.pending == 1
    check_rows(partition, store)
