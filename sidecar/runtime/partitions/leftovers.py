"""Rows of partitions that other instances have now: kept for a while in case they come back, then deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

import structlog

from sidecar.clock import Clock
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import State
from sidecar.engine.ports import Mutations, Store
from sidecar.engine.rows import Rows, decode_due, encode_due
from sidecar.store.inspect import partitions_of

log = structlog.get_logger(__name__)

KEPT_MS: Final = 10 * 60_000
"""So long the rows may save a restore: Kafka Streams keeps its own as long (state.cleanup.delay.ms)."""
LOOK_EVERY_S: Final = 5.0


class GroupViews(Protocol):
    """What is asked of `runtime.cluster.ClusterView`."""

    def views(self) -> Sequence[PartitionView]: ...


class Leftovers:
    """Deletes what is left of partitions, one of them at a look.

    That an instance does not own a partition says little: with no broker in reach nobody owns any. So rows go only when
    another instance shows the partition as running, now and ten minutes ago.

    Args:
        told: What the group says of its partitions.
        clock: Wall time for the age of the rows, since a restart must not begin it anew.
        instance_id: This instance's own.
    """

    def __init__(self, group: GroupViews, clock: Clock, instance_id: str) -> None:
        self._group = group
        self._clock = clock
        self._instance_id = instance_id
        self._look_at_s = 0.0

    def maintain(self, store: Store, owned: Collection[int]) -> None:
        """Call now and then. Raises StoreFailed."""
        now_s = self._clock.monotonic_s()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        left = [number for number in partitions_of(store) if number not in owned]
        if left:
            self._look_at(store, set(left) & self._running_elsewhere())

    def _running_elsewhere(self) -> set[int]:
        views = self._group.views()
        return {each.partition for each in views if each.state == State.RUNNING and each.owner != self._instance_id}

    def _look_at(self, store: Store, moved: Iterable[int]) -> None:
        now_ms = self._clock.wall_ms()
        changes = Mutations()
        for number in sorted(moved):
            rows = Rows(number)
            since = store.get(rows.elsewhere)
            if since is None:
                changes.rows[rows.elsewhere] = encode_due(now_ms)
            elif now_ms - decode_due(since) >= KEPT_MS and not changes.ranges:
                changes.ranges = rows.ranges()
                log.info("rows_deleted", partition=number)
        if changes.rows or changes.ranges:
            store.apply([changes])
