"""Applies a committed plan: the store first, as a whole, then memory."""

from __future__ import annotations

from sidecar.engine.partition import Partition
from sidecar.engine.ports import Prepared, Store
from sidecar.engine.rows import NOT_RESTORED, Identity, meta_row
from sidecar.engine.transaction import PartitionPlan
from sidecar.errors import invariant


def prepare_committed(
    store: Store, partition: Partition, partition_plan: PartitionPlan, identity: Identity
) -> Prepared:
    """Prepare the mutations of a plan for `apply_committed`.

    A part of them would be of no use: the next start wipes a partition with such a meta row, and restores it.
    """
    unfinished = meta_row(identity.of(partition.checkpoint), partition.checkpoint, NOT_RESTORED, restored=False)
    return store.prepare([partition_plan.mutations], (partition.rows.meta, unfinished))


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
    sequence = partition_plan.checkpoint.sequence
    invariant(
        (partition.number, partition.checkpoint.sequence + 1) == (partition_plan.number, sequence),
        "a plan is applied to another state than it was made for",
        partition=partition.number,
        sequence=partition.checkpoint.sequence,
        plan_of=partition_plan.number,
        plan_sequence=sequence,
    )
    invariant(
        changelog_offset >= len(partition_plan.records),
        "a transaction ends at an offset of the changelog before its own records",
        partition=partition.number,
        changelog_offset=changelog_offset,
        records=len(partition_plan.records),
    )
    changes = prepare_committed(store, partition, partition_plan, identity) if prepared is None else prepared
    checkpoint = partition_plan.checkpoint
    meta = meta_row(identity.of(checkpoint), checkpoint, changelog_offset, to_confirm=changelog_offset - 1)
    changes.put(partition.rows.meta, meta)
    store.write(changes)
    partition.checkpoint = partition_plan.checkpoint
    partition.counts = partition_plan.counts
    partition.closures_over = False
    partition.delivered = partition_plan.delivered_after
    partition.set_back_ms = partition_plan.set_back_ms
    partition.changelog_offset = changelog_offset
    partition.look_ahead(store, partition_plan.stored_end_ms)
    check_next_due(partition)


def check_next_due(partition: Partition) -> None:
    """Raise InvariantViolated if the rows above the watermark and the counters contradict each other."""
    invariant(
        (partition.next_due_ms is None) == (not partition.counts.origins),
        "timers are counted that have no row, or the other way round",
        partition=partition.number,
        pending=partition.counts.pending,
        next_due_ms=partition.next_due_ms,
    )
