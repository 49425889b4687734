"""Deletes rows of partitions that moved to other instances, after a while in case they come back."""

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
"""How long rows are kept to save a restore; the same as state.cleanup.delay.ms of Kafka Streams."""
LOOK_EVERY_S: Final = 5.0


class GroupViews(Protocol):
    """The part of `serving.group_view.ClusterView` that is needed here."""

    def views(self) -> Sequence[PartitionView]: ...


class Leftovers:
    """Deletes leftover rows, one partition at a time.

    Not owning a partition says little: while no broker is reachable, no instance owns any. Rows are deleted only when
    another instance has shown the partition as running for ten minutes.

    Args:
        group: The partitions as the group shows them.
        clock: Gives the age of the rows as wall time, which survives a restart.
        instance_id: Id of this instance.
    """

    def __init__(self, group: GroupViews, clock: Clock, instance_id: str) -> None:
        self._group = group
        self._clock = clock
        self._instance_id = instance_id
        self._look_at_s = 0.0

    def maintain(self, store: Store, owned: Collection[int]) -> None:
        """Delete what is old enough; call periodically. Raises StoreFailed."""
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
