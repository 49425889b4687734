"""Sorted files that are ingested, and batches, leave the same rows, whatever the changelog and wherever it is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.changelog.fold import fold
from sidecar.engine.partition import Partition
from sidecar.engine.restore import ChangelogRead, Restore
from tests.property.test_fold import grown, seeds
from tests.simulation.audit import check_fold, check_rows
from tests.simulation.limits import small_limits
from tests.simulation.memory_store import MemoryStore
from tests.simulation.world import IDENTITY


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
        while restore.is_full(dice.choice([1, 5_000])) and not restore.spill():
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
