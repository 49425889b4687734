"""Plans and sizes: which records are tried, which are cut, which wait for the DLQ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.changelog.codec import BlockKey, Closed, Closure, decode_block, decode_key
from sidecar.changelog.entry import KEY, MOVING
from sidecar.contract.control import ControlKind
from sidecar.engine.items import Dead
from sidecar.engine.ports import Origin
from sidecar.engine.transaction import PartitionPlan, Terms
from sidecar.model import Reason, StoredOffset, TimerId
from tests.simulation.audit import rows_of
from tests.simulation.stage import NOW, TERMS, Stage, fired

TRIED = replace(TERMS, compressed=True, origins={"A": Origin(4, 5_000)}, dlq_max_message_bytes=5_000)
LARGE = MOVING.size + len(Stage().send(NOW + 5, value=bytes(8_000)).lasting)
"""Bytes of the entry of a large message."""


def dead(stage: Stage, value: bytes = b"v") -> Dead:
    offset, stage.next_offset = stage.next_offset, stage.next_offset + 1
    return Dead(offset, Reason.FATAL, b"k", value, [("h", b"v")])


def entries(stage: Stage) -> list[bytes]:
    return list(rows_of(stage.store, stage.partition.rows.timer).values())


def dead_letters(partition_plan: PartitionPlan) -> list[tuple[Reason, int]]:
    """Return reason and size of the value of each dead letter."""
    return [(reason, len(dead_letter.value or b"")) for reason, dead_letter in partition_plan.dead_letters]


def blocks(partition_plan: PartitionPlan) -> list[int]:
    """Return how many entries each block has."""
    found = [(decode_key(key), value) for key, value in partition_plan.records]
    return [len(decode_block(value).entries) for key, value in found if isinstance(key, BlockKey) and value]


def test_what_may_fit_compressed_is_fired_and_a_letter_goes_whole() -> None:
    stage = Stage()
    partition_plan = stage.commit(NOW, stage.send(NOW, value=bytes(9_000)), dead(stage, bytes(9_000)), terms=TRIED)
    assert (fired(partition_plan), dead_letters(partition_plan)) == ([0], [(Reason.FATAL, 9_000)])


def test_what_its_origin_refused_is_too_large_and_a_letter_that_was_refused_is_cut() -> None:
    stage = Stage()
    source, other = KEY.pack(NOW, 0), KEY.pack(0, 1)
    terms = replace(
        TRIED,
        unfireable={(0, source): (Reason.TOO_LARGE, "A takes less")},
        cut_dead_letters={(0, source): 5_000, (0, other): 0},
    )
    partition_plan = stage.commit(NOW, stage.send(NOW, value=bytes(9_000)), dead(stage), terms=terms)
    assert dead_letters(partition_plan) == [(Reason.TOO_LARGE, 0), (Reason.FATAL, 0)]
    first, second = (dict(dead_letter.headers) for _, dead_letter in partition_plan.dead_letters)
    assert (first["retry-dlq-truncated"], second["retry-dlq-truncated"]) == (b"value", b"value,headers,key")


def test_while_the_dlq_takes_nothing_a_partition_is_taken_in_up_to_what_must_go_there() -> None:
    stage = Stage()
    items = stage.send(NOW + 5), stage.send(NOW), dead(stage), stage.send(NOW)
    made = stage.plan(NOW, *items, terms=replace(TERMS, dlq_open=False))
    (partition_plan,) = made.partition_plans
    assert (
        partition_plan.ingested,
        fired(partition_plan),
        partition_plan.stored,
        partition_plan.checkpoint.next_input_offset,
    ) == (2, [1], 2, 2)
    assert (made.left, made.waits_for) == ({0: items[2:]}, {0: "dlq"})


def test_due_timers_fire_though_the_first_record_waits_for_the_dlq() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5))
    item = dead(stage)
    made = stage.plan(NOW + 5, item, terms=replace(TERMS, dlq_open=False))
    assert fired(made.partition_plans[0]) == [0]
    assert made.left == {0: (item,)}


@pytest.mark.parametrize(
    "terms",
    [replace(TRIED, unstorable={(0, StoredOffset(0), LARGE): "no"}), replace(TERMS, changelog_max_message_bytes=8_000)],
    ids=["refused", "measured"],
)
def test_a_message_that_the_changelog_does_not_take_is_too_large_unless_it_fires_at_once(terms: Terms) -> None:
    stage = Stage()
    large = stage.send(NOW + 5, value=bytes(8_000))
    partition_plan = stage.commit(NOW, large, stage.send(NOW + 5), terms=terms)
    assert (dead_letters(partition_plan), partition_plan.stored, stage.dues()) == (
        [(Reason.TOO_LARGE, 8_000)],
        1,
        [NOW + 5],
    )
    made = Stage().plan(NOW + 5, large, terms=replace(terms, origins=TERMS.origins))
    assert fired(made.partition_plans[0]) == [0]
    made = Stage().plan(NOW, large, terms=replace(terms, dlq_open=False))
    assert (made.left, made.waits_for) == ({0: (large,)}, {0: "dlq"})


def test_a_message_of_another_size_at_the_offset_of_one_that_was_refused_is_stored() -> None:
    """The retry topic was made anew before anything was committed: its first message has the offset of the other."""
    stage = Stage()
    terms = replace(TRIED, unstorable={(0, StoredOffset(0), LARGE): "no"})
    partition_plan = stage.commit(NOW, stage.send(NOW + 5), terms=terms)
    assert (dead_letters(partition_plan), stage.dues()) == ([], [NOW + 5])


def test_a_timer_that_cannot_be_stored_again_goes_to_the_dlq_when_it_is_moved_or_deferred() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5), stage.send(NOW + 5))
    move = stage.control(ControlKind.RESCHEDULE, TimerId(0, 0, NOW + 5), NOW + 9_000)
    size = len(entries(stage)[0])
    partition_plan = stage.commit(NOW, move, terms=replace(TRIED, unstorable={(0, StoredOffset(0), size): "no"}))
    assert (dead_letters(partition_plan), stage.dues()) == ([(Reason.TOO_LARGE, 5)], [NOW + 5])
    closed = {"A": Closed(Closure.UNREACHABLE, NOW)}
    refused = {(0, StoredOffset(1), size): "no"}
    partition_plan = stage.commit(NOW + 5, terms=replace(TRIED, closed=closed, unstorable=refused))
    assert (dead_letters(partition_plan), partition_plan.deferred, stage.dues()) == ([(Reason.TOO_LARGE, 5)], {}, [])


def test_blocks_fit_the_changelog_and_each_timer_is_one_when_that_is_asked_for() -> None:
    def stored(terms: Terms) -> list[int]:
        stage = Stage()
        return blocks(stage.commit(NOW, *(stage.send(NOW + 500, value=bytes(900)) for _ in range(20)), terms=terms))

    assert stored(TERMS) == [20]
    assert stored(replace(TERMS, changelog_max_message_bytes=10_000)) == [4] * 5
    assert stored(replace(TERMS, block_bytes_max=1)) == [1] * 20


def test_a_plan_that_fires_nothing_leaves_what_is_due_to_the_next() -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5))
    partition_plan = stage.commit(NOW + 9, stage.send(NOW + 500), terms=replace(TERMS, deliveries_max=0))
    assert (partition_plan.deliveries, partition_plan.stored, partition_plan.complete) == ([], 1, False)
    assert fired(stage.commit(NOW + 9)) == [0]
