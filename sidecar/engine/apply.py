"""Applies a committed plan: the store first, in one batch, then memory."""

from __future__ import annotations

from sidecar.engine.partition import Partition
from sidecar.engine.ports import Prepared, Store
from sidecar.engine.rows import Identity, meta_row
from sidecar.engine.transaction import PartitionPlan


def apply_committed(
    store: Store,
    partition: Partition,
    partition_plan: PartitionPlan,
    identity: Identity,
    changelog_offset: int,
    prepared: Prepared | None = None,
) -> None:
    """Bring store and memory up to a committed plan.

    Args:
        changelog_offset: The offset after the last record of the transaction in the changelog, which is its checkpoint.
        prepared: The plan's mutations, if already prepared.
    """
    changes = store.prepare([partition_plan.mutations]) if prepared is None else prepared
    meta = meta_row(identity, partition_plan.checkpoint, changelog_offset, to_confirm=changelog_offset - 1)
    changes.put(partition.rows.meta, meta)
    store.write(changes)
    partition.checkpoint = partition_plan.checkpoint
    partition.counts = partition_plan.counts
    partition.closures_over = False
    partition.changelog_offset = changelog_offset
    partition.look_ahead(store, partition_plan.stored_end_ms)
