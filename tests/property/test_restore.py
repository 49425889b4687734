"""Sorted files that are ingested, and batches, leave the same rows, whatever the changelog and wherever it is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.partition import Partition
from sidecar.engine.restore import ChangelogRead, Restore, to_spill
from tests.fold import fold
from tests.property.test_fold import grown, seeds
from tests.simulation.audit import check_fold, check_rows
from tests.simulation.limits import small_limits
from tests.simulation.memory_store import MemoryStore
from tests.simulation.world import IDENTITY, World


def restored(
    records: Sequence[ChangelogRead], end: int, dice: random.Random, *, ingests: bool
) -> tuple[Partition, MemoryStore]:
    """Restore from the start in slices at random, with spills between them at random."""
    store, partition = MemoryStore(), Partition(0)
    restore = Restore(partition, store, IDENTITY)
    restore.begin(0, end)
    if not ingests:
        restore._bulk = None
    while records:
        size = dice.choice([1, 3, 10, 1000])
        restore.apply(records[:size], "changelog")
        records = records[size:]
        while to_spill([restore], dice.choice([1, 5_000])) and not restore.spill():
            pass
    while not restore.settle():
        pass
    restore.finish(end)
    return partition, store


@settings(max_examples=25, deadline=None)
@given(seeds, st.booleans(), st.booleans())
def test_ingestion_leaves_the_rows_that_batches_leave(seed: int, compacted: bool, everything: bool) -> None:
    with small_limits():
        world = grown(seed)
        records = world.log.compacted(world.rng, everything=everything) if compacted else world.log.records
        ingested, files = restored(records, world.log.end, random.Random(seed), ingests=True)
        written, batches = restored(records, world.log.end, random.Random(seed + 1), ingests=False)
    assert dict(files.rows) == dict(batches.rows)
    assert (ingested.counts, ingested.checkpoint) == (written.counts, written.checkpoint)
    check_rows(ingested, files)
    check_fold(ingested, files, fold((record.key, record.value) for record in records))


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_an_old_state_and_a_compacted_tail_give_what_the_whole_log_says(seed: int) -> None:
    """All that compaction may remove is gone: old checkpoints, and every tombstone with what it deleted."""
    with small_limits():
        world = World(seed)
        store = MemoryStore()
        for age in range(3):
            world.restore(cold=True)  # another owner
            for _ in range(12):
                world.send()
                world.rng.choice([world.command, world.shuffle_one_timer, world.pause])()
                world.turn_clock()
                world.take_step()
            if age == 0:
                store.rows = world.store.rows.copy()
        left = world.log.compacted(world.rng, everything=True)
        partition = Partition(0)
        restore = Restore(partition, store, IDENTITY)
        start = restore.begin(0, world.log.end)
        restore.apply([record for record in left if record.offset >= start], "changelog")
        assert start > 0
        assert not restore.refuted
        assert not restore.unconfirmed
        while not restore.settle():
            pass
        restore.finish(world.log.end)
    assert (partition.counts, partition.next_due_ms) == (world.partition.counts, world.partition.next_due_ms)
    check_rows(partition, store)
    check_fold(partition, store, fold((record.key, record.value) for record in left))
