"""Plans that contradict themselves, their partition or the rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from msgspec.structs import replace

from sidecar.changelog import codec
from sidecar.changelog.codec import BlockKey, Checkpoint, Unfinished
from sidecar.changelog.entry import KEY, lasting
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.apply import apply_committed, check_next_due
from sidecar.engine.items import Item
from sidecar.engine.overlay import Overlay
from sidecar.engine.partition import Partition, State
from sidecar.engine.plan import plan
from sidecar.engine.plan_checks import check_counts, check_due, check_plan
from sidecar.engine.records import block_records
from sidecar.engine.restore import ChangelogRead, Restore
from sidecar.engine.transaction import PartitionPlan
from sidecar.model import Reason, StoredOffset, TimerId
from sidecar.wheel.counts import Counts, CountsDelta
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import IDENTITY, NOW, TERMS, Stage

LATER: Final = NOW + 2_000
_END: Final = NOW + 1_000
"""Of the slot in which the timers of the stage were stored."""


def stage() -> Stage:
    """Return a partition with three timers, one of them cancelled, and room for another plan."""
    made = Stage()
    made.commit(NOW, *(made.send(NOW + due) for due in (500, 600, 90_000)))
    made.commit(NOW, made.control(ControlKind.CANCEL, TimerId(0, 1, NOW + 600)))
    return made


def broken(change: Callable[[PartitionPlan], object]) -> Callable[[], None]:
    """Return what checks a good plan after a change; it fires, stores, cancels, answers and rejects."""

    def check() -> None:
        at = stage()
        items: list[Item] = [
            at.send(LATER + 5_000, retry_id=b"x"),
            at.send(LATER + 70_000),
            at.send(NOW, "gone"),
            at.control(ControlKind.CANCEL, TimerId(0, 2, NOW + 90_000)),
        ]
        (part,) = at.plan(LATER, *items).partition_plans
        check_plan(at.partition, part, LATER, TERMS)  # it is good so far
        change(part)
        check_plan(at.partition, part, LATER, TERMS)

    return check


def with_checkpoint(**changes: Any) -> Callable[[], None]:
    """Return what checks a plan whose checkpoint differs."""

    def change(part: PartitionPlan) -> None:
        part.checkpoint = replace(part.checkpoint, **changes)

    return broken(change)


def with_record(key: bytes, value: bytes | None, at: int = 0) -> Callable[[], None]:
    """Return what checks a plan with one more changelog record."""
    return broken(lambda part: part.records.insert(at, (key, value)))


def with_plan(**changes: Any) -> Callable[[], None]:
    """Return what checks a plan with other fields."""

    def change(part: PartitionPlan) -> None:
        for name, value in changes.items():
            setattr(part, name, value)

    return broken(change)


def count_one_more(part: PartitionPlan) -> None:
    part.counts.slots[0, LATER // 1000 + 9] = 1
    part.counts.origins["A"] += 1


def count_a_passed_slot(part: PartitionPlan) -> None:
    slot = next(iter(part.counts.slots))
    part.counts.slots[0, NOW // 1000] = part.counts.slots.pop(slot)


def misplace_a_dead_letter(part: PartitionPlan) -> None:
    (_, outgoing), *_ = [*part.dead_letters, (Reason.UNFIREABLE, part.deliveries[0])]
    part.dead_letters = [(Reason.UNFIREABLE, outgoing._replace(topic="elsewhere"))]
    part.rejected, part.ingested = 1, part.ingested + 1
    part.checkpoint = replace(part.checkpoint, next_input_offset=99, highest_input_offset=99)


def answer(**changes: Any) -> Callable[[], None]:
    def change(part: PartitionPlan) -> None:
        part.control_outcomes[:] = [each._replace(**changes) for each in part.control_outcomes]

    return broken(change)


def store_a_removed_key(part: PartitionPlan) -> None:
    key = next(iter(part.taken))
    part.mutations.rows[Partition(0).rows.timer + key] = b"entry"


def delete_ahead(part: PartitionPlan) -> None:
    timer = Partition(0).rows.timer
    part.mutations.ranges.append((timer + KEY.pack(NOW + 1, 0), timer + KEY.pack(LATER + 9_000, 0)))


# Boundaries within the engine


def apply_to_another_state() -> None:
    at = stage()
    (part,) = at.plan(LATER).partition_plans
    at.partition.checkpoint = replace(at.partition.checkpoint, sequence=77)
    apply_committed(at.store, at.partition, part, IDENTITY, at.log.commit(part.records))


def apply_before_its_records() -> None:
    at = stage()
    (part,) = at.plan(LATER).partition_plans
    apply_committed(at.store, at.partition, part, IDENTITY, 0)


def count_without_rows() -> None:
    at = stage()
    at.partition.next_due_ms = None
    check_next_due(at.partition)


def overlay() -> Overlay:
    made = Overlay(Partition(0), MemoryStore(), NOW)
    body = lasting(NOW + 5, NOW, 0, 3, 1, b"A", None, None, b"v", [])
    made.store_new(StoredOffset(0), NOW + 5, body, "A", None)
    return made


def stored(made: Overlay) -> bytes:
    (group,) = made.groups.values()
    return group.entries[0]


def store_what_is_due() -> None:
    made = overlay()
    made.store_again(stored(made), NOW, NOW)


def look_through_changes() -> None:
    stage = Stage()
    overlay = Overlay(stage.partition, stage.store, NOW)
    overlay.store_new(StoredOffset(0), NOW + 5, stage.send(NOW + 5).lasting, "A", None)
    overlay.scan(b"", b"\xff", 9, 9)


def remove_twice() -> None:
    made = overlay()
    entry = stored(made)
    made.take(entry)
    made.take(entry)


def lose_an_origin() -> None:
    made = overlay()
    next(iter(made.groups.values())).origins.clear()
    block_records(made, 1, TERMS)


def misplace_a_timer() -> None:
    made = overlay()
    ((level, slot), group), *_ = made.groups.items()
    made.groups.clear()
    made.groups[level, slot + 1] = group
    block_records(made, 1, TERMS)


def due_at(key: bytes) -> None:
    """Scan a timer with this key, behind the one that is due at `NOW`."""
    outgoing: Any = None
    check_due([(key, None, 0, None, outgoing, None)], KEY.pack(NOW, 0), NOW)


def fall_below_zero() -> None:
    delta = CountsDelta()
    delta.add((0, 1), "A", False, -1)
    Counts().plus(delta)


def unknown_item() -> None:
    at = Stage()
    strange: Any = SimpleNamespace(offset=0)
    plan([at.partition], {0: [strange]}, at.store, NOW, TERMS)


def unknown_target() -> None:
    at = stage()
    control: Item = at.control(ControlKind.CANCEL, "neither")
    at.plan(LATER, control)


def move_out_of_order() -> None:
    Partition(3).transition_to(State.RUNNING)


def no_timer() -> None:
    overlay().pending_at(KEY.pack(NOW, 9))


# Changelog


def restored() -> Restore:
    at = stage()
    partition = Partition(0)
    restore = Restore(partition, MemoryStore(), IDENTITY)
    restore.apply(at.log.left_for(restore), "changelog")
    return restore


def apply_again() -> None:
    restore = restored()
    restore.apply([ChangelogRead(0, codec.CHECKPOINT_KEY, codec.encode_checkpoint(Checkpoint()))], "changelog")


def apply_out_of_order() -> None:
    restore = restored()
    at = restore.partition.changelog_offset
    value = codec.encode_checkpoint(Checkpoint())
    restore.apply([ChangelogRead(offset, codec.CHECKPOINT_KEY, value) for offset in (at + 1, at)], "changelog")


def apply_while_spilling() -> None:
    restore = restored()
    restore._ingesting = MemoryStore().ingest([])
    restore.apply([], "changelog")


def not_confirmed() -> None:
    at = stage()
    restore = Restore(Partition(0), at.store, IDENTITY)
    restore.begin(0, at.log.end)
    restore.finish(at.log.end)


ENTRY: Final = bytes(100)

BREAKS: Final[dict[str, Callable[[], object]]] = {
    "a plan does not continue its partition's sequence": with_checkpoint(sequence=9),
    "the watermark moves back": with_checkpoint(watermark_ms=NOW - 1),
    "the watermark passes the time of the plan": with_checkpoint(watermark_ms=LATER + 1),
    "the next input offset moves back": with_checkpoint(next_input_offset=3),
    "the highest input offset moves back": with_checkpoint(highest_input_offset=3),
    "a plan changes the input topic that its offsets count in": with_checkpoint(offset_base=3),
    "a control record in progress is behind the next input offset": with_checkpoint(unfinished=Unfinished(5)),
    "a plan ingests more records than it has input offsets for": with_plan(ingested=5),
    "an ingested record is above the highest input offset": with_checkpoint(next_input_offset=9),
    "an ingested record has no verdict, or two": with_plan(rejected=7),
    "a rejected record has no dead letter": with_plan(rejected=1, stored=2),
    "timers are lost or come from nowhere": broken(count_one_more),
    "the counters by slot and by origin differ": lambda: check_counts(0, Counts({(0, 1): 2}, {"A": 1}), 0),
    "more timers of an origin are deferred than are pending": lambda: check_counts(
        0, Counts({(0, 1): 1}, {"A": 1}, {"A": 2}), 0
    ),
    "timers are pending in a slot that the watermark has passed": broken(count_a_passed_slot),
    "two changelog records of a transaction have one key": with_record(codec.CHECKPOINT_KEY, b""),
    "a transaction does not end with its checkpoint": broken(lambda part: part.records.reverse()),
    "a block is deleted before the watermark has passed it": with_record(
        codec.block_key(BlockKey(LATER + 1, 1, 0)), None
    ),
    "a removed record is deleted before the watermark has passed it": with_record(
        codec.removed_key(StoredOffset(1), LATER + 1), None
    ),
    "a block is stored whose slot is over": with_record(codec.block_key(BlockKey(LATER, 3, 0)), b"block"),
    "a block has the sequence of another transaction": with_record(
        codec.block_key(BlockKey(LATER + 9_000, 1, 0)), b"block"
    ),
    "timers fire before their due, and no control record says so": broken(
        lambda part: setattr(part, "fired_dues_ms", [LATER + 1] * len(part.fired_dues_ms)) or setattr(part, "taken", ())  # type: ignore[func-returns-value]
    ),
    "a dead letter goes to a topic that is no DLQ": broken(misplace_a_dead_letter),
    "an outcome is given twice, or before its control record is ingested": answer(offset=3),
    "an outcome and the number of its timers contradict each other": answer(outcome=Outcome.NOT_PENDING),
    "a timer is stored under a key that the same plan removed": broken(store_a_removed_key),
    "rows are deleted that have not fired": broken(delete_ahead),
    "a timer is due that has been disposed of": lambda: due_at(KEY.pack(NOW, 0)),
    "a timer is read before it is due": lambda: due_at(KEY.pack(NOW + 1, 0)),
    "a plan is applied to another state than it was made for": apply_to_another_state,
    "a transaction ends at an offset of the changelog before its own records": apply_before_its_records,
    "timers are counted that have no row, or the other way round": count_without_rows,
    "a timer is stored that is due or passed already": store_what_is_due,
    "a timer is removed twice": remove_twice,
    "timers are looked through that the plan has changed": look_through_changes,
    "a slot has another number of timers than of origins": lose_an_origin,
    "a timer is in a slot that does not hold its due": misplace_a_timer,
    "a counter fell below zero": fall_below_zero,
    "an item of no known kind": unknown_item,
    "a control record names neither timer nor retry id": unknown_target,
    "no such transition": move_out_of_order,
    "no timer is pending at this key": no_timer,
    "a changelog record is applied twice": apply_again,
    "changelog records are applied out of order": apply_out_of_order,
    "rows that the log does not confirm": not_confirmed,
    "applied between two steps of a spill": apply_while_spilling,
    "a block has no timers": partial(codec.encode_block, 0, {}, []),
    "a block counts other timers than it has": partial(codec.encode_block, 0, {"A": (2, 0)}, [ENTRY]),
    "a block counts more deferred timers than timers": partial(codec.encode_block, 0, {"A": (1, 2)}, [ENTRY]),
    "a checkpoint has a negative offset, time or sequence": lambda: codec.encode_checkpoint(
        Checkpoint(next_input_offset=-1001)
    ),
}
